"""Backward problems of python -m tessera.bench: gradients of our rows, of PyTorch's backends and of FlashAttention-3
and -4, and the judge.

A backward case is what its call computes: from q, k, v, o, lse and d_o the gradients dq, dk, dv, five products for the
two of a forward pass. Peers run their own forward pass once, outside of what is timed.
"""

from __future__ import annotations

from typing import Any, Callable

import torch

from . import _c
from . import _bench_peers as peers
from ._bench_case import FREE_WORDS, Case, Runner, Textbook, tensors_of
from ._bench_output import problem_of

Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class BackwardCase(Case):
    """A dense or packed backward problem with q, k, v and d_o, and o and lse as our forward pass gives them."""

    PASS = "bwd"
    KIND = "a dense or packed f16, bf16 or f32 problem backward, full, causal or window=n,0"

    def __init__(self, text: str):
        super().__init__(text)
        self.d_o = self.random(False, *self.q.shape[:-1], self.problem.head_dim_v)
        words = [word for word in text.split() if word not in ("bwd", "deterministic")]
        words = [word for word in words if not word.startswith("kernel=")]
        forward = Runner(Case(" ".join(["fwd", *words])))
        forward.tensors = tensors_of(self, forward.out, forward.lse)  # this case's q, k and v
        forward()
        self.forward, self.o, self.lse = forward, forward.out, forward.lse

    def flops(self) -> int:
        return super().flops() * 5 // 2

    def bytes(self) -> int:
        gradients = self.q.numel() + self.k.numel() + self.v.numel() + self.d_o.numel()
        return super().bytes() + gradients * self.q.element_size()

    def exact(self, heads: int) -> Gradients:
        """dq, dk, dv of the first sequence in float64, of the key/value head and all query heads of its group."""
        p, group = self.problem, self.problem.heads_q // self.problem.heads_kv
        keys, values = (self.first(x)[:, 0].double() for x in (self.k, self.v))
        queries, gradients = self.first(self.q), self.first(self.d_o)
        columns = torch.arange(keys.shape[0], device=self.device)[None, :]
        scale = p.head_dim_qk**-0.5
        dq = torch.zeros(queries.shape[0], group, p.head_dim_qk, dtype=torch.float64, device=self.device)
        dk, dv = torch.zeros_like(keys), torch.zeros_like(values)
        for head in range(group):
            for row in range(0, queries.shape[0], 2048):
                q, d_o = (x[row : row + 2048, head].double() for x in (queries, gradients))
                scores = q @ keys.T * scale
                rows = torch.arange(row, row + q.shape[0], device=self.device)[:, None]
                rows += keys.shape[0] - queries.shape[0]
                if p.right == 0:
                    scores.masked_fill_(columns > rows, float("-inf"))
                if p.left >= 0:
                    scores.masked_fill_(columns < rows - p.left, float("-inf"))
                probs = torch.softmax(scores, -1).nan_to_num_()
                d_probs = d_o @ values.T
                d_scores = probs * (d_probs - (probs * d_probs).sum(-1, keepdim=True))
                dv += probs.T @ d_o
                dk += d_scores.T @ q * scale
                dq[row : row + 2048, head] = d_scores @ keys * scale
        return dq, dk, dv

    def rms_error(self, out: Gradients, reference: Gradients) -> float:
        """The largest of the three gradients' RMS errors, each over the RMS of the gradient itself."""
        (dq, dk, dv), group = out, reference[0].shape[1]
        errors = []
        for ours, exact in zip((self.first(dq)[:, :group], self.first(dk)[:, 0], self.first(dv)[:, 0]), reference):
            errors.append(((ours.double() - exact).square().mean() / exact.square().mean()).sqrt().item())
        return max(errors)


def bind_gradients(case: Any, o: torch.Tensor, lse: torch.Tensor) -> tuple[Gradients, _c.Tensors]:
    """Gradients to write, full of NaN, and the operands of a backward run with this o and lse."""
    gradients = tuple(torch.full_like(x, float("nan")) for x in (case.q, case.k, case.v))
    named = dict(zip(("dq", "dk", "dv"), gradients))
    return gradients, tensors_of(case, o, lse, d_o=case.d_o, **named)  # type: ignore[return-value]


