"""Shared by the PyTorch tests: devices, operands, the judge on tensors, and a gradient to hold the plumbing to."""

import ml_dtypes
import pytest
import torch
from judge import check

DEVICES = ["cpu", "cuda"]


def need(device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device that this PyTorch can use")


def dtypes(device):
    """The element types that a device's kernels take."""
    both = [torch.float16, torch.bfloat16]
    return both if device == "cuda" else [torch.float64, torch.float32, *both]


def working(device):
    return torch.float32 if device == "cpu" else torch.float16


def array(x):
    x = x.detach().cpu().contiguous()
    return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if x.dtype is torch.bfloat16 else x.numpy()


def judge(o, q, k, v, lse=None, **options):
    """judge.check on tensors [batch, seqlen, heads, dim]."""
    options = {name: array(x) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    check(array(o), array(q), array(k), array(v), None if lse is None else array(lse), **options)


def operands(device="cpu", dtype=None, batch=2, seqlen_q=37, seqlen_k=53, heads_q=4, heads_kv=2, dim=32, seed=1):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((batch, seqlen_q, heads_q, dim), (batch, seqlen_k, heads_kv, dim), (batch, seqlen_k, heads_kv, dim))
    dtype = dtype or working(device)
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype).to(device) for s in shapes]


def textbook(q, k, v, causal=False, bias=None, sinks=None, softcap=0.0, scale=None):
    """(o, lse) of attention by differentiable torch operations, in the tensors' own dtype; bottom-right."""
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, dim=2) for x in (k, v))
    x = torch.einsum("bihd,bjhd->bhij", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        x = softcap * torch.tanh(x / softcap)
    if bias is not None:
        x = x.masked_fill(~bias, -torch.inf) if bias.dtype is torch.bool else x + bias
    if causal:
        keep = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).tril(x.shape[-1] - x.shape[-2])
        x = x.masked_fill(~keep, -torch.inf)
    lse = torch.logsumexp(x, -1)
    if sinks is not None:
        lse = torch.logaddexp(lse, sinks[None, :, None].to(lse.dtype))
    return torch.einsum("bhij,bjhd->bihd", torch.exp(x - lse[..., None]), v), lse


def textbook_backward(arrays, chosen, longest):
    """Stands in for _torch_ops.run_backward where no kernel computes gradients yet: the textbook's formulas. Below the
    dispatcher nothing records a gradient, so they are spelled out."""
    left, right, scale, softcap = chosen[:4]
    assert left == -1 and right in (-1, 0) and longest == (None, None) and softcap == 0
    q, k, v, o, lse, d_o = (arrays[n] for n in ("q", "k", "v", "o", "lse", "d_o"))
    q, k, v, o, d_o = (x.to(lse.dtype) for x in (q, k, v, o, d_o))
    bias, batch, heads_kv = arrays.get("bias"), k.shape[0], k.shape[2]
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    wide_k, wide_v = (x.repeat_interleave(q.shape[2] // heads_kv, dim=2) for x in (k, v))
    x = torch.einsum("bihd,bjhd->bhij", q, wide_k) * scale
    if bias is not None:
        x = x.masked_fill(bias == 0, -torch.inf) if bias.dtype is torch.bool else x + bias
    if right == 0:
        keep = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).tril(x.shape[-1] - x.shape[-2])
        x = x.masked_fill(~keep, -torch.inf)
    p = torch.exp(x - lse[..., None])
    inner = arrays.get("d_lse", torch.zeros_like(lse)) - torch.einsum("bihd,bihd->bhi", d_o, o)
    dx = p * (torch.einsum("bihd,bjhd->bhij", d_o, wide_v) + inner[..., None])
    fold = (batch, k.shape[1], heads_kv, -1, k.shape[3])
    arrays["dq"].copy_(scale * torch.einsum("bhij,bjhd->bihd", dx, wide_k))
    arrays["dk"].copy_(scale * torch.einsum("bhij,bihd->bjhd", dx, q).reshape(fold).sum(3))
    arrays["dv"].copy_(torch.einsum("bhij,bihd->bjhd", p, d_o).reshape(fold).sum(3))
    if "d_bias" in arrays:
        arrays["d_bias"].copy_(dx.sum_to_size(arrays["d_bias"].shape))
    if "d_sinks" in arrays:
        arrays["d_sinks"].copy_((torch.exp(arrays["sinks"][:, None] - lse) * inner).sum((0, 2)))


CACHE_BATCH, CACHE_ROOM, CACHE_NEW = 3, 40, 3


def cache_operands(device, batch_cache=None, seed=7):
    """Queries and new keys and values of three sequences, a cache of NaN, what it should hold, and the lengths."""
    q, k, v = operands(device, batch=CACHE_BATCH, seqlen_q=CACHE_NEW, seqlen_k=CACHE_NEW, seed=seed)
    shape = (batch_cache or CACHE_BATCH, CACHE_ROOM, 2, 32)
    cache = [torch.full(shape, torch.nan, device=device, dtype=q.dtype) for _ in "kv"]
    generator = torch.Generator().manual_seed(seed)
    old = [torch.randn(CACHE_BATCH, *shape[1:], generator=generator).to(device, q.dtype) for _ in "kv"]
    return q, k, v, cache, old, torch.tensor([5, 0, 30], dtype=torch.int32, device=device)
