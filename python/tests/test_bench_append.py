"""The suite `append` of the bench: cells, what is checked before anything is timed, lines, the result file."""

import json
from types import SimpleNamespace

import pytest

import tessera

torch = pytest.importorskip("torch", reason="the bench needs PyTorch")

from tessera import _bench_append as append  # noqa: E402
from tessera import bench  # noqa: E402

CPU = torch.device("cpu")
CELLS = [
    "fwd f16 b2 hq4 hkv2 sq1 sk64 d16 new=3",
    "fwd bf16 b2 hq4 hkv2 sq1 sk64 d16 paged=16 pages=shuffled new=20 rotary",
    "fwd bf16 b3 hq4 hkv2 sq1 sk64 d16 kv=int8 new=1 rotary",
    "fwd f16 b3 hq4 hkv2 sq1 sk64 d16 kv=e4m3 new=2 rotary",
    "fwd f16 b2 hq4 hkv2 sq1 sk64 d16 paged=16 pages=shuffled new=1 rotary attend",
    "fwd f16 b2 hq4 hkv2 sq1 sk64 d16 new=1 attend",
]


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_the_suite_is_problems_of_the_library_with_words_of_its_own(dtype):
    cells = bench.SUITES["append"](dtype)
    assert len(set(cells)) == len(cells) == 30
    for text in cells:
        words, own = append.split_words(text)
        assert f" {dtype} " in f" {tessera.Problem(words + ' cuda')} "
        assert set(own) <= set(append.OWN_WORDS) and int(own["new"]) <= tessera.Problem(words + " cuda").seqlen_k


@pytest.mark.parametrize("text", CELLS)
def test_a_cell_writes_rows_that_are_right_and_sees_wrong_ones(text):
    cell = append.Cell(text, CPU)
    found = cell.check()
    assert found["relative_error"] <= append.ROUNDING[cell.problem.k.dtype]
    assert found.get("same_bits", False) == ("attend" in text)
    first = cell.sets[0]
    first.v_new[0, 0, 1, 5] += 1  # not what lies in the cache
    assert first.relative_error() > 2 * append.ROUNDING[cell.problem.k.dtype]
    assert len({one.k.data_ptr() for one in cell.sets}) == append.SETS["cpu"]


def test_bytes_are_rows_read_and_written():
    plain, turned, int8 = (append.Cell(CELLS[n], CPU).sets[0].bytes() for n in (0, 1, 2))
    assert plain == 2 * 2 * 3 * 2 * 16 * (2 + 2)
    assert turned == 2 * 2 * 20 * 2 * 16 * (2 + 2) + 20 * 16 * 2
    assert int8 == 2 * 3 * 1 * 2 * 16 * (2 + 1) + 16 * 2


def test_cells_become_lines_and_rows_of_the_result_file(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(append.torch.cuda, "is_available", lambda: False)
    out = tmp_path / "append.json"
    options = SimpleNamespace(problems=[*CELLS[1:2], *CELLS[4:5]], out=str(out), seconds=0.0)
    assert append.main(options, {"rows": []}, None) == 0
    plain, attend = json.loads(out.read_text())["rows"]
    assert plain["problem"].endswith("new=20 rotary cpu") and list(plain["calls"]) == ["append"]
    assert list(attend["calls"]) == ["one call", "two calls"] and attend["same_bits"]
    for row in (plain, attend):
        assert row["status"] == "ran" and row["seconds_median"] > 0 and row["launch_seconds"] > 0
    printed = capsys.readouterr().out
    assert "the cells run on the CPU" in printed and "2 cells in" in printed
    table = bench.table_of(json.loads(out.read_text()))
    assert table in printed and len(table.splitlines()) == 4


def test_what_is_refused_is_a_row_with_the_reason():
    text = "fwd f16 b1 hq4 hkv2 sq1 sk64 d16 kv=e4m3 new=1 attend"
    row = append.measure(text, CPU, SimpleNamespace(seconds=0.0), None, append.Cell(f"fwd f16 {append.LEAST}", CPU))
    assert row["status"] == "refused" and row["reason"]
    assert "refused" in append.table_line(row, 1e9)
