"""This library as torch's flash attention: the aten operators that scaled_dot_product_attention dispatches to.

Torch hands over q, k, v [batch, heads, seqlen, dim] and expects o in q's layout and lse [batch, heads, seqlen], natural
logarithm. Its own choice of a backend, and its checks of what a flash backend takes, stay in force before ours.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

from . import _torch, _torch_ops
from ._call import options

Tensor = torch.Tensor
NAME = "tessera"
_CPU = "_scaled_dot_product_flash_attention_for_cpu"
_CUDA = "_scaled_dot_product_flash_attention"
_held: "_Override | None" = None


def _chosen(dropout_p: float, is_causal: bool, scale: float | None) -> tuple:
    if dropout_p != 0:
        raise NotImplementedError(f"dropout_p: {dropout_p}, and these kernels drop nothing; expected 0")
    return options(is_causal, (-1, -1), scale, 0.0, True, top_left=True)


def _seqlen_first(x: Tensor) -> Tensor:
    return (x if x.stride(-1) == 1 else x.contiguous()).transpose(1, 2)


def _run(query: Tensor, key: Tensor, value: Tensor, chosen: tuple, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    extras = None
    if mask is not None:
        mask = mask if mask.shape[-1] == key.shape[2] else mask.expand(*mask.shape[:-1], key.shape[2])
        extras = {"bias": mask if mask.stride(-1) in (0, 1) else mask.contiguous()}
    # The layout of the result is part of the operator's contract: that of query.
    out = torch.empty_like(query)
    if out.shape[-1] != value.shape[-1]:
        out = query.new_empty((*query.shape[:-1], value.shape[-1]))
    q, k, v, o = (_seqlen_first(x) for x in (query, key, value, out))
    _, lse = _torch.forward(q, k, v, chosen, extras, out=o)
    return out, lse


def _forward_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    out, lse = _run(query, key, value, _chosen(dropout_p, is_causal, scale), attn_mask)
    return out, lse.transpose(1, 2).contiguous().transpose(1, 2)


def _forward_cuda(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple:
    if return_debug_mask:
        raise NotImplementedError("return_debug_mask: True, and these kernels keep no matrix to show; expected False")
    out, lse = _run(query, key, value, _chosen(dropout_p, is_causal, scale), None)
    seed = torch.zeros(2, dtype=torch.uint64, device=query.device)
    offset = torch.zeros((), dtype=torch.uint64, device=query.device)
    return out, lse, None, None, query.shape[2], key.shape[2], seed, offset, query.new_empty(0)


def _backward(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, chosen: tuple, mask: Any
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v, o, d_o = (_seqlen_first(x) for x in (query, key, value, out, grad_out))
    arrays = {"q": q, "k": k, "v": v}
    if mask is not None:
        arrays["bias"] = mask if mask.stride(-1) in (0, 1) else mask.contiguous()
    arrays.update(o=o, lse=lse.contiguous(), d_o=d_o)
    for name, like in (("dq", q), ("dk", k), ("dv", v)):
        arrays[name] = like.new_empty(like.shape)
    _torch_ops.run_backward(arrays, chosen, (None, None))
    dq, dk, dv = (arrays[name].transpose(1, 2) for name in ("dq", "dk", "dv"))
    return dq, dk, dv


def _backward_cpu(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple:
    chosen = _chosen(dropout_p, is_causal, scale)
    return _backward(grad_out, query, key, value, out, logsumexp, chosen, attn_mask)


def _backward_cuda(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Any,
    philox_offset: Any,
    *,
    scale: float | None = None,
) -> tuple:
    return _backward(grad_out, query, key, value, out, logsumexp, _chosen(dropout_p, is_causal, scale), None)


class _Override:
    """Our kernels in aten's tables, for as long as it is held."""

    def __init__(self) -> None:
        missing = [name for name in (_CPU, f"{_CPU}_backward", _CUDA) if not hasattr(torch.ops.aten, name)]
        if missing:
            raise NotImplementedError(
                f"enable_sdpa: torch {torch.__version__} has no aten::{missing[0]} to stand in for"
            )
        self.library: Any = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():  # torch warns of an override, which is what was asked for
            warnings.filterwarnings("ignore", message="Warning only once for all operators", category=UserWarning)
            self.library.impl(_CPU, _forward_cpu, "CPU")
            self.library.impl(f"{_CPU}_backward", _backward_cpu, "CPU")
            self.library.impl(_CUDA, _forward_cuda, "CUDA")
            self.library.impl(f"{_CUDA}_backward", _backward_cuda, "CUDA")

    def remove(self) -> None:
        library, self.library = self.library, None
        if library is not None:
            library._destroy()


def _registry() -> Any:
    """torch.nn.attention where it has the registry of flash implementations, else None."""
    import torch.nn.attention as attention

    return attention if hasattr(attention, "register_flash_attention_impl") else None


def enable() -> str:
    global _held
    registry = _registry()
    if registry is not None:
        if registry.current_flash_attention_impl() != NAME:
            registry.register_flash_attention_impl(NAME, register_fn=_Override)
            registry.activate_flash_attention_impl(NAME)
        how = f"torch.nn.attention.register_flash_attention_impl({NAME!r})"
    else:
        if _held is None:
            _held = _Override()
        how = "torch.library, in place of aten's operators"
    return f"SDPBackend.FLASH_ATTENTION of torch {torch.__version__} now runs tessera on cpu and cuda, by {how}"


def disable() -> None:
    global _held
    registry = _registry()
    if registry is not None and registry.current_flash_attention_impl() == NAME:
        registry.restore_flash_attention_impl()
    if _held is not None:
        _held.remove()
        _held = None
