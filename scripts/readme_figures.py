#!/usr/bin/env python3
"""Keeps the figures of README.md and docs/python.md equal to the committed result files, and says which were measured
on older kernels.

A line `<!-- figures FILE -->` begins a table that this script writes, `<!-- end -->` ends it. Without arguments the
tables are written; with --check nothing is written, and a difference fails."""
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(<!-- figures (\S+) -->\n)(.*?)(<!-- end -->)", re.S)
SHAPE = re.compile(r"\bsq(\d+)\b.* d(\d+)\b")
GROUPED = re.compile(r"\bhq(\d+) hkv(?!\1\b)")
LENGTH = 4096
PEERS = {"flash": "FlashAttention-2", "fa3": "FlashAttention-3", "fa4": "FlashAttention-4", "cudnn": "cuDNN",
         "textbook": "textbook"}
PAGES = ("README.md", "docs/python.md")


def table(results):
    return training_table(results) if "curves" in results else rate_table(results)


def training_table(results):
    """Time, tokens a second and memory of a training step over the context, and how far losses lie apart."""
    names = {name: title for name, title in PEERS.items() if any(name in row["peers"] for row in results["rows"])}
    lines = ["| context | of a step | Tessera | " + " | ".join(names.values()) + " |",
             "| --- " * (3 + len(names)) + "|"]
    figures = {"milliseconds": lambda cell: f"{cell['seconds_median'] * 1e3:.1f}",
               "thousand tokens a second": lambda cell: f"{cell['tokens_per_s'] * 1e-3:.0f}",
               "peak GiB": lambda cell: f"{cell['peak_bytes'] / 2**30:.1f}"}
    for row in results["rows"]:
        cells = [row, *(row["peers"].get(name, {"status": "left out"}) for name in names)]
        for what, figure in figures.items():
            told = " | ".join(figure(cell) if cell["status"] == "ran" else "-" for cell in cells)
            lines.append(f"| {row['context']} | {what} | {told} |")
    model, steps = results["model"], len(results["curves"]["tessera"])
    apart = next(one for one in results["checks"] if one["check"].startswith("loss apart"))
    lines += ["", f"{model['layers']} layers of width {model['width']} in {model['dtype']} on {results['device']} "
              f"(driver {results['driver']}, {results['date']}), medians of\none run with PyTorch "
              f"{results['versions']['torch']}, eager; {row['batch'] * row['context']} tokens a step. Over the last "
              f"third of {steps} steps of {model['batch'] * model['context']} tokens\nour loss and the float32 "
              f"textbook's differ by {apart['value']:.2g} nats; {apart['bound']:.2g} was allowed, from what other "
              "attentions differ by."]
    return "\n".join(lines) + "\n"


def rate_table(results):
    """TFLOP/s at one length, ours beside what was measured in the same run."""
    peers = {name: title for name, title in PEERS.items() if any(name in row["peers"] for row in results["rows"])}
    lines = ["| problem | kernel | Tessera | " + " | ".join(peers.values()) + " |", "| --- " * (3 + len(peers)) + "|"]
    for row in results["rows"]:
        seqlen, dim = map(int, SHAPE.search(row["problem"]).groups())
        words = row["problem"].split()
        if seqlen != LENGTH or row["status"] != "ran" or row["baseline"]:
            continue
        if "deterministic" in words or GROUPED.search(row["problem"]):
            continue
        mask = ", causal" if "causal" in words else ""
        rates = [row["tflops"], *(row["peers"].get(name, {}).get("tflops") for name in peers)]
        cells = " | ".join("-" if value is None else f"{value:.0f}" for value in rates)
        lines.append(f"| {words[1]}, N {seqlen}, d {dim}{mask} | `{row['kernel']}` | {cells} |")
    lines.append("")
    versions = results["versions"]
    lines.append(f"TFLOP/s on an {results['device']} (driver {results['driver']}, {results['date']}), 16384 tokens, "
                 f"random data, medians of one run with\nPyTorch {versions['torch']} (its FlashAttention-2 and cuDNN).")
    return "\n".join(lines) + "\n"


def kernels_changed(results):
    device = "cuda" if results.get("driver") else "cpu"
    script = ROOT / "cli" / "build_info.cmake"
    told = subprocess.run(["cmake", f"-DSOURCE_DIR={ROOT}", f"-DPRINT={device}", "-P", str(script)], check=True,
                          capture_output=True, text=True)
    return results["kernel_sources_sha256"] not in told.stdout + told.stderr


def main():
    different, count = [], 0

    def write(found):
        results = json.loads((ROOT / found[2]).read_text(encoding="utf-8"))
        if kernels_changed(results):
            print(f"{found[2]}: measured at commit {results['commit']}; the kernels have changed since")
        return found[1] + table(results) + found[4]

    for name in PAGES:
        page = ROOT / name
        text = page.read_text(encoding="utf-8")
        new, tables = BLOCK.subn(write, text)
        count += tables
        if new != text:
            different.append(name)
            if sys.argv[1:] != ["--check"]:
                page.write_text(new, encoding="utf-8")
    if sys.argv[1:] != ["--check"]:
        return 0
    for name in different:
        print(f"{name} differs from its result files; run scripts/readme_figures.py")
    if not different:
        print(f"{', '.join(PAGES)}: {count} tables as in their result files")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
