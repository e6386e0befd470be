"""The bench's own parts: cells, useful pairs, the float64 judge, the lines of a table."""

import gc
import json
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest

import tessera
from tessera import _bench_report as report

torch = pytest.importorskip("torch", reason="the bench needs PyTorch")

from tessera import _bench_ablations as ablations  # noqa: E402
from tessera import _bench_decode as decode  # noqa: E402
from tessera import _bench_fp8 as fp8  # noqa: E402
from tessera import _bench_ncu as ncu  # noqa: E402
from tessera import _bench_peers as peers  # noqa: E402
from tessera import _bench_recompute as recompute  # noqa: E402
from tessera import _bench_story as story  # noqa: E402
from tessera import _bench_story_report as story_report  # noqa: E402
from tessera import bench  # noqa: E402
from tessera._bench_backward import BackwardCase, BackwardRunner, differentiate, is_backward, sdpa  # noqa: E402
from tessera._bench_case import Case, Runner  # noqa: E402

CPU_CELLS = [
    "fwd f16 b2 hq4 hkv2 sq70 d16 causal cpu",
    "fwd f16 b2 hq2 sq33 sk90 d16 causal cpu",
    "fwd f16 b1 hq2 sq120 d16 window=17,0 cpu",
    "fwd f16 b1 hq2 sq40 d16 cpu",
    "fwd f16 b4 hq2 sq50 d16 causal packed lens=50:20:1:7 cpu",
]


@pytest.fixture(autouse=True)
def peers_of_the_tree(monkeypatch):
    """The committed peers' figures, also where the package that is tested was installed from a wheel."""
    monkeypatch.setattr(report, "KNOWN_PEERS", Path(__file__).resolve().parents[2] / "bench" / "h200-peers.json")
    report.known_peers.cache_clear()


def brute_force_pairs(case):
    p, pairs = case.problem, 0
    for length in case.lengths:
        keys = length if case.packed else p.seqlen_k
        for i in range(length):
            d = i + keys - length
            pairs += sum((p.left < 0 or j >= d - p.left) and (p.right < 0 or j <= d + p.right) for j in range(keys))
    return pairs


@pytest.mark.parametrize("text", CPU_CELLS)
def test_a_case_counts_pairs_and_judges_our_rows(text):
    case = Case(text)
    assert case.kept_pairs() == brute_force_pairs(case)
    reference = case.exact(case.problem.heads_q)
    assert case.rms_error(Runner(case)(), reference) < 3e-4
    assert case.rms_error(torch.zeros_like(case.q), reference) > 1e-2


@pytest.mark.parametrize("text", CPU_CELLS)
def test_a_backward_case_judges_our_rows_and_peers(text):
    assert is_backward(f"bwd{text[3:]}") and not is_backward(text)
    case = BackwardCase(f"bwd{text[3:]}")
    assert case.flops() * 2 == Case(text).flops() * 5
    reference = case.exact(1)
    gradients = BackwardRunner(case)()
    assert case.rms_error(gradients, reference) < 2e-3
    assert case.rms_error(tuple(torch.zeros_like(x) for x in gradients), reference) == pytest.approx(1)
    if not case.window and not case.packed:
        peer = sdpa(case, torch.nn.attention.SDPBackend.MATH)()
        assert case.rms_error(peer, reference) < 5e-3
    else:
        with pytest.raises(peers.Refused, match="neither packed sequences nor a window"):
            sdpa(case, torch.nn.attention.SDPBackend.MATH)


def test_a_backward_peer_keeps_its_forward_pass():
    case, calls = BackwardCase("bwd f16 b1 hq1 sq8 d8 cpu"), []

    def forward(q, k, v):
        calls.append(1)
        return q * 2 + k + v

    backward = differentiate(case, forward)
    for _ in range(2):
        dq, dk, dv = backward()
        assert torch.equal(dq, 2 * case.d_o) and torch.equal(dk, case.d_o) and torch.equal(dv, case.d_o)
    assert calls == [1]


def test_a_pin_chooses_the_row_and_a_refusal_is_an_error():
    case = Case(CPU_CELLS[0])
    assert Runner(case, "cpu.portable.*").plan.kernel.startswith("cpu.portable.")
    with pytest.raises(NotImplementedError, match="cuda"):
        Runner(case, "cuda.*")


