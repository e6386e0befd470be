"""python -m tessera: versions, devices and kernels of this installation."""

from __future__ import annotations

import importlib.metadata
import platform
import sys

import tessera
from tessera._bench_output import Parser


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _torch_lines() -> list:
    """What torch makes of us: its devices, and who stands behind its flash attention."""
    if _version("torch") == "not installed":
        return ["torch not installed"]
    import torch

    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] or ["no CUDA device"]
    import tessera._torch_ops  # noqa: F401  registers the op

    current = getattr(torch.nn.attention, "current_flash_attention_impl", None)
    if current is None:
        flash = "torch's; enable_sdpa() replaces its operators"
    else:
        flash = f"{current() or 'torch'}'s; enable_sdpa() registers tessera by register_flash_attention_impl"
    return [
        f"torch {torch.__version__}: {', '.join(devices)}",
        f"  op {torch.ops.tessera.attention.default._schema.name}; flash attention is {flash}",
    ]


def _kernel_line(problem: str) -> str:
    """The kernel of a problem, or in short why there is none."""
    try:
        return f"{problem}: {tessera.which(problem).kernel}"
    except (NotImplementedError, RuntimeError) as error:
        return f"{problem}: {str(error).splitlines()[0]}"


def main(arguments: list[str] | None = None) -> int:
    Parser("tessera", __doc__).parse_args(arguments)
    print(f"tessera {tessera.__version__} ({tessera.library_path})")
    print(f"python {platform.python_version()} on {platform.platform()}")
    for name in ("numpy", "jax", "cupy", "transformers"):
        print(f"{name} {_version(name)}")
    print("\n".join(_torch_lines()))
    print()
    print(tessera.devices().rstrip())
    for problem in ("fwd f32 hq8 sq1024 d64 causal", "fwd bf16 hq8 sq1024 d128 causal", "fwd bf16 hq8 sq1 sk4096 d128"):
        print(_kernel_line(f"{problem} cpu"))
    for problem in ("fwd bf16 hq8 sq1024 d128 causal", "fwd bf16 hq8 sq1 sk4096 d128", "bwd bf16 hq8 sq1024 d128"):
        print(_kernel_line(f"{problem} cuda"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
