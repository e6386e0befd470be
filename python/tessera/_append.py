"""append(): new keys and values written into a cache behind what it holds, with rotary embedding, on the CPU."""

from __future__ import annotations

import ctypes
from typing import Any

from . import _c
from ._arrays import DTYPE_NAMES, I32, View, contiguous, nothing, view
from ._call import check_vector, fill, options, remember
from ._errors import status_failure
from ._problem import Problem, set_field

_problems: dict[tuple, Problem] = {}
_QUANTISED = (_c.INT8, _c.E4M3)


def _check(views: dict[str, View]) -> None:
    """What the library cannot see in pointers: shapes that do not fit one another."""
    k_cache, k, v, cu = (views.get(name) for name in ("k_cache", "k", "v", "cu_seqlens_new"))
    for name in ("k_cache", "v_cache"):
        if len(views[name].shape) != 4:
            raise ValueError(f"{name}: shape {list(views[name].shape)}, expected 4 dimensions")
    used = views["seqused_k"]
    lead = (used.shape[0] if used.shape else 0, k.shape[1] if len(k.shape) == 4 else 0)
    if cu is not None:
        lead = (k.shape[0] if k.shape else 0,)
        check_vector(cu, "cu_seqlens_new", ((used.shape[0] + 1,),), k_cache.device, I32)
    for name, one, cache in (("k", k, k_cache), ("v", v, views["v_cache"])):
        if one.shape != (*lead, *cache.shape[2:]):
            raise ValueError(f"{name}: shape {list(one.shape)}, expected {[*lead, *cache.shape[2:]]}")
    cos, sin = views.get("rotary_cos"), views.get("rotary_sin")
    if (cos is None) != (sin is None):
        raise ValueError("rotary_cos and rotary_sin: one of them is missing, expected both or neither")
    if cos is None and "q" in views:
        raise ValueError("q: given without rotary_cos and rotary_sin, which turn it")
    for name, one in (("rotary_cos", cos), ("rotary_sin", sin)):
        if one is None:
            continue
        if len(one.shape) != 2 or one.shape != cos.shape:
            raise ValueError(f"{name}: shape {list(one.shape)}, expected [positions, rotary_dim / 2] of both tables")
        if one.strides(name) != contiguous(one.shape):
            raise ValueError(f"{name}: strides {list(one.strides(name))}, expected a contiguous table")
    for name, one in views.items():
        if one.device != k_cache.device:
            raise ValueError(f"{name}: on device {one.device}, but k_cache is on {k_cache.device} (-1: the CPU)")


def _problem(views: dict[str, View], banded: bool, max_new: int | None, max_q: int | None) -> Problem:
    """The problem that describes the cache, as attention over it would."""
    q, k, k_cache, cos = (views.get(name) for name in ("q", "k", "k_cache", "rotary_cos"))
    extras = {
        name: views[name] for name in ("seqused_k", "page_table", "batch_idx", "k_scale", "v_scale") if name in views
    }
    if q is not None:
        longest = max_q
        if "cu_seqlens_q" in views:
            extras["cu_seqlens_q"] = views["cu_seqlens_q"]
    else:  # no query is read: the new keys stand in
        q, longest = k, max_new
        if "cu_seqlens_new" in views:
            extras["cu_seqlens_q"] = views["cu_seqlens_new"]
    problem = fill(q, k_cache, views["v_cache"], options(banded, (-1, -1), None, 0.0, False), extras, (longest, None))
    if q is k:
        source = k_cache if k_cache.dtype not in _QUANTISED else k if cos is None else cos
        problem.q.dtype = problem.o.dtype = source.dtype
        problem.q.align = 0
    for name in ("rotary_cos", "rotary_sin"):
        if name in views and views[name].dtype != problem.q.dtype:
            expected = DTYPE_NAMES[problem.q.dtype]
            raise ValueError(f"{name}: dtype {DTYPE_NAMES[views[name].dtype]}, expected q's, {expected}")
    return problem


def _describe(desc: _c.Desc, one: View, name: str) -> None:
    strides = one.strides(name)
    desc.dtype, desc.align = one.dtype, one.align
    desc.stride[:] = strides if len(strides) == 4 else (*strides, 0)


