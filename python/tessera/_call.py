"""A call of attention in the library's numbers: the problem of arrays as they lie, in every layout.

Owns the rules on how the arrays of one call fit one another; what the numbers mean is the library's to judge.
"""

from __future__ import annotations

import math
import operator
import os
from typing import Any

from . import _c
from ._arrays import DTYPE_NAMES, I32, View
from ._problem import Problem, broadcast_strides, scale_strides, set_field

# The arrays of a call beside q, k and v. Their presence decides the layout: cu_seqlens_q packs q [total, heads, dim],
# cu_seqlens_k packs k and v, page_table makes them pages [page, slot, heads_kv, dim].
EXTRAS = (
    "cu_seqlens_q",
    "cu_seqlens_k",
    "seqused_q",
    "seqused_k",
    "page_table",
    "leftpad",
    "batch_idx",
    "alibi_slopes",
    "sinks",
    "bias",
    "q_scale",
    "k_scale",
    "v_scale",
    "v_mean",
)
_FLAGS = {
    "seqused_q": _c.FLAG_SEQUSED_Q,
    "seqused_k": _c.FLAG_SEQUSED_K,
    "leftpad": _c.FLAG_LEFTPAD,
    "batch_idx": _c.FLAG_BATCH_IDX,
}
_index = operator.index
_MOST_PLANS = 1024  # about 3 KiB each; past that all are forgotten
_PIN: Any = b"TESSERA_KERNEL" if os.supports_bytes_environ else "TESSERA_KERNEL"
# The dict behind os.environb, where there is one: 0.1 us a look-up instead of 0.9.
_environment: Any = os.environb if os.supports_bytes_environ else os.environ
_look_up: Any = getattr(getattr(_environment, "_data", None), "get", None) if os.supports_bytes_environ else None
_look_up = _look_up or _environment.get


def pin() -> Any:
    """The kernel that the environment pins, or None: a plan is remembered for it."""
    return _look_up(_PIN)


def remember(plans: dict, key: tuple, value: Any) -> Any:
    """Keeps what was made for a call; past _MOST_PLANS everything is forgotten."""
    if len(plans) >= _MOST_PLANS:
        plans.clear()
    plans[key] = value
    return value


def options(
    causal: bool,
    window: Any,
    scale: Any,
    softcap: Any,
    return_lse: bool,
    top_left: bool = False,
    num_splits: int = 0,
    sm_margin: int = 0,
    deterministic: bool = False,
) -> tuple:
    """The options of a call, normalised and hashable: what fill() takes, and what a plan is remembered by."""
    try:
        left, right = window
        return (
            _index(left),
            0 if causal else _index(right),
            None if scale is None else float(scale),
            float(softcap),
            bool(return_lse),
            top_left,
            num_splits,
            sm_margin,
            deterministic,
        )
    except (TypeError, ValueError):
        _refuse(window, scale, softcap)
        raise


def _refuse(window: Any, scale: Any, softcap: Any) -> None:
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


def describe(problem: Problem, name: str, one: View) -> None:
    """Sets the operand's dtype, alignment and strides."""
    desc = getattr(problem, name)
    strides = one.strides(name)
    if strides[-1] != 1:
        raise ValueError(f"{name}: stride {strides[-1]} of its last dimension, expected 1")
    desc.dtype, desc.align = one.dtype, one.align
    desc.stride[:] = strides if len(strides) == 4 else (*strides, 0)


def _same_device(one: View, name: str, device: int) -> None:
    if one.device != device:
        raise ValueError(f"{name}: on device {one.device}, but q is on {device} (-1: the CPU)")


def value_slots(total: int, packed_batch: int | None) -> int:
    """Slots of v under v_order 1: its rows, packed the total of so many sequences, in groups of 16."""
    return (total + 15) // 16 * 16 if packed_batch is None else (total + 15 * packed_batch) // 16 * 16


def _check_ordered_values(k: View, v: View, extras: dict[str, View]) -> None:
    """v as quantize(order=1) gives it: [batch or pages, heads, dim, slots], packed [heads, dim, slots]."""
    cu = extras.get("cu_seqlens_k")
    slots = value_slots(k.shape[-3], None if cu is None else cu.shape[0] - 1)
    expected = (*k.shape[:-3], k.shape[-2], "dim", slots)
    if len(v.shape) != len(k.shape) or any(n != m for n, m in zip(v.shape, expected) if m != "dim"):
        words = ", ".join(str(n) for n in expected)
        raise ValueError(f"v: shape {list(v.shape)}, expected [{words}] under v_order 1")


