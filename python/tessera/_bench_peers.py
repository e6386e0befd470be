"""Attention of others on the tensors of a bench case: PyTorch's backends, FlashAttention-3 and -4.

A peer is a function of a case that gives its variants, {name: call}: the fastest one counts. Refused says why it does
not take a case. FlashAttention-3 is the package fa3-fwd (module fa3_fwd_interface), FlashAttention-4 is flash-attn-4
(module flash_attn.cute); both are imported where they are installed.
"""

from __future__ import annotations

import importlib
from typing import Any, Callable

import torch
import torch.nn.functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from ._bench_case import Baselines, Case, Textbook

Call = Callable[[], torch.Tensor]
LARGEST_SCORES = 24 << 30  # bytes of S and P that a candidate which materialises them may take


class Refused(Exception):
    """Why a peer does not take a case, in one line."""


def sdpa(case: Case, backend: SDPBackend, contiguous_heads: bool = False) -> Call:
    """PyTorch's scaled_dot_product_attention on [batch, seqlen, heads, dim] seen as [batch, heads, seqlen, dim], or
    with `contiguous_heads` on tensors that lie so."""
    if case.packed or case.window:
        raise Refused("scaled_dot_product_attention takes neither packed sequences nor a window")
    q, k, v = (x.transpose(1, 2) for x in (case.q, case.k, case.v))
    if contiguous_heads:
        q, k, v = (x.contiguous() for x in (q, k, v))
    options: dict[str, Any] = {"attn_mask": case.mask} if case.mask is not None else {"is_causal": case.causal}
    if case.problem.heads_q != case.problem.heads_kv:
        options["enable_gqa"] = True

    def call() -> torch.Tensor:
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, **options).transpose(1, 2)

    return call


def aten_flash(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """PyTorch's FlashAttention-2 by its operator, which takes packed sequences and windows."""
    p, cu = case.problem, case.cu_seqlens
    left, right = case.window or (None, None)
    options: dict[str, Any] = {"window_size_left": left, "window_size_right": right} if case.window else {}
    arguments = (q, k, v, cu, cu, p.seqlen_q, p.seqlen_k, 0.0, case.causal, False)
    o: torch.Tensor = torch.ops.aten._flash_attention_forward(*arguments, **options)[0]
    return o


def aten_cudnn(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """PyTorch's cuDNN by its operator, which takes packed sequences."""
    p, cu = case.problem, case.cu_seqlens
    arguments = (q, k, v, None, cu, cu, p.seqlen_q, p.seqlen_k, True, 0.0, case.causal, False)
    o: torch.Tensor = torch.ops.aten._cudnn_attention_forward(*arguments)[0]
    return o


def flash(case: Case) -> dict[str, Call]:
    if not case.packed and not case.window:
        return {"": sdpa(case, SDPBackend.FLASH_ATTENTION)}
    return {"": lambda: aten_flash(case, case.q, case.k, case.v)}


def cudnn(case: Case) -> dict[str, Call]:
    if case.window:
        raise Refused("PyTorch hands cuDNN no window")
    if case.packed:
        return {"packed": lambda: aten_cudnn(case, case.q, case.k, case.v)}
    backend = SDPBackend.CUDNN_ATTENTION
    return {"bshd": sdpa(case, backend), "bhsd": sdpa(case, backend, contiguous_heads=True)}


def efficient(case: Case) -> dict[str, Call]:
    return {"": sdpa(case, SDPBackend.EFFICIENT_ATTENTION)}


def math(case: Case) -> dict[str, Call]:
    if 2 * case.score_bytes() > LARGEST_SCORES:
        raise Refused("its scores would fill the device")
    return {"": sdpa(case, SDPBackend.MATH)}


def fa3(case: Case) -> dict[str, Call]:
    module, p = installed("fa3_fwd_interface"), case.problem
    flags = installed("fa3_fwd_config").CONFIG["build_flags"]
    if case.q.dtype == torch.float16 and flags["FLASHATTENTION_DISABLE_FP16"]:
        raise Refused("built without f16")
    if case.window and flags["FLASHATTENTION_DISABLE_LOCAL"]:
        raise Refused("built without windows")
    options: dict[str, Any] = {"causal": case.causal, "window_size": case.window or (-1, -1)}
    if case.packed:
        arguments = (case.q, case.k, case.v, case.cu_seqlens, case.cu_seqlens, p.seqlen_q, p.seqlen_k)
        return {"": lambda: module.flash_attn_varlen_func(*arguments, **options)}
    variants = {"": lambda: module.flash_attn_func(case.q, case.k, case.v, **options)}
    if few_tiles(case):  # it splits along the keys only where it is asked to choose
        variants["splits"] = lambda: module.flash_attn_func(case.q, case.k, case.v, num_splits=0, **options)
    return variants


def few_tiles(case: Case) -> bool:
    """Whether tiles of 128 queries leave processors without work."""
    p = case.problem
    return p.batch * p.heads_q * -(-p.seqlen_q // 128) < torch.cuda.get_device_properties(0).multi_processor_count


def fa4(case: Case) -> dict[str, Call]:
    module, p = installed("flash_attn.cute"), case.problem
    options: dict[str, Any] = {"causal": case.causal, "window_size": case.window or (None, None)}
    if case.packed:
        options.update(cu_seqlens_q=case.cu_seqlens, cu_seqlens_k=case.cu_seqlens)
        options.update(max_seqlen_q=p.seqlen_q, max_seqlen_k=p.seqlen_k)
        return {"": lambda: module.flash_attn_varlen_func(case.q, case.k, case.v, **options)[0]}
    return {"": lambda: module.flash_attn_func(case.q, case.k, case.v, **options)[0]}


def textbook(case: Case, baselines: Baselines | None, row: type[Textbook] = Textbook) -> dict[str, Call]:
    if baselines is None:
        raise Refused("libtessera_baselines.so was not loaded")
    if 3 * case.score_bytes() > 2 * LARGEST_SCORES:  # S in 4 bytes, P in 2
        raise Refused("its scores would fill the device")
    return {"": row(baselines, case)}


_modules: dict[str, Any] = {}  # by name: the module, or in words why there is none


def installed(name: str) -> Any:
    """The module, imported once; Refused with the reason where that fails, whatever the reason is."""
    if name not in _modules:
        try:
            _modules[name] = importlib.import_module(name)
        except Exception as error:
            _modules[name] = f"import {name}: {type(error).__name__}: {first_line(error)}"
    if isinstance(_modules[name], str):
        # A new one each time: an exception keeps the frames it went through, and with them a case's tensors.
        raise Refused(_modules[name])
    return _modules[name]


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]


PEERS: dict[str, Callable[..., dict[str, Call]]] = {
    "flash": flash,
    "cudnn": cudnn,
    "fa3": fa3,
    "fa4": fa4,
    "efficient": efficient,
    "math": math,
    "textbook": textbook,
}
MATERIALISE = ("math", "textbook")  # slow: sampled after the others, whose clock their heat should not be
DEFAULT = ("flash", "cudnn", "fa3", "fa4")


def versions() -> dict[str, str]:
    """Installed versions of the peers that are packages of their own."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for package in ("fa3-fwd", "flash-attn-4", "nvidia-cutlass-dsl"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            pass
    return found
