"""What the bench's command lines are told wrong: one line that names it, exit code 2, or 3 for what the machine lacks,
before any work; and the result files that they take."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the bench needs PyTorch")
pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed: NumPy has no bfloat16 without it")

from tessera import _bench_ablations as ablations  # noqa: E402
from tessera import _bench_quantize as quantize  # noqa: E402
from tessera import _bench_recompute as recompute  # noqa: E402
from tessera import _bench_story as story  # noqa: E402
from tessera import bench, fp8_accuracy  # noqa: E402

RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results"
CELL = "fwd bf16 b1 hq1 sq64 d64 cuda"
APPEND = "fwd bf16 b2 hq4 hkv2 sq1 sk64 d16"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    grad = torch.is_grad_enabled()
    yield
    torch.set_grad_enabled(grad)


def outcome(main, arguments, capsys):
    """The exit code of a command line, and the one line that it printed on stderr."""
    try:
        code = main(arguments)
    except SystemExit as stop:
        code = stop.code
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1 and "Traceback" not in printed.err, printed.err
    return code, printed.err


WRONG = {
    "no problem": ([], "expected problem text or --suite"),
    "suite": (["--suite", "forwards"], "argument --suite: invalid choice: 'forwards'"),
    "dtype": (["--suite", "forward", "--dtype", "f64"], "argument --dtype: invalid choice: 'f64'"),
    "samples": ([CELL, "--samples", "x"], "argument --samples: 'x', expected a whole number from 1 on"),
    "unknown option": ([CELL, "--colour"], "unrecognized arguments: --colour"),
    "rounds": ([CELL, "--rounds", "0"], "argument --rounds: '0', expected a whole number from 1 on"),
    "seconds": ([CELL, "--seconds", "nan"], "argument --seconds: 'nan', expected a number from 0 on"),
    "peer": ([CELL, "--peers", "flash,fa9"], "--peers: 'fa9', expected some of"),
    "only": (["--suite", "forward", "--only", "d96"], "--only words that some of them have"),
    "ncu": ([CELL, "--ncu", "also"], "--ncu: 'also', expected with --suite story"),
    "words": (["fwd bf16 sq64 cuda"], "'fwd bf16 sq64 cuda': d is missing"),
    "a word": ([f"{CELL} colour"], "'colour': expected a word of a problem"),
    "term": ([f"{CELL} alibi"], "'alibi' in 'fwd bf16 b1 hq1 sq64 d64 cuda alibi': expected a dense or packed"),
    "int8 in prefill": ([f"{CELL} kv=int8"], "'kv=int8' in"),
    "type": (["fwd f64 sq64 d64 cuda"], "'fwd f64 sq64 d64 cuda': expected a dense or packed f16, bf16 or f32"),
    "output": ([f"{CELL} o=f32"], "'o=f32' in"),
    "packed keys": (["bwd bf16 b2 hq1 sq64 sk32 d64 packed cuda"], "expected sk=sq where sequences are packed"),
    "lengths": (["fwd bf16 b2 hq1 sq64 d64 packed lens=64:64:1 cuda"], "lens=64:64:1"),
    "backward": (["bwd bf16 b2 hq1 sq64 d64 paged=16 cuda"], "'paged=16' in 'bwd bf16 b2 hq1 sq64 d64 paged=16 cuda'"),
    "backward in recompute": (
        ["--suite", "recompute", "bwd bf16 b2 hq1 sq64 d64 packed cuda"],
        "'packed' in 'bwd bf16 b2 hq1 sq64 d64 packed cuda'",
    ),
    "decode": (["fwd bf16 hq8 sq1 sk640 d64 lens=longtail cuda"], "lens=longtail"),
    "decode in f32": (["fwd f32 hq8 sq1 sk640 d64 cuda"], "expected an f16 or bf16 problem, full or causal"),
    "forward in recompute": (
        ["--suite", "recompute", CELL, "--only", "b1"],
        "expected a dense f16, bf16 or f32 problem b",
    ),
    "backward in story": (["--suite", "story", "--only", "b9", "bwd f32 b9 sq64 d64 cpu"], "problem forward, full"),
    "backward in ablations": (
        ["--suite", "ablations", "--only", "b9", "bwd bf16 b9 hq1 sq64 d64 cuda"],
        "problem forward, full",
    ),
    "bf16 in fp8": (
        ["--suite", "fp8", "--only", "b9", "fwd bf16 b9 hq1 sq64 d64 cuda"],
        "expected a dense e4m3 problem",
    ),
    "window in fp8": (
        ["--suite", "fp8", "--only", "b9", "fwd e4m3 b9 hq1 sq64 d64 window=8,0 cuda"],
        "'window=8,0' in 'fwd e4m3 b9",
    ),
    "heads in fp8": (["--suite", "fp8", "--only", "b9", "fwd e4m3 b9 hq4 hkv2 sq64 d64 cuda"], "'hkv2' in"),
    "CPU in fp8": (["--suite", "fp8", "--only", "b9", "fwd e4m3 b9 hq1 sq64 d64 cpu"], "on the CPU, expected cuda"),
    "e4m3 elsewhere": (["fwd e4m3 sq64 d64 cuda"], "expected a dense or packed f16, bf16 or f32"),
    "pin": (["--suite", "ablations", "--kernel", "cuda.*"], "--kernel: 'cuda.*', expected 0 of them with --suite"),
    "pins": (
        ["--suite", "fp8", "--kernel", "a", "--kernel", "b"],
        "--kernel: 'b', expected 1 of them with --suite fp8",
    ),
    "on the CPU": (["fwd bf16 sq64 d64 cpu"], "a problem on the CPU, expected cuda"),
    "out": ([CELL, "--out", "absent/x.json"], "argument --out: 'absent/x.json' cannot be written, expected a file"),
    "out is a folder": ([CELL, "--out", "."], "argument --out: '.' cannot be written"),
}


@pytest.mark.parametrize("arguments,part", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_argument_of_the_bench(arguments, part, capsys):
    code, line = outcome(bench.main, arguments, capsys)
    assert code == 2 and part in line


@pytest.mark.parametrize(
    "words,part",
    [
        ("", "new=; expected new=n rows, 1 to sk, which is"),
        ("new=", "new=; expected new=n rows"),
        ("new=x", "new=x; expected new=n rows"),
        ("new=0", "new=0; expected"),
        ("new=9999999", "new=9999999; expected"),
        ("new=1 dv32", "'dv32' in"),
        ("new=1 dv=32", "dv=32"),
        ("new=1 softcap=3", "'softcap=3' in"),
        ("new=1 packed", "'packed' in"),
        ("new=1 o=f32", "'o=f32' in"),
    ],
)
def test_a_wrong_cell_of_the_append_suite(words, part, capsys, monkeypatch):
    monkeypatch.setitem(bench.SUITES, "append", lambda dtype: [])
    code, line = outcome(bench.main, ["--suite", "append", f"{APPEND} {words}"], capsys)
    assert code == 2 and part in line
    code, line = outcome(bench.main, ["--suite", "append", "fwd f16 sq1 sk64 d7 new=1 rotary"], capsys)
    assert code == 2 and "rotary with d7; expected an even head dim" in line


FILES = {
    "absent": (None, "No such file"),
    "no JSON": ("{", "expected a result file of python -m tessera.bench"),
    "no text": (b"\xff\xfe\x00", "expected a result file of python -m tessera.bench"),
    "a list": ("[]", "has no `rows` of problems"),
    "no rows": ('{"rows": []}', "has no `rows` of problems"),
    "a row of another tool": ('{"rows": [{"problem": "fwd bf16 sq8 d8", "median": 1}]}', "cannot be shown"),
    "another problem": (
        '{"rows": [{"problem": "fwd", "status": "refused", "reason": ""}]}',
        "cannot be shown",
    ),
    "a story of another tool": ('{"suite": "story", "rows": [{"problem": "fwd bf16 sq8 d8"}]}', "cannot be shown"),
}


@pytest.mark.parametrize("content,part", FILES.values(), ids=FILES.keys())
def test_a_wrong_result_file(content, part, tmp_path, capsys):
    path = tmp_path / "results.json"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    commands = [["--table", str(path)]]
    try:
        import matplotlib  # noqa: F401

        commands.append(["--draw", str(path), "picture.png"])
    except ImportError:
        pass
    for arguments in commands:
        code, line = outcome(bench.main, arguments, capsys)
        assert code == 2 and part in line and str(path) in line
    assert not (tmp_path / "picture.png").exists()


def test_pictures_that_cannot_be_drawn(capsys):
    code, line = outcome(bench.main, ["--draw", str(RESULTS / "h200-forward.json"), "absent/x.png"], capsys)
    assert code == 2 and "--draw: 'absent/x.png' cannot be written" in line
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    code, line = outcome(bench.main, ["--draw", str(RESULTS / "h200-forward.json"), "x.picture"], capsys)
    assert code == 2 and "picture" in line
    code, line = outcome(bench.main, ["--draw", str(RESULTS / "h200-decode.json"), "x.png"], capsys)
    assert code == 2 and "no cell of the grid" in line


@pytest.mark.parametrize("name", ["forward", "backward", "special", "decode", "recompute", "story", "append"])
def test_result_files_of_every_suite_have_a_table(name, capsys):
    path = RESULTS / f"h200-{name}.json"
    assert bench.main(["--table", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > len(json.loads(path.read_text())["rows"])


@pytest.mark.parametrize(
    "content,part", [(None, "expected a result file that is there"), ('{"rows": [{"problem": ""}]}', "--suite story")]
)
def test_a_file_to_add_counts_to(content, part, tmp_path, capsys):
    if content:
        (tmp_path / "x.json").write_text(content)
    options = bench.arguments_of(["--suite", "story", "--ncu", "only", "--out", "x.json"])

    def main(_):
        return bench.ended("here", lambda: story.main(options, None, {"rows": []}, None))

    code, line = outcome(main, None, capsys)
    assert code == 2 and part in line


def test_a_library_without_ablations_says_how_to_build_one(capsys):
    options = bench.arguments_of(["--suite", "ablations", "--only", "b9", "fwd f32 b9 hq1 sq8 d64 cpu"])

    def main(_):
        return bench.ended("here", lambda: ablations.main(options, None, {"rows": []}, None))

    code, line = outcome(main, None, capsys)
    assert code == 2 and "'fwd f32 b9 hq1 sq8 d64 cpu'" in line and "-DTESSERA_ABLATIONS=ON" in line


def test_a_profiler_that_is_not_there(monkeypatch, tmp_path, capsys):
    """Told before the cells are measured."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    options = bench.arguments_of(["--suite", "story", "--ncu", "also"])

    def main(_):
        return bench.ended("here", lambda: story.main(options, None, {"rows": []}, None))

    for begin, arguments in ((recompute.main_of_module, ["bwd bf16 sq64 d64 cuda"]), (main, None)):
        code, line = outcome(begin, arguments, capsys)
        assert code == 3 and "ncu is not installed" in line


