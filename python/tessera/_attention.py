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
from ._call import fill, options, pin, remember
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


def _prepare(q, k, v, causal, window, scale, softcap, return_lse, **others) -> tuple:
    """The plan of a call, and the views of q, k, v and of the others by name."""
    chosen = options(causal, window, scale, softcap, return_lse)
    q, k, v = view(q, "q"), view(k, "k"), view(v, "v")
    extras = {name: view(x, name) for name, x in others.items() if x is not None}
    key = (q.key, k.key, v.key, chosen, pin(), *((name, one.key) for name, one in extras.items()))
    found = _plans.get(key)
    if found is None:
        found = remember(_plans, key, Plan(fill(q, k, v, chosen, extras)))
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
    k_scale: Any = None,
    v_scale: Any = None,
    return_lse: bool = False,
) -> Any:
    """Exact attention, softmax(scale * q k^T + ...) v, without the seqlen_q x seqlen_k matrix.

    Arrays are taken as they lie (any strides whose last is 1), never copied or converted. NumPy arrays give NumPy
    arrays, torch tensors torch tensors, others arrays of the kind of q by its from_dlpack. Torch tensors go through
    torch.ops.tessera.attention where a gradient, autocast, torch.compile or a dispatch mode needs it, else directly.

    q             [batch, seqlen_q, heads_q, dim] float64, float32, float16 or bfloat16
    k, v          [batch, seqlen_k, heads_kv, dim], [batch, seqlen_k, heads_kv, dim_v]; q's dtype, or int8; heads_q is a
                  multiple of heads_kv, and query head h reads key head h // (heads_q // heads_kv)
    causal        query i sees keys up to i + seqlen_k - seqlen_q: the last query sees every key
    window        (left, right): query i sees keys from i + seqlen_k - seqlen_q - left to ... + right; -1: unbounded
    scale         factor of the scores; None: 1 / sqrt(dim). 0 and negative numbers are values
    softcap       positive: scores become softcap * tanh(scores / softcap); 0: off
    alibi_slopes  [heads_q] or [batch, heads_q] float32: subtracts slope * |i + seqlen_k - seqlen_q - j|
    sinks         [heads_q] float32, natural-log logits that take part in each row's normalisation; -inf: none
    bias          [batch or 1, heads_q or 1, seqlen_q or 1, seqlen_k], leading dimensions may be left out: float32 or
                  q's dtype is added to the scores, -inf hides a key; bool or uint8 is a mask that keeps what is not 0
    k_scale       [batch or 1, row blocks, heads_kv or 1] float32, leading dimensions may be left out: int8 k stands for
    v_scale       k * k_scale, v for v * v_scale. The row blocks are 1, one a key, or one for 128 keys. None: 1
    return_lse    also return the log-sum-exp of each row's scores

    Returns o [batch, seqlen_q, heads_q, dim_v] of q's dtype, contiguous; with return_lse (o, lse), lse
    [batch, heads_q, seqlen_q] float32 (float64 for float64), natural logarithm. A row that sees no key: o = 0,
    lse = -inf (or its sink).

    TypeError: not an array. ValueError: a wrong or unfitting argument. NotImplementedError: right, but no kernel takes
    it; the message gives each one's reason. MemoryError. RuntimeError: the device. Nothing is returned half done.
    """
    torch = _torch or "torch" in _modules and _load_torch()
    if torch and torch.takes(q, k, v, alibi_slopes, sinks, bias, k_scale, v_scale):
        chosen = options(causal, window, scale, softcap, return_lse)
        return torch.attention(q, k, v, chosen, alibi_slopes, sinks, bias, k_scale, v_scale)
    others = dict(alibi_slopes=alibi_slopes, sinks=sinks, bias=bias, k_scale=k_scale, v_scale=v_scale)
    plan, q, k, v, extras = _prepare(q, k, v, causal, window, scale, softcap, return_lse, **others)
    batch, seqlen_q, heads_q, _ = q.shape
    kind = q.kind
    tensors = _c.Tensors()
    tensors.size = _SIZE_OF_TENSORS
    tensors.q = q.pointer
    tensors.k = k.pointer
    tensors.v = v.pointer
    o, tensors.o = kind.empty(q, (batch, seqlen_q, heads_q, v.shape[3]), q.dtype)
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
    k_scale: Any = None,
    v_scale: Any = None,
    return_lse: bool = False,
) -> Plan:
    """The Plan that attention() runs for these arrays and options; arguments and errors as there. It runs on any arrays
    of the same shapes, strides and dtypes: plan.run(q=q, k=k, v=v, o=o)."""
    others = dict(alibi_slopes=alibi_slopes, sinks=sinks, bias=bias, k_scale=k_scale, v_scale=v_scale)
    return _prepare(q, k, v, causal, window, scale, softcap, return_lse, **others)[0]
