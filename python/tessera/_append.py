"""append(): new keys and values written into a cache behind what it holds, with rotary embedding."""

from __future__ import annotations

import ctypes
import operator
from typing import Any

from . import _c
from ._arrays import DTYPE_NAMES, I32, View, contiguous, nothing, view
from ._call import check_vector, fill, options, remember
from ._errors import renamed, status_failure
from ._problem import Problem, set_field

_run = _c.lib.tessera_append
_problems: dict[tuple, Problem] = {}
_checked: dict[tuple, bool] = {}
_FLOATS = (_c.F64, _c.F32, _c.F16, _c.BF16)
_QUANTISED = (_c.INT8, _c.E4M3)
# The library's words for what append() takes by other names; where no query is given, the new keys stand in for them.
_NAMES = {
    "k": "k_cache",
    "v": "v_cache",
    "k_new": "k",
    "v_new": "v",
    "k_new_data": "k",
    "v_new_data": "v",
    "rotary_seqlen": "rotary_cos.shape[0]",
    "seqlen_new": "k.shape[1]",
}
_NAMES_WITHOUT_Q = {**_NAMES, "q": "k", "cu_seqlens_q": "cu_seqlens_new", "max_seqlen_q": "max_seqlen_new"}


def _check_dtype(one: View, name: str, allowed: tuple[int, ...]) -> None:
    if one.dtype not in allowed:
        expected = ", ".join(DTYPE_NAMES[dtype] for dtype in allowed)
        raise ValueError(f"{name}: dtype {DTYPE_NAMES[one.dtype]}, expected {expected}")


def _check_tables(cos: View, sin: View, head_dim: int) -> None:
    for name, one in (("rotary_cos", cos), ("rotary_sin", sin)):
        if len(one.shape) != 2 or one.shape != cos.shape or 2 * one.shape[1] > head_dim:
            expected = f"[positions, rotary_dim / 2] of both tables, at most {head_dim // 2} columns"
            raise ValueError(f"{name}: shape {list(one.shape)}, expected {expected}")
        if one.strides(name) != contiguous(one.shape):
            raise ValueError(f"{name}: strides {list(one.strides(name))}, expected a contiguous table")
        _check_dtype(one, name, _FLOATS)


def _check_table_dtype(views: dict[str, View], dtype: int) -> None:
    for name in ("rotary_cos", "rotary_sin"):
        if name in views and views[name].dtype != dtype:
            raise ValueError(f"{name}: dtype {DTYPE_NAMES[views[name].dtype]}, expected {DTYPE_NAMES[dtype]}")


def _check_query(q: View, cu: View | None, batch: int, heads_kv: int) -> None:
    dims = 4 if cu is None else 3
    if len(q.shape) != dims:
        raise ValueError(f"q: shape {list(q.shape)}, expected {dims} dimensions")
    if cu is None and q.shape[0] != batch:
        raise ValueError(f"q: batch {q.shape[0]}, but seqused_k has {batch}")
    if cu is not None:
        check_vector(cu, "cu_seqlens_q", ((batch + 1,),), q.device, I32)
    if q.shape[-2] % max(heads_kv, 1):
        raise ValueError(f"q: {q.shape[-2]} heads, expected a multiple of k_cache's {heads_kv}")


