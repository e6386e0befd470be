"""Eight threads at once, shared plans, forked children, and no growth over many calls."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from judge import check, operands

import tessera


def test_eight_threads_with_shapes_of_their_own(rng):
    cases = [operands(rng, np.float32, 1, 16 + 9 * i, 20 + 7 * i, 4, 2, 16) for i in range(8)]
    expected = [tessera.attention(*case, causal=True) for case in cases]
    start = threading.Barrier(8)

    def work(i):
        start.wait()
        return all(np.array_equal(tessera.attention(*cases[i], causal=True), expected[i]) for _ in range(30))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [True] * 8


def test_eight_threads_on_one_plan(rng):
    plan = tessera.Plan("fwd f32 b1 hq2 sq64 d32 cpu")
    start = threading.Barrier(8)

    def work(seed):
        q, k, v = operands(np.random.default_rng(seed), np.float32, 1, 64, 64, 2, 2, 32)
        o = np.empty_like(q)
        start.wait()
        for _ in range(20):
            plan.run(q=q, k=k, v=v, o=o)
        check(o, q, k, v)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


def test_errors_stay_in_their_thread(rng):
    q, k, v = operands(rng, np.float32)
    expected = tessera.attention(q, k, v)

    def work(i):
        for _ in range(50):
            if i % 2:
                with pytest.raises(ValueError, match="softcap"):
                    tessera.attention(q, k, v, softcap=-1.0)
            else:
                assert np.array_equal(tessera.attention(q, k, v), expected)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


def test_the_gil_is_released(rng):
    """While one thread is inside a long run, another one keeps counting."""
    q, k, v = operands(rng, np.float32, 1, 3000, 3000, 4, 4, 64)
    running, counts = threading.Event(), []

    def work():
        running.set()
        tessera.attention(q, k, v)
        running.clear()

    thread = threading.Thread(target=work)
    thread.start()
    running.wait()
    while running.is_set():
        counts.append(1)
    thread.join()
    assert len(counts) > 1000


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_runs(rng):
    arrays = operands(rng, np.float32)
    expected = tessera.attention(*arrays)
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(tessera.attention(*arrays), expected) else 1)
    for _ in range(600):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        threading.Event().wait(0.1)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
        pytest.fail("the child did not finish within 60 s")
    assert os.waitstatus_to_exitcode(status) == 0


def _resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="no /proc/self/statm to read the resident size from")
def test_no_growth_over_2000_calls(rng):
    q, k, v = operands(rng, np.float32, 1, 64, 64, 2, 2, 64)
    bias = np.ones((64, 64), bool)

    def one(i):
        tessera.attention(q, k, v, bias=bias, return_lse=True)
        tessera.attention(q, k, v, scale=1.0 + i)  # a plan of its own
        tessera.attention(_Exporter(q), _Exporter(k), _Exporter(v))
        with pytest.raises(ValueError):
            tessera.attention(q, k, v, softcap=-1.0)

    for i in range(2000):
        one(i)
    before = _resident_bytes()
    for i in range(2000, 4000):
        one(i)
    # The outputs of 2000 calls that leaked would be 64 MiB, their exports and plans several more.
    assert _resident_bytes() - before < 4 << 20


class _Exporter:
    def __init__(self, array):
        self.array = array

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **arguments):
        return self.array.__dlpack__()
