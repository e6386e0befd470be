"""attention(): exact attention on arrays of any framework, and plan(): the plan that it runs.

Filling a problem takes longer in Python than planning in the library does, so the plan of a call is remembered under
everything that it depends on: shapes, strides, dtypes, alignments, device, options and the pinned kernel.
"""

from __future__ import annotations

import ctypes
import math
import operator
import os
from typing import Any

from . import _c
from ._arrays import DTYPE_NAMES, View, nothing, view
from ._problem import Plan, Problem, broadcast_strides, scale_strides, set_field

_plans: dict[tuple, Plan] = {}
_MOST_PLANS = 1024  # about 3 KiB each; past that all are forgotten
_environment: Any = os.environb if os.supports_bytes_environ else os.environ  # bytes: half the time of a look-up
_PIN: Any = b"TESSERA_KERNEL" if os.supports_bytes_environ else "TESSERA_KERNEL"
_index = operator.index
_SIZE_OF_TENSORS = ctypes.sizeof(_c.Tensors)


def _describe(problem: Problem, name: str, one: View) -> None:
    desc = getattr(problem, name)
    strides = one.strides(name)
    if strides[3] == 0:
        raise ValueError(f"{name}: stride 0 of its last dimension, expected 1")
    desc.dtype, desc.align, desc.stride[:] = one.dtype, one.align, strides


def _check_shapes(q: View, k: View, v: View) -> None:
    for name, one in (("q", q), ("k", k), ("v", v)):
        if len(one.shape) != 4:
            raise ValueError(f"{name}: shape {list(one.shape)}, expected 4 dimensions [batch, seqlen, heads, dim]")
        if one.device != q.device:
            raise ValueError(f"{name}: on device {one.device}, but q is on {q.device} (-1: the CPU)")
    if k.shape[0] != q.shape[0]:
        raise ValueError(f"k: batch {k.shape[0]}, but q has {q.shape[0]}")
    if k.shape[3] != q.shape[3]:
        raise ValueError(f"k: head dimension {k.shape[3]}, but q has {q.shape[3]}")
    for axis, word in enumerate(("batch", "seqlen", "heads")):
        if v.shape[axis] != k.shape[axis]:
            raise ValueError(f"v: {word} {v.shape[axis]}, but k has {k.shape[axis]}")


def _check_vector(one: View, name: str, shapes: tuple[tuple[int, ...], ...], device: int) -> tuple[int, ...]:
    if one.shape not in shapes:
        expected = " or ".join(str(list(shape)) for shape in shapes)
        raise ValueError(f"{name}: shape {list(one.shape)}, expected {expected}")
    if one.dtype != _c.F32:
        raise ValueError(f"{name}: dtype {DTYPE_NAMES[one.dtype]}, expected float32")
    if one.device != device:
        raise ValueError(f"{name}: on device {one.device}, but q is on {device} (-1: the CPU)")
    strides = one.strides(name)
    if strides[-1] != 1:
        raise ValueError(f"{name}: stride {strides[-1]} of its last dimension, expected 1")
    return strides