def _check_qkv(q: View, k: View, v: View, extras: dict[str, View], v_order: int) -> None:
    packed_q, packed_k, paged = (name in extras for name in ("cu_seqlens_q", "cu_seqlens_k", "page_table"))
    if packed_k and paged:
        raise ValueError("page_table: given beside cu_seqlens_k, expected one of them")
    kv = "[page, slot, heads_kv, dim]" if paged else "[batch, seqlen, heads, dim]"
    for name, one, packed, dims in (
        ("q", q, packed_q, "[batch, seqlen, heads, dim]"),
        ("k", k, packed_k, kv),
        ("v", v, packed_k, kv),
    ):
        if packed and len(one.shape) != 3:
            raise ValueError(f"{name}: shape {list(one.shape)}, expected 3 dimensions [total, heads, dim]")
        if not packed and len(one.shape) != 4:
            raise ValueError(f"{name}: shape {list(one.shape)}, expected 4 dimensions {dims}")
        _same_device(one, name, q.device)
    if k.shape[-1] != q.shape[-1]:
        raise ValueError(f"k: head dimension {k.shape[-1]}, but q has {q.shape[-1]}")
    if v_order:
        return _check_ordered_values(k, v, extras)
    words = (
        ("total", "heads") if packed_k else ("pages", "page size", "heads") if paged else ("batch", "seqlen", "heads")
    )
    for axis, word in enumerate(words):
        if v.shape[axis] != k.shape[axis]:
            raise ValueError(f"v: {word} {v.shape[axis]}, but k has {k.shape[axis]}")


def check_vector(
    one: View, name: str, shapes: tuple[tuple[int, ...], ...], device: int, dtype: int = _c.F32
) -> tuple[int, ...]:
    if one.shape not in shapes:
        expected = " or ".join(str(list(shape)) for shape in shapes)
        raise ValueError(f"{name}: shape {list(one.shape)}, expected {expected}")
    if one.dtype != dtype:
        raise ValueError(f"{name}: dtype {DTYPE_NAMES[one.dtype]}, expected {DTYPE_NAMES[dtype]}")
    _same_device(one, name, device)
    strides = one.strides(name)
    if strides[-1] != 1:
        raise ValueError(f"{name}: stride {strides[-1]} of its last dimension, expected 1")
    return strides