def test_outliers_are_of_the_stated_distribution():
    q = Case("fwd f16 b1 hq16 sq4096 d128 cpu", outliers=True).q.float()
    share = (q.abs() > 6).float().mean().item()  # of N(0, 100) 55 % lie there, of N(0, 1) nothing
    assert 0.0004 < share < 0.0007
    assert q.clamp(-6, 6).std().item() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_suites_are_problems_of_the_library(dtype):
    counts = {"forward": 36, "special": 29, "backward": 36 + 12 + 6, "recompute": 8, "decode": 17, "ablations": 24}
    suites = {name: bench.SUITES[name](dtype) for name in counts}
    suites["story"] = [text for cells in story.tables(dtype, "cuda").values() for text in cells]
    for suite, count in {**counts, "story": 6 + 12 + 5}.items():
        cells = suites[suite]
        assert len(set(cells)) == len(cells) == count
        for text in cells:
            assert f" {dtype} " in f" {tessera.Problem(text)} "


@pytest.mark.parametrize("words", ["sq1", "sq2 causal", "sq1 paged=16 pages=shuffled", "sq1 kv=int8"])
def test_a_decode_case_reads_every_cache_once(words):
    text = f"fwd f16 b2 hq4 hkv2 sk70 d16 {words} cpu"
    assert decode.is_decode(text)
    case = decode.DecodeCase(text, cold_bytes=100_000)
    assert len(case.caches) * case.cache_bytes() >= 100_000
    assert len({one.k.data_ptr() for one in case.caches}) == len(case.caches)
    runner = decode.DecodeRunner(case)
    runner()
    for one in runner.runners:
        assert one.case.rms_error(one.out, one.case.exact(4)) < 3e-4
    assert case.rms_error(torch.zeros_like(case.q), case.exact(4)) > 1e-2


def test_a_decode_line_has_the_share_of_the_probe():
    problem = "fwd bf16 b1 hq32 hkv8 sq1 sk1024 d128 cuda"
    peer = {"cudnn": {"seconds_median": 8e-6}}
    figures = {"seconds_median": 7e-6, "kv_bytes": 4 << 20, "bytes": 4.3e6, "num_splits": 16, "peers": peer}
    line = decode.table_line({"problem": problem, "status": "ran", **figures}, ["cudnn", "flash"], 4.3e12)
    assert "7.0 / 0.60" in line and "8.0 / 0.52" in line and "0.139" in line and "1.143" in line
    row = {"problem": problem, "status": "ran", **figures}
    floor = decode.floors(row, {"alone": 5e-6, "in a row": 3e-6}, 4.3e12)
    assert floor == pytest.approx({"alone": 6e-6, "in a row": 4e-6})
    assert decode.table_line({**row, "floor_seconds": floor}, [], 4.3e12).endswith(" 4.0 (6.0)")
    assert decode.floors({**row, "problem": problem.replace("1024", "1032")}, floor, 4.3e12) is None
    assert decode.floors({"problem": problem, "status": "refused"}, floor, 4.3e12) is None


def test_only_picks_cells_that_have_all_words():
    cells = bench.forward_suite("bf16")
    assert len(bench.chosen(cells, ["d128,causal"])) == 6
    assert len(bench.chosen(cells, ["d128,full", "d64,sq512"])) == 6 + 2
    assert bench.chosen(bench.special_suite("bf16"), ["d128,window"]) == []
    assert bench.chosen(cells, []) == cells


def test_the_grid_is_the_one_of_the_committed_peers():
    known = report.known_peers()
    assert known.keys() == {report.grid_cell(text) for text in bench.forward_suite("f16")}
    assert all(row["best"] == max(row[name] for name in ("flash", "cudnn", "fa3", "fa4")) for row in known.values())


def test_a_peer_that_is_not_installed_says_so():
    with pytest.raises(peers.Refused, match="no_such_package"):
        peers.installed("no_such_package")


def test_a_missing_peer_keeps_no_case_alive():
    def candidates():
        case = Case(CPU_CELLS[3])
        with pytest.raises(peers.Refused):
            peers.installed("no_such_package")
        return weakref.ref(case)

    first, second = candidates(), candidates()
    gc.collect()
    assert first() is None and second() is None


