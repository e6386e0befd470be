"""FlashAttention-2's Python interface (flash_attn 2.8) on this library's kernels: the same names, arguments, defaults
and results. Differences: the CPU and every dtype of the kernels work too; dropout raises NotImplementedError, and so do
gradients for as long as no kernel computes them.

Tensors are [batch, seqlen, heads, dim], packed ones [total, heads, dim] with int32 cu_seqlens [batch + 1]; causal and
window_size (left, right) are aligned bottom-right. softmax_lse is float32 [batch, heads, seqlen_q], packed
[heads, total_q], +inf for a row that sees no key; under a causal mask with alibi_slopes it is the log-sum-exp of
scores + slope * j, as FlashAttention-2's kernel has it, which softmax cannot tell from scores - slope * distance.
"""

from __future__ import annotations

from typing import Any

import torch

from . import _common as common

Tensor = torch.Tensor
__version__ = "2.8.3"
__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]


def _lse(lse: Tensor, slopes: Tensor | None, distance: Tensor | None) -> Tensor:
    """softmax_lse; `distance` [batch or 1, seqlen_q] holds d(i) = i + seqlen_k - seqlen_q where the row-independent
    ALiBi of the causal kernel is to be told."""
    if slopes is not None and distance is not None:
        slopes = slopes if slopes.dim() == 2 else slopes[None]
        lse = lse + slopes[:, :, None] * distance[:, None, :].float()
    return common.flash_lse(lse)


def _dense(q, k, v, dropout_p, scale, causal, window, softcap, slopes, deterministic, return_attn_probs) -> Any:
    common.refuse(dropout_p=(dropout_p != 0, f"{dropout_p}, and these kernels drop nothing; expected 0"))
    o, lse = common.run(
        q, k, v, scale, causal, window, softcap, return_attn_probs, deterministic=deterministic, alibi_slopes=slopes
    )
    if not return_attn_probs:
        return o
    distance = None
    if common.is_causal(causal, window, k.shape[1]):
        distance = torch.arange(q.shape[1], device=q.device)[None] + (k.shape[1] - q.shape[1])
    return o, _lse(lse, slopes, distance), q.new_empty(0)


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """q [batch, seqlen_q, heads, dim], k and v [batch, seqlen_k, heads_k, dim]; alibi_slopes [heads] or [batch, heads]
    float32. Returns out, or with return_attn_probs (out, softmax_lse, an empty tensor)."""
    return _dense(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    )


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn_func for qkv [batch, seqlen, 3, heads, dim]."""
    return _dense(
        *qkv.unbind(2),
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


def flash_attn_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn_func for q [batch, seqlen_q, heads, dim] and kv [batch, seqlen_k, 2, heads_k, dim]."""
    return _dense(
        q,
        *kv.unbind(2),
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


def _packed_distance(cu_q: Tensor, cu_k: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """(sequence, d(i)) of each packed query, [total]; rows past the last sequence count with it."""
    rows = torch.arange(total, device=cu_q.device)
    sequence = (torch.searchsorted(cu_q, rows.to(cu_q.dtype), right=True) - 1).clamp(0, max(cu_q.shape[0] - 2, 0))
    lengths_q, lengths_k = cu_q.diff(), cu_k.diff()
    return sequence, rows - cu_q[sequence] + (lengths_k - lengths_q)[sequence]


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Any:
    """q [total_q, heads, dim], k and v [total_k, heads_k, dim] or, with block_table int32 [batch, max_blocks],
    [blocks, page_size, heads_k, dim] of any page size. Rows of out past the last sequence are not written."""
    common.refuse(dropout_p=(dropout_p != 0, f"{dropout_p}, and these kernels drop nothing; expected 0"))
    extras: dict[str, Any] = dict(cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    if block_table is not None:
        extras = dict(cu_seqlens_q=cu_seqlens_q, page_table=block_table, seqused_k=cu_seqlens_k.diff())
    longest = (max_seqlen_q, max_seqlen_k)
    o, lse = common.run(
        q,
        k,
        v,
        softmax_scale,
        causal,
        window_size,
        softcap,
        return_attn_probs,
        longest,
        deterministic=deterministic,
        alibi_slopes=alibi_slopes,
        **extras,
    )
    if not return_attn_probs:
        return o
    if alibi_slopes is not None and common.is_causal(causal, window_size, max_seqlen_k):
        sequence, distance = _packed_distance(cu_seqlens_q, cu_seqlens_k, q.shape[0])
        slopes = alibi_slopes[:, None] if alibi_slopes.dim() == 1 else alibi_slopes[sequence].t()
        lse = lse + slopes * distance.float()
    return o, common.flash_lse(lse), q.new_empty(0)


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn_varlen_func for qkv [total, 3, heads, dim]."""
    q, k, v = qkv.unbind(1)
    return flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens,
        cu_seqlens,
        max_seqlen,
        max_seqlen,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn_varlen_func for q [total_q, heads, dim] and kv [total_k, 2, heads_k, dim]."""
    k, v = kv.unbind(1)
    return flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """Attention of q [batch, seqlen_q, heads, dim] over a cache [batch_cache, seqlen_cache, heads_k, dim], or with
    block_table over pages [blocks, page_size, heads_k, dim]; new k and v [batch, seqlen_new, heads_k, dim] are first
    written into it behind cache_seqlens, rotated where rotary_cos and rotary_sin [seqlen_ro, rotary_dim / 2] are given.
    One run of the library does both; in compiled code and under autocast torch operations append. A cache without room
    is a ValueError on the CPU; on CUDA and in compiled code what does not fit is dropped. Has no gradient, as there.

    Returns out, or with return_softmax_lse (out, softmax_lse)."""
    o, lse, lengths = common.with_kvcache(
        q,
        (k_cache, v_cache),
        (k, v),
        (rotary_cos, rotary_sin, rotary_interleaved, None),
        cache_seqlens,
        cache_batch_idx,
        cache_leftpad,
        block_table,
        causal,
        window_size,
        table_name="block_table",
        want_lengths=return_softmax_lse and alibi_slopes is not None,
        scale=softmax_scale,
        softcap=softcap,
        want_lse=return_softmax_lse,
        num_splits=num_splits,
        alibi_slopes=alibi_slopes,
    )
    if not return_softmax_lse:
        return o
    room = k_cache.shape[1] * (1 if block_table is None else block_table.shape[1])
    distance = None
    if alibi_slopes is not None and common.is_causal(causal, window_size, room):
        visible = torch.full((1,), room, device=q.device) if lengths is None else lengths
        if cache_leftpad is not None:
            visible = visible - cache_leftpad
        distance = torch.arange(q.shape[1], device=q.device)[None] + (visible[:, None] - q.shape[1])
    return o, _lse(lse, alibi_slopes, distance)
