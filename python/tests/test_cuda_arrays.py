"""CUDA arrays of other frameworks than PyTorch: outputs of their own kind, on a stream that orders them.

Without a device stand-ins of CuPy, of an array namespace and of Numba hold host memory that they call device memory,
and a CPU kernel runs in the GPU kernel's place: that shows pointers, shapes, dtypes, streams and waits.
"""

import contextlib
import ctypes
import types

import numpy as np
import pytest
from judge import check, operands

import tessera
from tessera import _append, _attention, _cuda_arrays

EXPECT = dict(causal=True)
WORKSPACE_BYTES = 1024


class HostPlan:
    """The plan of a CUDA problem, run by a CPU kernel; keeps what each launch was given."""

    def __init__(self, problem):
        assert problem.device == 0
        copy = tessera.Problem()
        ctypes.pointer(copy)[0] = problem
        copy.device = -1
        self.plan, self.workspace_bytes, self.events = tessera.Plan(copy), WORKSPACE_BYTES, EVENTS

    def launch(self, tensors, workspace, stream):
        assert workspace[0] and workspace[1] == WORKSPACE_BYTES
        self.events.append(("launch", stream))
        self.plan.launch(tensors, None, None)


EVENTS: list = []


@pytest.fixture(autouse=True)
def host_as_device(request, monkeypatch):
    if "gpu" in request.node.name:
        return
    EVENTS.clear()
    monkeypatch.setattr(_attention, "Plan", HostPlan)
    monkeypatch.setattr(_attention, "_plans", {})
    monkeypatch.setattr(_cuda_arrays, "synchronize", lambda device, stream=1: EVENTS.append(("wait", stream)))
    monkeypatch.setattr(_cuda_arrays, "device_of", lambda pointer: 0)


class Array:
    """A strided view of host memory under another name."""

    def __init__(self, array):
        self.array, self.shape, self.strides, self.dtype = array, array.shape, array.strides, array.dtype


class CupyArray(Array):
    @property
    def data(self):
        return types.SimpleNamespace(ptr=self.array.ctypes.data)

    device = types.SimpleNamespace(id=0)


def fake_cupy():
    cupy = types.ModuleType("cupy")
    cupy.ndarray = CupyArray
    cupy.empty = lambda shape, dtype: CupyArray(np.full(shape, 99, dtype))
    stream = types.SimpleNamespace(ptr=4711, synchronize=lambda: EVENTS.append(("wait", 4711)))
    cupy.cuda = types.SimpleNamespace(Device=lambda device: contextlib.nullcontext(), get_current_stream=lambda: stream)
    return cupy


class NamespaceArray(Array):
    """A DLPack producer of an array namespace, as a JAX array is."""

    device = "gpu:0"

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, *, stream=None, max_version=None):
        assert stream == 1
        EVENTS.append(("export", stream))
        return self.array.__dlpack__()

    def __array_namespace__(self):
        def empty(shape, *, dtype, device):
            assert device == "gpu:0"
            return NamespaceArray(np.full(shape, 99, dtype))

        return types.SimpleNamespace(empty=empty, float32=np.float32, uint8=np.uint8)


class InterfaceArray(Array):
    """Nothing but a __cuda_array_interface__."""

    stream = None

    @property
    def __cuda_array_interface__(self):
        return {**self.array.__array_interface__, "version": 3, "stream": self.stream}


InterfaceArray.__module__ = "numba.cuda.cudadrv.devicearray"


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_cupy_runs_on_its_current_stream(rng, monkeypatch, dtype):
    monkeypatch.setitem(_attention._modules, "cupy", fake_cupy())
    arrays = operands(rng, dtype)
    o, lse = tessera.attention(*map(CupyArray, arrays), return_lse=True, **EXPECT)
    assert type(o) is type(lse) is CupyArray and o.dtype == dtype and lse.dtype == np.float32
    assert EVENTS == [("launch", 4711)]
    check(o.array, *arrays, lse.array, **EXPECT)


def test_a_namespace_gives_its_own_arrays_and_the_call_waits(rng):
    arrays = operands(rng, np.float16)
    o, lse = tessera.attention(*map(NamespaceArray, arrays), return_lse=True, **EXPECT)
    assert type(o) is type(lse) is NamespaceArray and o.dtype == np.float16 and lse.dtype == np.float32
    # q, k, v, o, lse and the workspace are ready on the legacy default stream before the run, the caller after it.
    assert EVENTS == [("export", 1)] * 6 + [("launch", 1), ("wait", 1)]
    check(o.array, *arrays, lse.array, **EXPECT)


def test_an_array_interface_gives_numba_arrays(rng, monkeypatch):
    arrays = operands(rng, np.float32)
    given = [InterfaceArray(x) for x in arrays]
    with pytest.raises(NotImplementedError, match="no way to make a CUDA result for a InterfaceArray"):
        tessera.attention(*given, **EXPECT)
    numba = types.ModuleType("numba")
    empty = lambda shape, dtype: InterfaceArray(np.full(shape, 99, dtype))
    numba.cuda = types.SimpleNamespace(device_array=empty, gpus=[contextlib.nullcontext()])
    monkeypatch.setitem(_attention._modules, "numba", numba)
    given[1].stream = 42
    EVENTS.clear()
    o = tessera.attention(*given, **EXPECT)
    assert type(o) is InterfaceArray
    assert EVENTS == [("wait", 42), ("launch", 1), ("wait", 1)]
    check(o.array, *arrays, **EXPECT)


