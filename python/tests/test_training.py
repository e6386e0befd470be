"""examples/train_gpt2.py: trains with our kernels, agrees with the textbook, and notices a wrong attention."""

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed: NumPy has no bfloat16 without it")

import tessera  # noqa: E402
from torch_help import DEVICES, need  # noqa: E402

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
QUICK = "--size small --steps 60 --rate 3e-3 --batch 4 --context 64 --contexts 64 --tokens 128 --samples 2".split()


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import train_gpt2

    monkeypatch.setattr(train_gpt2, "BEGIN", train_gpt2.time.perf_counter())
    return train_gpt2


def run(example, tmp_path, *arguments):
    """(exit status, result file) of the quick run."""
    out = tmp_path / "training.json"
    code = example.main([*QUICK, *arguments, "--out", str(out)])
    return code, json.loads(out.read_text())


def failed(results):
    return [one["check"] for one in results["checks"] if not one["passed"]]


def test_agrees_with_the_textbook(example, tmp_path):
    code, results = run(example, tmp_path, "--device", "cpu")
    assert failed(results) == [] and code == 0 and results["left_out"] == []
    assert len(results["checks"]) == 10 and all(name.startswith("cpu.") for name in results["kernels"])
    assert [len(losses) for losses in results["curves"].values()] == [60] * len(results["curves"])
    assert results["curves"]["tessera"][-1] < results["curves"]["tessera"][0] - 2
    assert set(results["rows"][0]["peers"]) == {"flash", "textbook"} and results["rows"][0]["seconds_median"] > 0


@pytest.mark.parametrize("device", DEVICES)
def test_trains_under_autocast(example, tmp_path, device):
    """In bfloat16 curves this short and small are mostly chance; gradients must agree all the same."""
    need(device)
    parts = ["curves", "steps"] if device == "cuda" else ["curves"]
    _, results = run(example, tmp_path, "--device", device, "--dtype", "bfloat16", "--parts", *parts)
    sure = [one for one in results["checks"] if "weights'" in one["check"] or "kernels" in one["check"]]
    assert len(sure) == 4 and all(one["passed"] for one in sure), sure
    assert "textbook bf16" in results["curves"] and all(name.startswith(f"{device}.") for name in results["kernels"])


WRONG = {
    "scale": lambda q, k, v: tessera.attention(q, k, v, causal=True, scale=0.12),  # 1 / sqrt(64) is 0.125
    "dk": lambda q, k, v: tessera.attention(q, k.detach(), v, causal=True),
    "window": lambda q, k, v: tessera.attention(q, k, v, causal=True, window=(62, 0)),  # of 64
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_notices_a_wrong_attention(example, tmp_path, monkeypatch, wrong):
    monkeypatch.setattr(example.models, "ours", wrong)
    code, results = run(example, tmp_path, "--device", "cpu", "--parts", "curves")
    assert code == 1
    assert [name for name in failed(results) if name.startswith("loss apart")]
    assert len([name for name in failed(results) if "error of the weights'" in name]) == 2


def test_notices_that_another_kernel_ran(example, tmp_path, monkeypatch):
    monkeypatch.setattr(example.models, "ours", example.models.textbook)
    with pytest.raises(tessera.UnexpectedKernel, match="no kernel of this library ran"):
        run(example, tmp_path, "--device", "cpu")


def test_tells_what_time_did_not_allow(example, tmp_path, capsys):
    code, results = run(example, tmp_path, "--device", "cpu", "--seconds", "1e-3")
    assert code == 1 and "steps that lack for a verdict" in failed(results)
    assert len(results["left_out"]) == 2 and "left out: curves from step 10 of 60 on" in capsys.readouterr().out


def test_curves_that_are_no_numbers_fail(example):
    report, nan = example.report, [float("nan")] * 60
    curves = {name: [3.0] * 60 for name in (report.OURS, report.REFERENCE, report.CONTROL, "flash")}
    assert [one["passed"] for one in report.curve_checks(curves, 3.1, "float32")] == [True] * 3 + [False]
    assert not any(one["passed"] for one in report.curve_checks({**curves, report.OURS: nan}, 3.1, "float32")[:3])
    assert not report.curve_checks({**curves, report.CONTROL: nan}, 3.1, "float32")[3]["passed"]


def test_windows_are_judged_by_their_own_spread(example):
    """Chance grows: what is wrong early is found in it, and a lasting difference at the end, each by its own check."""
    report = example.report
    chance = [1e-4 * 1.05**step * (-1) ** step for step in range(120)]  # to 0.03 nats

    def judged(wrong):
        curves = {report.OURS: [3 + x + w for x, w in zip(chance, wrong)], report.REFERENCE: [3.0] * 120}
        curves.update({"flash": [3 - x for x in chance], report.CONTROL: [3 + 4 * x for x in chance]})
        _, end, steps, control = report.curve_checks(curves, 9.0, "bfloat16")
        assert control["passed"] and control["value"] == pytest.approx(2, abs=0.3)
        return end["passed"], steps["passed"]

    assert judged([0.0] * 120) == (True, True)
    assert judged([0.002] * 20 + [0.0] * 100) == (True, False)  # far less than late chance
    assert judged([0.0] * 80 + [0.003] * 40) == (False, True)  # its mean is more than chance's
    assert judged([0.0] * 80 + [0.1] * 40) == (False, False)


@pytest.mark.parametrize("words", [["--steps", "0"], ["--contexts", "128", "0"], ["--picture", "p.png"]], ids=str)
def test_bad_options_are_one_line(example, capsys, words):
    with pytest.raises(SystemExit) as stop:
        example.main(["--device", "cpu", *words])
    assert stop.value.code == 2 and words[0] in capsys.readouterr().err.splitlines()[-1]


def test_draws_a_result_file(example, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    cell = {"status": "ran", "seconds_median": 0.1, "peak_bytes": 2**30}
    rows = [{"context": n, **cell, "peers": {"flash": cell, "textbook": {"status": "refused"}}} for n in (64, 128)]
    told = {"device": "none", "date": "", "model": {"name": "small"}, "rows": rows}
    curves = {"tessera": [3.0] * 40, example.report.REFERENCE: [2.9] * 40}
    (tmp_path / "r.json").write_text(json.dumps({**told, "curves": curves}))
    assert example.main(["--draw", str(tmp_path / "r.json"), str(tmp_path / "p.png")]) == 0
    assert (tmp_path / "p.png").stat().st_size > 10000