def _describe_scale(problem: Problem, name: str, one: View, keys: View, device: int) -> None:
    """Scales [batch or page, row block, heads] of operands with the rows of `keys`: their extent says whether a
    block is all rows, a row or 128 rows."""
    if len(keys.shape) == 3:
        raise NotImplementedError(f"{name}: beside packed k and v; scales of packed rows go through a Plan")
    lead, rows, heads, _ = keys.shape
    if one.dtype != _c.F32:
        raise ValueError(f"{name}: dtype {DTYPE_NAMES[one.dtype]}, expected float32")
    _same_device(one, name, device)
    blocks = one.shape[-2] if len(one.shape) >= 2 else 1
    counts = {-(-rows // 128): 128, rows: 1, 1: 0}  # of equal extents the last one counts
    if blocks not in counts:
        raise ValueError(
            f"{name}: shape {list(one.shape)} has {blocks} row blocks for {rows} keys, expected 1, {rows} (a "
            f"key each) or {-(-rows // 128)} (of 128 keys)"
        )
    desc = getattr(problem, name)
    desc.dtype = _c.F32
    desc.stride[:] = (*scale_strides(one, name, (lead, blocks, heads)), 0)
    set_field(problem, name + "_rows", counts[blocks])


def _describe_mean(problem: Problem, one: View, k: View, dim: int, paged: bool) -> None:
    """v_mean [heads_kv, dim_v], or one of these a sequence (a row of a dense cache)."""
    heads = k.shape[-2]
    shapes = [(heads, dim)]
    if not paged:
        shapes.append((k.shape[0] if len(k.shape) == 4 else problem.batch, heads, dim))
    strides = check_vector(one, "v_mean", tuple(shapes), problem.device)
    if heads > 1 and strides[-2] != dim:
        raise ValueError(f"v_mean: stride {strides[-2]} between heads, expected {dim}")
    problem.flags |= _c.FLAG_V_MEAN
    if len(strides) == 3:
        problem.v_mean_stride = strides[0] if shapes[-1][0] > 1 else heads * dim


def _maximum(value: int | None, name: str) -> int:
    if value is None:
        raise ValueError(f"{name}: missing, expected the longest length of the packed sequences")
    return _index(value)


def _fill_sizes(problem: Problem, q: View, k: View, extras: dict[str, View], longest: tuple) -> int:
    """Layouts and sizes; returns the batch."""
    cu_q, cu_k, table = (extras.get(name) for name in ("cu_seqlens_q", "cu_seqlens_k", "page_table"))
    sizes = {}
    for name, one in (("cu_seqlens_q", cu_q), ("cu_seqlens_k", cu_k)):
        if one is not None and (len(one.shape) != 1 or one.shape[0] < 1):
            raise ValueError(f"{name}: shape {list(one.shape)}, expected [batch + 1]")
    if cu_q is not None:
        problem.layout_q = _c.PACKED
        batch = cu_q.shape[0] - 1
        sizes.update(total_q=q.shape[0], seqlen_q=_maximum(longest[0], "max_seqlen_q"))
        check_vector(cu_q, "cu_seqlens_q", ((batch + 1,),), q.device, I32)
    else:
        batch = q.shape[0]
        sizes.update(seqlen_q=q.shape[1])
    if cu_k is not None:
        problem.layout_kv = _c.PACKED
        sizes.update(total_k=k.shape[0], seqlen_k=_maximum(longest[1], "max_seqlen_k"))
        check_vector(cu_k, "cu_seqlens_k", ((batch + 1,),), q.device, I32)
    elif table is not None:
        if len(table.shape) != 2:
            raise ValueError(f"page_table: shape {list(table.shape)}, expected [{batch}, max_pages]")
        rows = check_vector(table, "page_table", ((batch, table.shape[1]),), q.device, I32)
        problem.layout_kv = _c.PAGED
        room = table.shape[1] * k.shape[1]
        sizes.update(num_pages=k.shape[0], page_size=k.shape[1], max_pages=table.shape[1])
        sizes.update(page_table_stride=rows[0] if batch > 1 else 0)
        sizes.update(seqlen_k=room if longest[1] is None else min(room, _index(longest[1])))
    else:
        # A cache may hold more rows than there are sequences; without used lengths k is no cache.
        if k.shape[0] != batch and "seqused_k" not in extras and "batch_idx" not in extras:
            raise ValueError(f"k: batch {k.shape[0]}, but q has {batch}")
        sizes.update(batch_kv=k.shape[0], seqlen_k=k.shape[1])
    sizes.update(batch=batch, heads_q=q.shape[-2], heads_kv=k.shape[-2], head_dim_qk=q.shape[-1], device=q.device)
    for field, value in sizes.items():
        set_field(problem, field, value)
    return batch


def output_dtype(q: View, asked: int = 0) -> int:
    """o's type: the one that is asked for, else q's, of e4m3 q bfloat16."""
    return asked or (_c.BF16 if q.dtype == _c.E4M3 else q.dtype)


def fill(
    q: View,
    k: View,
    v: View,
    chosen: tuple,
    extras: dict[str, View],
    longest: tuple = (None, None),
    v_order: int = 0,
    out_dtype: int = 0,
) -> Problem:
    """The forward problem of a call. `chosen` comes from options(), `extras` holds the given arrays of EXTRAS,
    `longest` is (max_seqlen_q, max_seqlen_k) of packed or paged sequences, `out_dtype` of o or 0: q's. ValueError where
    arrays do not fit."""
    left, right, scale, softcap, return_lse, top_left, num_splits, sm_margin, deterministic = chosen
    _check_qkv(q, k, v, extras, v_order)
    problem = Problem()
    batch = _fill_sizes(problem, q, k, extras, longest)
    dim_v = v.shape[-2] if v_order else v.shape[-1]
    set_field(problem, "head_dim_v", dim_v)
    set_field(problem, "v_order", v_order)
    set_field(problem, "left", left, "window")
    set_field(problem, "right", right, "window")
    set_field(problem, "num_splits", num_splits)
    set_field(problem, "sm_margin", sm_margin)
    if scale is not None:
        if math.isnan(scale):
            raise ValueError("scale: nan, expected a number or None")
        problem.scale = scale
    problem.softcap = softcap
    problem.mask_alignment = _c.TOP_LEFT if top_left else _c.BOTTOM_RIGHT
    for name, one in (("q", q), ("k", k), ("v", v)):
        describe(problem, name, one)
    problem.o.dtype = output_dtype(q, out_dtype)
    problem.flags |= (_c.FLAG_LSE if return_lse else 0) | (_c.FLAG_DETERMINISTIC if deterministic else 0)
    heads_q = q.shape[-2]
    for name, flag in _FLAGS.items():
        if name in extras:
            check_vector(extras[name], name, ((batch,),), q.device, I32)
            problem.flags |= flag
    alibi, sinks, bias = (extras.get(name) for name in ("alibi_slopes", "sinks", "bias"))
    if alibi is not None:
        strides = check_vector(alibi, "alibi_slopes", ((heads_q,), (batch, heads_q)), q.device)
        problem.flags |= _c.FLAG_ALIBI
        problem.alibi_stride = strides[0] if len(strides) == 2 and batch > 1 else 0
    if sinks is not None:
        check_vector(sinks, "sinks", ((heads_q,),), q.device)
        problem.flags |= _c.FLAG_SINKS
    if bias is not None:
        _same_device(bias, "bias", q.device)
        problem.flags |= _c.FLAG_BIAS
        strides = broadcast_strides(bias, "bias", (batch, heads_q, problem.seqlen_q, problem.seqlen_k))
        problem.bias.dtype, problem.bias.align, problem.bias.stride[:] = bias.dtype, bias.align, strides
    for name, rows in (("q_scale", q), ("k_scale", k), ("v_scale", k)):
        if name in extras:
            _describe_scale(problem, name, extras[name], rows, q.device)
    if "v_mean" in extras:
        _describe_mean(problem, extras["v_mean"], k, dim_v, "page_table" in extras)
    return problem


def lse_shape(problem: Problem) -> tuple[int, ...]:
    """[batch, heads_q, seqlen_q], packed [heads_q, total_q]."""
    if problem.layout_q == _c.PACKED:
        return (problem.heads_q, problem.total_q)
    return (problem.batch, problem.heads_q, problem.seqlen_q)