def _describe_scale(problem: Problem, name: str, one: View, keys: View, device: int) -> None:
    """Scales [batch, row block, heads_kv]: their extent says whether a block is all rows, a row or 128 rows."""
    batch, seqlen_k, heads, _ = keys.shape
    if one.dtype != _c.F32:
        raise ValueError(f"{name}: dtype {DTYPE_NAMES[one.dtype]}, expected float32")
    if one.device != device:
        raise ValueError(f"{name}: on device {one.device}, but q is on {device} (-1: the CPU)")
    blocks = one.shape[-2] if len(one.shape) >= 2 else 1
    counts = {-(-seqlen_k // 128): 128, seqlen_k: 1, 1: 0}  # of equal extents the last one counts
    if blocks not in counts:
        raise ValueError(
            f"{name}: shape {list(one.shape)} has {blocks} row blocks for {seqlen_k} keys, expected 1, {seqlen_k} (a "
            f"key each) or {-(-seqlen_k // 128)} (of 128 keys)"
        )
    desc = getattr(problem, name)
    desc.dtype = _c.F32
    desc.stride[:] = (*scale_strides(one, name, (batch, blocks, heads)), 0)
    set_field(problem, name + "_rows", counts[blocks])


def _fill(
    q: View,
    k: View,
    v: View,
    options: tuple,
    alibi: View | None,
    sinks: View | None,
    bias: View | None,
    k_scale: View | None,
    v_scale: View | None,
) -> Problem:
    """The problem of a call; ValueError where the arrays do not fit one another. The rest is the library's to judge."""
    left, right, scale, softcap, return_lse = options
    _check_shapes(q, k, v)
    problem = Problem()
    batch, seqlen_q, heads_q, head_dim_qk = q.shape
    sizes = dict(batch=batch, seqlen_q=seqlen_q, seqlen_k=k.shape[1], heads_q=heads_q, heads_kv=k.shape[2])
    sizes.update(head_dim_qk=head_dim_qk, head_dim_v=v.shape[3], device=q.device)
    for field, value in sizes.items():
        set_field(problem, field, value)
    set_field(problem, "left", left, "window")
    set_field(problem, "right", right, "window")
    if scale is not None:
        if math.isnan(scale):
            raise ValueError("scale: nan, expected a number or None")
        problem.scale = scale
    problem.softcap = softcap
    for name, one in (("q", q), ("k", k), ("v", v)):
        _describe(problem, name, one)
    problem.o.dtype = q.dtype
    if return_lse:
        problem.flags |= _c.FLAG_LSE
    if alibi is not None:
        strides = _check_vector(alibi, "alibi_slopes", ((heads_q,), (batch, heads_q)), q.device)
        problem.flags |= _c.FLAG_ALIBI
        problem.alibi_stride = strides[0] if len(strides) == 2 and batch > 1 else 0
    if sinks is not None:
        _check_vector(sinks, "sinks", ((heads_q,),), q.device)
        problem.flags |= _c.FLAG_SINKS
    if bias is not None:
        if bias.device != q.device:
            raise ValueError(f"bias: on device {bias.device}, but q is on {q.device} (-1: the CPU)")
        problem.flags |= _c.FLAG_BIAS
        strides = broadcast_strides(bias, "bias", (batch, heads_q, seqlen_q, k.shape[1]))
        problem.bias.dtype, problem.bias.align, problem.bias.stride[:] = bias.dtype, bias.align, strides
    if k_scale is not None:
        _describe_scale(problem, "k_scale", k_scale, k, q.device)
    if v_scale is not None:
        _describe_scale(problem, "v_scale", v_scale, v, q.device)
    return problem


def _refuse_options(window: Any, scale: Any, softcap: Any) -> None:
    """Raises the error that names the option of the wrong type."""
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        raise ValueError(f"window: {window!r}, expected (left, right)")
    for value in window:
        if not hasattr(value, "__index__"):
            raise TypeError(f"window: expected two whole numbers, not {window!r}")
    for name, value in (("scale", scale), ("softcap", softcap)):
        if value is not None and not hasattr(value, "__float__") and not hasattr(value, "__index__"):
            raise TypeError(f"{name}: expected a number, not {value!r}")
    if softcap is None:
        raise TypeError("softcap: expected a number, not None (0 turns it off)")


def _prepare(q, k, v, causal, window, scale, softcap, alibi_slopes, sinks, bias, k_scale, v_scale, return_lse) -> tuple:
    """The plan of a call and the views of its arrays."""
    try:
        left, right = window
        left, right = _index(left), _index(right)
        options = (
            left,
            0 if causal else right,
            None if scale is None else float(scale),
            float(softcap),
            bool(return_lse),
        )
    except (TypeError, ValueError):
        _refuse_options(window, scale, softcap)
        raise
    views = (
        view(q, "q"),
        view(k, "k"),
        view(v, "v"),
        None if alibi_slopes is None else view(alibi_slopes, "alibi_slopes"),
        None if sinks is None else view(sinks, "sinks"),
        None if bias is None else view(bias, "bias"),
        None if k_scale is None else view(k_scale, "k_scale"),
        None if v_scale is None else view(v_scale, "v_scale"),
    )
    q, k, v, alibi, sinks, bias, k_scale, v_scale = views
    key = (
        q.key,
        k.key,
        v.key,
        options,
        alibi and alibi.key,
        sinks and sinks.key,
        bias and bias.key,
        k_scale and k_scale.key,
        v_scale and v_scale.key,
        _environment.get(_PIN),
    )
    chosen = _plans.get(key)
    if chosen is None:
        chosen = Plan(_fill(q, k, v, options, alibi, sinks, bias, k_scale, v_scale))
        if len(_plans) >= _MOST_PLANS:
            _plans.clear()
        _plans[key] = chosen
    return chosen, views


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
    arrays, torch tensors torch tensors, others arrays of the kind of q by its from_dlpack. Gradients are not recorded.

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
    plan, views = _prepare(
        q, k, v, causal, window, scale, softcap, alibi_slopes, sinks, bias, k_scale, v_scale, return_lse
    )
    qv, kv, vv, alibi, sink, bias_view, k_factors, v_factors = views
    batch, seqlen_q, heads_q, _ = qv.shape
    kind = qv.kind
    tensors = _c.Tensors()
    tensors.size = _SIZE_OF_TENSORS
    tensors.q = qv.pointer
    tensors.k = kv.pointer
    tensors.v = vv.pointer
    o, tensors.o = kind.empty(qv, (batch, seqlen_q, heads_q, vv.shape[3]), qv.dtype)
    if return_lse:
        lse, tensors.lse = kind.empty(qv, (batch, heads_q, seqlen_q), _c.F64 if qv.dtype == _c.F64 else _c.F32)
    if 0 in qv.shape:
        tensors.o, tensors.lse = nothing(0), nothing(1) if return_lse else None
    if alibi is not None:
        tensors.alibi_slopes = alibi.pointer
    if sink is not None:
        tensors.sinks = sink.pointer
    if bias_view is not None:
        tensors.bias = bias_view.pointer
    if k_factors is not None:
        tensors.k_scale = k_factors.pointer
    if v_factors is not None:
        tensors.v_scale = v_factors.pointer
    workspace = None
    if qv.device >= 0 and plan.workspace_bytes:
        _memory, address = kind.empty(qv, (plan.workspace_bytes,), _c.U8)
        workspace = (address, plan.workspace_bytes)
    plan.launch(tensors, workspace, None)
    if return_lse:
        return kind.finish(qv, o), kind.finish(qv, lse)
    return kind.finish(qv, o)


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
    return _prepare(q, k, v, causal, window, scale, softcap, alibi_slopes, sinks, bias, k_scale, v_scale, return_lse)[0]