class BackwardRunner(Runner):
    """tessera_plan_run of the backward plan."""

    def bind(self) -> tuple[Gradients, _c.Tensors]:
        case: Any = self.case
        return bind_gradients(case, case.o, case.lse)


class BackwardTextbook(Textbook):
    """cuda.textbook's backward pass: P from q, k and lse, then the four products of the gradients."""

    def bind(self) -> tuple[Gradients, _c.Tensors]:
        case: Any = self.case
        return bind_gradients(case, case.o, case.lse)


Call = Callable[[], Gradients]


def differentiate(case: BackwardCase, forward: Callable[..., torch.Tensor]) -> Call:
    """The backward pass of `forward` on q, k, v; its forward pass runs here. `forward` may hand out [o, ...]."""
    inputs = tuple(x.detach().clone().requires_grad_() for x in (case.q, case.k, case.v))
    with torch.enable_grad():
        o = forward(*inputs)
    return lambda: torch.autograd.grad(o, inputs, case.d_o, retain_graph=True)


def sdpa_forward(case: BackwardCase, backend: Any) -> Callable[..., torch.Tensor]:
    """o of q, k, v [batch, seqlen, heads, dim] under the case's mask, by one of PyTorch's backends."""
    options: dict[str, Any] = {"attn_mask": case.mask} if case.mask is not None else {"is_causal": case.causal}
    if case.problem.heads_q != case.problem.heads_kv:
        options["enable_gqa"] = True

    def forward(*inputs: torch.Tensor) -> torch.Tensor:
        with peers.sdpa_kernel(backend):
            q, k, v = (x.transpose(1, 2) for x in inputs)
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, **options).transpose(1, 2)

    if case.packed or case.window:
        raise peers.Refused("scaled_dot_product_attention takes neither packed sequences nor a window")
    return forward


def sdpa(case: BackwardCase, backend: Any) -> Call:
    return differentiate(case, sdpa_forward(case, backend))


def flash(case: BackwardCase) -> dict[str, Call]:
    if case.packed or case.window:
        return {"": differentiate(case, lambda q, k, v: peers.aten_flash(case, q, k, v))}
    return {"": sdpa(case, peers.SDPBackend.FLASH_ATTENTION)}


def cudnn(case: BackwardCase) -> dict[str, Call]:
    if case.packed:
        return {"packed": differentiate(case, lambda q, k, v: peers.aten_cudnn(case, q, k, v))}
    return {"": sdpa(case, peers.SDPBackend.CUDNN_ATTENTION)}


def fa3(case: BackwardCase) -> dict[str, Call]:
    module = peers.installed("fa3_fwd_interface")
    if peers.installed("fa3_fwd_config").CONFIG["build_flags"].get("FLASHATTENTION_DISABLE_BACKWARD", True):
        raise peers.Refused("built without backward")
    if case.packed:
        raise peers.Refused("its packed backward pass is not wired here")
    options: dict[str, Any] = {"causal": case.causal, "window_size": case.window or (-1, -1)}
    return {"": differentiate(case, lambda q, k, v: first(module.flash_attn_func(q, k, v, **options)))}


def fa4(case: BackwardCase) -> dict[str, Call]:
    module, p = peers.installed("flash_attn.cute"), case.problem
    options: dict[str, Any] = {"causal": case.causal, "window_size": case.window or (None, None)}
    attend = module.flash_attn_func
    if case.packed:
        options.update(cu_seqlens_q=case.cu_seqlens, cu_seqlens_k=case.cu_seqlens)
        options.update(max_seqlen_q=p.seqlen_q, max_seqlen_k=p.seqlen_k)
        attend = module.flash_attn_varlen_func
    return {"": differentiate(case, lambda q, k, v: first(attend(q, k, v, **options)))}


def first(out: Any) -> torch.Tensor:
    return out[0] if isinstance(out, tuple) else out


PEERS: dict[str, Callable[[BackwardCase], dict[str, Call]]] = {
    "flash": flash,
    "cudnn": cudnn,
    "fa3": fa3,
    "fa4": fa4,
    "efficient": lambda case: {"": sdpa(case, peers.SDPBackend.EFFICIENT_ATTENTION)},
    "math": lambda case: {"": sdpa(case, peers.SDPBackend.MATH)},
}


def is_backward(text: str) -> bool:
    return bool(getattr(problem_of(text), "pass") == _c.BACKWARD)
