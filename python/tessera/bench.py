"""python -m tessera.bench: this library beside PyTorch's attention and FlashAttention-3 and -4 on a CUDA device.

    python -m tessera.bench PROBLEM...                 problem text: "fwd bf16 b4 hq16 sq4096 d128 causal cuda"
    python -m tessera.bench --suite forward --out F    16k tokens, hidden 2048, d 64, 128, 256, N 512 to 16384
    python -m tessera.bench --suite special            GQA, packed, window, short work; errors on outliers
    python -m tessera.bench --suite backward           gradients there, some in a fixed order; GQA, window, packed
    python -m tessera.bench --suite recompute          forward and backward, S computed again beside S and P kept
    python -m tessera.bench --suite decode             one query over long caches: microseconds, TB/s of K and V
    python -m tessera.bench --suite story --ncu also   textbook, FlashAttention-1, -2 and -3 beside one another; CPU too
    python -m tessera.bench --suite ablations          our kernels with one step taken back each; both bandwidths
    python -m tessera.bench --suite append             new rows into caches: microseconds beside bytes and a launch
    python -m tessera.bench --suite fp8                e4m3 on that grid, v by rows and in the quantiser's order
    python -m tessera.bench --only d128,causal         cells that have all these words; again: or these
    python -m tessera.bench --kernel GLOB              pins our row; again: another row of ours beside it
    python -m tessera.bench --draw RESULTS PICTURE     TFLOP/s over N from a result file
    python -m tessera.bench --table RESULTS            the lines and the summary of a result file

Every candidate runs in this process on the same random tensors, replayed from a CUDA graph where it can be captured
(`eager` names those that cannot). Rounds visit the candidates in random order, the L2 cache is overwritten before each
sample, samples are timed by events, and medians are kept: a power-limited card favours whoever runs after a pause, so
only figures of one run compare. `textbook` is the baseline cuda.textbook: two cuBLAS products around a softmax kernel,
S and P in device memory, from libtessera_baselines.so beside the library. What cannot run is named with its reason. The
result file has the keys of `tessera bench --json`, estimate_seconds of the plan, and rms_error of every candidate
against float64. Backward problems run without graphs, the forward pass outside of what is timed; their rms_error is
the largest of dq's, dk's and dv's, each over the RMS of the gradient. Decode problems go over several caches a
call, 400 MB of K and V in all, so that none is in L2 when it is read; times are of one, up to 1024 keys beside a floor:
two empty launches in a CUDA graph and the bytes at the read probe's rate. The suite append takes no peers and runs on
the CPU where there is no CUDA device.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Callable

import torch

from . import _bench_ablations as ablations
from . import _bench_append as append
from . import _bench_backward as backward
from . import _bench_decode as decode
from . import _bench_fp8 as fp8
from . import _bench_peers as peers
from . import _bench_recompute as recompute
from . import _bench_story as story
from . import _bench_story_report as story_report
from . import Problem
from ._bench_case import Baselines, Case, Runner
from ._bench_host import describe
from ._bench_output import BadInput, Lacking, Parser, ended, number, output_file, shown
from ._bench_report import draw, short_table, summary, table_head, table_line

FLUSH_BYTES = 256 << 20  # several times the L2 cache of any device
FEWEST_ROUNDS = 4
SLOW_SAMPLES = 3
LONG_TAIL = (6144, 3072, 2048, 1337, 1024, 768, 512, 384, 300, 256, 200, 128, 96, 64, 32, 12, 5, 1, 1)
OUTLIERS = "fwd f16 b1 hq16 sq4096 d128 cuda"


def forward_suite(dtype: str) -> list[str]:
    return [
        f"fwd {dtype} b{16384 // length} hq{2048 // dim} sq{length} d{dim}{mask} cuda"
        for dim in (64, 128, 256)
        for length in (512, 1024, 2048, 4096, 8192, 16384)
        for mask in ("", " causal")
    ]


def ablations_suite(dtype: str) -> list[str]:
    """The forward suite's grid at the head dims that ablations take."""
    return [text for text in forward_suite(dtype) if " d256" not in text]


