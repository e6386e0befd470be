"""which() and expect_kernel(): what ran, what would run, and scopes that refuse anything else."""

import re
import threading

import numpy as np
import pytest
from judge import operands

import tessera


def test_the_last_run_and_what_would_run(rng):
    q, k, v = operands(rng, np.float32)
    tessera.attention(q, k, v, causal=True)
    last = tessera.which()
    assert last.kernel.startswith("cpu.") and "causal" in last.problem and last.kernel in str(last)
    asked = tessera.which(q, k, v, causal=True)
    assert (asked.kernel, asked.problem, asked.passed_over) == (last.kernel, last.problem, last.passed_over)
    assert tessera.which(q, k, v).problem != last.problem and tessera.which().problem == last.problem
    shown = tessera.which("fwd f32 sq64 d64 cpu")
    assert re.search(rf"^passed over +{shown.passed_over}\b", shown.explain(), re.MULTILINE)
    assert shown.passed_over == 0 or shown.first_reason in shown.explain()
    assert tessera.which(tessera.Plan("fwd f32 sq64 d64 cpu")).kernel == tessera.which("fwd f32 sq64 d64 cpu").kernel


def test_why_is_told(monkeypatch):
    monkeypatch.setenv("TESSERA_KERNEL", "cpu.portable.*")
    answer = tessera.which("fwd f32 sq512 d64 cpu")
    assert answer.kernel == "cpu.portable.forward" and answer.passed_over > 0
    assert answer.first_reason and answer.first_reason in str(answer)


def test_questions_that_make_no_sense():
    with pytest.raises(TypeError, match="causal"):
        tessera.which(causal=True)
    with pytest.raises(TypeError, match="causal"):
        tessera.which("fwd f32 sq64 d64", causal=True)
    with pytest.raises(NotImplementedError, match="cpu.portable"):
        tessera.which("fwd f32 sq64 d4096 cpu")


def test_the_expected_kernel_runs(rng):
    q, k, v = operands(rng, np.float32)
    plan = tessera.plan(q, k, v)
    o = np.empty_like(q)
    with tessera.expect_kernel("cpu.*") as outer, tessera.expect_kernel(plan.kernel) as inner:
        tessera.attention(q, k, v)
        plan.run(q=q, k=k, v=v, o=o)
    assert outer.ran == inner.ran == [plan.kernel] * 2


def test_another_kernel_is_refused_before_it_writes(rng):
    q, k, v = operands(rng, np.float32)
    plan = tessera.plan(q, k, v)
    o = np.full_like(q, 7)
    with pytest.raises(tessera.UnexpectedKernel, match=r"cpu\.none.*" + plan.kernel):
        with tessera.expect_kernel("cpu.none"):
            plan.run(q=q, k=k, v=v, o=o)
    assert np.all(o == 7)
    plan.run(q=q, k=k, v=v, o=o)
    assert not np.any(o == 7)


def test_no_kernel_at_all_is_an_error_too():
    with pytest.raises(tessera.UnexpectedKernel, match="no kernel of this library ran"):
        with tessera.expect_kernel("cpu.*"):
            pass
    with pytest.raises(ZeroDivisionError), tessera.expect_kernel("cpu.*"):
        raise ZeroDivisionError
    with pytest.raises(TypeError, match="pattern"), tessera.expect_kernel(None):
        pass


def test_other_threads_are_seen(rng):
    q, k, v = operands(rng, np.float32)
    with tessera.expect_kernel("cpu.*") as scope:
        thread = threading.Thread(target=tessera.attention, args=(q, k, v))
        thread.start()
        thread.join()
    assert len(scope.ran) == 1
