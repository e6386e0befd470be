"""Arrays of any framework as pointers: NumPy, PyTorch, and whatever speaks DLPack or the array interface.

A View is what the library needs to know of one array and keeps that array alive. Nothing is ever copied or converted:
what the library cannot take as it lies is an error. No framework is imported here; one that is loaded already is used.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Callable

from . import _c, _dlpack

I32 = _dlpack.INT32
DTYPE_NAMES = {
    _c.F64: "float64",
    _c.F32: "float32",
    _c.F16: "float16",
    _c.BF16: "bfloat16",
    _c.E4M3: "float8_e4m3fn",
    _c.INT8: "int8",
    _c.U8: "uint8",
    I32: "int32",
}
DTYPE_BYTES = {_c.F64: 8, _c.F32: 4, _c.F16: 2, _c.BF16: 2, _c.E4M3: 1, _c.INT8: 1, _c.U8: 1, I32: 4}
BY_NAME = {name: dtype for dtype, name in DTYPE_NAMES.items()}
BY_NAME["bool"] = _c.U8
_ALIGN = 16  # the library's default guarantee; more is not needed

# Arrays without elements may have any address, also null. The library wants one, and another for each array that is
# written: inputs get NOTHING, outputs nothing(0), nothing(1) ...
_nothing = (ctypes.c_char * (256 * 18))()
NOTHING = (ctypes.addressof(_nothing) + 255) & ~255


def nothing(output: int) -> int:
    return NOTHING + 256 * (output + 1)


class View:
    """One array: address, shape, strides (`unit` of them to an element), dtype (a code), device (-1: the CPU)."""

    __slots__ = (
        "array",
        "keep",
        "kind",
        "pointer",
        "shape",
        "raw_strides",
        "unit",
        "dtype",
        "device",
        "read_only",
        "key",
    )

    def __init__(self, array, keep, kind, pointer, shape, raw_strides, unit, dtype, device, read_only):
        self.array = array
        self.keep = keep
        self.kind = kind
        self.shape = shape
        self.raw_strides = raw_strides  # None: C-contiguous
        self.unit = unit
        self.dtype = dtype
        self.device = device
        self.read_only = read_only
        self.pointer = NOTHING if 0 in shape else pointer
        align = self.pointer & -self.pointer
        # Equal keys mean that one plan serves both arrays.
        self.key = (shape, raw_strides, unit, dtype, align if align < _ALIGN else _ALIGN, device)

    @property
    def align(self) -> int:
        return self.key[4]

    def strides(self, name: str) -> tuple[int, ...]:
        """Strides in elements. Strides that are never used, of dimensions of size 1 and of arrays without elements, are
        those of a contiguous array, whatever the array says."""
        if self.raw_strides is None or 0 in self.shape:
            return contiguous(self.shape)
        strides = []
        for size, stride in zip(self.shape, self.raw_strides):
            if size == 1:
                stride = self.unit
            elif stride % self.unit:
                raise ValueError(
                    f"{name}: a stride of {stride} bytes, expected a multiple of its {self.unit}-byte elements"
                )
            strides.append(stride // self.unit)
        return tuple(strides)


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(1 if size <= 1 else step)
        step *= max(size, 1)
    return tuple(reversed(strides))


# Lengths, starts and indices, which are int32 alone.
INDEX_ARRAYS = ("seqused_k", "page_table", "batch_idx", "leftpad_k", "cu_seqlens_q", "cu_seqlens_k", "cu_seqlens_new")


def unknown_dtype(name: str, dtype: object) -> ValueError:
    if name in INDEX_ARRAYS:
        return ValueError(f"{name}: dtype {dtype}, expected int32")
    return ValueError(f"{name}: dtype {dtype}, expected one of {', '.join(dict.fromkeys(DTYPE_NAMES.values()))}")


# A kind is what a framework's arrays have in common. view() makes the View of one, empty() a new array of it with its
# address, finish() hands that to the caller. On CUDA, stream() is the one to run on, settle() waits until the arrays'
# pending work is done, and `blocks` says that a call waits for its own: no stream orders what the caller does next.


class NumpyKind:
    """Outputs are numpy.ndarray."""

    def __init__(self, numpy: Any):
        self.numpy = numpy
        self.codes: dict[Any, int] = {}
        self.dtypes: dict[int, Any] = {}

    def code(self, dtype: Any, name: str) -> int:
        """The library's dtype for a numpy.dtype; ml_dtypes' bfloat16 and float8_e4m3fn go by their names."""
        code = BY_NAME.get(dtype.name)
        if code is None or not dtype.isnative:
            raise unknown_dtype(name, dtype)
        self.codes[dtype] = code
        if dtype.name != "bool":
            self.dtypes[code] = dtype
        return code

    def view(self, x: Any, name: str) -> View:
        dtype = x.dtype
        code = self.codes.get(dtype)
        if code is None:
            code = self.code(dtype, name)
        pointer, read_only = x.__array_interface__["data"]
        return View(x, None, self, pointer, x.shape, x.strides, dtype.itemsize, code, -1, read_only)

    def empty(self, like: View, shape: tuple[int, ...], dtype: int) -> tuple[Any, int]:
        numpy_dtype = self.dtypes.get(dtype)
        if numpy_dtype is None:
            name = DTYPE_NAMES[dtype]
            if dtype in (_c.BF16, _c.E4M3):
                if "ml_dtypes" not in sys.modules:
                    raise ValueError(f"a {name} result needs ml_dtypes to be imported, whose type NumPy lacks")
                numpy_dtype = self.numpy.dtype(getattr(sys.modules["ml_dtypes"], name))
            else:
                numpy_dtype = self.numpy.dtype(name)
            self.dtypes[dtype] = numpy_dtype
        array = self.numpy.empty(shape, numpy_dtype)
        return array, array.__array_interface__["data"][0]

    def finish(self, like: View, array: Any) -> Any:
        return array


class DlpackKind:
    """Outputs are arrays of the producer's own kind, on the host by its from_dlpack, without one NumPy's, else a
    HostTensor; on CUDA by its namespace's empty()."""

    blocks = True

    def view(self, x: Any, name: str) -> View:
        device_type, device_id = x.__dlpack_device__()
        if device_type in (_dlpack.CPU, _dlpack.CUDA_HOST):
            device = -1
        elif device_type in (_dlpack.CUDA, _dlpack.CUDA_MANAGED):
            device = device_id
        else:
            raise ValueError(f"{name}: on a device of DLPack type {device_type}, expected host or CUDA memory")
        capsule = _dlpack.export(x, name, device_type)
        tensor, read_only = _dlpack.read(capsule, name)
        element = tensor.dtype
        dtype = _dlpack.DTYPES.get((element.code, element.bits)) if element.lanes == 1 else None
        if dtype is None:
            raise unknown_dtype(name, getattr(x, "dtype", f"(DLPack code {element.code}, {element.bits} bits)"))
        ndim = tensor.ndim
        shape = tuple(tensor.shape[:ndim])
        strides = tuple(tensor.strides[:ndim]) if tensor.strides else None
        pointer = (tensor.data or 0) + tensor.byte_offset
        return View(x, capsule, self, pointer, shape, strides, 1, dtype, device, read_only)

    def empty(self, like: View, shape: tuple[int, ...], dtype: int) -> tuple[Any, int]:
        if like.device >= 0:
            if not hasattr(like.array, "__array_namespace__"):
                raise NotImplementedError(
                    f"no way to make a CUDA result for a {type(like.array).__name__}; run a Plan into your own arrays"
                )
            from . import _cuda_arrays

            element = like.array.dtype if dtype == like.dtype else DTYPE_NAMES[dtype]
            return _cuda_arrays.namespace_empty(like.array, shape, element)
        tensor = _dlpack.HostTensor(shape, dtype)
        return tensor, tensor.pointer

    def stream(self, device: int) -> int:
        from . import _cuda_arrays

        return _cuda_arrays.LEGACY

    def settle(self, device: int) -> None:
        from . import _cuda_arrays

        _cuda_arrays.synchronize(device)

    def finish(self, like: View, tensor: Any) -> Any:
        if like.device >= 0:
            return tensor[0]
        namespace = getattr(like.array, "__array_namespace__", None)
        if namespace is not None:
            return namespace().from_dlpack(tensor)
        numpy = sys.modules.get("numpy")
        return numpy.from_dlpack(tensor) if numpy is not None and tensor.dtype != _c.BF16 else tensor


