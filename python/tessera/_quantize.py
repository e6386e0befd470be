"""quantize(): q, k or v as float8_e4m3fn or int8 with scales, as attention() takes them."""

from __future__ import annotations

import ctypes
import operator
from typing import Any, NamedTuple

from . import _c
from ._arrays import I32, contiguous, nothing, view
from ._call import check_vector, describe, value_slots
from ._errors import renamed, status_failure

_run = _c.lib.tessera_quantize
_DTYPES = {"float8_e4m3fn": _c.E4M3, "int8": _c.INT8}
_ROWS = {"tensor": 0, "head": 0, "block": 128, "row": 1}
_NAMES = {"x_data": "x", "seqlen": "max_seqlen", "total": "x.shape[0]", "hadamard": "rotate"}


class Quantized(NamedTuple):
    """What quantize() returns: `data * scale` (and, of v, `+ mean`) is near what was given."""

    data: Any
    scale: Any
    mean: Any


def _whole(value: Any, name: str) -> int:
    if not hasattr(value, "__index__"):
        raise TypeError(f"{name}: expected a whole number, not {value!r}")
    return operator.index(value)


def _scale_shape(scales: str, batch: int, seqlen: int, heads: int) -> tuple[int, ...]:
    rows = _ROWS[scales]
    blocks = -(-seqlen // rows) if rows else 1
    return (1, 1, 1) if scales == "tensor" else (batch, blocks, heads)


def quantize(
    x: Any,
    *,
    dtype: str = "float8_e4m3fn",
    scales: str | None = "head",
    rotate: int | None = None,
    subtract_mean: bool = False,
    order: int = 0,
    cu_seqlens: Any = None,
    max_seqlen: int | None = None,
) -> Quantized:
    """Quantises q, k or v of attention(): data, with scales under which the largest number becomes 448 (int8: 127).

    x              [batch, seqlen, heads, dim], with cu_seqlens [total, heads, dim]; float32, float16 or bfloat16, on
                   the CPU or a CUDA device (there on the stream of x's framework)
    dtype          "float8_e4m3fn" (of ml_dtypes for NumPy arrays) or "int8"
    scales         "tensor": one. "head": one for each sequence and head. "block": one for 128 rows of these, "row": one
                   for each row of these. None: none, numbers are rounded as they are and kept within 448 (127)
    rotate         a seed: rows of q and of k turned by one random rotation, which leaves their products as they are
                   and spreads outliers over the head dimension. Give q and k the same seed; dim is even
    subtract_mean  subtracts each channel's mean over the rows of a sequence, and returns it: the v_mean of attention()
    order          1: for v, data [batch, heads, dim, slots] (packed [heads, dim, slots]), the layout that Hopper's
                   tensor cores read, for attention(v_order=1)
    cu_seqlens     [batch + 1] int32, with max_seqlen the most rows of a sequence

    Returns (data, scale, mean): scale [1, 1, 1], [batch, 1, heads], [batch, blocks, heads] or [batch, seqlen, heads]
    float32, None without scales; mean [batch, heads, dim] float32 or None.

    TypeError: not an array. ValueError: a wrong argument. NotImplementedError: what a device does not take.
    """
    if dtype not in _DTYPES:
        raise ValueError(f"dtype: {dtype!r}, expected one of {', '.join(_DTYPES)}")
    if scales is not None and scales not in _ROWS:
        raise ValueError(f"scales: {scales!r}, expected None or one of {', '.join(_ROWS)}")
    one, args = view(x, "x"), _c.QuantizeArgs()
    packed = cu_seqlens is not None
    if len(one.shape) != (3 if packed else 4):
        dims = "3 dimensions [total, heads, dim]" if packed else "4 dimensions [batch, seqlen, heads, dim]"
        raise ValueError(f"x: shape {list(one.shape)}, expected {dims}")
    if packed != (max_seqlen is not None):
        raise ValueError("cu_seqlens and max_seqlen: one is missing, expected both or neither")
    starts = view(cu_seqlens, "cu_seqlens") if packed else None
    heads, dim = one.shape[-2:]
    if starts is not None:
        if len(starts.shape) != 1 or starts.shape[0] < 1:
            raise ValueError(f"cu_seqlens: shape {list(starts.shape)}, expected [batch + 1]")
        check_vector(starts, "cu_seqlens", (tuple(starts.shape),), one.device, I32)
        batch, seqlen = starts.shape[0] - 1, _whole(max_seqlen, "max_seqlen")
        args.layout, args.total, args.cu_seqlens = _c.PACKED, one.shape[0], starts.pointer
    else:
        batch, seqlen = one.shape[:2]
    args.size = ctypes.sizeof(args)
    args.batch, args.seqlen, args.heads, args.head_dim, args.device = batch, seqlen, heads, dim, one.device
    args.order = _whole(order, "order")
    if rotate is not None:
        args.hadamard, args.seed = 1, _whole(rotate, "rotate") & (1 << 64) - 1
    describe(args, "x", one)
    args.x_data = one.pointer
    shape = tuple(one.shape)
    if order == 1:
        slots = value_slots(one.shape[0] if packed else seqlen, batch if packed else None)
        shape = (heads, dim, slots) if packed else (batch, heads, dim, slots)
    kind, scale, mean = one.kind, None, None
    data, args.y_data = kind.empty(one, shape, _DTYPES[dtype])
    args.y.dtype, args.y.align = _DTYPES[dtype], 1
    if 0 in shape:
        args.y_data = nothing(0)
    if scales is not None:
        extents = _scale_shape(scales, batch, seqlen, heads)
        scale, args.scale_data = kind.empty(one, extents, _c.F32)
        args.scale_rows = _ROWS[scales]
        if scales != "tensor":
            strides = contiguous(extents)
            args.scale.stride[:] = (*(s if n > 1 else 0 for n, s in zip(extents, strides)), 0)
    if subtract_mean:
        args.subtract_mean = 1
        mean, args.mean = kind.empty(one, (batch, heads, dim), _c.F32)
    _launch(args, one, starts)
    finished = (None if made is None else kind.finish(one, made) for made in (data, scale, mean))
    return Quantized(*finished)


def _launch(args: _c.QuantizeArgs, x: Any, starts: Any) -> None:
    status, execution, device = _c.Status(), None, x.device
    other = starts is not None and type(starts.kind) is not type(x.kind)
    if device >= 0:
        if other:
            starts.kind.settle(device)
        execution = ctypes.byref(_c.Exec(ctypes.sizeof(_c.Exec), x.kind.stream(device), None))
    code = _run(ctypes.byref(args), execution, ctypes.byref(status))
    if code:
        raise renamed(status_failure(code, status), _NAMES)
    if device >= 0 and (x.kind.blocks or other):
        x.kind.settle(device)
