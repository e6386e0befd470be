#!/usr/bin/env python3
"""What docs/algorithm.md shows and docs/claims.md quotes of the algorithm: measured by runs of this library on the CPU,
then drawn.

    cmake --preset release && cmake --build --preset release --target tessera tessera_cli
    pip install numpy matplotlib
    python3 scripts/algorithm_figures.py measure build/release bench/results/cpu-epyc-algorithm.json
    python3 scripts/algorithm_figures.py draw bench/results/cpu-epyc-algorithm.json docs/images

`measure` needs NumPy alone, `draw` needs matplotlib and no build."""

import datetime
import json
import os
import pathlib
import struct
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BLOCK = 64  # keys of a block, and queries and keys of a tile, in everything that is drawn
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)
BLUE, ORANGE, GREY = "#1f5fa8", "#c2571a", "#5b6770"


def told(*arguments):
    return subprocess.run(arguments, check=True, capture_output=True, text=True, cwd=ROOT).stdout


def cli(build, *arguments):
    return json.loads(told(str(build / "tessera"), *arguments))


def read_safetensors(path):
    """Tensors of float16 and float64, as the test data have them."""
    import numpy as np

    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    types = {"F16": np.float16, "F32": np.float32, "F64": np.float64}
    tensors = {}
    for name, info in json.loads(raw[8 : 8 + size]).items():
        if name != "__metadata__":
            begin, end = (8 + size + offset for offset in info["data_offsets"])
            tensors[name] = np.frombuffer(raw[begin:end], types[info["dtype"]]).reshape(info["shape"])
    return tensors


def textbook(q, k, v):
    """softmax(q k^T / sqrt(d)) v with the whole matrix; one head."""
    import numpy as np

    scores = q @ k.T / np.sqrt(q.shape[1])
    probs = np.exp(scores - scores.max(axis=1, keepdims=True))
    return probs / probs.sum(axis=1, keepdims=True) @ v


def measure_exactness():
    """float64, N 1000, d 64: tiles against the textbook in NumPy."""
    import numpy as np
    import tessera

    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 1000, 1, 64))
    o = tessera.attention(q, k, v)[0, :, 0]
    return {
        "seqlen": 1000,
        "head_dim": 64,
        "max_abs_difference": float(np.abs(o - textbook(q[0, :, 0], k[0, :, 0], v[0, :, 0])).max()),
    }