def special_suite(dtype: str) -> list[str]:
    """Two dense cells to compare rates with, then what is not dense multi-head work that fills the device."""
    lens = ":".join(map(str, LONG_TAIL))
    cells = [
        f"fwd {dtype} b4 hq16 sq4096 d128 causal cuda",
        f"fwd {dtype} b1 hq16 sq16384 d128 causal cuda",
        f"fwd {dtype} b4 hq64 hkv8 sq4096 d128 causal cuda",
        f"fwd {dtype} b{len(LONG_TAIL)} hq16 sq{LONG_TAIL[0]} d128 causal packed lens={lens} cuda",
        f"fwd {dtype} b1 hq16 sq16384 d128 window=1024,0 cuda",
    ]
    for dim in (64, 128):
        for heads in (4, 16):
            for length in (64, 128, 256, 512, 1024, 2048):
                cells.append(f"fwd {dtype} b1 hq{heads} sq{length} d{dim} cuda")
    return cells


def backward_suite(dtype: str) -> list[str]:
    """The forward suite's grid, on its long cells the price of a fixed order of additions to dq, then grouped heads in
    either order, a window and packed sequences."""
    lens = ":".join(map(str, LONG_TAIL))
    grid = [f"bwd{text[3:]}" for text in forward_suite(dtype)]
    longer = [text for text in grid if {"sq4096", "sq16384"} & set(text.split())]
    special = [
        f"bwd {dtype} b4 hq64 hkv8 sq4096 d128 causal cuda",
        f"bwd {dtype} b4 hq64 hkv8 sq4096 d128 causal deterministic cuda",
        f"bwd {dtype} b4 hq8 hkv2 sq4096 d256 causal cuda",
        f"bwd {dtype} b4 hq8 hkv2 sq4096 d256 causal deterministic cuda",
        f"bwd {dtype} b1 hq16 sq16384 d128 window=1024,0 cuda",
        f"bwd {dtype} b{len(LONG_TAIL)} hq16 sq{LONG_TAIL[0]} d128 causal packed lens={lens} cuda",
    ]
    return grid + [text.replace(" cuda", " deterministic cuda") for text in longer] + special


SUITES = {
    "forward": forward_suite,
    "special": special_suite,
    "backward": backward_suite,
    "recompute": recompute.suite,
    "decode": decode.decode_suite,
    "story": story.suite,
    "ablations": ablations_suite,
    "append": append.suite,
    "fp8": fp8.suite,
}
PINS_OF_SUITE = {"story": 0, "ablations": 0, "append": 0, "fp8": 1}  # at most; those of others are not limited


def chosen(problems: list[str], only: list[str]) -> list[str]:
    """Those that have every word of one of the lists; `full` is the word of those with neither mask nor window."""

    def words(text: str) -> set[str]:
        masked = "causal" in text.split() or "window=" in text
        return set(text.split()) | (set() if masked else {"full"})

    return [text for text in problems if not only or any(set(one.split(",")) <= words(text) for one in only)]


class Candidate:
    """One call on a case, by its name and variant; after capture() a replay of its CUDA graph where that works."""

    def __init__(self, name: str, variant: str, call: Callable[[], Any]):
        self.name, self.variant, self.call = name, variant, call
        self.memory = extra_memory(call) + getattr(call, "workspace_bytes", 0)
        self.out = call()
        self.run: Callable[[], Any] = call
        self.eager = ""
        self.seconds: list[float] = []
        self.rms: float | None = None

    def capture(self) -> None:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        try:
            # Not torch.cuda.graph(): after an error its stream stays the current one.
            with torch.cuda.stream(torch.cuda.Stream()):
                graph.capture_begin()
                try:
                    out = self.call()
                finally:
                    graph.capture_end()
            for x in tensors_in(self.out):
                x.zero_()
            graph.replay()
            torch.cuda.synchronize()
            self.out, self.run = out, graph.replay
        except Exception as error:  # whatever a package's host code throws at a capture
            torch.cuda.synchronize()
            self.out = self.call()
            self.eager = peers.first_line(error) or type(error).__name__

    def sample(self, flush: torch.Tensor, count: int) -> None:
        events = []
        for _ in range(count):
            flush.zero_()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            self.run()
            end.record()
            events.append((begin, end))
        torch.cuda.synchronize()
        self.seconds += [begin.elapsed_time(end) * 1e-3 for begin, end in events]


def tensors_in(out: Any) -> tuple[torch.Tensor, ...]:
    return out if isinstance(out, tuple) else (out,)


def extra_memory(call: Callable[[], Any]) -> int:
    """Device bytes that a call allocates beyond its output, seen on its second run."""
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = call()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    return max(0, peak - sum(x.numel() * x.element_size() for x in tensors_in(out)))


_told: set[tuple[str, str]] = set()


