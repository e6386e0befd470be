"""Problem, Plan, explain, supports, devices, python -m tessera."""

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from judge import check, operands

import tessera
from tessera._c import library_path

TEXT = "fwd f32 b2 hq4 hkv2 sq8 sk12 d16 causal cpu"


def _operands(rng):
    return operands(rng, np.float32, 2, 8, 12, 4, 2, 16)


def test_problem_text_round_trip():
    problem = tessera.Problem(TEXT)
    assert (problem.batch, problem.heads_q, problem.heads_kv, problem.seqlen_q, problem.seqlen_k) == (2, 4, 2, 8, 12)
    assert (problem.left, problem.right, problem.head_dim_qk, problem.head_dim_v) == (-1, 0, 16, 16)
    assert str(problem) == TEXT
    assert str(tessera.Problem(str(problem))) == TEXT
    assert TEXT in repr(problem)
    assert tessera.Problem(TEXT, batch=3).batch == 3


def test_problem_with_lse(rng):
    q, k, v = _operands(rng)
    o, lse = np.empty_like(q), np.empty((2, 4, 8), np.float32)
    plan = tessera.Plan(tessera.Problem(TEXT, return_lse=True))
    plan.run(q=q, k=k, v=v, o=o, lse=lse)
    check(o, q, k, v, lse, causal=True)
    with pytest.raises(ValueError, match="lse: missing"):
        plan.run(q=q, k=k, v=v, o=o)


def test_plan_runs_into_given_outputs(rng):
    q, k, v = _operands(rng)
    plan = tessera.Plan(TEXT + " kernel=cpu.*")
    o = np.full(q.shape, np.nan, np.float32)
    assert plan.run(q=q, k=k, v=v, o=o) is None
    check(o, q, k, v, causal=True)
    assert plan.kernel.startswith("cpu.") and plan.passed_over >= 0 and isinstance(plan.first_reason, str)
    assert (plan.passed_over == 0) == (plan.first_reason == "")
    assert plan.kernel in repr(plan) and plan.workspace_bytes % 256 == 0


def test_plan_of_arrays(rng):
    q, k, v = _operands(rng)
    sinks = np.ones(4, np.float32)
    bias = np.asfortranarray(rng.standard_normal((8, 12)).astype(np.float32))
    bias = bias.T.copy().T if bias.flags.c_contiguous else np.ascontiguousarray(bias)
    options = dict(sinks=sinks, bias=bias, alibi_slopes=sinks)
    plan = tessera.plan(q, k, v, return_lse=True, **options)
    o, lse = np.empty_like(q), np.empty((2, 4, 8), np.float32)
    plan.run(q=q, k=k, v=v, o=o, lse=lse, **options)
    check(o, q, k, v, lse, **options)
    assert plan.problem.heads_q == 4
    plan.problem.heads_q = 5  # a copy: the plan stays as it is
    assert plan.problem.heads_q == 4


def test_own_workspace(rng):
    q, k, v = _operands(rng)
    plan = tessera.Plan(TEXT)
    expected = tessera.attention(q, k, v, causal=True)
    memory = np.full(plan.workspace_bytes + 512, 0xFF, np.uint8)
    start = -memory.ctypes.data % 256
    for fill in (0xFF, 0, 0x7F):
        memory[:] = fill
        o = np.empty_like(q)
        plan.run(q=q, k=k, v=v, o=o, workspace=memory[start : start + plan.workspace_bytes])
        assert np.array_equal(o, expected)
        assert np.all(memory[start + plan.workspace_bytes :] == fill)
    if plan.workspace_bytes:
        with pytest.raises(ValueError, match=str(plan.workspace_bytes)):
            plan.run(q=q, k=k, v=v, o=o, workspace=memory[start : start + plan.workspace_bytes - 1])


def test_packed_plan(rng):
    lengths = [5, 0, 9]
    q = rng.standard_normal((14, 4, 16)).astype(np.float32)
    k, v = (rng.standard_normal((14, 2, 16)).astype(np.float32) for _ in "kv")
    cu = np.array([0, 5, 5, 14], np.int32)
    problem = tessera.Problem("fwd f32 b3 hq4 hkv2 sq9 d16 causal packed cpu")
    problem.total_q = problem.total_k = 14
    o = np.full_like(q, np.nan)
    tessera.Plan(problem).run(q=q, k=k, v=v, o=o, cu_seqlens_q=cu, cu_seqlens_k=cu)
    for begin, n in zip(cu, lengths):
        if n:
            part = slice(begin, begin + n)
            check(o[None, part], q[None, part], k[None, part], v[None, part], causal=True)
    with pytest.raises(ValueError, match="cu_seqlens_q"):
        tessera.Plan(problem).run(q=q, k=k, v=v, o=o, cu_seqlens_q=cu.astype(np.int64), cu_seqlens_k=cu)
    falling = np.array([0, 5, 4, 14], np.int32)
    with pytest.raises(ValueError, match="cu_seqlens_q"):
        tessera.Plan(problem).run(q=q, k=k, v=v, o=o, cu_seqlens_q=falling, cu_seqlens_k=cu)


