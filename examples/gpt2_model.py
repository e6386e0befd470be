"""What train_gpt2.py trains: a decoder of GPT-2's make in plain PyTorch, the attention it is given, and its text.

An attention takes q, k, v [batch, seqlen, heads, dim] and gives o of the same shape, causal, scores over sqrt(dim).
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import pathlib
import platform
import sysconfig

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import tessera

FEWEST_BYTES = 1 << 20  # of text; less is no whole standard library


@dataclasses.dataclass(frozen=True)
class Size:
    layers: int
    heads: int
    width: int
    vocabulary: int


SIZES = {
    "gpt2": Size(layers=12, heads=12, width=768, vocabulary=50304),  # 50257 padded to a multiple of 128
    "small": Size(layers=2, heads=2, width=128, vocabulary=256),
}


class Block(nn.Module):
    """One layer: attention and a GELU network, each behind a norm and added to what came in."""

    def __init__(self, size: Size):
        super().__init__()
        self.heads = size.heads
        self.norm_1, self.norm_2 = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
        self.qkv, self.out = nn.Linear(size.width, 3 * size.width), nn.Linear(size.width, size.width)
        self.up, self.down = nn.Linear(size.width, 4 * size.width), nn.Linear(4 * size.width, size.width)

    def forward(self, x, attend):
        batch, seqlen, width = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(batch, seqlen, 3, self.heads, -1).unbind(2)
        x = x + self.out(attend(q, k, v).reshape(batch, seqlen, width))
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """tokens, targets [batch, seqlen] -> mean cross-entropy in nats; the embedding is the output's matrix too."""

    def __init__(self, size: Size, context: int, seed: int):
        super().__init__()
        self.size = size
        self.tokens, self.positions = nn.Embedding(size.vocabulary, size.width), nn.Embedding(context, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        generator = torch.Generator().manual_seed(seed)
        for name, x in self.named_parameters():
            if x.dim() == 2:  # GPT-2's: 0.02, less where 2 * layers of them add up
                added = name.endswith(("out.weight", "down.weight"))
                deviation = 0.02 / math.sqrt(2 * size.layers) if added else 0.02
                nn.init.normal_(x, 0.0, deviation, generator=generator)
            elif name.endswith("bias"):
                nn.init.zeros_(x)

    def forward(self, tokens, targets, attend):
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, attend)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.to(at_least_float32(logits)).flatten(0, 1), targets.flatten())


def at_least_float32(x):
    return torch.promote_types(x.dtype, torch.float32)


def textbook(q, k, v, backwards=False):
    """Scores, softmax in float32 or float64 and probabilities, each a tensor. `backwards` has the sequence from its
    end, which changes nothing but the order of every sum over keys and over queries."""
    if backwards:
        q, k, v = (x.flip(1) for x in (q, k, v))
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    seen = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device)
    seen = seen.triu() if backwards else seen.tril()
    scores = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).masked_fill(~seen, -math.inf)
    o = (scores.softmax(-1, dtype=at_least_float32(scores)).to(v.dtype) @ v).transpose(1, 2)
    return o.flip(1) if backwards else o


def reordered(q, k, v):
    return textbook(q, k, v, backwards=True)


def sdpa(q, k, v, backend):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    with sdpa_kernel(backend):  # torch raises where this very backend cannot
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def flash(q, k, v):
    return sdpa(q, k, v, SDPBackend.FLASH_ATTENTION)


def cudnn(q, k, v):
    return sdpa(q, k, v, SDPBackend.CUDNN_ATTENTION)


def ours(q, k, v):
    return tessera.attention(q, k, v, causal=True)


def ours_without_dq_dk(q, k, v):
    """A wrong one on purpose: what a backward pass that gave dv alone would be."""
    return tessera.attention(q.detach(), k.detach(), v, causal=True)


def standard_library():
    """(bytes, where from) of the text: the modules of Python's standard library that lie in its folder itself, by name,
    behind one another. Licence: PSF License Agreement version 2. Other Python versions give other text."""
    folder = pathlib.Path(sysconfig.get_path("stdlib"))
    text = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    if len(text) < FEWEST_BYTES:
        raise SystemExit(
            f"{folder}: {len(text)} bytes in *.py, expected {FEWEST_BYTES} or more: Python's standard library as source"
        )
    told = {
        "source": "*.py of the standard library's folder, tokens are bytes",
        "licence": "PSF License Agreement version 2",
        "python": platform.python_version(),
        "bytes": len(text),
        "sha256": hashlib.sha256(text).hexdigest(),
    }
    return text, told


class Batches:
    """Random pieces of the text, the same ones for the same seed; `entropy` is that of single bytes, in nats."""

    def __init__(self, text: bytes, device: str, seed: int):
        self.text = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        share = torch.bincount(self.text, minlength=256).double() / len(text)
        self.entropy = -torch.special.xlogy(share, share).sum().item()
        self.text = self.text.to(device)
        self.generator = torch.Generator().manual_seed(seed)

    def next(self, batch: int, context: int):
        """(tokens, targets), each [batch, context]."""
        starts = torch.randint(self.text.numel() - context, (batch, 1), generator=self.generator)
        pieces = self.text[(starts + torch.arange(context + 1)).to(self.text.device)].long()
        return pieces[:, :-1], pieces[:, 1:]


class Trainer:
    """A model with AdamW: float32 weights, and under bfloat16 torch's autocast, with which the weights stay float32 (at
    these rates an update of a bfloat16 weight would round to nothing)."""

    def __init__(self, model: Gpt2, dtype: torch.dtype, rate: float, steps: int):
        self.model, self.dtype, self.rate, self.steps, self.done = model, dtype, rate, steps, 0
        self.device = next(model.parameters()).device.type
        decayed = [x for x in model.parameters() if x.dim() == 2]
        others = [x for x in model.parameters() if x.dim() != 2]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), fused=True)

    def loss(self, tokens, targets, attend):
        with torch.autocast(self.device, torch.bfloat16, enabled=self.dtype is torch.bfloat16):
            return self.model(tokens, targets, attend)

    def schedule(self):
        """The rate of the next step: up over a tenth of the steps, then by a cosine to a tenth."""
        rise = max(1, self.steps // 10)
        if self.done < rise:
            return self.rate * (self.done + 1) / rise
        share = min(1.0, (self.done - rise) / max(1, self.steps - rise))
        return self.rate * (0.55 + 0.45 * math.cos(math.pi * share))

    def step(self, tokens, targets, attend):
        """Forward, backward, clipping and update; returns the loss, detached, still on the device."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule()
        loss = self.loss(tokens, targets, attend)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.done += 1
        return loss.detach()
