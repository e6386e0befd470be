"""Arrays that are not NumPy's: DLPack in both forms, __array_interface__, array-API namespaces, PyTorch."""

import ctypes
import gc
import sys
import weakref

import numpy as np
import pytest
from judge import check, evaluate, operands

import tessera
from tessera import _c, _dlpack

EXPECT = dict(causal=True)


def _versioned_capsule(array):
    if np.lib.NumpyVersion(np.__version__) < "2.1.0":
        pytest.skip(f"NumPy {np.__version__} makes no versioned capsules, 2.1 does")
    return array.__dlpack__(max_version=(1, 0))


class Producer:
    """A DLPack producer of the old form, over a NumPy array; counts what it exports."""

    def __init__(self, array, device=(1, 0)):
        self.array, self.device, self.exports = array, device, 0

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream=None):
        self.exports += 1
        return self.array.__dlpack__()


class Versioned(Producer):
    """The form of DLPack 1.0, which may also be read-only."""

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        self.exports += 1
        assert max_version is not None
        return _versioned_capsule(self.array)


class Interface:
    """Nothing but an __array_interface__."""

    def __init__(self, array):
        self.__array_interface__ = array.__array_interface__
        self.array = array


@pytest.mark.parametrize("kind", [Producer, Versioned, Interface])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_generic_arrays(rng, kind, dtype):
    arrays = operands(rng, dtype)
    wrapped = [kind(x) for x in arrays]
    o, lse = tessera.attention(*wrapped, return_lse=True, **EXPECT)
    check(o, *arrays, lse, **EXPECT)
    assert np.array_equal(o, tessera.attention(*arrays, **EXPECT))


def test_versioned_capsules_may_be_read_only(rng):
    arrays = operands(rng, np.float32)
    for x in arrays:
        x.flags.writeable = False
    capsule = _versioned_capsule(arrays[0])
    assert _dlpack.read(capsule, "q")[1] is True
    check(tessera.attention(*map(Versioned, arrays), **EXPECT), *arrays, **EXPECT)
    with pytest.raises(ValueError, match="o: read-only"):
        tessera.plan(*arrays).run(q=arrays[0], k=arrays[1], v=arrays[2], o=Versioned(arrays[0]))


@pytest.mark.parametrize("kind", [Producer, Versioned, Interface])
def test_strides(rng, kind):
    arrays = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for x in operands(rng, np.float32)]
    check(tessera.attention(*map(kind, arrays), **EXPECT), *arrays, **EXPECT)
    with pytest.raises(ValueError, match="q.*stride"):
        tessera.attention(kind(arrays[0][:, ::-1]), *arrays[1:])


def test_exports_are_let_go(rng):
    arrays = [x.view(_Tracked) for x in operands(rng, np.float32)]
    references = [weakref.ref(x) for x in arrays]
    producers = [Versioned(x) for x in arrays]
    tessera.attention(*producers)
    assert [p.exports for p in producers] == [1, 1, 1]
    del arrays, producers
    gc.collect()
    assert [r() for r in references] == [None, None, None]


class _Tracked(np.ndarray):
    pass


def test_mask_and_vectors_by_dlpack(rng):
    arrays = operands(rng, np.float32)
    options = dict(
        bias=rng.uniform(size=(37, 53)) < 0.5, sinks=np.ones(4, np.float32), alibi_slopes=np.full(4, 0.1, np.float32)
    )
    o = tessera.attention(*arrays, **{name: Versioned(x) for name, x in options.items()})
    check(o, *arrays, **options)


def test_devices_that_are_not_there(rng):
    q, k, v = operands(rng, np.float32)
    with pytest.raises(ValueError, match="q: on a device of DLPack type 7"):
        tessera.attention(Producer(q, (7, 0)), k, v)
    with pytest.raises(ValueError, match="k: on device 0, but q is on -1"):
        tessera.attention(q, Producer(k, (2, 0)), v)


def test_not_a_capsule(rng):
    class Liar(Producer):
        def __dlpack__(self, **_):
            return 5

    q, k, v = operands(rng, np.float32)
    with pytest.raises(ValueError, match="q: __dlpack__ gave no"):
        tessera.attention(Liar(q), k, v)


def test_a_used_capsule_is_refused(rng):
    q, k, v = operands(rng, np.float32)
    capsule = q.__dlpack__()
    holder = Producer(q)
    holder.__dlpack__ = None
    np.from_dlpack(_Once(capsule))
    with pytest.raises(ValueError, match="q: __dlpack__ gave no unused"):
        tessera.attention(_Once(capsule), k, v)


class _Once:
    def __init__(self, capsule):
        self.capsule = capsule

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **_):
        return self.capsule


def test_host_tensor_is_handed_over_once():
    tensor = _dlpack.HostTensor((2, 3), _c.F32)
    ctypes.memset(tensor.pointer, 0, 24)
    assert tensor.pointer % 64 == 0
    array = np.from_dlpack(tensor)
    del tensor
    gc.collect()
    assert array.shape == (2, 3) and array.dtype == np.float32 and np.all(array == 0)
    tensor = _dlpack.HostTensor((2, 3), _c.F64)
    tensor.__dlpack__()  # never consumed: freed with the tensor
    with pytest.raises(BufferError):
        tensor.__dlpack__()


def test_ml_dtypes_bfloat16_by_name(rng):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    arrays = operands(rng, ml_dtypes.bfloat16)
    o = tessera.attention(*arrays)
    assert o.dtype == ml_dtypes.bfloat16
    check(o, *arrays)


