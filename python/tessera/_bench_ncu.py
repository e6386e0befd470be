"""Bytes of device memory as NVIDIA's profiler counts them: one process runs each call once, a kernel of PyTorch before
each, under ncu; what lies between two of those is one call's."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable

import torch

from ._bench_case import Case
from ._bench_output import BadInput, Lacking

METRICS = {"read": "dram__bytes_read.sum", "written": "dram__bytes_write.sum"}
MARKER = "FillFunctor"  # of run_profiled(); ncu leaves namespaces out

Counts = dict[str, int]  # kernels, read, written


def installed() -> str:
    """The profiler's path; Lacking without one."""
    path = shutil.which("ncu")
    if path is None:
        raise Lacking("ncu is not installed")
    return path


def check(problems: list[str], kind: type[Case]) -> None:
    """BadInput or Lacking, where problems of the kind are none to run on this machine's CUDA device."""
    for text in problems:
        if kind.taken(text).device < 0:
            raise BadInput(f"{text!r}: a problem on the CPU, expected cuda")
    if not torch.cuda.is_available():
        raise Lacking("torch sees no CUDA device")


def run_profiled(key: list[str], call: Callable[[], Any]) -> None:
    """In the profiled process: `call` once, and a JSON line that says whose it was."""
    marker = torch.zeros(1, device="cuda")
    call()  # loads what the first call loads
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    marker.fill_(0)
    call()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()
    print(json.dumps(key), flush=True)


def counted(lines: list[str]) -> list[Counts]:
    """What the kernels from each marker to the next did, of ncu's CSV in base units."""
    begin = next((i for i, line in enumerate(lines) if METRICS["read"] in line), None)
    if begin is None:
        raise ValueError("ncu counted nothing: " + (lines[-1] if lines else "no output"))
    parts: list[Counts] = []
    for row in csv.DictReader(lines[begin:]):
        if not (row.get("ID") or "").isdigit():
            continue
        if MARKER in row["Kernel Name"]:
            parts.append({"kernels": 0, "read": 0, "written": 0})
        elif parts:
            parts[-1]["kernels"] += 1
            for way, metric in METRICS.items():
                parts[-1][way] += round(float(row[metric].replace(",", "")))
    return parts


def count_bytes(module: str, arguments: list[str], seconds: float) -> dict[tuple[str, ...], Counts]:
    """By the key of each call that `python -m module arguments` profiled. ValueError says why nothing was counted."""
    ncu = installed()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "dram.csv"
        # Kernels follow one another as they do in a run, so caches stay as the one before leaves them.
        command = [ncu, "--profile-from-start", "off", "--cache-control", "none", "--clock-control", "none", "--csv"]
        # Names with their template arguments.
        command += ["--print-kernel-base", "demangled", "--page", "raw", "--print-units", "base"]
        command += ["--log-file", str(log)]
        command += ["--metrics", ",".join(METRICS.values()), sys.executable, "-m", module, *arguments]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            out, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise ValueError(f"ncu took more than {seconds:g} s") from None
        lines = log.read_text().splitlines() if log.is_file() else errors.splitlines()
    if process.returncode != 0:
        last = next((line for line in reversed([*lines, *errors.splitlines()]) if line.strip()), "no output")
        raise ValueError(f"ncu ended with {process.returncode}: {last}")
    ran = [tuple(json.loads(line)) for line in out.splitlines() if line.startswith("[")]
    parts = counted(lines)
    if len(parts) != len(ran):
        raise ValueError(f"ncu counted {len(parts)} parts of {len(ran)} calls")
    return dict(zip(ran, parts))