MODULES = {
    "recompute, nothing": (recompute.main_of_module, [], 2, "required: PROBLEM"),
    "recompute, two": (recompute.main_of_module, ["bwd bf16 sq64 d64 cuda", "x"], 2, "unrecognized arguments: x"),
    "recompute, problem": (recompute.main_of_module, ["bwd bf16 sq64 cuda"], 2, "d is missing"),
    "recompute, pass": (recompute.main_of_module, ["--profile", CELL], 2, "expected a dense f16, bf16 or f32 problem"),
    "recompute, CPU": (recompute.main_of_module, ["bwd bf16 sq64 d64 cpu"], 2, "a problem on the CPU, expected cuda"),
    "story, nothing": (story.main_of_module, [], 2, "required: PROBLEM"),
    "story, problem": (story.main_of_module, ["fwd bf16 b0 sq64 d64 cuda x"], 2, "'x': expected a word"),
    "story, CPU": (story.main_of_module, ["fwd bf16 sq64 d64 cpu"], 2, "a problem on the CPU, expected cuda"),
    "quantize, out": (quantize.main, ["absent/x.json"], 2, "argument out: 'absent/x.json' cannot be written"),
    "fp8, device": (fp8_accuracy.main, ["--device", "tpu"], 2, "invalid choice: 'tpu'"),
    "fp8, longest": (
        fp8_accuracy.main,
        ["--longest", "0"],
        2,
        "argument --longest: '0', expected a whole number from 1 on",
    ),
    "fp8, order": (fp8_accuracy.main, ["--order", "2"], 2, "argument --order: invalid choice: 2"),
}