def row(problem, tflops, **others):
    figures = {name: {"tflops": value, "rms_error": 1e-4} for name, value in others.items()}
    seconds = {"seconds_median": 1e-3, "estimate_seconds": 1.2e-3, "host_seconds": None}
    return {"problem": problem, "status": "ran", "tflops": tflops, "rms_error": 1e-4, "peers": figures, **seconds}


def test_lines_and_summary_say_what_misses():
    cells = [f"fwd bf16 b1 hq16 hkv16 sq16384 sk16384 d128{mask} cuda" for mask in (" causal", "")]
    rows = [
        row(cells[0], 720, flash=276, cudnn=569, fa3=733),
        row(cells[1], 800, flash=308, cudnn=636, fa3=717),
        row("fwd bf16 b1 hq16 sq16384 d128 window=1024,0 cuda", 504, fa4=484, textbook=900),
    ]
    lines = [report.table_line(one, ["flash", "cudnn", "fa3"]) for one in rows]
    assert " 0.982<fa3" in lines[0] and " 1.265 (1.250)" in lines[0]  # 0.97 * 733 / 569
    assert " 1.116 fa3" in lines[1] and " 1.258 (1.094)" in lines[1]
    assert " 1.041<fa4" in lines[2] and "win1024" in lines[2]  # the textbook is no rival
    text = report.summary(rows)
    assert "at least 1.00 of the better of cuDNN and FlashAttention-2: 2 of 2" in text
    assert "at least 1.05 of the best peer: 1 of 3; not: b1 h16 N16384 d128 causal, b1 h16 N16384 d128 win1024" in text
    assert "estimate within 25 % from N 2048 on: 3 of 3" in text
    assert "window over dense causal N 16384 d 128: 0.700 (aim 0.75)" in text


def test_packed_cells_are_no_part_of_the_dense_grid(monkeypatch, tmp_path):
    scripts = Path(__file__).resolve().parents[2] / "scripts"
    monkeypatch.syspath_prepend(str(scripts))
    grid_tables = pytest.importorskip("grid_tables")
    dense = row("bwd bf16 b4 hq16 hkv16 sq4096 sk4096 d128 causal cuda", 550)
    packed = row("bwd bf16 b2 hq16 hkv16 sq6144 sk6144 d128 causal packed lens=6144:1 cuda", 490)
    assert [one["problem"] for one, _ in grid_tables.ran({"rows": [dense, packed]})] == [dense["problem"]]
    pytest.importorskip("matplotlib")
    with pytest.raises(ValueError, match="no cell of the grid"):
        report.draw({"rows": [packed]}, str(tmp_path / "x.png"))


@pytest.mark.parametrize("text", CPU_CELLS[:4])
def test_a_step_is_both_passes(text):
    case = BackwardCase(f"bwd{text[3:]}")
    calls, refused = recompute.steps_of(case, [], None)
    assert "not loaded" in refused["textbook"] and len(calls) == 1
    for x in (case.o, case.lse):
        x.fill_(float("nan"))  # what the step's own forward pass writes
    (step,) = calls.values()
    assert case.rms_error(step(), case.exact(1)) < 2e-3
    assert recompute.kept_pairs(case.problem) == brute_force_pairs(Case(text)) // case.problem.batch
    work = recompute.recompute_work(case.problem)
    assert work.flops == 2 * case.problem.head_dim_qk * 7 * case.problem.heads_q * brute_force_pairs(Case(text))


def test_a_cell_becomes_a_line_and_a_row_of_the_result_file(tmp_path, capsys):
    def sample(calls, case, options):
        times = [1e-3, 4e-3, 2e-3]
        return [SimpleNamespace(name=n, seconds=times, memory=10, out=c(), eager="") for n, c in calls.items()]

    text, out = f"bwd{CPU_CELLS[3][3:]}", tmp_path / "recompute.json"
    options = SimpleNamespace(problems=[text], kernel=["cpu.*.backward", "cuda.*"], no_errors=False, out=str(out))
    assert recompute.main(options, None, {"rows": []}, sample) == 0
    (row,) = json.loads(out.read_text())["rows"]
    ((name, step),) = row["steps"].items()
    assert step["seconds_median"] == 2e-3 and step["extra_bytes"] == 10 + 2 * 40 * 4 and step["rms_error"] < 2e-3
    assert row["model"]["textbook"]["flops"] == 2 * 2 * 40 * 40 * 16 * 6
    assert row["refused"].keys() == {"cuda.*", "textbook"}
    printed = capsys.readouterr().out
    assert name in printed and "textbook left out: libtessera_baselines.so" in printed


