"""FlashAttention-3's Python interface (flash_attn_interface) on this library's kernels: the same names, arguments,
defaults and results. Differences: the CPU, other GPUs than Hopper and every dtype of the kernels work too; what is
missing (qv, attention_chunk, descale factors) raises NotImplementedError, and so do gradients for as long as no kernel
computes them. pack_gqa and scheduler_metadata are hints that change no result.

Tensors and masks as in compat.flash_attn. softmax_lse is float32 [batch, heads, seqlen_q], packed [heads, total_q],
+inf for a row that sees no key; there is neither dropout nor ALiBi.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from .. import _c, _torch
from .._errors import status_failure
from . import _common as common

Tensor = torch.Tensor
__all__ = [
    "flash_attn_combine",
    "flash_attn_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "get_scheduler_metadata",
]


def _refuse(qv: Any, descales: tuple[Any, Any, Any], attention_chunk: int) -> None:
    common.refuse(
        qv=(qv is not None, "these kernels take no second part of q"),
        attention_chunk=(attention_chunk != 0, f"{attention_chunk}, and these kernels know bands only; expected 0"),
        q_descale=(descales[0] is not None, "not taken here; tessera.attention(q_scale=...) takes e4m3 queries"),
        k_descale=(descales[1] is not None, "not taken here; tessera.attention(k_scale=...) takes e4m3 and int8 keys"),
        v_descale=(
            descales[2] is not None,
            "not taken here; tessera.attention(v_scale=...) takes e4m3 and int8 values",
        ),
    )


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """q [batch, seqlen_q, heads, dim], k [batch, seqlen_k, heads_k, dim], v [batch, seqlen_k, heads_k, dim_v]. Returns
    out, or with return_attn_probs (out, softmax_lse)."""
    _refuse(qv, (q_descale, k_descale, v_descale), attention_chunk)
    o, lse = common.run(
        q,
        k,
        v,
        softmax_scale,
        causal,
        window_size,
        softcap,
        return_attn_probs,
        num_splits=num_splits,
        sm_margin=sm_margin,
        deterministic=deterministic,
    )
    return (o, common.flash_lse(lse)) if return_attn_probs else o


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    deterministic: bool = False,
    num_heads_q: int | None = None,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn_func for qkv [batch, seqlen, 3, heads, dim], or [batch, seqlen, heads + 2 * heads_k, dim] with
    num_heads_q = heads."""
    if qkv.dim() == 5:
        q, k, v = qkv.unbind(2)
    elif qkv.dim() == 4 and num_heads_q is not None:
        heads_k, odd = divmod(qkv.shape[2] - num_heads_q, 2)
        if heads_k < 1 or odd:
            raise ValueError(f"num_heads_q: {num_heads_q} of {qkv.shape[2]} heads, expected an even number of others")
        q, k, v = qkv.split((num_heads_q, heads_k, heads_k), dim=2)
    else:
        raise ValueError(f"qkv: shape {list(qkv.shape)}, expected 5 dimensions, or 4 and num_heads_q")
    return flash_attn_func(
        q,
        k,
        v,
        softmax_scale,
        causal,
        None,
        q_descale,
        k_descale,
        v_descale,
        window_size,
        attention_chunk,
        softcap,
        deterministic=deterministic,
        sm_margin=sm_margin,
        return_attn_probs=return_attn_probs,
    )


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """q [total_q, heads, dim], k and v [total_k, heads_k, dim]; seqused_q, seqused_k int32 [batch] are used lengths."""
    _refuse(qv, (q_descale, k_descale, v_descale), attention_chunk)
    o, lse = common.run(
        q,
        k,
        v,
        softmax_scale,
        causal,
        window_size,
        softcap,
        return_attn_probs,
        (max_seqlen_q, max_seqlen_k),
        num_splits,
        sm_margin,
        deterministic,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        seqused_q=seqused_q,
        seqused_k=seqused_k,
    )
    return (o, common.flash_lse(lse)) if return_attn_probs else o


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    qv: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    page_table: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Tensor | None = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """compat.flash_attn's function of this name with pages of any size, q packed [total_q, heads, dim] by cu_seqlens_q
    and max_seqlen_q, and new k and v packed [total_new, heads_k, dim] by cu_seqlens_k_new. Returns out, or with
    return_softmax_lse (out, softmax_lse, None, None), the Nones in place of the partial results of splits."""
    _refuse(qv, (q_descale, k_descale, v_descale), attention_chunk)
    o, lse, _ = common.with_kvcache(
        q,
        (k_cache, v_cache),
        (k, v),
        (rotary_cos, rotary_sin, rotary_interleaved, rotary_seqlens),
        cache_seqlens,
        cache_batch_idx,
        cache_leftpad,
        page_table,
        causal,
        window_size,
        cu_seqlens_q,
        cu_seqlens_k_new,
        (max_seqlen_q, None),
        scale=softmax_scale,
        softcap=softcap,
        want_lse=return_softmax_lse,
        num_splits=num_splits,
        sm_margin=sm_margin,
    )
    return (o, common.flash_lse(lse), None, None) if return_softmax_lse else o


