"""DLPack by ctypes: reading a producer's capsule, plain or versioned, and handing a host buffer to a consumer.

Owns the lifetimes. A capsule that is read here is never renamed, so its own destructor frees it when the reference to
it goes; a buffer that is handed over lies in one block with its header, so that the C library's free() is its deleter
and no Python code runs when the consumer lets go of it, on whatever thread.
Source: the DLPack specification, version 1.0, C structs and Python exchange protocol.
"""

from __future__ import annotations

import ctypes
from ctypes import (
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
    py_object,
)
from typing import Any

from . import _c

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
FLAG_READ_ONLY = 1
_ALIGN = 64  # consumers that copy unless the data is aligned ask for 64 bytes


class Device(ctypes.Structure):
    _fields_ = [("device_type", c_int32), ("device_id", c_int32)]


class DataType(ctypes.Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device", Device),
        ("ndim", c_int32),
        ("dtype", DataType),
        ("shape", ctypes.POINTER(c_int64)),
        ("strides", ctypes.POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class Managed(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("manager", c_void_p), ("deleter", c_void_p)]


class ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("manager", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", Tensor),
    ]


# (code, bits) of DLDataType: the library's dtype. Codes: 0 int, 1 unsigned, 2 float, 4 bfloat, 6 bool, 10 e4m3fn.
INT32 = -4
DTYPES = {
    (2, 64): _c.F64,
    (2, 32): _c.F32,
    (2, 16): _c.F16,
    (4, 16): _c.BF16,
    (10, 8): _c.E4M3,
    (0, 8): _c.INT8,
    (1, 8): _c.U8,
    (6, 8): _c.U8,
    (0, 32): INT32,
}
_CODES = {
    _c.F64: (2, 64),
    _c.F32: (2, 32),
    _c.F16: (2, 16),
    _c.BF16: (4, 16),
    _c.E4M3: (10, 8),
    _c.INT8: (0, 8),
}

_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = c_int, [py_object, c_char_p]
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = c_void_p, [py_object, c_char_p]
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = py_object, [c_void_p, c_char_p, c_void_p]


def export(x: Any, name: str, device_type: int) -> Any:
    """The producer's capsule; on CUDA its data is ready on the legacy default stream (1)."""
    arguments = {"stream": 1} if device_type in (CUDA, CUDA_MANAGED) else {}
    try:
        try:
            return x.__dlpack__(max_version=(1, 0), **arguments)
        except (TypeError, NotImplementedError):  # a producer older than version 1 does not know max_version
            return x.__dlpack__(**arguments)
    except (BufferError, RuntimeError) as error:
        raise ValueError(f"{name}: its producer does not export it: {error}") from error


def read(capsule: Any, name: str) -> tuple[Tensor, bool]:
    """The tensor inside a capsule, valid while the capsule lives, and whether it is read-only."""
    if _is_valid(capsule, b"dltensor_versioned"):
        versioned = ManagedVersioned.from_address(_get_pointer(capsule, b"dltensor_versioned"))
        if versioned.major != 1:
            raise ValueError(f"{name}: DLPack version {versioned.major}.{versioned.minor}, expected 1.x")
        return versioned.tensor, bool(versioned.flags & FLAG_READ_ONLY)
    if _is_valid(capsule, b"dltensor"):
        return Managed.from_address(_get_pointer(capsule, b"dltensor")).tensor, False
    raise ValueError(f"{name}: __dlpack__ gave no unused DLPack capsule")


_libc = ctypes.CDLL(None)
_libc.aligned_alloc.restype, _libc.aligned_alloc.argtypes = c_void_p, [c_size_t, c_size_t]
_libc.free.restype, _libc.free.argtypes = None, [c_void_p]
_FREE = ctypes.cast(_libc.free, c_void_p).value


class HostTensor:
    """A contiguous tensor in host memory, [*shape] of a float dtype, for one consumer of DLPack.

    numpy.from_dlpack(t), torch.from_dlpack(t) and the like take the memory over; a second export is a BufferError.
    """

    def __init__(self, shape: tuple[int, ...], dtype: int):
        code, bits = _CODES[dtype]
        count = 1
        for n in shape:
            count *= n
        ndim = len(shape)
        head_bytes = ctypes.sizeof(Managed) + 16 * ndim
        head_bytes += -head_bytes % _ALIGN
        data_bytes = count * bits // 8
        block = _libc.aligned_alloc(_ALIGN, head_bytes + max(data_bytes + -data_bytes % _ALIGN, _ALIGN))
        self._block = None
        if not block:
            raise MemoryError(f"no memory for an output of {data_bytes} bytes")
        self._block = block
        self._capsule = None
        self.shape = tuple(shape)
        self.dtype = dtype
        self.pointer = block + head_bytes
        dims = (c_int64 * (2 * ndim)).from_address(block + ctypes.sizeof(Managed))
        step = 1
        for i in reversed(range(ndim)):
            dims[i], dims[ndim + i] = shape[i], step
            step *= max(shape[i], 1)
        managed = Managed.from_address(block)
        ctypes.memset(block, 0, ctypes.sizeof(Managed))
        managed.deleter = _FREE
        tensor = managed.tensor
        tensor.data, tensor.device, tensor.ndim = self.pointer, Device(CPU, 0), ndim
        tensor.dtype = DataType(code, bits, 1)
        pointer_to_dims = ctypes.POINTER(c_int64)
        tensor.shape = ctypes.cast(block + ctypes.sizeof(Managed), pointer_to_dims)
        tensor.strides = ctypes.cast(block + ctypes.sizeof(Managed) + 8 * ndim, pointer_to_dims)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (CPU, 0)

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        if self._capsule is not None:
            raise BufferError("this tensor was handed over already")
        if copy or (dl_device is not None and tuple(dl_device) != (CPU, 0)):
            raise BufferError("this tensor is handed over as it lies, in host memory")
        self._capsule = _new_capsule(self._block, b"dltensor", None)
        return self._capsule

    def __del__(self):
        # A consumer that took the memory over has renamed the capsule; otherwise it is still ours.
        if self._block and (self._capsule is None or _is_valid(self._capsule, b"dltensor")):
            _libc.free(self._block)
