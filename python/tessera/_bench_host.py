"""The head of a result file: the machine, the versions, and the sources of the kernels that were measured."""

from __future__ import annotations

import datetime
import hashlib
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from . import _bench_peers as peers
from . import version

ROOT = Path(__file__).resolve().parents[2]  # the tree that holds this package, where one does


def first_line(*command: str) -> str:
    """What a program prints first, nothing where it fails or is not there."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()
    except (OSError, subprocess.CalledProcessError, IndexError):
        return ""


def smi(query: str) -> str:
    return first_line("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader")


def commit() -> str:
    """TESSERA_COMMIT where the tree was copied without its history."""
    git = ("git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    return os.environ.get("TESSERA_COMMIT") or (first_line(*git) if (ROOT / "src").is_dir() else "")


def cpu_name() -> str:
    """As the system calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def sources_sha256(device: str) -> str | None:
    """The hash of a device's kernels, "cuda" or "cpu", as cli/build_info.cmake prints it; None without the sources."""
    shared = ("src/semantics.hpp", "src/sequence.hpp")
    files = [path for path in (ROOT / "src" / device).rglob("*") if path.is_file()]
    if not files:
        return None
    files += [ROOT / name for name in shared if (ROOT / name).is_file()]
    paths = sorted(path.relative_to(ROOT).as_posix() for path in files)
    lines = "".join(f"{hashlib.sha256((ROOT / path).read_bytes()).hexdigest()}  {path}\n" for path in paths)
    return hashlib.sha256(lines.encode()).hexdigest()


def describe(device: str = "") -> dict[str, Any]:
    """Of "cuda" or "cpu"; where it is not said, of what torch sees."""
    cuda = device == "cuda" if device else torch.cuda.is_available()
    return {
        "device": torch.cuda.get_device_name() if cuda else cpu_name(),
        "host": f"{platform.machine()}, {os.cpu_count()} CPUs, {platform.system()}",
        "driver": smi("driver_version") if cuda else "",
        "clocks": smi("clocks.max.sm,clocks.max.mem,power.limit") if cuda else "",
        "versions": {
            "tessera": version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "python": platform.python_version(),
            **peers.versions(),
        },
        "commit": commit(),
        "kernel_sources_sha256": sources_sha256("cuda" if cuda else "cpu"),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
    }
