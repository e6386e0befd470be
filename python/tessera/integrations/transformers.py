"""Transformers with this library's attention: model = AutoModel.from_pretrained(..., attn_implementation="tessera").

    from tessera.integrations.transformers import register
    register()

Registers an attention function and, under the same name, a mask function. The mask function keeps causal and sliding
masks as a band and padding as one row a sequence, wherever it recognises them, without a [seqlen, seqlen] mask; any
other pattern becomes a boolean mask. Nothing falls back: what our kernels lack raises NotImplementedError.
"""

from __future__ import annotations

from typing import Any, Callable

import torch
import transformers
from transformers import masking_utils

from .. import _torch
from .._call import options

NAME = "tessera"
_BAND = "tessera_band"  # attribute of a compact mask: (left, right), bottom-right
_EVERYTHING = (-1, -1)


def _cells(function: Any) -> dict[str, Any]:
    """What a closure holds, by name."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    return {name: cell.cell_contents for name, cell in zip(names, function.__closure__ or ())}


def _band(mask_function: Any) -> tuple[int, int] | None:
    """(left, right) of a mask function of transformers that is nothing but a bottom-right band; None: it is more."""
    if mask_function is masking_utils.causal_mask_function:
        return (-1, 0)
    if mask_function is masking_utils.bidirectional_mask_function:
        return _EVERYTHING
    code = getattr(mask_function, "__code__", None)
    if code is masking_utils.and_masks(masking_utils.causal_mask_function).__code__:
        parts = _cells(mask_function).get("mask_functions", ())
        if len(parts) == 2 and parts[1] is masking_utils.causal_mask_function:
            overlay = masking_utils.sliding_window_overlay(1)
            window = _cells(parts[0]).get("sliding_window")
            if parts[0].__code__ is overlay.__code__ and isinstance(window, int) and window > 0:
                return (window - 1, 0)
    return None


def mask_function(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable = masking_utils.causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    **kwargs: Any,
) -> torch.Tensor | None:
    """The mask of a layer, called by transformers: None for a plain causal or bidirectional one, a bool
    [batch, 1, 1, kv_length] that carries its band where there is padding or a window, else [batch, 1, q_length,
    kv_length]. Arguments as for transformers.masking_utils.sdpa_mask."""
    band = None
    if not torch.compiler.is_compiling() and isinstance(q_offset, int):
        # A cache of fixed size has room behind the last query, so its keys do not end where the queries do.
        aligned = q_offset + q_length == kv_offset + kv_length
        band = _band(mask_function) if aligned or mask_function is masking_utils.bidirectional_mask_function else None
    if band is None:
        kwargs.update(allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
        return masking_utils.sdpa_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask, **kwargs
        )
    padding = masking_utils.prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if padding is not None:
        padding = padding[:, kv_offset : kv_offset + kv_length].bool()
        padding = None if bool(padding.all()) else padding
    if band[0] >= kv_length - 1:
        band = (-1, band[1])
    if padding is None and band[0] < 0:
        return None
    if padding is None:
        padding = torch.ones(1, kv_length, dtype=torch.bool, device=kwargs.get("device", "cpu"))
        compact = padding[:, None, None, :]
        setattr(compact, _BAND, (band, False))
        return compact
    compact = padding[:, None, None, :]
    setattr(compact, _BAND, (band, True))
    return compact


def _read_mask(
    mask: torch.Tensor | None, causal: bool, q_length: int, kv_length: int, window: Any
) -> tuple[tuple[int, int], torch.Tensor | None]:
    """(band, mask to apply) of what the model hands over."""
    if mask is None:
        if not isinstance(window, int) or window >= kv_length:
            return ((-1, 0) if causal else _EVERYTHING), None
        if not causal:  # the mask function gives such a window as a whole mask
            raise ValueError(
                f"attention_mask: None beside sliding_window={window} and {kv_length} keys, expected a mask"
            )
        return (window - 1, 0), None
    tag = getattr(mask, _BAND, None)
    if tag is not None:
        band, padded = tag
        return band, mask if padded else None
    if mask.dtype is torch.bool and mask.shape[-2] == 1 and q_length > 1:
        raise ValueError(
            f"attention_mask: a bool mask {list(mask.shape)} for {q_length} queries that lost its band on the way "
            "through the model; expected the mask function's own tensor, or [batch, heads or 1, q_length, kv_length]"
        )
    return _EVERYTHING, mask


def _refuse(dropout: float, kwargs: dict[str, Any]) -> None:
    if dropout:
        raise NotImplementedError(f"dropout: {dropout}, and these kernels drop nothing; set attention_dropout to 0")
    for name in ("output_attentions", "head_mask"):
        if kwargs.get(name) is not None and kwargs[name] is not False:
            raise NotImplementedError(f"{name}: these kernels keep no matrix of probabilities to give or to weigh")


def attention_function(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of a layer, called by transformers: query [batch, heads, q_length, dim], key and value
    [batch, heads_kv, kv_length, dim] give ([batch, q_length, heads, dim], None). Windows come with the mask; a causal
    layer without one takes sliding_window's."""
    _refuse(dropout, kwargs)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    band, mask = _read_mask(attention_mask, bool(causal), query.shape[2], key.shape[2], kwargs.get("sliding_window"))
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    extras = {}
    if s_aux is not None:
        extras["sinks"] = s_aux.float()
    longest = (None, None)
    cu_q, cu_k = kwargs.get("cu_seq_lens_q"), kwargs.get("cu_seq_lens_k")
    # A whole mask, made from position_ids, keeps packed sequences apart by itself; a band and padding do not.
    packed = cu_q is not None and (mask is None or hasattr(mask, _BAND))
    if packed and (mask is not None or position_bias is not None):
        beside = "padding" if mask is not None else "position_bias"
        raise NotImplementedError(f"cu_seq_lens_q: given beside {beside}, and these kernels take packed rows without")
    if position_bias is not None:
        mask = _add(position_bias, mask)
    if mask is not None:
        extras["bias"] = mask
    if packed:
        extras.update(cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)
        longest = (kwargs.get("max_length_q"), kwargs.get("max_length_k"))
        q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    chosen = options(False, band, scaling, softcap or 0.0, False)
    o, _ = _torch.call(q, k, v, chosen, extras or None, longest)
    return (o.unflatten(0, (query.shape[0], -1)) if packed else o), None


def _add(position_bias: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    if mask is None:
        return position_bias
    if mask.dtype is torch.bool:
        return position_bias.masked_fill(~mask, -torch.inf)
    return position_bias + mask


def register(name: str = NAME) -> str:
    """Makes attn_implementation=name known to transformers; safe to call twice. Returns the name."""
    transformers.AttentionInterface.register(name, attention_function)
    transformers.AttentionMaskInterface.register(name, mask_function)
    return name
