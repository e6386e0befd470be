#!/usr/bin/env python3
"""Keeps the figures of README.md and docs/ equal to the committed result files, and says which of these were measured
on older kernels.

A line `<!-- figures FILE [TABLE] -->` begins a table that this script writes, `<!-- end -->` ends it; TABLE is one of
TABLES, rates where it is missing. A number with `<!--= EXPRESSION -->` behind it is what the expression gives, rounded
as the number is. In it `at(FILE, PROBLEM, FIELD)` is a field of a row of bench/results/FILE.json, `every(FILE, FIELD)`
that field of all rows but baselines, `top(FILE, FIELD)` a field of the whole file; a field inside a field stands behind
a slash. Without arguments everything is written; with --check nothing is, and a difference fails. --self-test tries
both on wrong pages."""

import json
import pathlib
import re
import subprocess
import sys

import grid_tables

ROOT = pathlib.Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(<!-- figures (\S+)(?: (\S+))? -->\n)(.*?)(<!-- end -->)", re.S)
FIGURE = re.compile(r"(?<![\w.])(-?\d+(?:\.\d+)?(?:e-?\d+)?)(<!--= (.*?) -->)", re.S)
SHAPE = re.compile(r"\bsq(\d+)\b.* d(\d+)\b")
GROUPED = re.compile(r"\bhq(\d+) hkv(?!\1\b)")
LENGTH = 4096
PEERS = {
    "flash": "FlashAttention-2",
    "fa3": "FlashAttention-3",
    "fa4": "FlashAttention-4",
    "cudnn": "cuDNN",
    "textbook": "textbook",
}


def rates(results):
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
        values = [row["tflops"], *(row["peers"].get(name, {}).get("tflops") for name in peers)]
        cells = " | ".join("-" if value is None else f"{value:.0f}" for value in values)
        lines.append(f"| {words[1]}, N {seqlen}, d {dim}{mask} | `{row['kernel']}` | {cells} |")
    lines.append("")
    versions = results["versions"]
    lines.append(
        f"TFLOP/s on an {results['device']} (driver {results['driver']}, {results['date']}), 16384 tokens, "
        f"random data, medians of one run with\nPyTorch {versions['torch']} (its FlashAttention-2 and cuDNN)."
    )
    return "\n".join(lines) + "\n"


def lengths(results):
    """Tiled and textbook over the length: time, the ratio, and memory beyond inputs and outputs."""
    lines = [
        "| N | kernel | tiled, us | textbook, us | textbook / tiled | of the least times | KiB, tiled | textbook |",
        "| --- " * 8 + "|",
    ]
    for row, other in zip(results["rows"][::2], results["rows"][1::2]):
        if row["problem"] != other["problem"] or row["baseline"] or not other["baseline"]:
            raise ValueError(f"{row['problem']}: no textbook behind it")
        mask = ", causal" if "causal" in row["problem"].split() else ""
        micros = [item["seconds_median"] * 1e6 for item in (row, other)]
        both = [f"{value:.0f}" if value >= 100 else f"{value:.3g}" for value in micros]
        ratios = [f"{other[key] / row[key]:.2f}" for key in ("seconds_median", "seconds_min")]
        memory = [f"{item['workspace_bytes'] / 1024:.0f}" for item in (row, other)]
        cells = [SHAPE.search(row["problem"])[1] + mask, f"`{row['kernel']}`", *both, *ratios, *memory]
        lines.append(f"| {' | '.join(cells)} |")
    words = re.sub(r" s[qk]\d+", "", results["rows"][0]["problem"])
    lines += [
        "",
        f"`{words}`, {results['device']}, {results['date'][:10]}, medians of one run, tiled and textbook in turns.",
    ]
    return "\n".join(lines) + "\n"


def textbook(results):
    """The matrix and its price over the length, full mask, beside the tiled kernel."""
    lines = [
        "| d | N | textbook, TFLOP/s | tiled, TFLOP/s | textbook's extra MiB | tiled, extra MiB |",
        "| --- " * 6 + "|",
    ]
    for row in results["rows"]:
        other = row["peers"].get("textbook")
        if other is None or "causal" in row["problem"].split():
            continue
        seqlen, dim = SHAPE.search(row["problem"]).groups()
        memory = [f"{item['extra_bytes'] / 2**20:.0f}" for item in (other, row)]
        lines.append(f"| {dim} | {seqlen} | {other['tflops']:.0f} | {row['tflops']:.0f} | {' | '.join(memory)} |")
    lines += [
        "",
        f"bf16, 16384 tokens, {results['device']}, {results['date']}; extra is what a call allocates beside o.",
    ]
    return "\n".join(lines) + "\n"