def test_the_model_counts_products_and_every_matrix():
    p = tessera.Problem("bwd bf16 b2 hq4 hkv2 sq256 sk512 d64 dv32 causal cuda")
    pairs, rows_q, rows_k = 2 * 4 * 256 * 512, 2 * 4 * 256, 2 * 2 * 512
    textbook, ours = recompute.textbook_work(p), recompute.recompute_work(p)
    assert textbook.flops == 2 * pairs * (3 * 64 + 3 * 32)  # masked pairs too
    assert ours.flops == 2 * 8 * sum(256 + i + 1 for i in range(256)) * (4 * 64 + 3 * 32)
    # S, dP: 4 + 4 each; P: 2 + 3 * 2; dS: 2 + 2 * 2
    operands = 2 * (rows_q * (3 * 64 + 5 * 32) + rows_k * (3 * 64 + 3 * 32)) + 12 * rows_q
    summed = 2 * 4 * 2 * 4 * 512 * (64 + 32)  # float32 of each query head, written and read
    assert textbook.bytes == 30 * pairs + operands + summed
    longer = tessera.Problem("bwd bf16 b2 hq4 hkv2 sq512 sk1024 d64 dv32 causal cuda")
    assert recompute.recompute_work(longer).bytes == 2 * ours.bytes  # O(N), where the textbook's is not
    assert recompute.textbook_work(longer).bytes > 3 * textbook.bytes


def test_the_table_shows_what_was_measured_and_what_was_not():
    text = "bwd bf16 b4 hq16 sq1024 d64 cuda"
    table = recompute.model_table([text]).splitlines()[1]
    assert " 52 60    0.86x" in table and "2.13 0.18   11.99x" in table and " - - " in table
    step = {"seconds_median": 2e-3, "extra_bytes": 384 << 20, "rms_error": 1e-3}
    fast = {"seconds_median": 5e-4, "extra_bytes": 3 << 20, "rms_error": 5e-4}
    row = {"problem": text, "model": recompute.models_of(tessera.Problem(text))}
    line = recompute.table_line({**row, "steps": {"cuda.ours": fast, "textbook": step}})
    assert "2.000 0.500    4.00x" in line and "384.0 3.0  128.00x" in line and line.endswith("cuda.ours")


def test_a_story_measures_each_row_and_says_why_not(tmp_path, capsys):
    text, out = "fwd f32 b2 hq2 sq70 d16 causal cpu", tmp_path / "story.json"
    options = SimpleNamespace(problems=[text], no_errors=False, out=str(out), ncu=None, seconds=0, rounds=5)
    assert story.main(options, None, {"device": "this one", "date": "today", "rows": []}, None) == 0
    results = json.loads(out.read_text())
    (cell,) = results["rows"]
    assert results["suite"] == "story" and cell["table"] == "other" and cell["rows"].keys() == {"fa2"}
    assert cell["refused"].keys() == {"textbook", "fa1"} and "not loaded" in cell["refused"]["fa1"]
    row = cell["rows"]["fa2"]
    assert row["samples"] == 5 and row["seconds_min"] <= row["seconds_median"] <= row["seconds_max"]
    assert row["rms_error"] < 1e-6 and row["model_bytes"] >= 4 * 4 * 2 * 2 * 70 * 16
    assert row["extra_bytes"] >= 4 * 2 * 2 * 70 and cell["flops"] == 4 * 16 * 2 * 2 * 70 * 71 // 2
    assert row["kernel"] in capsys.readouterr().out and row["kernel"] in bench.table_of(results)