class JaxKind(DlpackKind):
    """JAX arrays never change, which their DLPack form does not say."""

    def view(self, x: Any, name: str) -> View:
        one = super().view(x, name)
        one.read_only = True
        return one


class InterfaceKind(DlpackKind):
    """Objects that have only __array_interface__."""

    def view(self, x: Any, name: str) -> View:
        return interface_view(x, x.__array_interface__, self, -1, name)


def interface_view(x: Any, interface: dict[str, Any], kind: Any, device: int, name: str) -> View:
    """The View of an array interface, of host memory or CUDA's."""
    order, letter = interface["typestr"][0], interface["typestr"][1:]
    letters = {"f8": _c.F64, "f4": _c.F32, "f2": _c.F16, "i1": _c.INT8, "u1": _c.U8, "b1": _c.U8, "i4": I32}
    dtype = letters.get(letter)
    if dtype is None or order == (">" if sys.byteorder == "little" else "<"):
        raise unknown_dtype(name, interface["typestr"])
    data = interface.get("data")
    if not isinstance(data, tuple):
        raise TypeError(f"{name}: its array interface gives no address")
    shape, strides = tuple(interface["shape"]), interface.get("strides")
    return View(x, interface, kind, data[0], shape, strides, DTYPE_BYTES[dtype], dtype, device, data[1])


_dlpack_kind = DlpackKind()
_jax_kind = JaxKind()
_interface_kind = InterfaceKind()
_numpy_kind: NumpyKind | None = None
_viewers: dict[type, Callable[[Any, str], View]] = {}


def _find_viewer(x: Any, name: str) -> Callable[[Any, str], View]:
    global _numpy_kind
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        from . import _torch

        return _torch.kind.view
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(x, numpy.ndarray):
        if hasattr(x, "mask"):
            raise TypeError(f"{name}: a masked array, expected one without a mask")
        if _numpy_kind is None:
            _numpy_kind = NumpyKind(numpy)
        return _numpy_kind.view
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(x, cupy.ndarray):
        from . import _cuda_arrays

        return _cuda_arrays.CupyKind(cupy).view
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(x, jax.Array):
        return _jax_kind.view
    if hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
        return _dlpack_kind.view
    if hasattr(x, "__cuda_array_interface__"):
        from . import _cuda_arrays

        return _cuda_arrays.CudaInterfaceKind().view
    if hasattr(x, "__array_interface__"):
        return _interface_kind.view
    raise TypeError(
        f"{name}: expected an array with __dlpack__, __cuda_array_interface__ or __array_interface__, not "
        f"{type(x).__name__}"
    )


def view(x: Any, name: str) -> View:
    """The View of an array. TypeError: not an array; ValueError: a dtype, device or layout that has no View."""
    viewer = _viewers.get(type(x))
    if viewer is None:
        viewer = _viewers[type(x)] = _find_viewer(x, name)
    return viewer(x, name)