def flash_attn_combine(
    out_partial: Tensor, lse_partial: Tensor, out: Tensor | None = None, out_dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """Merges partial results over disjoint keys: out_partial [states, batch, seqlen, heads, dim] float32, lse_partial
    [states, batch, seqlen, heads] float32 (-inf or +inf: an empty state) give (out, lse [batch, seqlen, heads], -inf
    where all states are empty)."""
    if out_partial.dim() != 5 or lse_partial.shape != out_partial.shape[:4]:
        raise ValueError(
            f"lse_partial: shape {list(lse_partial.shape)} for out_partial {list(out_partial.shape)}, expected "
            "[states, batch, seqlen, heads] and one dimension more"
        )
    for name, x in (("out_partial", out_partial), ("lse_partial", lse_partial)):
        if x.dtype is not torch.float32:
            raise ValueError(f"{name}: dtype {x.dtype}, expected float32")
    states, batch, seqlen, heads, dim = out_partial.shape
    dtype = out_dtype or (out_partial.dtype if out is None else out.dtype)
    codes = {torch.float32: _c.F32, torch.float16: _c.F16, torch.bfloat16: _c.BF16}
    if dtype not in codes or (out is not None and (out.dtype is not dtype or out.shape != out_partial.shape[1:])):
        raise ValueError(
            f"out: dtype {dtype}, expected float32, float16 or bfloat16 and shape {[batch, seqlen, heads, dim]}"
        )
    o = out_partial.contiguous()
    lse = torch.where(lse_partial == torch.inf, -torch.inf, lse_partial).transpose(2, 3).contiguous()
    merged = out if out is not None and out.is_contiguous() else o.new_empty(o.shape[1:], dtype=dtype)
    merged_lse = lse.new_empty(batch, heads, seqlen)
    device = o.get_device() if o.is_cuda else -1
    arguments = _c.MergeArgs(
        ctypes.sizeof(_c.MergeArgs), states, batch, seqlen, heads, dim, _c.F32, codes[dtype], device
    )
    arguments.o, arguments.lse = o.data_ptr(), lse.data_ptr()
    arguments.o_out, arguments.lse_out = merged.data_ptr(), merged_lse.data_ptr()
    status = _c.Status()
    execution = None
    if o.is_cuda:
        execution = ctypes.byref(_c.Exec(ctypes.sizeof(_c.Exec), _torch.current_stream(device), None))
    code = _c.lib.tessera_merge(ctypes.byref(arguments), execution, ctypes.byref(status))
    if code:
        raise status_failure(code, status)
    if out is not None and merged is not out:
        out.copy_(merged)
        merged = out
    return merged, merged_lse.transpose(1, 2)


def get_scheduler_metadata(
    batch_size: int,
    max_seqlen_q: int,
    max_seqlen_k: int,
    num_heads_q: int,
    num_heads_kv: int,
    headdim: int,
    cache_seqlens: Tensor,
    qkv_dtype: torch.dtype = torch.bfloat16,
    headdim_v: int | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    page_size: int | None = None,
    max_seqlen_k_new: int = 0,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    has_softcap: bool = False,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
) -> Tensor:
    """An empty int32 tensor: a plan of this library already holds what a scheduler needs, and reads lengths on the
    device. flash_attn_with_kvcache takes it and needs none."""
    return torch.empty(0, dtype=torch.int32, device=cache_seqlens.device)