def check(views: dict[str, View]) -> None:
    """What the library cannot see in pointers: arrays that do not fit one another. `views` go by append()'s names."""
    k_cache, k, v, cu = (views.get(name) for name in ("k_cache", "k", "v", "cu_seqlens_new"))
    for name in ("k_cache", "v_cache"):
        if len(views[name].shape) != 4:
            raise ValueError(f"{name}: shape {list(views[name].shape)}, expected 4 dimensions")
        if views[name].read_only:
            raise ValueError(f"{name}: read-only, but new rows are written into it")
    _check_dtype(k_cache, "k_cache", (*_FLOATS, *_QUANTISED))
    used = views["seqused_k"]
    if len(used.shape) != 1:
        raise ValueError(f"seqused_k: shape {list(used.shape)}, expected [batch]")
    lead = (used.shape[0], k.shape[1] if len(k.shape) == 4 else 0)
    if cu is not None:
        lead = (k.shape[0] if k.shape else 0,)
        check_vector(cu, "cu_seqlens_new", ((used.shape[0] + 1,),), k_cache.device, I32)
    for name, one, cache in (("k", k, k_cache), ("v", v, views["v_cache"])):
        if one.shape != (*lead, *cache.shape[2:]):
            raise ValueError(f"{name}: shape {list(one.shape)}, expected {[*lead, *cache.shape[2:]]}")
        _check_dtype(one, name, (_c.F64,) if cache.dtype == _c.F64 else _FLOATS[1:])
    cos, sin = views.get("rotary_cos"), views.get("rotary_sin")
    if (cos is None) != (sin is None):
        missing = "rotary_cos" if cos is None else "rotary_sin"
        raise ValueError(f"rotary_cos and rotary_sin: {missing} is missing, expected both or neither")
    if cos is None and "q" in views:
        raise ValueError("q: given without rotary_cos and rotary_sin, which turn it")
    if cos is not None:
        _check_tables(cos, sin, k_cache.shape[3])
    if "q" in views:
        _check_query(views["q"], views.get("cu_seqlens_q"), used.shape[0], k_cache.shape[2])
        _check_table_dtype(views, views["q"].dtype)
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
        _check_table_dtype(views, source.dtype)
    return problem


def _describe(desc: _c.Desc, one: View, name: str) -> None:
    strides = one.strides(name)
    if strides[-1] != 1:
        raise ValueError(f"{name}: stride {strides[-1]} of its last dimension, expected 1")
    desc.dtype, desc.align = one.dtype, one.align
    desc.stride[:] = strides if len(strides) == 4 else (*strides, 0)


def describe_rows(views: dict[str, View], interleaved: bool, max_new: int | None) -> _c.AppendArgs:
    """The library's struct of new rows that check() found right, without q_rotated; the arrays have to outlive it."""
    args = _c.AppendArgs()
    args.size = ctypes.sizeof(args)
    ragged, new = "cu_seqlens_new" in views, views["k"]
    set_field(args, "seqlen_new", max_new if ragged else new.shape[1], "max_seqlen_new")
    args.total_new = new.shape[0] if ragged else 0
    _describe(args.k_new, new, "k")
    _describe(args.v_new, views["v"], "v")
    args.k_new_data, args.v_new_data = new.pointer, views["v"].pointer
    args.k_cache, args.v_cache = views["k_cache"].pointer, views["v_cache"].pointer
    if ragged:
        args.cu_seqlens_new = views["cu_seqlens_new"].pointer
    if "rotary_cos" in views:
        table = views["rotary_cos"]
        args.rotary_seqlen, args.rotary_dim = table.shape[0], 2 * table.shape[1]
        args.rotary_interleaved = int(bool(interleaved))
        args.rotary_cos, args.rotary_sin = table.pointer, views["rotary_sin"].pointer
    return args


def check_once(views: dict[str, View]) -> None:
    """check(), remembered for views of equal keys."""
    key = tuple((name, one.key, one.read_only) for name, one in views.items())
    if key not in _checked:
        check(views)
        remember(_checked, key, True)