def decode(results):
    """Microseconds of one query over a long cache, by splits."""
    lines = ["| problem | splits | us | TB/s of K and V | of the read probe |", "| --- " * 5 + "|"]
    for row in results["rows"]:
        rate = row["kv_bytes"] / row["seconds_median"]
        lines.append(
            f"| `{row['problem']}` | {row['num_splits']} | {row['seconds_median'] * 1e6:.1f} | {rate / 1e12:.2f} | "
            f"{rate / results['read_bytes_per_s']:.2f} |"
        )
    lines += ["", f"{results['device']}, {results['date']}, caches cold, medians of one run."]
    return "\n".join(lines) + "\n"


def steps(results):
    """Forward and backward of a training step, the textbook's beside recomputation's."""
    lines = [
        "| d | N | GFLOP, textbook / recomputed | ms, textbook / recomputed | times as fast | "
        "MiB, textbook / recomputed |",
        "| --- " * 6 + "|",
    ]
    for row in results["rows"]:
        seqlen, dim = SHAPE.search(row["problem"]).groups()
        model = [row["model"][name]["flops"] / 1e9 for name in ("textbook", "recompute")]
        both = [row["steps"]["textbook"], row["steps"]["cuda.sm90.backward"]]
        seconds = [step["seconds_median"] for step in both]
        memory = [step["extra_bytes"] / 2**20 for step in both]
        lines.append(
            f"| {dim} | {seqlen} | {model[0]:.0f} / {model[1]:.0f} | {seconds[0] * 1e3:.2f} / "
            f"{seconds[1] * 1e3:.2f} | {seconds[0] / seconds[1]:.1f} | {memory[0]:.0f} / {memory[1]:.0f} |"
        )
    lines += ["", f"b 4, h 16, bf16, full mask, {results['device']}, {results['date']}, medians of one run."]
    return "\n".join(lines) + "\n"


def training(results):
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
    checks = results["checks"]
    apart = next(one for one in checks if one["check"].startswith("loss apart"))
    lines += ["", f"{model['layers']} layers of width {model['width']} in {model['dtype']} on {results['device']} "
              f"(driver {results['driver']}, {results['date']}), medians of\none run with PyTorch "
              f"{results['versions']['torch']}, eager; {row['batch'] * row['context']} tokens a step. Over the last "
              f"third of {steps} steps of {model['batch'] * model['context']} tokens\nour loss and the float32 "
              f"textbook's differ by {apart['value']:.2g} nats; {apart['bound']:.2g} was allowed, from what other "
              "attentions differ by."]
    failed = [one for one in checks if not one["passed"]]
    lines += [f"{len(failed)} of {len(checks)} checks failed" + (":" if failed else ".")]
    lines += [f"{one['check']}: {one['value']:.2g}, expected {one['expected']} {one['bound']:.2g}." for one in failed]
    lines += [f"Left out: {what}." for what in results["left_out"]]
    return "\n".join(lines) + "\n"


STORY = {"textbook": "textbook", "fa1": "FA1", "fa2": "FA2", "fa3": "FA3"}
BUDGETS = {32: "fa1.32k", 64: "fa1", 128: "fa1.128k", 200: "fa1.200k"}
HEADS = re.compile(r"\bb(\d+) hq(\d+) ")


def rounded(value):
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def story(results, table):
    """Textbook, FlashAttention-1, -2 and -3 at each length: rate, memory beyond o, bytes by the model."""
    lines = [
        f"| d | N | blocks of FA1 | {' | '.join(STORY.values())} | FA2 / FA1 | MiB, textbook / FA1 / FA2 | "
        "GB by the model, the same |",
        "| --- " * 10 + "|",
    ]
    for cell in results["rows"]:
        if cell["table"] != table:
            continue
        seqlen, dim = SHAPE.search(cell["problem"]).groups()
        batch, heads = map(int, HEADS.search(cell["problem"]).groups())
        rows, three = cell["rows"], [cell["rows"][name] for name in ("textbook", "fa1", "fa2")]
        rates = " | ".join(rounded(rows[name]["tflops"]) for name in STORY)
        memory = " / ".join(rounded(row["extra_bytes"] / 2**20) for row in three)
        moved = " / ".join(f"{row['model_bytes'] / 1e9:.2f}" for row in three)
        times = rows["fa1"]["seconds_median"] / rows["fa2"]["seconds_median"]
        lines.append(f"| {dim} | {seqlen} | {batch * heads} | {rates} | {times:.1f} | {memory} | {moved} |")
    lines += [
        "",
        f"TFLOP/s, bf16, full mask, {results['device']} (driver {results['driver']}, {results['date']}), medians of "
        "one run; MiB beyond o.",
    ]
    return "\n".join(lines) + "\n"


