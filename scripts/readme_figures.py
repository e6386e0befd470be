#!/usr/bin/env python3
"""Keeps the figures of README.md equal to the committed result files, and says which were measured on older kernels.

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


def table(results):
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
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")

    def write(found):
        results = json.loads((ROOT / found[2]).read_text(encoding="utf-8"))
        if kernels_changed(results):
            print(f"{found[2]}: measured at commit {results['commit']}; the kernels have changed since")
        return found[1] + table(results) + found[4]

    new, count = BLOCK.subn(write, text)
    if sys.argv[1:] == ["--check"]:
        if new != text:
            print("README.md differs from its result files; run scripts/readme_figures.py")
            return 1
        print(f"README.md: {count} tables as in their result files")
        return 0
    readme.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