def test_a_story_has_every_table_and_its_budgets():
    for device, dtype in (("cuda", "bf16"), ("cpu", "f32")):
        for name, cells in story.tables("bf16", device).items():
            for text in cells:
                p = tessera.Problem(text)
                assert story.table_of(text) == name and text.split()[1] == dtype
                assert len(story.pins_of(text)) == len(story.PINS[device]) + (3 if story.has_budgets(text) else 0)
                assert name != "wide" or device != "cuda" or p.batch * p.heads_q >= 512
                assert name != "grid" or p.batch * p.seqlen_q == (16384 if device == "cuda" else 4096)
    pins = story.pins_of("fwd bf16 b64 hq16 sq2048 d64 cuda")
    assert pins["fa1"] == "cuda.fa1" and pins["fa1.200k"] == "cuda.fa1.200k"


def test_a_storys_models_count_pairs_and_operands():
    p = tessera.Problem("fwd bf16 b2 hq4 hkv2 sq256 sk512 d64 dv32 cuda")
    rows, keys = 2 * 4 * 256, 2 * 2 * 512
    assert story.textbook_bytes(p) == 12 * rows * 512 + 2 * (rows + keys) * (64 + 32) + 4 * rows
    square = tessera.Problem("fwd bf16 b1 hq3 sq1024 d64 cuda")
    assert story.paper_bytes(square, 64) == 3 * 2 * 1024**2 * 64**2 / 32768


def story_cell(length, **milliseconds):
    rows = {name: {"seconds_median": ms * 1e-3} for name, ms in milliseconds.items()}
    return {"table": "wide", "problem": f"fwd bf16 b64 hq16 sq{length} d64 cuda", "rows": rows}


def test_a_crossover_is_where_all_longer_ones_win():
    cells = [
        story_cell(256, textbook=4, fa1=3, fa2=1),
        story_cell(64, textbook=1, fa1=0.5, fa2=0.9),
        story_cell(128, textbook=2, fa1=2.5, fa2=1, fa3=3),
    ]
    found = {one["row"]: one["wins_from"] for one in story_report.crossovers(cells)}
    assert found == {"fa1": 256, "fa2": 64, "fa3": None}


def test_a_profilers_kernels_belong_to_the_marker_before_them():
    lines = [
        "==PROF== Connected to process 1",
        '"ID","Kernel Name","dram__bytes_read.sum","dram__bytes_write.sum"',
        '"","","byte","byte"',
        '"0","void vectorized_elementwise_kernel<4, FillFunctor<float>, array<char *, 1>>","8","8"',
        '"1","softmax","1,000","250"',
        '"2","gemm","2000","50"',
        '"3","void vectorized_elementwise_kernel<4, FillFunctor<float>, array<char *, 1>>","8","8"',
        '"4","fa1_kernel","7","5"',
    ]
    assert ncu.counted(lines) == [
        {"kernels": 2, "read": 3000, "written": 300},
        {"kernels": 1, "read": 7, "written": 5},
    ]
    with pytest.raises(ValueError, match="ERR_NVGPUCTRPERM"):
        ncu.counted(["==ERROR== ERR_NVGPUCTRPERM"])


FAKE_NCU = """#!/usr/bin/env python3
import json, sys
log = sys.argv[sys.argv.index("--log-file") + 1]
cells = sys.argv[sys.argv.index("tessera._bench_story") + 1 :]
lines = ['"ID","Kernel Name","dram__bytes_read.sum","dram__bytes_write.sum"', '"","","byte","byte"']
for cell in cells:
    for name in ("fa1", "fa2"):
        print(json.dumps([cell, name]))
        lines.append('"0","void vectorized_elementwise_kernel<4, FillFunctor<float>, array<char *, 1>>","8","8"')
        lines += [f'"1","{name}","1,000","{len(lines)}"'] * 2
open(log, "w").write("\\n".join(lines))
sys.exit(STATUS)
"""