def append(
    k_cache: Any,
    v_cache: Any,
    k: Any,
    v: Any,
    seqused_k: Any,
    *,
    page_table: Any = None,
    batch_idx: Any = None,
    cu_seqlens_new: Any = None,
    max_seqlen_new: int | None = None,
    q: Any = None,
    cu_seqlens_q: Any = None,
    max_seqlen_q: int | None = None,
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    rotary_interleaved: bool = False,
    banded: bool = True,
    k_scale: Any = None,
    v_scale: Any = None,
) -> Any:
    """Writes new keys and values into a cache in place, and returns q turned by its positions (None without q). CPU.

    k_cache, v_cache  [rows, seqlen, heads_kv, dim], or with page_table pages [page, slot, heads_kv, dim]; float64,
                      float32, float16, bfloat16 or int8
    k, v              new rows [batch, seqlen_new, heads_kv, dim], with cu_seqlens_new [total_new, heads_kv, dim];
                      float32, float16 or bfloat16 (float64 for a float64 cache), rounded once to the cache's dtype
    seqused_k         [batch] int32, lengths before: row t of sequence b goes to slot seqused_k[b] + t
    page_table        [batch, max_pages] int32; batch_idx [batch] int32 picks the rows of a dense cache
    cu_seqlens_new    [batch + 1] int32, with max_seqlen_new the most rows of a sequence
    q                 [batch, seqlen_q, heads_q, dim], with cu_seqlens_q and max_seqlen_q [total_q, heads_q, dim]
    rotary_cos, rotary_sin [positions, rotary_dim / 2] of q's dtype (without q: the cache's, of an int8 cache any):
                      turn q and k, k at seqused_k[b] + t, query i at seqused_k[b] + i, or with banded=False, as for
                      attention without causal or window, at seqused_k[b]. rotary_interleaved: the pairs are neighbours,
                      else the halves of the first rotary_dim elements
    k_scale, v_scale  float32 scales of an int8 cache as attention() takes them: x / k_scale is rounded to -127..127

    ValueError: an argument that is wrong or does not fit, a cache without room; nothing is written.
    NotImplementedError: a CUDA device, or an e4m3 cache.
    """
    given = dict(
        k_cache=k_cache,
        v_cache=v_cache,
        k=k,
        v=v,
        seqused_k=seqused_k,
        page_table=page_table,
        batch_idx=batch_idx,
        cu_seqlens_new=cu_seqlens_new,
        q=q,
        cu_seqlens_q=cu_seqlens_q,
        rotary_cos=rotary_cos,
        rotary_sin=rotary_sin,
        k_scale=k_scale,
        v_scale=v_scale,
    )
    views = {name: view(x, name) for name, x in given.items() if x is not None}
    key = (*((name, one.key) for name, one in views.items()), banded, max_seqlen_new, max_seqlen_q)
    for name in ("k_cache", "v_cache"):
        if views[name].read_only:
            raise ValueError(f"{name}: read-only, but new rows are written into it")
    if cu_seqlens_new is not None and max_seqlen_new is None:
        raise ValueError("max_seqlen_new: missing, expected the most new rows of a sequence")
    problem = _problems.get(key)
    if problem is None:
        _check(views)
        problem = remember(_problems, key, _problem(views, banded, max_seqlen_new, max_seqlen_q))
    tensors, args, status = _c.Tensors(), _c.AppendArgs(), _c.Status()
    tensors.size, args.size = ctypes.sizeof(tensors), ctypes.sizeof(args)
    for name in ("seqused_k", "page_table", "batch_idx", "q", "cu_seqlens_q", "k_scale", "v_scale"):
        if name in views:
            setattr(tensors, name, views[name].pointer)
    ragged, new = "cu_seqlens_new" in views, views["k"]
    set_field(args, "seqlen_new", (max_seqlen_new or 0) if ragged else new.shape[1], "max_seqlen_new")
    args.total_new = new.shape[0] if ragged else 0
    _describe(args.k_new, new, "k")
    _describe(args.v_new, views["v"], "v")
    args.k_new_data, args.v_new_data = new.pointer, views["v"].pointer
    args.k_cache, args.v_cache = views["k_cache"].pointer, views["v_cache"].pointer
    if ragged:
        args.cu_seqlens_new = views["cu_seqlens_new"].pointer
    if rotary_cos is not None:
        table = views["rotary_cos"]
        args.rotary_seqlen, args.rotary_dim = table.shape[0], 2 * table.shape[1]
        args.rotary_interleaved = int(rotary_interleaved)
        args.rotary_cos, args.rotary_sin = table.pointer, views["rotary_sin"].pointer
    turned = None
    if q is not None:
        one = views["q"]
        turned, args.q_rotated = one.kind.empty(one, tuple(one.shape), one.dtype)
        if 0 in one.shape:
            args.q_rotated = nothing(0)
    code = _c.lib.tessera_append(
        ctypes.byref(problem), ctypes.byref(tensors), ctypes.byref(args), None, ctypes.byref(status)
    )
    if code:
        raise status_failure(code, status)
    return None if q is None else views["q"].kind.finish(views["q"], turned)
