"""PyTorch tensors as Views, without DLPack: a tenth of its time. Imported only when torch is loaded already."""

from __future__ import annotations

from typing import Any

import torch

from . import _c
from ._arrays import I32, View, unknown_dtype

_CODES = {
    torch.float64: _c.F64,
    torch.float32: _c.F32,
    torch.float16: _c.F16,
    torch.bfloat16: _c.BF16,
    torch.float8_e4m3fn: _c.E4M3,
    torch.int8: _c.INT8,
    torch.uint8: _c.U8,
    torch.bool: _c.U8,
    torch.int32: I32,
}
_DTYPES = {
    _c.F64: torch.float64,
    _c.F32: torch.float32,
    _c.F16: torch.float16,
    _c.BF16: torch.bfloat16,
    _c.U8: torch.uint8,
}
_STRIDED = torch.strided
_is_grad_enabled = torch.is_grad_enabled


class TorchKind:
    """Outputs are torch.Tensor on the input's device. Views carry no gradient."""

    def view(self, x: Any, name: str) -> View:
        if x.requires_grad and _is_grad_enabled():
            raise NotImplementedError(
                f"{name}: requires a gradient, and this call records none; use torch.no_grad() or {name}.detach()"
            )
        dtype = _CODES.get(x.dtype)
        if dtype is None:
            raise unknown_dtype(name, x.dtype)
        if x.is_cpu:
            index = -1
        elif x.is_cuda:
            index = x.get_device()
        else:
            raise ValueError(f"{name}: on device {x.device}, expected cpu or cuda")
        if x.layout is not _STRIDED or x.is_neg():
            raise ValueError(
                f"{name}: a sparse or lazily negated tensor, expected plain memory (call to_dense or resolve_neg)"
            )
        return View(x, None, self, x.data_ptr(), x.shape, x.stride(), 1, dtype, index, False)

    def empty(self, like: View, shape: tuple[int, ...], dtype: int) -> tuple[Any, int]:
        if dtype == like.dtype:
            tensor = like.array.new_empty(shape)
        else:
            tensor = like.array.new_empty(shape, dtype=_DTYPES[dtype])
        return tensor, tensor.data_ptr()

    def finish(self, like: View, tensor: Any) -> Any:
        return tensor


def current_stream(device: int) -> int:
    """The handle of the stream that torch works on."""
    return torch.cuda.current_stream(device).cuda_stream


kind = TorchKind()