def left_out(name: str, reason: str, text: str) -> None:
    """Says once why a candidate is missing, and for which problem first."""
    if (name, reason) not in _told:
        _told.add((name, reason))
        print(f"  {name} left out: {reason} (first at {text})", flush=True)


def variants_of(case: Case, name: str, baselines: Baselines | None) -> dict[str, Callable[[], Any]]:
    if isinstance(case, backward.BackwardCase):
        if name == "textbook":
            return dict(peers.textbook(case, baselines, backward.BackwardTextbook))
        return dict(backward.PEERS[name](case))
    if isinstance(case, decode.DecodeCase):
        return decode.variants(case, name)
    return dict(peers.textbook(case, baselines) if name == "textbook" else peers.PEERS[name](case))


def candidates_of(case: Case, names: list[str], baselines: Baselines | None) -> list[Candidate]:
    """The peers that take the case, each variant that runs."""
    found, text = [], str(case.problem)
    for name in names:
        try:
            variants = variants_of(case, name, baselines)
        except (peers.Refused, RuntimeError) as error:
            left_out(name, peers.first_line(error), text)
            continue
        for variant, call in variants.items():
            try:
                found.append(Candidate(name, variant, call))
            except Exception as error:  # a peer may throw anything; the bench goes on and says so
                left_out(f"{name} {variant}".strip(), peers.first_line(error) or type(error).__name__, text)
    return found


def time_all(candidates: list[Candidate], case: Case, options: argparse.Namespace) -> None:
    """Rounds over all candidates for about options.seconds, at least FEWEST_ROUNDS and at most options.rounds."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=case.device)
    quick = [one for one in candidates if one.name not in peers.MATERIALISE]
    begin = time.perf_counter()
    for done in range(options.rounds):
        if done >= FEWEST_ROUNDS and time.perf_counter() - begin > options.seconds:
            break
        random.shuffle(quick)
        for one in quick:
            one.sample(flush, options.samples)
    for one in candidates:
        if one.name in peers.MATERIALISE:
            one.sample(flush, SLOW_SAMPLES)


def sample_calls(calls: dict[str, Callable[[], Any]], case: Case, options: argparse.Namespace) -> list[Candidate]:
    """The named calls, timed beside one another."""
    candidates = [Candidate(name, "", call) for name, call in calls.items()]
    if not options.eager:
        for one in candidates:
            one.capture()
    time_all(candidates, case, options)
    return candidates


def rms_errors(candidates: list[Candidate], case: Case) -> None:
    reference = case.exact(min(2, case.problem.heads_q))
    for one in candidates:
        one.rms = case.rms_error(one.out, reference)


def kind_of(text: str) -> type[Case]:
    if backward.is_backward(text):
        return backward.BackwardCase
    return decode.DecodeCase if decode.is_decode(text) else Case


def runner_of(case: Case) -> Any:
    if isinstance(case, backward.BackwardCase):
        return backward.BackwardRunner
    return decode.DecodeRunner if isinstance(case, decode.DecodeCase) else Runner


def own_candidates(case: Case, kernels: list[str]) -> list[Candidate]:
    """A row of ours for each pin; what refuses is named."""
    own = []
    for kernel in kernels or [""]:
        try:
            runner = runner_of(case)(case, kernel)
            own.append(Candidate(runner.plan.kernel, "", runner))
        except NotImplementedError as error:
            left_out(kernel or "tessera", peers.first_line(error), str(case.problem))
    return own


def measure(text: str, options: argparse.Namespace, baselines: Baselines | None) -> dict[str, Any]:
    try:
        case = kind_of(text)(text)
        own = own_candidates(case, options.kernel)
    except NotImplementedError:  # not even the forward pass whose o and lse a backward pass needs
        own = []
    if not own:
        refused = {"status": "refused", "reason": "no row of ours takes it", "baseline": False, "peers": {}}
        return {"problem": str(Problem(text)) + lens_of(text), "kernel": "", **refused}
    first = own[0]
    candidates = own + candidates_of(case, options.peers, baselines)
    if not options.eager and not isinstance(case, backward.BackwardCase):  # autograd replays on the forward's stream
        for one in candidates:
            one.capture()
    if not options.no_errors:
        rms_errors(candidates, case)
    time_all(candidates, case, options)
    if isinstance(case, decode.DecodeCase):
        for one in candidates:
            one.seconds = [seconds / len(case.caches) for seconds in one.seconds]
    flops, median = case.flops(), {one: statistics.median(one.seconds) for one in candidates}

    def figures(one: Candidate) -> dict[str, Any]:
        row = {"seconds_median": median[one], "tflops": flops / median[one] * 1e-12, "rms_error": one.rms}
        row["extra_bytes"] = one.memory
        return {**row, **{key: value for key, value in (("variant", one.variant), ("eager", one.eager)) if value}}

    best: dict[str, Candidate] = {}
    for one in candidates[1:]:
        if one.name not in best or median[one] < median[best[one.name]]:
            best[one.name] = one
    runner, own_figures = first.call, figures(first)
    explained = runner.plan.explain(json=True)
    estimate = explained.get("estimate_seconds")
    if not isinstance(case, backward.BackwardCase):
        own_figures["extra_bytes"] += (case.q.numel() // case.problem.head_dim_qk) * 4  # lse
    return {
        "problem": str(case.problem) + lens_of(text),
        "kernel": first.name,
        "status": "ran",
        "reason": "",
        "baseline": False,
        **own_figures,
        "seconds_min": min(first.seconds),
        "seconds_max": max(first.seconds),
        "samples": len(first.seconds),
        "estimate_seconds": estimate,
        "flops": flops,
        "bytes": case.bytes(),
        "gbytes_per_s": case.bytes() / median[first] * 1e-9,
        "speedup_over_textbook": median[best["textbook"]] / median[first] if "textbook" in best else None,
        "workspace_bytes": runner.workspace_bytes,
        "plan_seconds": runner.plan_seconds,
        "host_seconds": runner.host_seconds(baselines),
        "tile": [explained.get("tile_m"), explained.get("tile_n")],
        "num_splits": explained.get("num_splits"),
        **({"kv_bytes": case.cache_bytes()} if isinstance(case, decode.DecodeCase) else {}),
        "peers": {name: figures(one) for name, one in best.items()},
    }


def lens_of(text: str) -> str:
    """The word that the library's canonical text of a problem leaves out."""
    return "".join(f" {word}" for word in text.split() if word.startswith("lens="))


