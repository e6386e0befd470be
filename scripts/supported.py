#!/usr/bin/env python3
"""Writes docs/supported.md: which kernel runs which problem on which GPU, as the command line plans it for named
devices. So the page says what the kernels' own lists say.

Usage: supported.py TESSERA [--check]   TESSERA: a command line with the CUDA rows, of a build with CUDA or
build/release/tessera_emulated_cli. With --check nothing is written, and a difference fails."""

import json
import pathlib
import re
import subprocess
import sys

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs" / "supported.md"
# Devices of a column, which all must have the same cells.
COLUMNS = (("h200", "h100"), ("b200",), ("a100",), ("rtx4090",))
NAMES = {"h200": "H200", "h100": "H100", "b200": "B200", "a100": "A100", "rtx4090": "RTX 4090"}


def listed(*lines):
    """What stands between bars; nothing before the first is a problem as it is."""
    return "|".join(lines).split("|")


HEAD_DIMS = listed("d8|d16|d32|d64|d72|d80|d96|d100|d112|d128|d160|d192 dv128|d192|d256|d320|d512|d576 dv512")
SCORES = listed("|causal|causal topleft|window=1024,0|scale=0|causal softcap=30|causal alibi|causal sinks|bias|mask")
# Title, the problem, and what is changed in it: `new for old`, or words that are added. A problem without a head size
# gets one.
TABLES = [
    ("Forward: head sizes", "fwd bf16 b2 hq32 hkv8 sq4096 causal", HEAD_DIMS),
    (
        "Forward: masks, scores, layouts, types",
        "fwd bf16 b2 hq32 hkv8 sq4096 d128",
        SCORES
        + listed(
            "packed causal|paged=16 causal|paged=1 causal|leftpad causal|lens=longtail causal|layout=bhsd|splits=4",
            "batch-invariant|sm_margin=8|o=f32|f16 for bf16|f32 for bf16|f64 for bf16|e4m3 for bf16",
        ),
    ),
    (
        "Forward on e4m3",
        "fwd e4m3 b2 hq32 hkv8 sq4096 d128",
        listed(
            "|causal|window=1024,0|causal sinks|packed causal|paged=16 causal|lens=longtail causal|leftpad causal",
            "o=f32|splits=4|d64 for d128|d72 for d128|d80 for d128|d256 for d128|softcap=30|alibi|bias|mask",
        ),
    ),
    ("Decode: head sizes", "fwd bf16 b8 hq32 hkv8 sq1 sk8192", HEAD_DIMS + ["kv=e4m3 d72", "kv=e4m3 d80"]),
    (
        "Decode: caches, scores, queries",
        "fwd bf16 b8 hq32 hkv8 sq1 sk8192 d128",
        listed(
            "|causal softcap=30|causal alibi|causal sinks|paged=16|paged=1|lens=longtail|kv=int8|kv=e4m3",
            "paged=16 kv=e4m3|splits=1|batch-invariant|causal sq4 for sq1|causal sq16 for sq1|causal sq17 for sq1",
            "causal sq64 for sq1|kv=e4m3 sq64 for sq1",
        ),
    ),
    ("Backward: head sizes", "bwd bf16 b2 hq32 hkv8 sq4096 causal", HEAD_DIMS),
    (
        "Backward: masks, scores, layouts, types",
        "bwd bf16 b2 hq32 hkv8 sq4096 d128",
        SCORES
        + listed(
            "bias dbias|causal dlse|packed causal|lens=longtail causal|causal deterministic|paged=16",
            "f16 for bf16|f32 for bf16",
        ),
    ),
]
HEAD = """# Which shapes run on which GPU?

Written by `scripts/supported.py` from what the command line plans for these devices (`tessera explain PROBLEM --device
NAME`); a test fails where the kernels' lists say something else. A cell is the kernel that runs, or the number of the
reason why none does; rows with the same cells stand together. `sm90` is code for Hopper; `sm80` runs on every GPU from
compute capability 8.0 on. The words are those of [the command line](cli.md#problems); [kernels.md](kernels.md) says
what each kernel does. Ask for your own shape, on a machine with or without a GPU, with a build that has the CUDA
kernels (`--preset cuda`):

```sh
tessera explain "fwd bf16 b4 hq32 hkv8 sq4096 d128 causal cuda" --device h100
```

"""


def problem_of(base, change):
    """The problem with one change, and the change as the page spells it."""
    words, _, old = change.partition(" for ")
    if not old:
        return f"{base} {words}".strip(), f"`{words}`" if words else "nothing more"
    *added, new = words.split()
    return " ".join([new if word == old else word for word in base.split()] + added), f"`{words}`"


class Planner:
    def __init__(self, tessera):
        self.tessera, self.reasons = tessera, {}

    def cell(self, problem, device):
        """The kernel, or a mark that leads to the reason."""
        command = [self.tessera, "explain", "--json", problem, "--device", device]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            return f"`{json.loads(done.stdout)['kernel']}`"
        if done.returncode == 3:
            rows = [row for row in json.loads(done.stdout)["rows"] if row["kernel"].startswith("cuda.sm")]
            if not rows:
                sys.exit(f"{self.tessera} has no CUDA rows")
            kind = "backward" if problem.startswith("bwd") else "decode" if " sq1 " in problem else "forward"
            kind += "_fp8" if " e4m3 " in problem else ""
            reason = [row["reason"] for row in rows if row["kernel"].endswith(kind)][-1]
            reason = re.sub(r" \(\S+=-?\w+\)$", "", reason)  # which argument had which value
        elif done.returncode == 2:
            reason = done.stderr.strip().removeprefix("tessera: ")
        else:
            sys.exit(f"{problem} on {device}: {done.stderr}")
        return f"({self.reasons.setdefault(reason, len(self.reasons) + 1)})"

    def column(self, problem, devices):
        """The cell that all devices of a column share."""
        cells = {self.cell(problem, device) for device in devices}
        if len(cells) > 1:
            sys.exit(f"{problem}: {', '.join(devices)} differ, expected one cell: {', '.join(sorted(cells))}")
        return cells.pop()

    def table(self, base, changes):
        groups = {}
        for change in changes:
            problem, words = problem_of(base, change)
            groups.setdefault(tuple(self.column(problem, devices) for devices in COLUMNS), []).append(words)
        lines = [
            f"`{base}` with:",
            "",
            "| | " + " | ".join(", ".join(NAMES[one] for one in devices) for devices in COLUMNS) + " |",
            "| --- " * (1 + len(COLUMNS)) + "|",
        ]
        lines += [f"| {', '.join(words)} | {' | '.join(cells)} |" for cells, words in groups.items()]
        return "\n".join(lines) + "\n"

    def page(self):
        text = HEAD
        for title, base, changes in TABLES:
            text += f"## {title}\n\n{self.table(base, changes)}\n"
        text += "## Reasons\n\n"
        return text + "".join(f"{number}. {reason}\n" for reason, number in self.reasons.items())


def main():
    if len(sys.argv) < 2 or sys.argv[2:] not in ([], ["--check"]):
        print(__doc__)
        return 2
    text = Planner(sys.argv[1]).page()
    if sys.argv[2:] == ["--check"]:
        if PAGE.read_text(encoding="utf-8") != text:
            print(f"{PAGE.name} differs from the kernels' lists; run scripts/supported.py")
            return 1
        print(f"{PAGE.name} says what the kernels' lists say")
        return 0
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
