"""Arrays on CUDA devices that are not PyTorch's: CuPy's, those of array namespaces as JAX's, and objects with only a
__cuda_array_interface__, as Numba's.

Owns the order of their work and ours. CuPy has a current stream, on which we run. Of the others no stream is known:
what was given is ordered before the legacy default stream, we run there, and the call waits until it is done.
Source: DLPack's Python protocol, the CUDA Array Interface version 3 (Numba's documentation).
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from . import _dlpack
from ._arrays import DTYPE_NAMES, NumpyKind, View, interface_view

LEGACY = 1  # the handle of the legacy default stream, for the driver, in DLPack and in the array interface
_DEVICE_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
_driver: Any = None


def _check(code: int, what: str) -> None:
    if code:
        raise RuntimeError(f"{what}: CUDA driver error {code}")


def driver() -> Any:
    global _driver
    if _driver is None:
        _driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    return _driver


def synchronize(device: int, stream: int = LEGACY) -> None:
    """Waits until the work on the stream is done."""
    cuda, context = driver(), ctypes.c_void_p()
    _check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
    try:
        _check(cuda.cuCtxPushCurrent_v2(context), "cuCtxPushCurrent")
        try:
            _check(cuda.cuStreamSynchronize(ctypes.c_void_p(stream)), "cuStreamSynchronize")
        finally:
            cuda.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
    finally:
        cuda.cuDevicePrimaryCtxRelease_v2(device)


def device_of(pointer: int) -> int:
    """The device that holds an address."""
    ordinal = ctypes.c_int()
    code = driver().cuPointerGetAttribute(ctypes.byref(ordinal), _DEVICE_ORDINAL, ctypes.c_uint64(pointer))
    _check(code, "cuPointerGetAttribute")
    return ordinal.value


def namespace_empty(like: Any, shape: tuple[int, ...], element: Any) -> tuple[Any, int]:
    """A new array of the namespace that `like` is of, on its device: ((array, capsule that keeps it), address).
    `element` is a dtype or the name of one. The legacy default stream waits for what fills it."""
    namespace = like.__array_namespace__()
    dtype = getattr(namespace, element) if isinstance(element, str) else element
    array = namespace.empty(shape, dtype=dtype, device=like.device)
    capsule = _dlpack.export(array, "a new array", array.__dlpack_device__()[0])
    tensor, _ = _dlpack.read(capsule, "a new array")
    return (array, capsule), (tensor.data or 0) + tensor.byte_offset


class CupyKind(NumpyKind):
    """cupy.ndarray, on CuPy's current stream."""

    blocks = False

    def view(self, x: Any, name: str) -> View:
        code = self.codes.get(x.dtype)
        if code is None:
            code = self.code(x.dtype, name)
        return View(x, None, self, x.data.ptr, x.shape, x.strides, x.dtype.itemsize, code, x.device.id, False)

    def empty(self, like: View, shape: tuple[int, ...], dtype: int) -> tuple[Any, int]:
        element = like.array.dtype if dtype == like.dtype else DTYPE_NAMES[dtype]
        with self.numpy.cuda.Device(like.device):
            array = self.numpy.empty(shape, element)
        return array, array.data.ptr

    def stream(self, device: int) -> int:
        with self.numpy.cuda.Device(device):
            return self.numpy.cuda.get_current_stream().ptr

    def settle(self, device: int) -> None:
        with self.numpy.cuda.Device(device):
            self.numpy.cuda.get_current_stream().synchronize()


class CudaInterfaceKind:
    """Objects that have only a __cuda_array_interface__; Numba's give arrays of Numba."""

    blocks = True

    def view(self, x: Any, name: str) -> View:
        interface = x.__cuda_array_interface__
        pointer = interface["data"][0]
        device = device_of(pointer) if pointer else 0
        stream = interface.get("stream")  # absent or None: the data is ready
        if stream not in (None, LEGACY):
            synchronize(device, stream)
        return interface_view(x, interface, self, device, name)

    def empty(self, like: View, shape: tuple[int, ...], dtype: int) -> tuple[Any, int]:
        numba = sys.modules.get("numba")
        if numba is None or not type(like.array).__module__.startswith("numba."):
            raise NotImplementedError(
                f"no way to make a CUDA result for a {type(like.array).__name__}; run a Plan into your own arrays"
            )
        with numba.cuda.gpus[like.device]:
            array = numba.cuda.device_array(shape, DTYPE_NAMES[dtype])
        return array, array.__cuda_array_interface__["data"][0]

    def finish(self, like: View, array: Any) -> Any:
        return array

    def stream(self, device: int) -> int:
        return LEGACY

    def settle(self, device: int) -> None:
        synchronize(device)