@pytest.mark.parametrize("status", [0, 9])
def test_a_profilers_bytes_join_an_earlier_runs_file(tmp_path, monkeypatch, capsys, status):
    """Its problems are written out in full; the machine that counted is told beside them."""
    fake = tmp_path / "ncu"
    fake.write_text(FAKE_NCU.replace("STATUS", str(status)))
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    given = ["fwd bf16 b64 hq16 sq1024 d64 cuda", "fwd bf16 b64 hq16 sq64 d64 cuda"]
    rows = [{"table": "wide", "problem": str(tessera.Problem(one)), "rows": {"fa1": {}, "fa3": {}}} for one in given]
    results = {"device": "x", "date": "before", "rows": rows}
    assert story.add_counts(results, given, {"device": "x", "date": "today", "rows": []}) is (status == 0)
    if status:
        assert "ncu ended with 9" in capsys.readouterr().out and "dram" not in rows[0]["rows"]["fa1"]
        return
    assert rows[0]["rows"]["fa1"]["dram"] == {"kernels": 2, "read": 2000, "written": 6}
    assert "dram" not in rows[0]["rows"]["fa3"] and "dram" not in rows[1]["rows"]["fa1"]
    assert results["counted"] == {"device": "x", "date": "today"} and results["date"] == "before"


def test_ablations_stand_beside_their_full_kernel():
    names = ablations.kernels()
    assert len(names) == 11 == len(set(names)) and names[0] == "cuda.sm90.forward"
    figures = {"tflops": 1.0, "rms_error": 1e-3}
    rows = {name: {**figures, "seconds_median": (2 + i) * 1e-6} for i, name in enumerate(names)}
    cell = {"problem": "fwd bf16 b4 hq16 sq4096 d128 cuda", "rows": rows, "refused": {"cuda.x": "why"}}
    lines = ablations.lines_of(cell)
    assert "N4096 d128 full" in lines[0] and "1.500 of" in lines[2] and names[1] in lines[2]
    assert lines[8].split()[0] == "cuda.sm80.forward" and "1.000 of" in lines[8] and lines[-1].endswith("why")
    told = ablations.short_table({"rows": [cell], "shared_bytes_per_s": 30e12, "read_bytes_per_s": 4e12})
    assert told.splitlines()[0].endswith("7.5 to 1")


def test_a_storys_picture_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    cells = []
    for table, texts in story.tables("bf16", "cuda").items():
        for text in texts:
            figures = {"seconds_median": 1e-3, "tflops": 3.0, "extra_bytes": 1 << 20, "model_bytes": 1e9}
            names = story.pins_of(text)
            rows = {one: {**figures, "paper_bytes": 1e8, "dram": {"read": 5, "written": 6}} for one in names}
            cells.append({"table": table, "problem": text, "rows": rows})
    picture = tmp_path / "story.png"
    bench.picture_of({"suite": "story", "device": "x", "date": "2026", "rows": cells}, str(picture))
    assert picture.stat().st_size > 10_000


FP8_CELL = "fwd e4m3 b2 hq2 sq70 d16 causal cpu"


def test_the_fp8_suite_is_the_forward_grid():
    cells = bench.SUITES["fp8"]("bf16")
    assert [text.replace("e4m3", "bf16") for text in cells] == bench.forward_suite("bf16")


def test_an_fp8_cell_judges_both_orders_beside_bf16(monkeypatch, tmp_path, capsys):
    def refuse(name):
        raise peers.Refused(f"no {name} here")

    def sample(calls, case, options):
        return [SimpleNamespace(name=name, out=call(), seconds=[2e-6], eager="") for name, call in calls.items()]

    monkeypatch.setattr(peers, "installed", refuse)
    out = tmp_path / "fp8.json"
    options = SimpleNamespace(
        problems=[FP8_CELL], kernel=["cpu.*.forward"], dtype="bf16", peers=["fa3"], no_errors=False, out=str(out)
    )
    assert fp8.main(options, {"rows": []}, sample) == 0
    (found,) = json.loads(out.read_text())["rows"]
    (wide,) = [name for name in found["peers"] if name != "v_order"]
    assert found["status"] == "ran" and wide.startswith("cpu.") and found["quantise_seconds"] == 2e-6
    # Rounding to e4m3 is worth 2^-4 at most of what is near 1, to bfloat16 less; the orders differ in nothing.
    assert found["peers"][wide]["rms_error"] < 5e-3 < found["rms_error"] < 0.1
    assert found["peers"]["v_order"]["rms_error"] == pytest.approx(found["rms_error"], rel=1e-3)
    printed = capsys.readouterr().out
    assert bench.table_of({"rows": [found]}).splitlines()[-1].split()[:10] == printed.splitlines()[-1].split()[:10]
    assert "fa3 left out: no fa3_fwd_interface here" in printed and "N70 d16 causal" in printed