def moved_gb(row):
    """By the model, and in brackets as ncu counted it."""
    model = f"{row['model_bytes'] / 1e9:.2f}"
    return model + (f" ({(row['dram']['read'] + row['dram']['written']) / 1e9:.2f})" if "dram" in row else "")


def budgets(results):
    """FlashAttention-1's schedule at each budget of on-chip memory: time, bytes by the model, the paper's term."""
    lines = [
        f"| b, h, N, d | us at {' / '.join(map(str, BUDGETS))} KiB | GB by the model | GB, N^2 d^2 / M | "
        "TB/s, model over time | FA2, us | GB |",
        "| --- " * 7 + "|",
    ]
    for cell in results["rows"]:
        if not all(name in cell["rows"] for name in BUDGETS.values()):
            continue
        rows, other = [cell["rows"][name] for name in BUDGETS.values()], cell["rows"]["fa2"]
        micros = [f"{row['seconds_median'] * 1e6:.0f}" for row in rows]
        moved = [moved_gb(row) for row in rows]
        paper = [f"{row['paper_bytes'] / 1e9:.2f}" for row in rows]
        speed = [f"{row['model_bytes'] / row['seconds_median'] / 1e12:.1f}" for row in rows]
        shape = ", ".join(HEADS.search(cell["problem"]).groups() + SHAPE.search(cell["problem"]).groups())
        cells = [shape, *(" / ".join(four) for four in (micros, moved, paper, speed))]
        cells += [f"{other['seconds_median'] * 1e6:.0f}", moved_gb(other)]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", f"bf16, full mask, {results['device']}, {results['date']}, medians of one run."]
    if "counted" in results:
        lines[-1] += f" In brackets what ncu counted on {results['counted']['date']}."
    return "\n".join(lines) + "\n"


def crossover(results):
    """From which length on each schedule beats the textbook at every longer one."""
    found = {}
    for one in results["crossover"]:
        where = "not at the longest" if one["wins_from"] is None else str(one["wins_from"])
        series = found.setdefault(f"{one['series']} | {one['shortest']}", {})
        series[one["row"]] = where
    names = [name for name in STORY if name != "textbook"]
    titles = " | ".join(STORY[name] for name in names)
    lines = [f"| series | shortest N | {titles} |", "| --- " * (2 + len(names)) + "|"]
    lines += [f"| {series} | {' | '.join(rows[name] for name in names)} |" for series, rows in found.items()]
    lines += ["", f"The N from which on a schedule beats the textbook at all longer ones, {results['device']}, "
              f"{results['date']}."]
    return "\n".join(lines) + "\n"


def ablations(results, full):
    """The full kernel's rate, and the time of each row with a step taken back over the full kernel's."""
    # In the order of the first cells that have them: a row may refuse some.
    names = dict.fromkeys(name for cell in results["rows"] for name in cell["rows"])
    steps = [name for name in names if name.startswith(f"{full}.")]
    titles = " | ".join(f"`{name[len(full):]}`" for name in steps)
    lines = [f"| d | N | mask | `{full}`, TFLOP/s | {titles} |", "| --- " * (4 + len(steps)) + "|"]
    for cell in results["rows"]:
        seqlen, dim = SHAPE.search(cell["problem"]).groups()
        mask = "causal" if "causal" in cell["problem"].split() else "full"
        rows = cell["rows"]
        ratios = [f"{rows[name]['seconds_median'] / rows[full]['seconds_median']:.2f}" if name in rows else "-"
                  for name in steps]
        lines.append(f"| {dim} | {seqlen} | {mask} | {rows[full]['tflops']:.0f} | {' | '.join(ratios)} |")
    lines += ["", f"Time over the full kernel's, bf16, 16384 tokens, hidden size 2048, {results['device']} (driver "
              f"{results['driver']}, {results['date']}),\nmedians of one run, all in one process in random order."]
    return "\n".join(lines) + "\n"