def outlier_errors(options: argparse.Namespace) -> dict[str, float]:
    """RMS errors of every candidate on Case's outlier distribution in f16."""
    case = Case(OUTLIERS, outliers=True)
    candidates = own_candidates(case, options.kernel) + candidates_of(case, options.peers, None)
    rms_errors(candidates, case)
    errors = {f"{one.name} {one.variant}".strip(): one.rms for one in candidates if one.rms is not None}
    print(f"RMS error on outliers, {case.problem}: " + ", ".join(f"{name} {rms:.3g}" for name, rms in errors.items()))
    return errors


def table_of(data: dict[str, Any]) -> str:
    """The lines of a result file of any suite."""
    if data.get("suite") == "story":
        return story_report.short_table(data)
    if data.get("suite") == "ablations":
        return ablations.short_table(data)
    if "copy_bytes_per_s" in data:
        return append.short_table(data)
    if "quantise_seconds" in data["rows"][0]:
        return fp8.short_table(data)
    return recompute.short_table(data) if "steps" in data["rows"][0] else short_table(data)


def picture_of(data: dict[str, Any], picture: str) -> None:
    """A picture of a result file. Lacking without matplotlib."""
    try:
        (story_report.draw if data.get("suite") == "story" else draw)(data, picture)
    except ImportError as error:
        raise Lacking(f"--draw: {error}") from None


