"""sdpa(): torch.nn.functional.scaled_dot_product_attention's signature and meaning; enable_sdpa(): that call itself.

Both read masks from the top-left corner and take tensors heads-first, as torch does; nothing else runs in their place.
"""

from __future__ import annotations

from typing import Any

from ._call import options


def _batch_first(torch: Any, x: Any, name: str, batch: tuple[int, ...]) -> Any:
    """[..., heads, seqlen, dim] as [batch, seqlen, heads, dim]: leading dimensions broadcast, then made one."""
    if x.dim() == 2:
        x = x.unsqueeze(0)
    if x.dim() < 3:
        raise ValueError(f"{name}: shape {list(x.shape)}, expected [..., heads, seqlen, dim]")
    if x.shape[:-3] != batch:
        x = x.expand(*batch, *x.shape[-3:])
    x = x.unsqueeze(0) if x.dim() == 3 else x.flatten(0, -4) if x.dim() > 4 else x
    return (x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()).transpose(1, 2)


def _match_heads(q: Any, k: Any, v: Any, enable_gqa: bool) -> tuple[Any, Any, Any]:
    heads = [x.shape[2] for x in (q, k, v)]
    most = max(heads)
    if enable_gqa:
        if heads[1] != heads[2] or heads[1] == 0 or heads[0] % heads[1]:
            raise ValueError(
                f"enable_gqa: query, key and value have {heads[0]}, {heads[1]} and {heads[2]} heads; expected as many "
                "of key as of value, and a multiple of them of query"
            )
        return q, k, v
    if any(n not in (1, most) for n in heads):
        raise ValueError(
            f"query, key and value have {heads[0]}, {heads[1]} and {heads[2]} heads; expected equal numbers or 1, or "
            "enable_gqa=True"
        )
    if heads[0] != most:
        q = q.expand(-1, -1, most, -1)
    if heads[1] != heads[2]:
        k, v = (x.expand(-1, -1, most, -1) for x in (k, v))
    return q, k, v


def _mask(torch: Any, mask: Any, batch: tuple[int, ...], heads: int, q: Any, k: Any) -> Any:
    """The mask as a bias [batch or 1, heads or 1, seqlen_q or 1, seqlen_k]."""
    if not isinstance(mask, torch.Tensor):
        raise TypeError(f"attn_mask: expected a tensor, not {type(mask).__name__}")
    full = (*batch, heads, q.shape[1], k.shape[1])
    if mask.dim() > len(full) or any(n not in (1, m) for n, m in zip(mask.shape[::-1], full[::-1])):
        raise ValueError(f"attn_mask: shape {list(mask.shape)}, expected one that broadcasts to {list(full)}")
    mask = mask.reshape((1,) * (4 - mask.dim()) + tuple(mask.shape)) if mask.dim() < 4 else mask
    if mask.dim() > 4:
        if any(n != 1 for n in mask.shape[:-3]):
            mask = mask.expand(*batch, *mask.shape[-3:])
        mask = mask.flatten(0, -4)
    if mask.shape[-1] != k.shape[1]:
        mask = mask.expand(*mask.shape[:-1], k.shape[1])
    return mask if mask.stride(-1) in (0, 1) or mask.shape[-1] <= 1 else mask.contiguous()


def sdpa(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """torch.nn.functional.scaled_dot_product_attention, argument for argument, by this library's kernels.

    query        torch tensor [..., heads, seqlen_q, dim] float64, float32, float16 or bfloat16
    key, value   [..., heads_kv, seqlen_k, dim], [..., heads_kv, seqlen_k, dim_v]; leading dimensions broadcast, and so
                 do heads of 1; other head counts need enable_gqa, and query head h reads key head
                 h // (heads // heads_kv)
    attn_mask    broadcasts to [..., heads, seqlen_q, seqlen_k]: bool keeps what is True, float32 or query's dtype is
                 added to the scores; or a causal bias of torch.nn.attention.bias
    dropout_p    0; anything else is a NotImplementedError
    is_causal    query i sees keys up to i, from the top-left corner (attention() aligns bottom-right)
    scale        factor of the scores; None: 1 / sqrt(dim)

    Returns [..., heads, seqlen_q, dim_v] of query's dtype, laid out as [..., seqlen_q, heads, dim_v]. A row that sees
    no key is 0. Operands are taken as they lie, copied only where the last stride is not 1. Errors as for attention().
    """
    import torch

    from . import _torch

    tensors = (("query", query), ("key", key), ("value", value))
    for name, x in tensors:
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name}: expected a torch.Tensor, not {type(x).__name__}")
    if dropout_p != 0:
        raise NotImplementedError(f"dropout_p: {dropout_p}, and these kernels drop nothing; expected 0")
    top_left = True
    if type(attn_mask).__name__ == "CausalBias":
        if is_causal:
            raise ValueError("is_causal: True beside a causal bias, expected one of them")
        top_left = attn_mask.variant == type(attn_mask.variant).UPPER_LEFT
        attn_mask, is_causal = None, True
    if is_causal and attn_mask is not None:
        raise ValueError("is_causal: True beside attn_mask, expected one of them")
    batch = query.shape[:-3]
    if not batch == key.shape[:-3] == value.shape[:-3]:
        batch = torch.broadcast_shapes(*(x.shape[:-3] for _, x in tensors))
    q, k, v = (_batch_first(torch, x, name, batch) for name, x in tensors)
    if not q.shape[2] == k.shape[2] == v.shape[2]:
        q, k, v = _match_heads(q, k, v, enable_gqa)
    extras = None if attn_mask is None else {"bias": _mask(torch, attn_mask, batch, q.shape[2], q, k)}
    o, _ = _torch.call(q, k, v, options(is_causal, (-1, -1), scale, 0.0, False, top_left), extras)
    o = o.transpose(1, 2)
    if query.dim() == 4 and len(batch) == 1:
        return o
    o = o.reshape(*batch, *o.shape[1:])
    return o.squeeze(-3) if max(x.dim() for _, x in tensors) == 2 else o


def enable_sdpa() -> str:
    """Puts this library behind torch's own call: wherever scaled_dot_product_attention takes its FLASH_ATTENTION
    backend, on the CPU and on CUDA, a kernel of this library runs.

        tessera.enable_sdpa()
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            F.scaled_dot_product_attention(q, k, v, is_causal=True)

    Without sdpa_kernel torch goes on choosing a backend by itself. Where it takes the flash one, what no kernel of this
    library takes raises, dropout and gradients included; torch's own flash kernels no longer run. Attention over nested
    tensors and torch.nn.attention.varlen stay torch's. Safe to call twice; disable_sdpa() undoes it.

    Returns a sentence on what was replaced and how. NotImplementedError: this torch lacks the operators to replace.
    """
    from . import _torch_flash

    return _torch_flash.enable()


def disable_sdpa() -> None:
    """Gives torch its own flash kernels back. Without enable_sdpa() before, it does nothing."""
    from . import _torch_flash

    _torch_flash.disable()
