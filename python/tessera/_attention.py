"""attention(): exact attention on arrays of any framework, and plan(): the plan that it runs.

Filling a problem takes longer in Python than planning in the library does, so the plan of a call is remembered under
everything that it depends on: shapes, strides, dtypes, alignments, device, options and the pinned kernel.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from . import _c
from ._arrays import View, nothing, view
from ._call import fill, options, output_dtype, pin, remember
from ._problem import Plan

_plans: dict[tuple, Plan] = {}
_modules = sys.modules
_torch: Any = None
_SIZE_OF_TENSORS = ctypes.sizeof(_c.Tensors)


def _load_torch() -> Any:
    """The module for torch tensors, whose path is shorter and knows gradients. Torch itself is loaded already."""
    global _torch
    from . import _torch as module

    _torch = module
    return module


_OUT_DTYPES = {"float32": _c.F32, "float16": _c.F16, "bfloat16": _c.BF16}


def _prepare(q, k, v, causal, window, scale, softcap, return_lse, v_order=0, out_dtype=None, **others) -> tuple:
    """The plan of a call, and the views of q, k, v and of the others by name."""
    if v_order not in (0, 1):
        raise ValueError(f"v_order: {v_order!r}, expected 0 or 1")
    if out_dtype is not None and out_dtype not in _OUT_DTYPES:
        raise ValueError(f"out_dtype: {out_dtype!r}, expected None or one of {', '.join(_OUT_DTYPES)}")
    chosen = options(causal, window, scale, softcap, return_lse)
    q, k, v = view(q, "q"), view(k, "k"), view(v, "v")
    extras = {name: view(x, name) for name, x in others.items() if x is not None}
    key = (q.key, k.key, v.key, chosen, pin(), v_order, out_dtype, *((name, one.key) for name, one in extras.items()))
    found = _plans.get(key)
    if found is None:
        out = _OUT_DTYPES.get(out_dtype, 0)
        found = remember(_plans, key, Plan(fill(q, k, v, chosen, extras, (None, None), v_order, out)))
    return found, q, k, v, extras


def _run_on_device(plan: Plan, tensors: _c.Tensors, q: View, others: tuple[View, ...]) -> None:
    """Runs on the stream of q's framework; arrays of another one are waited for."""
    kind, workspace = q.kind, None
    for other in {one.kind for one in others if type(one.kind) is not type(kind)}:
        other.settle(q.device)
    if plan.workspace_bytes:
        _memory, address = kind.empty(q, (plan.workspace_bytes,), _c.U8)
        workspace = (address, plan.workspace_bytes)
    plan.launch(tensors, workspace, kind.stream(q.device))
    if kind.blocks:
        kind.settle(q.device)


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    scale: float | None = None,
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    sinks: Any = None,
    bias: Any = None,
    q_scale: Any = None,
    k_scale: Any = None,
    v_scale: Any = None,
    v_mean: Any = None,
    v_order: int = 0,
    out_dtype: str | None = None,
    return_lse: bool = False,
) -> Any:
    """Exact attention, softmax(scale * q k^T + ...) v, without the seqlen_q x seqlen_k matrix.

    Arrays are taken as they lie (any strides whose last is 1), never copied or converted. NumPy arrays give NumPy
    arrays, torch tensors torch tensors, others arrays of the kind of q by its from_dlpack. Torch tensors go through
    torch.ops.tessera.attention where a gradient, autocast, torch.compile or a dispatch mode needs it, else directly.

    q             [batch, seqlen_q, heads_q, dim] float64, float32, float16, bfloat16 or float8_e4m3fn
    k, v          [batch, seqlen_k, heads_kv, dim], [batch, seqlen_k, heads_kv, dim_v]; q's dtype, or int8 or
                  float8_e4m3fn; heads_q is a multiple of heads_kv, and query head h reads key head
                  h // (heads_q // heads_kv)
    causal        query i sees keys up to i + seqlen_k - seqlen_q: the last query sees every key
    window        (left, right): query i sees keys from i + seqlen_k - seqlen_q - left to ... + right; -1: unbounded
    scale         factor of the scores; None: 1 / sqrt(dim). 0 and negative numbers are values
    softcap       positive: scores become softcap * tanh(scores / softcap); 0: off
    alibi_slopes  [heads_q] or [batch, heads_q] float32: subtracts slope * |i + seqlen_k - seqlen_q - j|
    sinks         [heads_q] float32, natural-log logits that take part in each row's normalisation; -inf: none
    bias          [batch or 1, heads_q or 1, seqlen_q or 1, seqlen_k], leading dimensions may be left out: float32 or
                  q's dtype is added to the scores, -inf hides a key; bool or uint8 is a mask that keeps what is not 0
    q_scale       [batch or 1, row blocks, heads_q or 1] float32, leading dimensions may be left out: float8 q stands
    k_scale       for q * q_scale, and int8 or float8 k, v likewise under heads_kv. The row blocks are 1, one a row, or
    v_scale       one for 128 rows. None: 1
    v_mean        [heads_kv, dim_v] or [batch, heads_kv, dim_v] float32, added to each row of an int8 or float8 v
    v_order       1: v is [batch, heads_kv, dim_v, slots] as quantize(order=1) gives it
    out_dtype     "float32", "float16" or "bfloat16": of o; None: q's dtype, of float8 q bfloat16
    return_lse    also return the log-sum-exp of each row's scores

    Returns o [batch, seqlen_q, heads_q, dim_v], contiguous; with return_lse (o, lse), lse
    [batch, heads_q, seqlen_q] float32 (float64 for float64), natural logarithm. A row that sees no key: o = 0,
    lse = -inf (or its sink).

    TypeError: not an array. ValueError: a wrong or unfitting argument. NotImplementedError: right, but no kernel takes
    it; the message gives each one's reason. MemoryError. RuntimeError: the device. Nothing is returned half done.
    """
    torch = _torch or "torch" in _modules and _load_torch()
    scaled = not (q_scale is None and v_mean is None and v_order == 0 and out_dtype is None)
    if torch and not scaled and torch.takes(q, k, v, alibi_slopes, sinks, bias, k_scale, v_scale):
        chosen = options(causal, window, scale, softcap, return_lse)
        return torch.attention(q, k, v, chosen, alibi_slopes, sinks, bias, k_scale, v_scale)
    scales = dict(q_scale=q_scale, k_scale=k_scale, v_scale=v_scale, v_mean=v_mean)
    others = dict(alibi_slopes=alibi_slopes, sinks=sinks, bias=bias, **scales)
    plan, q, k, v, extras = _prepare(q, k, v, causal, window, scale, softcap, return_lse, v_order, out_dtype, **others)
    batch, seqlen_q, heads_q, _ = q.shape
    kind = q.kind
    tensors = _c.Tensors()
    tensors.size = _SIZE_OF_TENSORS
    tensors.q = q.pointer
    tensors.k = k.pointer
    tensors.v = v.pointer
    dim_v = v.shape[2] if v_order else v.shape[3]
    o, tensors.o = kind.empty(q, (batch, seqlen_q, heads_q, dim_v), output_dtype(q, _OUT_DTYPES.get(out_dtype, 0)))
    if return_lse:
        lse, tensors.lse = kind.empty(q, (batch, heads_q, seqlen_q), _c.F64 if q.dtype == _c.F64 else _c.F32)
    if 0 in q.shape:
        tensors.o, tensors.lse = nothing(0), nothing(1) if return_lse else None
    for name, one in extras.items():
        setattr(tensors, name, one.pointer)
    if q.device < 0:
        plan.launch(tensors, None, None)
    else:
        _run_on_device(plan, tensors, q, (k, v, *extras.values()))
    if return_lse:
        return kind.finish(q, o), kind.finish(q, lse)
    return kind.finish(q, o)


def plan(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    scale: float | None = None,
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    sinks: Any = None,
    bias: Any = None,
    q_scale: Any = None,
    k_scale: Any = None,
    v_scale: Any = None,
    v_mean: Any = None,
    v_order: int = 0,
    out_dtype: str | None = None,
    return_lse: bool = False,
) -> Plan:
    """The Plan that attention() runs for these arrays and options; arguments and errors as there. It runs on any arrays
    of the same shapes, strides and dtypes: plan.run(q=q, k=k, v=v, o=o)."""
    scales = dict(q_scale=q_scale, k_scale=k_scale, v_scale=v_scale, v_mean=v_mean)
    others = dict(alibi_slopes=alibi_slopes, sinks=sinks, bias=bias, **scales)
    return _prepare(q, k, v, causal, window, scale, softcap, return_lse, v_order, out_dtype, **others)[0]