def test_array_api_namespace(rng):
    xp = pytest.importorskip("array_api_strict", reason="array-api-strict is not installed")
    arrays = operands(rng, np.float32)
    o, lse = tessera.attention(*(xp.asarray(x) for x in arrays), return_lse=True, **EXPECT)
    assert type(o) is type(xp.asarray(arrays[0])) and type(lse) is type(o)
    check(np.asarray(o), *arrays, np.asarray(lse), **EXPECT)


class TestJax:
    @pytest.fixture(autouse=True)
    def jax(self):
        jax = pytest.importorskip("jax", reason="JAX is not installed")
        with jax.default_device(jax.devices("cpu")[0]):  # where there is a GPU, JAX would put arrays there
            yield jax

    @pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
    def test_arrays_come_and_go(self, jax, rng, name):
        ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
        arrays = operands(rng, np.dtype(getattr(ml_dtypes, name, name)))
        tensors = [jax.numpy.asarray(x) for x in arrays]
        o, lse = tessera.attention(*tensors, return_lse=True, **EXPECT)
        assert isinstance(o, jax.Array) and isinstance(lse, jax.Array) and o.dtype == tensors[0].dtype
        check(np.asarray(o), *arrays, np.asarray(lse), **EXPECT)

    def test_outputs_are_not_written_into_constants(self, jax, rng):
        q, k, v = (jax.numpy.asarray(x) for x in operands(rng, np.float32))
        with pytest.raises(ValueError, match="o: read-only"):
            tessera.plan(q, k, v).run(q=q, k=k, v=v, o=jax.numpy.zeros_like(q))


class TestTorch:
    @pytest.fixture(autouse=True)
    def torch(self):
        return pytest.importorskip("torch", reason="PyTorch is not installed")

    @pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16"])
    def test_dtypes(self, torch, name):
        generator = torch.Generator().manual_seed(1)
        dtype = getattr(torch, name)
        q = torch.randn(2, 37, 4, 32, generator=generator, dtype=torch.float64).to(dtype)
        k, v = (torch.randn(2, 53, 2, 32, generator=generator, dtype=torch.float64).to(dtype) for _ in "kv")
        o, lse = tessera.attention(q, k, v, causal=True, return_lse=True)
        assert type(o) is torch.Tensor and o.dtype is dtype and o.is_contiguous() and o.device == q.device
        expected, expected_lse = evaluate(*(x.double().numpy() for x in (q, k, v)), causal=True)
        slack = {"float64": 1e-13, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}[name]
        assert np.abs(o.double().numpy() - expected).max() < slack
        assert np.abs(lse.double().numpy() - expected_lse).max() < 1e-3

    def test_same_as_numpy_and_sdpa(self, torch, rng):
        arrays = operands(rng, np.float32, heads_kv=4)
        tensors = [torch.from_numpy(x) for x in arrays]
        o = tessera.attention(*tensors, causal=False)
        assert np.array_equal(o.numpy(), tessera.attention(*arrays))
        other = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in tensors)).transpose(1, 2)
        assert torch.allclose(o, other, atol=1e-5)

    def test_views_masks_and_empty_tensors(self, torch):
        x = torch.randn(3, 5, 3, 4, 8)
        q, k, v = x.unbind(2)
        mask = torch.rand(5, 5) < 0.7
        o = tessera.attention(q, k, v, bias=mask)
        check(o.numpy(), q.numpy(), k.numpy(), v.numpy(), bias=mask.numpy())
        empty = torch.empty(0, 5, 4, 8)
        assert tessera.attention(empty, empty, empty).shape == (0, 5, 4, 8)

    def test_plan_into_tensors(self, torch):
        q = torch.randn(1, 6, 2, 16)
        o = torch.full_like(q, float("nan"))
        tessera.plan(q, q, q).run(q=q, k=q, v=q, o=o)
        assert torch.equal(o, tessera.attention(q, q, q))

    def test_gradients_are_not_lost_silently(self, torch):
        q = torch.randn(1, 6, 2, 16, requires_grad=True)
        o = tessera.attention(q, q, q)
        assert o.requires_grad and torch.equal(o, tessera.attention(q.detach(), q.detach(), q.detach()))
        with pytest.raises(NotImplementedError, match="q: requires a gradient"):
            tessera.Plan("fwd f32 hq2 sq6 d16").run(q=q, k=q, v=q, o=torch.empty_like(q))

    def test_what_has_no_memory_is_refused(self, torch):
        q = torch.randn(1, 6, 2, 16)
        with pytest.raises(ValueError, match="q: on device meta"):
            tessera.attention(q.to("meta"), q, q)
        with pytest.raises(ValueError, match="q: dtype torch.complex64"):
            tessera.attention(q.to(torch.complex64), q, q)


def test_works_without_numpy(tmp_path):
    """Neither NumPy nor any framework: a ctypes buffer in, a DLPack tensor out."""
    import os
    import subprocess
    from pathlib import Path

    code = """
import ctypes, sys
sys.modules["numpy"] = None  # import numpy fails from here on
import tessera

class Buffer:
    def __init__(self, values, shape):
        self.memory = (ctypes.c_float * len(values))(*values)
        self.__array_interface__ = dict(
            version=3, typestr="<f4", shape=shape, strides=None, data=(ctypes.addressof(self.memory), False))

q = Buffer([0.0] * 4, (1, 2, 1, 2))
v = Buffer([1.0, 2.0, 3.0, 4.0], (1, 2, 1, 2))
o = tessera.attention(q, q, v)
print(o.shape, (ctypes.c_float * 4).from_address(o.pointer)[:])
"""
    package = str(Path(tessera.__file__).resolve().parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": package}
    )
    assert done.stdout == "(1, 2, 1, 2) [2.0, 3.0, 2.0, 3.0]\n", done.stderr