def measure_order():
    """Blocks of keys in ten random orders, and keys split and merged: the largest difference from the plain run."""
    import numpy as np
    import tessera

    rng = np.random.default_rng(1)
    result = {}
    for name, dtype in (("f64", np.float64), ("f32", np.float32)):
        q, k, v = rng.standard_normal((3, 1, 1024, 1, 64)).astype(dtype)
        plain, worst = tessera.attention(q, k, v), 0.0
        for _ in range(10):
            order = (rng.permutation(1024 // BLOCK)[:, None] * BLOCK + np.arange(BLOCK)).ravel()
            again = tessera.attention(q, np.ascontiguousarray(k[:, order]), np.ascontiguousarray(v[:, order]))
            worst = max(worst, float(np.abs(again - plain).max()))
        split = np.empty_like(plain)
        tessera.Plan(f"fwd {name} sq1024 d64 splits=16 cpu").run(q=q, k=k, v=v, o=split)
        result[name] = {"orders": worst, "splits": float(np.abs(split - plain).max())}
    return result


def measure_row():
    """A row of Whisper's encoder: largest score of each block of keys, and lse of runs over the keys up to there."""
    import numpy as np
    import tessera

    data = read_safetensors(ROOT / "tests" / "data" / "whisper_encoder_full.safetensors")
    q, k, v = (data[name] for name in "qkv")
    scores = np.einsum("qhd,khd->hqk", q[0].astype(float), k[0].astype(float)) * 0.125
    starts = range(0, k.shape[1], BLOCK)
    maxima = np.stack([scores[:, :, at : at + BLOCK].max(axis=2) for at in starts], axis=2)
    rises = (np.diff(np.maximum.accumulate(maxima, axis=2), axis=2) > 0).sum(axis=2)
    head, row = np.unravel_index(rises.argmax(), rises.shape)
    lse = []
    for at in starts:
        one = [
            np.ascontiguousarray(x)
            for x in (
                q[:, row : row + 1, head : head + 1],
                k[:, : at + BLOCK, head : head + 1],
                v[:, : at + BLOCK, head : head + 1],
            )
        ]
        lse.append(float(tessera.attention(*one, scale=0.125, return_lse=True)[1][0, 0, 0]))
    return {"head": int(head), "row": int(row), "block_max": maxima[head, row].tolist(), "lse": lse}


def measure_tiles():
    """Which tiles a band keeps, found by NaN in one key: rows that keep it give NaN. 0 skipped, 1 masked, 2 whole."""
    import numpy as np
    import tessera

    size, result = 1024, {}
    q, k, v = np.random.default_rng(2).standard_normal((3, 1, size, 1, 16)).astype(np.float32)
    for name, band in (("causal", {"causal": True}), ("window", {"window": (255, 0)})):
        keep = np.zeros((size, size), bool)
        for key in range(size):
            poisoned = k.copy()
            poisoned[0, key] = np.nan
            keep[:, key] = np.isnan(tessera.attention(q, poisoned, v, **band, return_lse=True)[1][0, 0])
        count = keep.reshape(size // BLOCK, BLOCK, size // BLOCK, BLOCK).sum(axis=(1, 3))
        result[name] = (1 * (count > 0) + (count == BLOCK * BLOCK)).tolist()
    return result


def measure_errors(build):
    """Error against float64 over N, tiled and textbook."""
    rows = []
    for dtype in ("f32", "f16"):
        for seqlen in LENGTHS:
            row = {"dtype": dtype, "seqlen": seqlen}
            for name, pin in (("tiled", ""), ("textbook", " kernel=cpu.textbook")):
                found = cli(build, "check", "--json", f"fwd {dtype} hq2 sq{seqlen} d64 cpu{pin}")
                row[name] = {key: found[key] for key in ("kernel", "tensor", "rms_error", "max_abs_error", "tolerance")}
            rows.append(row)
    return rows


def measure_memory(build):
    """Memory beyond inputs and outputs over N, from the plans."""
    rows = []
    for seqlen in (*LENGTHS, 8192, 16384, 32768):
        problem = f"fwd f32 hq16 sq{seqlen} d64 threads=2 cpu"
        plans = [cli(build, "explain", "--json", problem + pin) for pin in ("", " kernel=cpu.textbook")]
        rows.append(
            {
                "seqlen": seqlen,
                "lse_bytes": 4 * 16 * seqlen,
                "tiled_bytes": plans[0]["workspace_bytes"],
                "textbook_bytes": plans[1]["workspace_bytes"],
                "all_scores_bytes": 4 * 16 * seqlen * seqlen,
            }
        )
    return rows


def measure(build, out):
    os.environ["TESSERA_LIBRARY"] = str(build / "libtessera.so")
    sys.path.insert(0, str(ROOT / "python"))
    import numpy
    import tessera

    sources = subprocess.run(
        ["cmake", f"-DSOURCE_DIR={ROOT}", "-DPRINT=cpu", "-P", str(ROOT / "cli/build_info.cmake")],
        check=True,
        capture_output=True,
        text=True,
    )
    results = {
        "device": next(line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")),
        "versions": {"tessera": tessera.version(), "numpy": numpy.__version__},
        "commit": told("git", "rev-parse", "--short=12", "HEAD").strip(),
        "kernel_sources_sha256": (sources.stdout + sources.stderr).split()[-1],
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "exactness": measure_exactness(),
        "order": measure_order(),
        "row": measure_row(),
        "tiles": measure_tiles(),
        "errors": measure_errors(build),
        "memory": measure_memory(build),
    }
    out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def start(title, width=6.4, height=3.4):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(width, height))
    axes.set_title(title, loc="left", fontsize=10)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def finish(figure, axes, path, labels=None):
    if labels:
        axes.set_xlabel(labels[0])
        axes.set_ylabel(labels[1])
        axes.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})


def draw_row(row, folder):
    figure, axes = start(
        f"One row of Whisper's encoder (head {row['head']}, query {row['row']}), blocks of {BLOCK} keys"
    )
    blocks = range(1, len(row["lse"]) + 1)
    running = [max(row["block_max"][:n]) for n in blocks]
    axes.bar(blocks, row["block_max"], color="#c9d6e6", label="largest score of the block")
    axes.step(blocks, running, where="mid", color=BLUE, label="running maximum m")
    axes.plot(
        blocks, row["lse"], color=ORANGE, marker="o", markersize=3, label="m + ln(l), lse of a run over these keys"
    )
    axes.set_ylim(top=1.4 * max(row["lse"]))
    finish(figure, axes, folder / "online-softmax.png", ("blocks of keys seen", "score"))


def draw_tiles(tiles, folder):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.colors import ListedColormap

    figure, both = plt.subplots(1, 2, figsize=(6.4, 3.5))
    for axes, (name, title) in zip(both, (("causal", "causal"), ("window", "window=255,0"))):
        counts = [sum(row.count(kind) for row in tiles[name]) for kind in range(3)]
        axes.pcolormesh(tiles[name], cmap=ListedColormap(["#f4f4f4", ORANGE, BLUE]), edgecolors="white", vmin=0, vmax=2)
        axes.invert_yaxis()
        axes.set_aspect("equal")
        axes.set_title(f"{title}\n{counts[2]} whole, {counts[1]} masked, {counts[0]} skipped", loc="left", fontsize=9)
        axes.set_xlabel(f"key tiles of {BLOCK}")
        axes.set_ylabel(f"query tiles of {BLOCK}")
    finish(figure, both[0], folder / "causal-tiles.png")


def draw_errors(errors, folder):
    figure, axes = start("RMS error of o against float64, 2 heads, d 64, random data")
    for dtype, marker in (("f16", "s"), ("f32", "o")):
        rows = [row for row in errors if row["dtype"] == dtype]
        for name, colour, line in (("textbook", ORANGE, "--"), ("tiled", BLUE, "-")):
            axes.plot(
                [row["seqlen"] for row in rows],
                [row[name]["rms_error"] for row in rows],
                line,
                color=colour,
                marker=marker,
                markersize=4,
                label=f"{dtype}, {name}",
            )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(LENGTHS, [str(length) for length in LENGTHS])
    finish(figure, axes, folder / "error.png", ("N", "RMS error"))


def draw_memory(memory, folder):
    figure, axes = start("Memory beyond inputs and outputs, float32, 16 heads of 64, 2 threads")
    lengths = [row["seqlen"] for row in memory]
    for key, label, colour, line in (
        ("all_scores_bytes", "all scores of all heads", GREY, ":"),
        ("textbook_bytes", "textbook: the scores of a head a thread", ORANGE, "--"),
        ("tiled_bytes", "tiled: workspace", BLUE, "-"),
        ("lse_bytes", "lse, where asked for", "#2a8f6d", "-."),
    ):
        axes.plot(lengths, [row[key] for row in memory], line, color=colour, marker="o", markersize=3, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_yticks(
        [2.0**n for n in range(12, 37, 4)], ["4 KiB", "64 KiB", "1 MiB", "16 MiB", "256 MiB", "4 GiB", "64 GiB"]
    )
    axes.set_xticks(lengths[::2], [str(length) for length in lengths[::2]])
    finish(figure, axes, folder / "memory.png", ("N", "bytes"))


def main():
    if len(sys.argv) != 4 or sys.argv[1] not in ("measure", "draw"):
        print(__doc__)
        return 2
    first, second = (pathlib.Path(name).resolve() for name in sys.argv[2:])
    if sys.argv[1] == "measure":
        measure(first, second)
        return 0
    results = json.loads(first.read_text(encoding="utf-8"))
    draw_row(results["row"], second)
    draw_tiles(results["tiles"], second)
    draw_errors(results["errors"], second)
    draw_memory(results["memory"], second)
    return 0


if __name__ == "__main__":
    sys.exit(main())