def append(results):
    """Microseconds of new rows into a cache, beside those of the bytes at a copy's rate and of a launch."""
    variants = {"": "dense", "rotary": "dense, rotary", "paged": "pages", "paged rotary": "pages, rotary"}
    groups = {}
    for row in results["rows"]:
        words = row["problem"].split()
        variant = " ".join(word for word in ("paged", "rotary") if any(one.startswith(word) for one in words))
        attend = ", attend" if "attend" in words else ""
        facts = dict(re.findall(r"\b(b|sk|kv=|new=)(\d+|int8|e4m3)\b", row["problem"]))
        key = f"{facts['b']}, {facts['new=']}, {facts['sk']} | {facts.get('kv=', words[1])}{attend}"
        groups.setdefault(key, {})[variant] = row
    titles = " | ".join(variants.values())
    lines = [f"| batch, new rows, room | cache | {titles} | bytes at the copy's rate | a launch |",
             "| --- " * 8 + "|"]
    for key, rows in groups.items():
        told = [" / ".join(f"{value * 1e6:.1f}" for value in rows[name]["calls"].values()) if name in rows else "-"
                for name in variants]
        least = max(row["bytes"] for row in rows.values()) / results["copy_bytes_per_s"]
        launch = [row["launch_seconds"] for row in rows.values()]
        span = sorted({f"{pick(launch) * 1e6:.1f}" for pick in (min, max)})
        lines.append(f"| {key} | {' | '.join(told)} | {least * 1e6:.1f} | {' to '.join(span)} |")
    lines += ["", f"Microseconds, 8 key heads of d 128, {results['device']} (driver {results['driver']}, "
              f"{results['date']}), medians of one run, caches cold; attend: one call / two calls."]
    return "\n".join(lines) + "\n"


def fp8(results):
    """TFLOP/s of attention on e4m3, both orders of v, beside bf16 and FlashAttention-3's, and what quantising takes."""
    wide = next(name for name in results["rows"][0]["peers"] if name.startswith("cuda."))
    columns = {"v_order": "`v_order` 1", wide: f"bf16, `{wide}`", "cudnn": "bf16, cuDNN"}
    columns["fa3"] = "FlashAttention-3, e4m3"
    titles = ["d, mask", "N", "e4m3, v by rows", *columns.values(), "quantising q, k, v, us"]
    lines = [f"| {' | '.join(titles)} |", "| --- " * len(titles) + "|"]
    for row in results["rows"]:
        seqlen, dim = SHAPE.search(row["problem"]).groups()
        mask = "causal" if "causal" in row["problem"].split() else "full"
        if row["status"] != "ran":
            raise ValueError(f"{row['problem']}: {row['reason']}")
        rates = [row["tflops"], *(row["peers"].get(name, {}).get("tflops") for name in columns)]
        cells = ["-" if rate is None else f"{rate:.0f}" for rate in rates]
        lines.append(f"| {dim}, {mask} | {seqlen} | {' | '.join(cells)} | {row['quantise_seconds'] * 1e6:.0f} |")
    lines += [
        "",
        f"TFLOP/s, 16384 tokens, hidden 2048, {results['device']} (driver {results['driver']}, {results['date']}), "
        "medians of one run.",
    ]
    return "\n".join(lines) + "\n"


TABLES = {
    "rates": rates,
    "lengths": lengths,
    "textbook": textbook,
    "decode": decode,
    "steps": steps,
    "training": training,
    "story-wide": lambda results: story(results, "wide"),
    "story-grid": lambda results: story(results, "grid"),
    "budgets": budgets,
    "crossover": crossover,
    "append": append,
    "fp8": fp8,
    "forward-grid": grid_tables.forward,
    "backward-grid": grid_tables.backward,
    "backward-ordered": grid_tables.ordered,
    "both-passes": grid_tables.both_passes,
    "decode-grid": grid_tables.decode,
    "ablations-sm90": lambda results: ablations(results, "cuda.sm90.forward"),
    "ablations-sm80": lambda results: ablations(results, "cuda.sm80.forward"),
}


def load(path):
    return json.loads((ROOT / path).read_text(encoding="utf-8"))