def arguments_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = Parser("tessera.bench", __doc__)
    parser.add_argument("problems", nargs="*", metavar="PROBLEM")
    parser.add_argument("--suite", choices=SUITES)
    parser.add_argument("--dtype", choices=("bf16", "f16"), default="bf16", help="of a suite")
    parser.add_argument("--only", action="append", default=[], metavar="WORDS", help="as d128,causal or sq4096,full")
    parser.add_argument("--kernel", action="append", default=[], metavar="GLOB")
    parser.add_argument("--peers", default=",".join(peers.DEFAULT), help=f"of {','.join(peers.PEERS)}")
    parser.add_argument("--seconds", type=number(float, 0), default=0.6, help="of timed rounds a cell, about")
    parser.add_argument("--rounds", type=number(int, 1), default=40, help="at most")
    parser.add_argument("--samples", type=number(int, 1), default=3, help="a round and candidate")
    parser.add_argument("--eager", action="store_true", help="call, without CUDA graphs")
    parser.add_argument("--no-errors", action="store_true", help="leave the comparison with float64 out")
    parser.add_argument("--ncu", choices=("also", "only"), help="story: bytes by the profiler; only: into --out's file")
    parser.add_argument("--out", type=output_file, help="result file")
    parser.add_argument("--draw", nargs=2, metavar=("RESULTS", "PICTURE"))
    parser.add_argument("--table", metavar="RESULTS")
    options = parser.parse_args(arguments)
    options.peers = [name for name in options.peers.split(",") if name]
    unknown = [name for name in options.peers if name not in peers.PEERS]
    if unknown:
        parser.error(f"--peers: {unknown[0]!r}, expected some of {', '.join(peers.PEERS)}")
    if options.draw:
        try:
            output_file(options.draw[1])
        except argparse.ArgumentTypeError as error:
            parser.error(f"--draw: {error}")
    if options.ncu and options.suite != "story":
        parser.error(f"--ncu: {options.ncu!r}, expected with --suite story")
    most = PINS_OF_SUITE.get(options.suite, len(options.kernel))
    if len(options.kernel) > most:
        parser.error(f"--kernel: {options.kernel[most]!r}, expected {most} of them with --suite {options.suite}")
    suite = SUITES[options.suite](options.dtype) if options.suite else []
    options.problems = chosen(options.problems + suite, options.only)
    if not options.problems and not options.table and not options.draw:
        parser.error("no problem; expected problem text or --suite, and --only words that some of them have")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = arguments_of(arguments)
    return ended("python -m tessera.bench", lambda: run(options))


def run(options: argparse.Namespace) -> int:
    if options.table:
        print(shown(options.table, table_of))
        return 0
    if options.draw:
        path, picture = options.draw
        shown(path, lambda data: picture_of(data, picture))
        return 0
    torch.set_grad_enabled(False)
    if options.suite == "append":
        return append.main(options, {**describe(), "rows": []}, sample_calls)
    of_suite = {"story": Case, "recompute": recompute.StepCase, "ablations": Case, "fp8": fp8.Fp8Case}
    for text in options.problems:
        if of_suite.get(options.suite, kind_of(text)).taken(text).device < 0 and options.suite != "story":
            raise BadInput(f"{text!r}: a problem on the CPU, expected cuda; `tessera bench` times the CPU")
    if options.suite == "recompute" and not torch.cuda.is_available():
        print(recompute.model_table(options.problems))
    if options.suite == "story" and not torch.cuda.is_available():
        baselines = None if options.ncu else Baselines.load()  # the profiler has nothing to count here, which is told
        return story.main(options, baselines, {**describe(), "rows": []}, sample_calls)
    if not torch.cuda.is_available():
        raise Lacking("torch sees no CUDA device")
    begin = time.perf_counter()
    baselines = Baselines.load()
    results: dict[str, Any] = {**describe(), "rows": []}
    if options.suite == "recompute":
        return recompute.main(options, baselines, results, sample_calls)
    if options.suite == "story":
        return story.main(options, baselines, results, sample_calls)
    if options.suite == "fp8":
        return fp8.main(options, results, sample_calls)
    if options.suite == "ablations":
        return ablations.main(options, baselines, results, sample_calls)
    all_decode = all(map(decode.is_decode, options.problems))
    bandwidth = results["read_bytes_per_s"] = decode.read_bandwidth() if all_decode else None
    launches = results["empty_launches_seconds"] = decode.empty_launches() if all_decode else None
    print(decode.table_head(options.peers, bandwidth) if bandwidth else table_head(options.peers), flush=True)
    for text in options.problems:
        results["rows"].append(measure(text, options, baselines))
        row = results["rows"][-1]
        if bandwidth and launches and (floor := decode.floors(row, launches, bandwidth)):
            row["floor_seconds"] = floor
        line = decode.table_line(row, options.peers, bandwidth) if bandwidth else table_line(row, options.peers)
        print(line, flush=True)
        if options.out:  # after each cell, so that a run cut short leaves what it measured
            Path(options.out).write_text(json.dumps(results, indent=1) + "\n")
    if options.suite == "special" and not options.no_errors:
        results["outlier_rms"] = outlier_errors(options)
    if options.out:
        Path(options.out).write_text(json.dumps(results, indent=1) + "\n")
    if not bandwidth:
        print(summary(results["rows"]))
    print(f"{len(results['rows'])} cells in {time.perf_counter() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