def test_run_refuses_other_arrays(rng):
    q, k, v = _operands(rng)
    plan = tessera.Plan(TEXT)
    o = np.full_like(q, 7.0)
    locked = o.copy()
    locked.flags.writeable = False
    good = dict(q=q, k=k, v=v, o=o)
    for change, words in (
        (dict(q=None), ["q", "missing"]),
        (dict(q=q[:, :7]), ["q", "[2, 7, 4, 16]"]),
        (dict(q=q.astype(np.float16)), ["q", "float16", "float32"]),
        (dict(k=np.ascontiguousarray(k.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)), ["k", "strides"]),
        (dict(o=locked), ["o", "read-only"]),
        (dict(lse=np.zeros(1, np.float32)), ["lse"]),
        (dict(workspace=np.zeros(256, np.uint8)[::2]), ["workspace"]),
    ):
        with pytest.raises(ValueError) as caught:
            plan.run(**{**good, **change})
        assert all(word in str(caught.value) for word in words), str(caught.value)
        assert np.all(o == 7.0)
    with pytest.raises(TypeError, match="v: expected an array"):
        plan.run(**{**good, "v": 3})
    plan.run(**good)
    check(o, q, k, v, causal=True)


def test_explain():
    words = tessera.explain(TEXT)
    plan = tessera.Plan(TEXT)
    assert plan.kernel in words and words == plan.explain()
    told = tessera.explain(TEXT, json=True)
    assert isinstance(told, dict) and told["kernel"] == plan.kernel


def test_supports():
    assert tessera.supports(TEXT)
    answer = tessera.supports("fwd f32 sq8 d1000")
    assert not answer and "1000" in answer.reasons and "1000" in repr(answer)
    with pytest.raises(NotImplementedError):
        tessera.Plan("fwd f32 sq8 d1000")


def test_devices():
    assert "cpu" in tessera.devices().lower()
    assert isinstance(tessera.devices(json=True), dict)


def test_versions():
    major, minor, patch = (int(part) for part in tessera.version().split("."))
    assert tessera.__version__ == f"{major}.{minor}.{patch}"


def test_public_functions_say_types_and_shapes():
    shaped = {"append", "attention", "quantize", "sdpa"}
    for name in tessera.__all__:
        value = getattr(tessera, name)
        if not callable(value):
            continue
        documented = inspect.getdoc(value) or ""
        assert documented, name
        if inspect.isfunction(value):
            signature = inspect.signature(value)
            types = [p.annotation for p in signature.parameters.values()] + [signature.return_annotation]
            assert inspect.Signature.empty not in types, name
        if name in shaped:
            assert "[batch, seqlen" in documented or "[..., heads, seqlen" in documented, name
            shaped.remove(name)
    assert not shaped


def test_module_main():
    done = subprocess.run([sys.executable, "-m", "tessera"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""
    assert tessera.version() in done.stdout and "numpy" in done.stdout and tessera.devices().strip() in done.stdout
    assert re.search(r"^fwd bf16 hq8 sq1024 d128 causal cpu: cpu\.", done.stdout, re.MULTILINE)
    assert re.search(r"^bwd bf16 hq8 sq1024 d128 cuda: (cuda\.|device is 0, but )", done.stdout, re.MULTILINE)
    done = subprocess.run([sys.executable, "-m", "tessera", "--colour"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr == "python -m tessera: unrecognized arguments: --colour\n"


def test_import_is_quick_and_brings_no_framework():
    code = (
        "import json, sys, time; start = time.perf_counter(); import tessera; end = time.perf_counter()\n"
        "print(json.dumps([end - start, sorted(sys.modules)]))"
    )
    runs = [
        json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(5)
    ]
    assert min(seconds for seconds, _ in runs) < 0.2
    assert not {"numpy", "torch"} & set(runs[0][1])


def test_missing_library_is_named(tmp_path):
    import os

    missing = str(tmp_path / "libtessera.so")
    done = subprocess.run(
        [sys.executable, "-c", "import tessera"],
        capture_output=True,
        text=True,
        env={**os.environ, "TESSERA_LIBRARY": missing},
    )
    assert done.returncode == 1 and "ImportError" in done.stderr and missing in done.stderr
    (tmp_path / "libtessera.so").write_text("no library")
    done = subprocess.run(
        [sys.executable, "-c", "import tessera"],
        capture_output=True,
        text=True,
        env={**os.environ, "TESSERA_LIBRARY": missing},
    )
    assert done.returncode == 1 and "ImportError" in done.stderr and missing in done.stderr


@pytest.mark.parametrize("prefix", ["", "./"])
def test_a_library_may_be_named_from_the_current_folder(prefix, tmp_path):
    import os

    package = str(Path(tessera.__file__).resolve().parents[1])
    (tmp_path / "mine.so").symlink_to(library_path.resolve())
    done = subprocess.run(
        [sys.executable, "-c", "import tessera; print(tessera._c.library_path)"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "TESSERA_LIBRARY": f"{prefix}mine.so", "PYTHONPATH": package},
    )
    assert done.stdout.strip() == str(tmp_path / "mine.so"), done.stderr