def _whole(value: Any, name: str) -> int | None:
    if value is not None and not hasattr(value, "__index__"):
        raise TypeError(f"{name}: expected a whole number, not {value!r}")
    return None if value is None else operator.index(value)


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
    """Writes new keys and values into a cache in place, and returns q turned by its positions (None without q).

    Arrays of any framework, all on the CPU or all on one CUDA device; there the call is one launch, on the stream of
    q's framework, else of k_cache's.

    k_cache, v_cache  [rows, seqlen, heads_kv, dim], or with page_table pages [page, slot, heads_kv, dim]; float32,
                      float16, bfloat16, int8 or float8_e4m3fn, on the CPU also float64
    k, v              new rows [batch, seqlen_new, heads_kv, dim], with cu_seqlens_new [total_new, heads_kv, dim];
                      float32, float16 or bfloat16 (float64 for a float64 cache), rounded once to the cache's dtype
    seqused_k         [batch] int32, lengths before: row t of sequence b goes to slot seqused_k[b] + t
    page_table        [batch, max_pages] int32; batch_idx [batch] int32 picks the rows of a dense cache
    cu_seqlens_new    [batch + 1] int32, with max_seqlen_new the most rows of a sequence
    q                 [batch, seqlen_q, heads_q, dim], with cu_seqlens_q and max_seqlen_q [total_q, heads_q, dim]
    rotary_cos, rotary_sin [positions, rotary_dim / 2] of q's dtype (without q: the cache's, of a quantised cache any):
                      turn q and k, k at seqused_k[b] + t, query i at seqused_k[b] + i, or with banded=False, as for
                      attention without causal or window, at seqused_k[b]. rotary_interleaved: the pairs are neighbours,
                      else the halves of the first rotary_dim elements
    k_scale, v_scale  float32 scales of an int8 or float8 cache as attention() takes them: x / k_scale is rounded to
                      -127..127, or to float8 within -448..448

    TypeError: not an array, or None for one that is needed. ValueError: an argument that is wrong or does not fit, on
    the CPU also a cache without room and table entries out of range. NotImplementedError: a float64 cache on CUDA.
    Nothing is written then. On CUDA lengths and tables are read on the device: a row without room, or whose page or
    cache row does not exist, is left out, and a position past the rotary tables turns by their last row.
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
    needed = ("k_cache", "v_cache", "k", "v", "seqused_k")
    views = {name: view(x, name) for name, x in given.items() if x is not None or name in needed}
    max_seqlen_new, max_seqlen_q = _whole(max_seqlen_new, "max_seqlen_new"), _whole(max_seqlen_q, "max_seqlen_q")
    if cu_seqlens_new is not None and max_seqlen_new is None:
        raise ValueError("max_seqlen_new: missing, expected the most new rows of a sequence")
    if q is None and cu_seqlens_q is not None:
        raise ValueError("cu_seqlens_q: given without q, which it packs")
    for name, longest, starts in (
        ("max_seqlen_new", max_seqlen_new, "cu_seqlens_new"),
        ("max_seqlen_q", max_seqlen_q, "cu_seqlens_q"),
    ):
        if longest is not None and starts not in views:
            raise ValueError(f"{name}: {longest} given without {starts}, whose longest sequence it tells")
        if longest is not None and not 0 <= longest < 1 << 31:
            raise ValueError(f"{name}: {longest}, expected 0 to 2147483647")
    check_once(views)
    args = describe_rows(views, rotary_interleaved, max_seqlen_new)
    turned = None
    if q is not None:
        one = views["q"]
        turned, args.q_rotated = one.kind.empty(one, tuple(one.shape), one.dtype)
        if 0 in one.shape:
            args.q_rotated = nothing(0)
    try:
        _append(views, args, banded, max_seqlen_new, max_seqlen_q)
    except (ValueError, NotImplementedError) as error:
        names = _NAMES if q is not None else _NAMES_WITHOUT_Q
        if cu_seqlens_new is not None:
            names = {**names, "seqlen_new": "max_seqlen_new"}
        raise renamed(error, names) from None
    return None if q is None else views["q"].kind.finish(views["q"], turned)


def _append(views: dict[str, View], args: _c.AppendArgs, banded: bool, max_new: int | None, max_q: int | None) -> None:
    """tessera_append; errors name arguments in the library's words."""
    key = (*((name, one.key) for name, one in views.items()), banded, max_new, max_q)
    problem = _problems.get(key)
    if problem is None:
        problem = remember(_problems, key, _problem(views, banded, max_new, max_q))
    tensors, status = _c.Tensors(), _c.Status()
    tensors.size = ctypes.sizeof(tensors)
    for name in ("seqused_k", "page_table", "batch_idx", "q", "cu_seqlens_q", "k_scale", "v_scale"):
        if name in views:
            setattr(tensors, name, views[name].pointer)
    device, kind, others, execution = problem.device, views.get("q", views["k_cache"]).kind, set(), None
    if device >= 0:
        others = {one.kind for one in views.values() if type(one.kind) is not type(kind)}
        for other in others:
            other.settle(device)
        execution = ctypes.byref(_c.Exec(ctypes.sizeof(_c.Exec), kind.stream(device), None))
    code = _run(ctypes.byref(problem), ctypes.byref(tensors), ctypes.byref(args), execution, ctypes.byref(status))
    if code:
        raise status_failure(code, status)
    if device >= 0 and (kind.blocks or others):
        kind.settle(device)
