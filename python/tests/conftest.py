import numpy as np
import pytest


@pytest.fixture
def rng():
    return np.random.default_rng(20240719)


@pytest.fixture(params=("cpu", "cuda"))
def device(request):
    """Each device that torch has here; torch itself is asked for by the files that use this."""
    from torch_help import need

    need(request.param)
    return request.param