def inside(value, field):
    for name in field.split("/"):
        value = value[int(name) if isinstance(value, list) else name]
    return value


class Figures:
    """What the pages quote. `wrong` collects figures that no file has."""

    def __init__(self):
        self.files, self.wrong = set(), []

    def results(self, path):
        loaded = load(path)
        self.files.add(path)
        return loaded

    def top(self, name, field):
        return inside(self.results(f"bench/results/{name}.json"), field)

    def at(self, name, problem, field):
        rows = [row for row in self.top(name, "rows") if row["problem"] == problem and not row.get("baseline")]
        if len(rows) != 1:
            raise KeyError(f"{name}: {len(rows)} rows '{problem}'")
        return inside(rows[0], field)

    def every(self, name, field):
        return [inside(row, field) for row in self.top(name, "rows") if not row.get("baseline")]

    def number(self, found):
        text, expression = found[1], found[3]
        try:
            scope = {
                "__builtins__": {},
                "at": self.at,
                "top": self.top,
                "every": self.every,
                "min": min,
                "max": max,
                "zip": zip,
            }
            value = eval(expression, scope)
        except (KeyError, OSError, SyntaxError, TypeError, NameError) as error:
            self.wrong.append(f"{text}: {expression}: {error}")
            return found[0]
        mantissa, _, exponent = text.partition("e")
        decimals = len(mantissa.partition(".")[2])
        written = f"{value:.{decimals}e}" if exponent else f"{value:.{decimals}f}"
        return re.sub(r"e([+-])0*", lambda e: "e" + e[1].strip("+"), written) + found[2]

    def table(self, found):
        return found[1] + TABLES[found[3] or "rates"](self.results(found[2])) + found[5]

    def page(self, text):
        return FIGURE.sub(self.number, BLOCK.sub(self.table, text))


def kernels_changed(results):
    device = "cuda" if results.get("driver") else "cpu"
    script = ROOT / "cli" / "build_info.cmake"
    told = subprocess.run(
        ["cmake", f"-DSOURCE_DIR={ROOT}", f"-DPRINT={device}", "-P", str(script)],
        check=True,
        capture_output=True,
        text=True,
    )
    return results["kernel_sources_sha256"] not in told.stdout + told.stderr


def self_test():
    problem = "fwd bf16 b1 hq32 hkv8 sq1 sk65536 d128 cuda"
    rows = json.loads((ROOT / "bench" / "results" / "h200-decode.json").read_text())["rows"]
    us = f"{next(row['seconds_median'] for row in rows if row['problem'] == problem) * 1e6:.0f}"
    right = Figures().page(f'0<!--= at("h200-decode", "{problem}", "seconds_median") * 1e6 -->')
    wrong = "1" + right
    cases = [
        right.startswith(f"{us}<!--="),
        Figures().page(right) == right,
        Figures().page(wrong) != wrong,
        Figures().page("2.0e-3<!--= 1 / 500 -->") == "2.0e-3<!--= 1 / 500 -->",
    ]
    absent = Figures()
    absent.page('1<!--= at("h200-decode", "fwd", "tflops") --> 1<!--= top("absent", "x") -->')
    if not all(cases) or len(absent.wrong) != 2:
        print("readme_figures.py: self-test failed", cases, absent.wrong)
        return 1
    return 0


def main():
    if sys.argv[1:] not in ([], ["--check"], ["--self-test"]):
        print(__doc__)
        return 2
    check = sys.argv[1:] == ["--check"]
    if (check or sys.argv[1:] == ["--self-test"]) and self_test():
        return 1
    if sys.argv[1:] == ["--self-test"]:
        return 0
    figures, failed, count = Figures(), 0, 0
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        new = figures.page(text)
        count += len(BLOCK.findall(text)) + len(FIGURE.findall(text))
        if check and new != text:
            print(f"{page.relative_to(ROOT)} differs from the result files; run scripts/readme_figures.py")
            failed = 1
        elif new != text:
            page.write_text(new, encoding="utf-8")
    for line in figures.wrong:
        print(f"not in a result file: {line}")
    for path in sorted(figures.files):
        results = load(path)
        if kernels_changed(results) if "kernel_sources_sha256" in results else False:
            print(f"{path}: measured at commit {results['commit']}; the kernels have changed since")
    if check and not failed and not figures.wrong:
        print(f"{count} tables and figures as in their result files")
    return 1 if failed or figures.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
