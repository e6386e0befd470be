"""Tessera: exact attention in tiles on CPUs and CUDA GPUs, without a framework.

    import numpy, tessera
    q = k = v = numpy.ones((1, 1000, 8, 64), numpy.float32)  # [batch, seqlen, heads, dim]
    o = tessera.attention(q, k, v, causal=True)

Everything is safe to call from several threads; the GIL is released while a kernel runs. Environment:
TESSERA_LIBRARY is the path of the shared library to load, TESSERA_KERNEL pins a kernel by name or glob, TESSERA_ISA
caps the CPU's instruction set, TESSERA_LOG=plan prints each new plan.
"""

from ._append import append
from ._attention import attention, plan
from ._c import library_path
from ._problem import Plan, Problem, Support, devices, explain, supports, version
from ._quantize import Quantized, quantize
from ._sdpa import disable_sdpa, enable_sdpa, sdpa
from ._which import UnexpectedKernel, Which, expect_kernel, which

__version__ = version()
__all__ = [
    "Plan",
    "Problem",
    "Quantized",
    "Support",
    "UnexpectedKernel",
    "Which",
    "append",
    "attention",
    "devices",
    "disable_sdpa",
    "enable_sdpa",
    "expect_kernel",
    "explain",
    "library_path",
    "plan",
    "quantize",
    "sdpa",
    "supports",
    "version",
    "which",
]