def test_arrays_of_two_frameworks_wait_for_each_other(rng, monkeypatch):
    monkeypatch.setitem(_attention._modules, "cupy", fake_cupy())
    q, k, v = operands(rng, np.float32)
    o = tessera.attention(CupyArray(q), NamespaceArray(k), CupyArray(v), **EXPECT)
    assert type(o) is CupyArray
    assert EVENTS == [("export", 1), ("wait", 1), ("launch", 4711)]
    o = tessera.attention(NamespaceArray(q), CupyArray(k), NamespaceArray(v), **EXPECT)
    assert type(o) is NamespaceArray and ("wait", 4711) in EVENTS


def host_append(monkeypatch):
    """tessera_append of a CUDA problem, done by the CPU."""
    run = _append._run

    def on_host(problem, tensors, args, execution, status):
        assert problem._obj.device == 0
        EVENTS.append(("append", execution._obj.cuda_stream))
        copy = tessera.Problem()
        ctypes.pointer(copy)[0] = problem._obj
        copy.device = -1
        return run(ctypes.byref(copy), tensors, args, None, status)

    monkeypatch.setattr(_append, "_run", on_host)


def append_operands(rng):
    caches = [np.zeros((2, 9, 2, 8), np.float16) for _ in "kv"]
    new = [rng.standard_normal((2, 3, 2, 8)).astype(np.float16) for _ in "kv"]
    return caches, new, np.array([4, 0], np.int32), rng.standard_normal((2, 1, 4, 8)).astype(np.float16)


def test_append_runs_on_the_stream_of_its_framework(rng, monkeypatch):
    host_append(monkeypatch)
    monkeypatch.setitem(_attention._modules, "cupy", fake_cupy())
    caches, new, lengths, q = append_operands(rng)
    table = np.ones((9, 2), np.float16)
    turned = tessera.append(
        *map(CupyArray, (*caches, *new, lengths)),
        q=CupyArray(q),
        rotary_cos=CupyArray(table),
        rotary_sin=CupyArray(0 * table),
    )
    assert type(turned) is CupyArray and np.array_equal(turned.array, q)
    assert EVENTS == [("append", 4711)]
    for cache, x in zip(caches, new):
        assert np.array_equal(cache[0, 4:7], x[0]) and np.array_equal(cache[1, :3], x[1])
    with pytest.raises(ValueError, match="k: on device -1, but k_cache is on 0"):
        tessera.append(*map(CupyArray, caches), new[0], CupyArray(new[1]), CupyArray(lengths))


def test_append_waits_where_no_stream_orders(rng, monkeypatch):
    host_append(monkeypatch)
    monkeypatch.setitem(_attention._modules, "cupy", fake_cupy())
    caches, new, lengths, _ = append_operands(rng)
    tessera.append(*map(CupyArray, caches), *map(NamespaceArray, new), CupyArray(lengths))
    assert EVENTS == [("export", 1)] * 2 + [("wait", 1), ("append", 4711), ("wait", 4711)]
    EVENTS.clear()
    tessera.append(*map(InterfaceArray, (*caches, *new, lengths)))
    assert EVENTS == [("append", 1), ("wait", 1)]


def need_device():
    if not any(device["kind"] == "cuda" for device in tessera.devices(json=True)["devices"]):
        pytest.skip("no CUDA device")


def test_gpu_cupy(rng):
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    need_device()
    arrays = operands(rng, np.float16)
    with cupy.cuda.Stream(non_blocking=True):
        o, lse = tessera.attention(*map(cupy.asarray, arrays), return_lse=True, **EXPECT)
        check(cupy.asnumpy(o), *arrays, cupy.asnumpy(lse), **EXPECT)


def test_gpu_append(rng):
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    need_device()
    caches, new, lengths, _ = append_operands(rng)
    on_device = [cupy.asarray(x) for x in caches]
    with cupy.cuda.Stream(non_blocking=True):
        tessera.append(*on_device, *map(cupy.asarray, (*new, lengths)))
        tessera.append(*caches, *new, lengths)
        assert all(np.array_equal(cupy.asnumpy(x), y) for x, y in zip(on_device, caches))


def test_gpu_jax(rng):
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    need_device()
    arrays = operands(rng, np.float16)
    try:
        device = jax.devices("gpu")[0]
    except RuntimeError as error:
        pytest.skip(f"JAX has no GPU: {error}")
    o, lse = tessera.attention(*(jax.device_put(x, device) for x in arrays), return_lse=True, **EXPECT)
    assert isinstance(o, jax.Array) and o.devices() == {device}
    check(np.asarray(o), *arrays, np.asarray(lse), **EXPECT)


def test_gpu_array_interface(rng):
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    need_device()
    arrays = operands(rng, np.float16)

    class Only:
        def __init__(self, array):
            self.array, self.__cuda_array_interface__ = array, array.__cuda_array_interface__

    q, k, v = (Only(cupy.asarray(x)) for x in arrays)
    o = cupy.full((*arrays[0].shape[:-1], arrays[2].shape[-1]), cupy.nan, cupy.float16)
    tessera.plan(q, k, v, **EXPECT).run(q=q, k=k, v=v, o=Only(o))
    check(cupy.asnumpy(o), *arrays, **EXPECT)
