"""What both FlashAttention drop-ins share: the call, its lse in their convention, and the key/value cache."""

from __future__ import annotations

from typing import Any, Callable

import torch

from .. import _c, _torch
from .._append import check_once, describe_rows
from .._call import options
from .._errors import renamed

Tensor = torch.Tensor
# The words of this library for the arguments of flash_attn_with_kvcache, and those that it has of attention over a
# cache alone, where k and v are the cache.
_NAMES = {
    "seqused_k": "cache_seqlens",
    "batch_idx": "cache_batch_idx",
    "leftpad": "cache_leftpad",
    "cu_seqlens_new": "cu_seqlens_k_new",
    "scale": "softmax_scale",
    "window": "window_size",
}
_CACHE_NAMES = {
    "k": "k_cache",
    "v": "v_cache",
    "k_new": "k",
    "v_new": "v",
    "k_new_data": "k",
    "v_new_data": "v",
    "rotary_seqlen": "rotary_cos.shape[0]",
    "seqlen_new": "k.shape[1]",
}
_NAMED_ERRORS = (ValueError, TypeError, NotImplementedError)


def rows(x: Tensor) -> Tensor:
    """The tensor with a last stride of 1; as those packages do, by a copy where needed."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def refuse(**arguments: Any) -> None:
    """NotImplementedError for arguments that are given and that these kernels lack: name=(given, reason)."""
    for name, (given, reason) in arguments.items():
        if given:
            raise NotImplementedError(f"{name}: {reason}")


def run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None,
    causal: bool,
    window: Any,
    softcap: float,
    want_lse: bool,
    longest: tuple = (None, None),
    num_splits: int = 0,
    sm_margin: int = 0,
    deterministic: bool = False,
    append: _c.AppendArgs | None = None,
    **extras: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """(o, lse of this library); `extras` go by the names of the library, None for absent ones. `append`: rows that the
    run writes into k and v first, on the short path only."""
    chosen = options(causal, window, scale, softcap, want_lse, False, num_splits, sm_margin, deterministic)
    given = {name: x for name, x in extras.items() if x is not None}
    if append is not None:
        return _torch.forward(rows(q), k, v, chosen, given or None, longest, append=append)
    return _torch.call(rows(q), rows(k), rows(v), chosen, given or None, longest)


def flash_lse(lse: Tensor) -> Tensor:
    """lse as FlashAttention-2 and -3 give it: +inf, not -inf, for a row that sees no key."""
    return torch.where(lse == -torch.inf, torch.inf, lse)


def is_causal(causal: bool, window: Any, longest_k: int) -> bool:
    """Whether FlashAttention-2 takes its plain causal path: nothing hidden on the left, nothing beyond the diagonal."""
    return (window[0] < 0 or window[0] >= longest_k) and (causal or window[1] == 0)


def cache_lengths(lengths: Any, batch: int, device: torch.device) -> Tensor | None:
    """cache_seqlens as int32 [batch]; one number stands for every sequence."""
    if lengths is not None and not isinstance(lengths, (int, Tensor)):
        raise TypeError(f"cache_seqlens: expected a tensor or one number, not {type(lengths).__name__}")
    if isinstance(lengths, int):
        return torch.full((batch,), lengths, dtype=torch.int32, device=device)
    return lengths


def rotate(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, interleaved: bool) -> Tensor:
    """x [batch, seqlen, heads, dim] with its first 2 * cos.shape[1] elements rotated by the rows `positions`
    [batch, seqlen] of cos and sin; in float32 at least, rounded once."""
    half, work = cos.shape[-1], torch.promote_types(x.dtype, torch.float32)
    c, s = (table[positions].unsqueeze(2).to(work) for table in (cos, sin))
    turned, rest = x[..., : 2 * half].to(work), x[..., 2 * half :]
    if interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
        turned = torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2)
    else:
        a, b = turned[..., :half], turned[..., half:]
        turned = torch.cat((a * c - b * s, a * s + b * c), -1)
    return torch.cat((turned.to(x.dtype), rest), -1)


def _rotate_both(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, before: Tensor, band: bool
) -> tuple[Tensor, Tensor]:
    """q and k turned by torch operations, by the positions behind `before` [batch]."""
    start = before.long()[:, None]
    steps = torch.arange(max(q.shape[1], k.shape[1]), device=q.device)
    k = rotate(k, cos, sin, start + steps[: k.shape[1]], interleaved)
    return rotate(q, cos, sin, start + (steps[: q.shape[1]] if band else 0 * steps[: q.shape[1]]), interleaved), k


def _describe_new(
    q: Tensor,
    caches: tuple[Tensor, Tensor],
    new: tuple[Tensor, Tensor],
    rotary: tuple[Tensor | None, Tensor | None, bool],
    lengths: Tensor,
    cu_q: Tensor | None,
    cu_new: Tensor | None,
) -> tuple[_c.AppendArgs, list[Tensor]]:
    """The new rows for a run that appends, checked; and what has to live until it returns."""
    cos, sin, interleaved = rotary
    given = dict(zip(("k_cache", "v_cache", "k", "v"), (*caches, *map(rows, new))), seqused_k=lengths)
    others = dict(cu_seqlens_new=cu_new)
    if cos is not None or sin is not None:
        others.update(q=q, cu_seqlens_q=cu_q)
        tables = zip(("rotary_cos", "rotary_sin"), (cos, sin))
        others.update((name, x if x is None else x.contiguous()) for name, x in tables)
    given.update((name, x) for name, x in others.items() if x is not None)
    views = {name: _torch.kind.view(x, name) for name, x in given.items()}
    check_once(views)
    args = describe_rows(views, interleaved, None if cu_new is None else new[0].shape[0])
    alive = list(given.values())
    if cos is not None:
        turned = _torch.kind.view(q.new_empty(q.shape), "q")
        args.q_rotated = turned.pointer
        alive.append(turned.array)
    return args, alive


def append(
    caches: tuple[Tensor, Tensor],
    new: tuple[Tensor, Tensor],
    lengths: Tensor,
    batch_idx: Tensor | None,
    table: Tensor | None,
) -> tuple[Tensor, Callable[[], None]]:
    """Writes new k and v [batch, seqlen_new, heads_kv, dim] behind the first `lengths` rows of each sequence of the
    caches, dense or paged, by torch operations: (the lengths after, int32 [batch]; what takes the rows back).

    A cache that is too small is a ValueError on the CPU; on CUDA, where lengths are read on the device, and in compiled
    code, what does not fit is dropped and nothing beyond the cache is touched.
    """
    batch, count = new[0].shape[:2]
    page = caches[0].shape[1]
    room = page if table is None else page * table.shape[1]
    positions = lengths.long()[:, None] + torch.arange(count, device=lengths.device)
    beyond = positions >= room
    looks = not lengths.is_cuda and not torch.compiler.is_compiling()
    if count > room or (looks and bool(beyond.any())):
        raise ValueError(
            f"cache_seqlens: up to {int(positions.max()) + 1 - count} keys and {count} new ones, cache of {room}"
        )
    # What does not fit goes back to where it is not new: an old row of the same sequence, with that row's own value.
    positions = torch.where(beyond, positions - room, positions)
    if table is None:
        first = torch.arange(batch, device=lengths.device) if batch_idx is None else batch_idx.long()
        place = (first[:, None].expand_as(positions), positions)
    else:
        place = (table.long().gather(1, positions // page), positions % page)
    before = [cache[place] for cache in caches]
    for cache, old, x in zip(caches, before, new):
        cache[place] = torch.where(beyond[..., None, None], old, x)

    def undo() -> None:
        for cache, old in zip(caches, before):
            cache[place] = old

    return (lengths + count).clamp(max=room).to(torch.int32), undo


def with_kvcache(
    q: Tensor,
    caches: tuple[Tensor, Tensor],
    new: tuple[Tensor | None, Tensor | None],
    rotary: tuple[Tensor | None, Tensor | None, bool, Tensor | None],
    lengths: Any,
    batch_idx: Tensor | None,
    leftpad: Tensor | None,
    table: Tensor | None,
    causal: bool,
    window: Any,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_new: Tensor | None = None,
    longest: tuple[int | None, int | None] = (None, None),
    table_name: str = "page_table",
    want_lengths: bool = False,
    **call: Any,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Appends, rotates and attends; (o, lse, lengths of the keys, where wanted and not the whole cache). `rotary` is
    (cos, sin, interleaved, positions before the new tokens or None for `lengths`). New k and v are packed by
    cu_seqlens_new, q by cu_seqlens_q. An error leaves the caches as they were; it calls the page table `table_name`."""
    for name, cache in zip(("k_cache", "v_cache"), caches):
        if cache.stride(-1) != 1:
            raise ValueError(f"{name}: stride {cache.stride(-1)} of its last dimension, expected 1")
    batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    lengths = cache_lengths(lengths, batch, q.device)
    cos, sin, interleaved, before = rotary
    k, v = new
    if (k is None) != (v is None):
        raise ValueError("k and v: one of them is missing, expected both or neither")
    if k is None and cu_seqlens_new is not None:
        raise ValueError("cu_seqlens_k_new: given without new k and v, which it packs")
    if k is None and cos is not None:
        raise ValueError("rotary_cos: given without new k and v, which it rotates")
    if k is not None and lengths is None:
        raise ValueError("cache_seqlens: missing, expected the lengths behind which the new k and v go")
    extras = dict(batch_idx=batch_idx, leftpad=leftpad, page_table=table, cu_seqlens_q=cu_seqlens_q)
    call.update(causal=causal, window=window, longest=longest)
    with torch.no_grad():
        if k is None:
            try:
                o, lse = run(q, *caches, seqused_k=lengths, **extras, **call)
            except _NAMED_ERRORS as error:
                raise renamed(error, {**_NAMES, **_CACHE_NAMES, "page_table": table_name}) from None
            return o, lse, lengths
        # The library appends; where torch's dispatcher is needed, torch's operations do.
        direct = not torch.compiler.is_compiling() and _torch.is_direct(q, k, v, *caches)
        if cu_seqlens_new is not None or cu_seqlens_q is not None:
            refuse(
                cu_seqlens_k_new=(not direct, "packed rows are not appended in compiled code or under autocast"),
                rotary_seqlens=(cos is not None and before is not None, "given beside packed rows"),
            )
        if cos is not None and (before is not None or not direct):
            band = causal or tuple(window) != (-1, -1)
            q, k = _rotate_both(q, k, cos, sin, interleaved, lengths if before is None else before, band)
            cos = sin = None
        if not direct:
            lengths, undo = append(caches, (k, v), lengths, batch_idx, table)
            if torch.compiler.is_compiling():
                o, lse = run(q, *caches, seqused_k=lengths, **extras, **call)
                return o, lse, lengths
            try:
                o, lse = run(q, *caches, seqused_k=lengths, **extras, **call)
            except Exception as error:
                undo()
                if isinstance(error, _NAMED_ERRORS):
                    raise renamed(error, {**_NAMES, **_CACHE_NAMES, "page_table": table_name}) from None
                raise
            return o, lse, lengths
        try:
            tables = (cos, sin, interleaved)
            args, _alive = _describe_new(q, caches, (k, v), tables, lengths, cu_seqlens_q, cu_seqlens_new)
        except _NAMED_ERRORS as error:
            raise renamed(error, {**_NAMES, "page_table": table_name}) from None
        try:
            o, lse = run(q, *caches, seqused_k=lengths, append=args, **extras, **call)
        except _NAMED_ERRORS as error:
            raise renamed(error, {**_NAMES, **_CACHE_NAMES, "page_table": table_name}) from None
    if not want_lengths:
        return o, lse, None
    after = lengths + (k.shape[1] if cu_seqlens_new is None else cu_seqlens_new.diff())
    return o, lse, after.clamp(max=caches[0].shape[1] * (1 if table is None else table.shape[1]))
