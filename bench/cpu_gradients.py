"""The backward pass for cpu_peers.py: Tessera beside PyTorch's, dq, dk and dv of the same q, k, v, o and d_o.

PyTorch's runs through torch.autograd.grad on a graph that is kept, so that its forward pass is not timed: `flash` is
its fused kernel, `math` its plain method, which keeps the probabilities of its forward pass. Tessera recomputes them
from lse, as flash does. Gradients of three heads are held to float64.
"""

from __future__ import annotations

import ctypes
from typing import Any, Callable

import torch
import torch.nn.functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import tessera
from tessera import _c
from tessera._bench_output import BadInput, problem_of

# As cpu_peers.TOLERANCE: root mean square of the error over that of the gradient, the worst of dq, dk and dv.
TOLERANCE = {"f32": 5e-5, "f16": 1e-2, "bf16": 6e-2}
NAMES = ("dq", "dk", "dv")

Call = Callable[[int], Any]  # takes the number of the round, returns (dq, dk, dv)


class Case:
    """One dense problem with full attention. Tensors are [batch, heads, seqlen, dim]."""

    def __init__(self, text: str, layout: str, threads: int):
        self.problem = p = problem_of(f"{text} layout={layout} threads={threads} cpu")
        self.layout = layout
        self.name = {_c.F32: "f32", _c.F16: "f16", _c.BF16: "bf16"}.get(p.q.dtype)
        if self.name is None or p.flags or p.left != -1 or p.right not in (-1, 0) or p.head_dim_qk != p.head_dim_v:
            raise BadInput(f"{text!r}: expected dense f32, f16 or bf16, full or causal, without terms, dv = d")
        self.causal = p.right == 0
        if self.causal and p.seqlen_q != p.seqlen_k:
            raise BadInput(f"{text!r}: expected sq = sk with causal, where PyTorch ties the mask to the first key")
        self.dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[self.name]
        torch.manual_seed(0)
        self.q = self.new(p.heads_q, p.seqlen_q)
        self.k, self.v = self.new(p.heads_kv, p.seqlen_k), self.new(p.heads_kv, p.seqlen_k)
        self.d_o = self.new(p.heads_q, p.seqlen_q)
        self.o = torch.full_like(self.q, float("nan"))
        self.lse = torch.full((p.batch, p.heads_q, p.seqlen_q), float("nan"))
        self.gradients = [torch.full_like(x, float("nan")) for x in (self.q, self.k, self.v)]

    def new(self, heads: int, rows: int) -> torch.Tensor:
        p = self.problem
        if self.layout == "bhsd":
            return torch.randn(p.batch, heads, rows, p.head_dim_qk).to(self.dtype)
        return torch.randn(p.batch, rows, heads, p.head_dim_qk).to(self.dtype).transpose(1, 2)

    def flops(self) -> float:
        p = self.problem
        pairs = p.seqlen_q * (p.seqlen_q + 1) / 2 if self.causal else p.seqlen_q * p.seqlen_k
        return 10 * p.head_dim_qk * p.batch * p.heads_q * pairs

    def bytes(self) -> int:
        once = sum(x.numel() * x.element_size() for x in (self.q, self.k, self.v))
        return 2 * once + 2 * self.q.numel() * self.q.element_size() + self.lse.numel() * 4

    def score_bytes(self) -> int:
        p = self.problem
        return 4 * 4 * p.batch * p.heads_q * p.seqlen_q * p.seqlen_k

    def sample(self) -> list[int]:
        """Key heads whose gradients are compared with float64."""
        last = self.problem.heads_kv - 1
        return sorted({0, last // 2, last})

    def exact(self) -> list[torch.Tensor]:
        """dq, dk, dv of the sample in float64, batch row 0."""
        group = self.problem.heads_q // self.problem.heads_kv
        out: list[list] = [[], [], []]
        for head in self.sample():
            heads = slice(head * group, (head + 1) * group)
            leaves = [self.q[0, heads], self.k[0, head], self.v[0, head]]
            q, k, v = (x.double().requires_grad_() for x in leaves)
            scores = q @ k.T * self.problem.head_dim_qk**-0.5
            if self.causal:
                scores = scores.masked_fill(torch.ones_like(scores[0], dtype=torch.bool).triu(1), float("-inf"))
            o = torch.softmax(scores, -1) @ v
            for all_of, one in zip(out, torch.autograd.grad(o, (q, k, v), self.d_o[0, heads].double())):
                all_of.append(one)
        return [torch.stack(x) for x in out]

    def error_of(self, gradients: Any, exact: list[torch.Tensor]) -> float:
        """The worst tensor's root mean square of the error over that of the exact one."""
        group, worst = self.problem.heads_q // self.problem.heads_kv, 0.0
        for name, mine, right in zip(NAMES, gradients, exact):
            x = mine[0].double()
            x = torch.stack([x[h * group : (h + 1) * group] if name == "dq" else x[h] for h in self.sample()])
            worst = max(worst, float((x - right).square().mean().sqrt() / right.square().mean().sqrt()))
        return worst


def runner(problem: Any, case: Case) -> tuple[Any, Callable[[], None]]:
    """tessera_plan_run of `problem` on the case's tensors with everything prepared, as a C caller would have it."""
    plan = tessera.Plan(problem)
    workspace = torch.empty(plan.workspace_bytes + 256, dtype=torch.uint8)
    address = workspace.data_ptr() + -workspace.data_ptr() % 256
    status, tensors = _c.Status(), _c.Tensors()
    tensors.size = ctypes.sizeof(_c.Tensors)
    arrays = {"q": case.q, "k": case.k, "v": case.v, "o": case.o, "lse": case.lse, "d_o": case.d_o}
    for name, x in {**arrays, **dict(zip(NAMES, case.gradients))}.items():
        setattr(tensors, name, x.data_ptr())

    def run() -> None:
        code = _c.lib.tessera_plan_run(
            plan._handle, ctypes.byref(tensors), address, plan.workspace_bytes, None, ctypes.byref(status)
        )
        if code:
            raise RuntimeError(status.message.decode())

    run.keep = workspace  # type: ignore[attr-defined]
    return plan, run


def own_call(case: Case) -> tuple[Any, Call]:
    forward = tessera.Problem(str(case.problem).replace("bwd", "fwd", 1), return_lse=True)
    for name in ("q", "k", "v", "o"):
        setattr(forward, name, getattr(case.problem, name))
    runner(forward, case)[1]()
    plan, run = runner(case.problem, case)

    def call(turn: int) -> list[torch.Tensor]:
        run()
        return case.gradients

    return plan, call


def torch_call(case: Case, backend: Any) -> Call:
    leaves = [x.detach().requires_grad_() for x in (case.q, case.k, case.v)]
    grouped = {"enable_gqa": True} if case.problem.heads_q != case.problem.heads_kv else {}
    with sdpa_kernel(backend):
        o = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=case.causal, **grouped)

    def call(turn: int) -> tuple:
        return torch.autograd.grad(o, leaves, case.d_o, retain_graph=True)

    return call


def candidates(case: Case, own: Call, largest_scores: int) -> tuple[dict, dict[str, str], dict]:
    """(peer, form) -> call for whatever runs and is right, why the others are left out, and the errors."""
    makers: dict[str, Callable[[], Call]] = {"tessera": lambda: own}
    refused = {"onednn": "onednn_graph.py builds the partition of the forward pass only"}
    makers["flash"] = lambda: torch_call(case, SDPBackend.FLASH_ATTENTION)
    if case.score_bytes() > largest_scores:
        refused["math"] = f"its scores, probabilities and their gradients take {case.score_bytes() / 1e9:.0f} GB"
    else:
        makers["math"] = lambda: torch_call(case, SDPBackend.MATH)
    exact, calls, errors = case.exact(), {}, {}
    for name, make in makers.items():
        try:
            call = make()
            error = case.error_of(call(0), exact)
            reason = "" if error <= TOLERANCE[case.name] else f"wrong: relative error {error:.2g}"
        except RuntimeError as failure:
            reason = str(failure).strip().splitlines()[0]
        if not reason:
            calls[(name, "")], errors[(name, "")] = call, error
        elif name == "tessera":
            raise SystemExit(f"{case.problem}: tessera: {reason}")
        else:
            refused[name] = reason
    return calls, refused, errors