@pytest.mark.parametrize("main,arguments,code,part", MODULES.values(), ids=MODULES.keys())
def test_the_modules_beside_it(main, arguments, code, part, capsys):
    found, line = outcome(main, arguments, capsys)
    assert found == code and part in line


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize(
    "main,arguments",
    [
        (bench.main, [CELL]),
        (bench.main, ["--suite", "ablations"]),
        (bench.main, ["--suite", "fp8"]),
        (bench.main, ["--suite", "story", "--ncu", "also", "--only", "hq16,sq64"]),
        (recompute.main_of_module, ["bwd bf16 sq64 d64 cuda"]),
        (recompute.main_of_module, ["--profile", "bwd bf16 sq64 d64 cuda"]),
        (story.main_of_module, [CELL]),
        (quantize.main, []),
        (fp8_accuracy.main, ["--device", "cuda"]),
    ],
)
def test_no_device_is_3_and_says_so(main, arguments, capsys):
    code, line = outcome(main, arguments, capsys)
    assert code == 3 and "torch sees no CUDA device" in line


def test_a_pin_is_of_the_float8_calls(monkeypatch, capsys):
    monkeypatch.delenv("TESSERA_KERNEL", raising=False)
    monkeypatch.setattr(fp8_accuracy, "exact", lambda q, k, v: q)  # minutes of float64, and no figure is looked at
    pins = []

    def watched(q, *arrays, **options):
        pins.append(os.environ.get("TESSERA_KERNEL"))
        return np.zeros(q.shape)

    monkeypatch.setattr(fp8_accuracy, "attention", watched)
    assert fp8_accuracy.main(["--kernel", "cpu.*.forward", "--longest", "1"]) == 0
    assert pins == [None, *["cpu.*.forward"] * 4] * 2 and "TESSERA_KERNEL" not in os.environ
    capsys.readouterr()
    pins.clear()
    code, line = outcome(fp8_accuracy.main, ["--kernel", "cuda.*"], capsys)
    assert code == 3 and "--kernel cuda.*: no kernel is named" in line
    assert not pins and "TESSERA_KERNEL" not in os.environ  # before any work
