#!/usr/bin/env python3
"""Trains a model of GPT-2's size with this library's attention, beside other attentions in the same run.

    python examples/train_gpt2.py                           the 124M model in bfloat16 on a CUDA device, 2 minutes
    python examples/train_gpt2.py --device cpu              two layers of width 128 in float32, under a minute
    python examples/train_gpt2.py --out F --picture P       a result file; with matplotlib a picture of it
    python examples/train_gpt2.py --draw F P                a picture of a result file

Part `curves`: from one seed and on the same batches one model an attention: this library's; torch's flash and cuDNN
ones and the textbook, scores and probabilities as tensors, at the same precision; the textbook in float32, and once
more with its sums in another order; and a control that is wrong. Then every attention's gradients at the first and the
last weights of the float32 textbook. gpt2_report.py says when ours agrees. Part `steps`: time and peak memory of whole
training steps at several contexts, the same number of tokens each. It prints which kernels ran, forward and backward,
counts them, and fails where another one was chosen. The text is the source of Python's standard library (PSF licence),
its bytes are the tokens. bfloat16 is torch's autocast, weights stay float32. What --seconds leaves out is named.

Exit status: 0 all checks passed, 1 one failed or time was too short for one, 2 bad input, 3 no such device.
"""

from __future__ import annotations

import argparse
import collections
import copy
import gc
import json
import math
import pathlib
import statistics
import sys
import time

BEGIN = time.perf_counter()

import gpt2_model as models  # noqa: E402  (the clock begins before torch is loaded)
import gpt2_report as report  # noqa: E402
import torch  # noqa: E402

import tessera  # noqa: E402
from tessera import bench  # noqa: E402
from tessera._bench_output import output_file  # noqa: E402

WARM_UP = 3
GRADIENT_BATCHES = 4  # one alone leaves too much to chance
PARTS = ("curves", "steps")
CURVES_SHARE = 0.8  # of --seconds, at most
FEWEST_STEPS = 2 * 3 * report.WINDOW  # of which the last third has two windows
PEERS = {"flash": models.flash, "cudnn": models.cudnn, "textbook": models.textbook}
RUNS_OURS = (report.OURS, report.CONTROL)


def elapsed():
    return time.perf_counter() - BEGIN


class Training:
    """The options, the result, and the account of what was left out."""

    def __init__(self, options):
        self.options, self.device = options, options.device
        self.dtype = {"bfloat16": torch.bfloat16, "float32": torch.float32}[options.dtype]
        self.size = models.SIZES[options.size]
        self.text, text_told = models.standard_library()
        self.results = {**bench.describe(self.device), "model": self.model_told(), "text": text_told, "rows": []}
        self.results.update(curves={}, gradients={}, checks=[], kernels={}, refused={}, left_out=[], part_seconds={})
        longest = max(options.context, *options.contexts)
        self.model = models.Gpt2(self.size, longest, options.seed)  # stays as it is, on the CPU
        self.attentions = {name: pair for name, pair in self.wanted().items() if self.runs(name, *pair)}

    def model_told(self):
        options = self.options
        told = {"name": f"{options.size}, {options.dtype}", **vars(self.size), "dtype": options.dtype}
        return {**told, "batch": options.batch, "context": options.context, "rate": options.rate, "seed": options.seed}

    def leave_out(self, what):
        reason = f"{what}: --seconds {self.options.seconds:g} are over after {elapsed():.0f} s"
        print(f"left out: {reason}", flush=True)
        self.results["left_out"].append(reason)

    def over(self, share=1.0):
        return 0 < self.options.seconds * share < elapsed()

    def synchronize(self):
        if self.device == "cuda":
            torch.cuda.synchronize()

    def first_model(self):
        return copy.deepcopy(self.model).to(self.device)

    def trainer(self, dtype):
        return models.Trainer(self.first_model(), dtype, self.options.rate, self.options.steps)

    def wanted(self):
        """{name: (attention, dtype)} of the curves, ours first; the reference is the float32 textbook."""
        found = {report.OURS: (models.ours, self.dtype), "flash": (models.flash, self.dtype)}
        if self.device == "cuda":
            found["cudnn"] = (models.cudnn, self.dtype)
        if self.dtype is not torch.float32:
            found["textbook bf16"] = (models.textbook, self.dtype)
        found[report.REFERENCE] = (models.textbook, torch.float32)
        found["reordered f32"] = (models.reordered, torch.float32)
        found[report.CONTROL] = (models.ours_without_dq_dk, self.dtype)
        return found

    def runs(self, name, attend, dtype):
        """Whether a fused attention of torch's takes this shape here; if not, it says why. All others must."""
        if name not in ("flash", "cudnn"):
            return True
        shape = (1, self.options.context, 3, self.size.heads, self.size.width // self.size.heads)
        qkv = torch.randn(shape, device=self.device, dtype=dtype, requires_grad=True)
        try:
            o = attend(*qkv.unbind(2))
            o.backward(torch.ones_like(o))
        except RuntimeError as error:
            self.results["refused"][name] = first_line(error)
            print(f"{name} left out: {first_line(error)}", flush=True)
        return name not in self.results["refused"]


def first_line(error):
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def train_curves(training):
    """Every attention's model a step, then the next batch, so that time that runs out cuts all curves alike."""
    options = training.options
    batches = models.Batches(training.text, training.device, options.seed)
    training.entropy = batches.entropy
    runs = {}
    for name, (attend, dtype) in training.attentions.items():
        runs[name] = (training.trainer(dtype), attend, [])
    ran = collections.Counter()
    for step in range(options.steps):
        if step and step % 10 == 0:
            training.synchronize()
            if sys.stderr.isatty():
                print(f"\rstep {step} of {options.steps} ", end="\r", file=sys.stderr, flush=True)
            if training.over(CURVES_SHARE):
                training.leave_out(f"curves from step {step} of {options.steps} on, in {CURVES_SHARE:.0%} of the time")
                break
        batch = batches.next(options.batch, options.context)
        for name, (trainer, attend, losses) in runs.items():
            if name in RUNS_OURS:
                with tessera.expect_kernel(f"{training.device}.*") as scope:
                    losses.append(trainer.step(*batch, attend))
                ran.update((name, kernel) for kernel in scope.ran)
            else:
                losses.append(trainer.step(*batch, attend))
    curves = {name: [round(x, 7) for x in torch.stack(run[2]).tolist()] for name, run in runs.items()}
    training.results["curves"] = curves
    training.results["kernels"] = {kernel: count for (name, kernel), count in ran.items() if name == report.OURS}
    last = runs[report.REFERENCE][0].model
    last.zero_grad(set_to_none=True)
    runs.clear()
    return last, [batches.next(options.batch, options.context) for _ in range(GRADIENT_BATCHES)]


def weight_gradients(model, batch, attend, dtype):
    """{"layer q": gradient} of the weights that make q, k and v, in the model's type."""
    with torch.autocast(batch[0].device.type, torch.bfloat16, enabled=dtype is torch.bfloat16):
        loss = model(*batch, attend)
    loss.backward()
    found = {}
    for number, block in enumerate(model.blocks):
        for kind, gradient in zip("qkv", block.qkv.weight.grad.chunk(3)):
            found[f"layer {number} {kind}"] = gradient.clone()
    model.zero_grad(set_to_none=True)
    return found


def gradient_errors(training, model, batches):
    """Relative errors beside the textbook's gradients in float64, by attention and part, of all batches together."""
    exact_model = copy.deepcopy(model).double()
    apart = {name: collections.Counter() for name in training.attentions}
    norms = collections.Counter()
    for batch in batches:
        exact = weight_gradients(exact_model, batch, models.textbook, torch.float64)
        norms.update({part: x.square().sum().item() for part, x in exact.items()})
        for name, (attend, dtype) in training.attentions.items():
            found = weight_gradients(model, batch, attend, dtype)
            apart[name].update({part: (found[part] - x).square().sum().item() for part, x in exact.items()})
    return {name: {part: relative(x, norms[part]) for part, x in parts.items()} for name, parts in apart.items()}


def relative(square, norm_square):
    """What is exact where nothing is to be found, as q's gradients over one key are, errs by nothing."""
    return math.sqrt(square / norm_square) if norm_square > 0 else math.inf if square > 0 else 0.0


def tell_kernels(training, model, batch):
    """One step of ours, forward and backward, and why each kernel was chosen."""
    with torch.autocast(training.device, torch.bfloat16, enabled=training.dtype is torch.bfloat16):
        loss = model(*batch, models.ours)
    print(f"forward:  {tessera.which()}")
    loss.backward()
    training.synchronize()
    print(f"backward: {tessera.which()}")
    model.zero_grad(set_to_none=True)


def count_checks(training, steps):
    """One forward and one backward kernel a layer and step, and no other."""
    expected = training.size.layers * steps
    for way in ("forward", "backward"):
        kernels = training.results["kernels"].items()  # a forward row may be a decode one
        count = sum(n for kernel, n in kernels if kernel.endswith("backward") == (way == "backward"))
        yield report.check(f"runs of our {way} kernels that are missing", abs(expected - count), 0)


def curves_part(training):
    last, batches = train_curves(training)
    results = training.results
    tell_kernels(training, last, batches[0])
    for kernel, count in results["kernels"].items():
        print(f"{kernel}: {count} runs")
    curves = results["curves"]
    steps = len(curves[report.REFERENCE])
    results["checks"] += count_checks(training, steps)
    if steps < FEWEST_STEPS:
        print(f"not judged: {steps} steps, expected {FEWEST_STEPS} or more")
        results["checks"].append(report.check("steps that lack for a verdict", FEWEST_STEPS - steps, 0))
        return
    print(report.curve_table(curves))
    results["checks"] += report.curve_checks(curves, training.entropy, training.options.dtype)
    for when, model in (("first", training.first_model()), ("last", last)):
        errors = results["gradients"][when] = gradient_errors(training, model, batches)
        print(f"at the {when} weights\n{report.gradient_table(errors)}")
        for one in report.gradient_checks(errors):
            results["checks"].append({**one, "check": f"at the {when} weights: {one['check']}"})


def measure_steps(training, trainer, batches, attend, batch, context):
    """Median seconds of whole steps, by events on a CUDA device, and the most memory that was allocated."""
    cuda = training.device == "cuda"
    gc.collect()
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    pieces = [batches.next(batch, context) for _ in range(WARM_UP + training.options.samples)]
    marks = []
    for number, piece in enumerate(pieces):
        if number >= WARM_UP:
            marks.append(mark(cuda))
        trainer.step(*piece, attend)
    marks.append(mark(cuda))
    training.synchronize()
    seconds = [a.elapsed_time(b) * 1e-3 if cuda else b - a for a, b in zip(marks, marks[1:])]
    return {
        "status": "ran",
        "reason": "",
        "seconds_median": statistics.median(seconds),
        "seconds_min": min(seconds),
        "seconds_max": max(seconds),
        "samples": len(seconds),
        "tokens_per_s": batch * context / statistics.median(seconds),
        "peak_bytes": torch.cuda.max_memory_allocated() if cuda else None,
    }


def mark(cuda):
    if not cuda:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def measure_peer(training, name, trainer, *arguments):
    """A peer that cannot, or whose scores do not fit, is a cell with its reason."""
    if training.over():
        training.leave_out(f"steps of {name} at context {arguments[-1]}")
        return {"status": "left out", "reason": "no time"}
    try:
        return measure_steps(training, trainer, *arguments)
    except RuntimeError as error:  # torch's out of memory is one
        trainer.optimizer.zero_grad(set_to_none=True)
        return {"status": "refused", "reason": first_line(error)}


def steps_part(training):
    options = training.options
    trainer = training.trainer(training.dtype)
    batches = models.Batches(training.text, training.device, options.seed)
    kinds = {"float32": "f32", "bfloat16": "bf16"}
    print(report.step_head())
    for context in options.contexts:
        batch = max(1, options.tokens // context)
        if training.over():
            training.leave_out(f"steps at context {context}")
            continue
        with tessera.expect_kernel(f"{training.device}.*") as scope:
            cell = measure_steps(training, trainer, batches, models.ours, batch, context)
        head_dim = training.size.width // training.size.heads
        problem = f"bwd {kinds[options.dtype]} b{batch} hq{training.size.heads} sq{context} d{head_dim} causal"
        row = {"problem": f"{problem} {training.device}", "kernel": " ".join(sorted(set(scope.ran))), "baseline": False}
        row.update(context=context, batch=batch, **cell, peers={})
        print(report.step_line(context, batch, report.OURS, cell), flush=True)
        for name, attend in PEERS.items():
            if name == "cudnn" and training.device == "cpu":
                continue
            peer = measure_peer(training, name, trainer, batches, attend, batch, context)
            row["peers"][name] = peer
            print(report.step_line(context, batch, name, peer), flush=True)
        training.results["rows"].append(row)
        write(training)


def write(training):
    if training.options.out:
        pathlib.Path(training.options.out).write_text(json.dumps(training.results, indent=1) + "\n")


def arguments_of(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--size", choices=tuple(models.SIZES), help="of the model; default gpt2, on the CPU small")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), help="default bfloat16, on the CPU float32")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--steps", type=int, help="of the curves; default 300, on the CPU 120")
    parser.add_argument("--batch", type=int, help="of the curves; default 2, on the CPU 4")
    parser.add_argument("--context", type=int, help="of the curves; default 1024, on the CPU 128")
    parser.add_argument("--rate", type=float, help="of learning, the highest; default 3e-4, on the CPU 1e-3")
    parser.add_argument("--contexts", type=int, nargs="+", help="timed; default 1024 2048 4096, on the CPU 128 256")
    parser.add_argument("--tokens", type=int, help="of a timed step; default 16384, on the CPU 1024")
    parser.add_argument("--samples", type=int, default=8, help="timed steps of a cell")
    parser.add_argument("--seconds", type=float, help="in which all is done; 0: no limit; default 140, on the CPU 0")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=output_file, help="result file")
    parser.add_argument("--picture", type=output_file, help="drawn behind the run, where matplotlib is installed")
    parser.add_argument("--draw", nargs=2, metavar=("RESULTS", "PICTURE"))
    options = parser.parse_args(arguments)
    small = options.device == "cpu"
    names = ("size", "dtype", "steps", "batch", "context", "rate", "contexts", "tokens", "seconds")
    cuda_values = ("gpt2", "bfloat16", 300, 2, 1024, 3e-4, [1024, 2048, 4096], 16384, 140.0)
    cpu_values = ("small", "float32", 120, 4, 128, 1e-3, [128, 256], 1024, 0.0)
    for name, value in zip(names, cpu_values if small else cuda_values):
        if getattr(options, name) is None:
            setattr(options, name, value)
    for name in ("steps", "batch", "context", "tokens", "samples"):
        if getattr(options, name) < 1:
            parser.error(f"--{name}: {getattr(options, name)}, expected 1 or more")
    if min(options.contexts) < 1:
        parser.error(f"--contexts: {min(options.contexts)}, expected 1 or more each")
    if options.device == "cuda" and options.dtype == "float32":
        parser.error("--dtype: float32 on cuda, expected bfloat16: kernels there take 16-bit types")
    if options.picture and not options.out:
        parser.error("--picture: expected --out beside it, the result file that is drawn")
    return options


def picture(results, path):
    try:
        report.draw(results, path)
    except ImportError:
        print("no picture: matplotlib is not installed")
    else:
        print(f"drew {path}")


def main(arguments=None):
    options = arguments_of(arguments)
    if options.draw:
        picture(*options.draw)
        return 0
    if options.device == "cuda" and not torch.cuda.is_available():
        print("train_gpt2.py: torch sees no CUDA device; --device cpu trains a small model", file=sys.stderr)
        return 3
    torch.set_float32_matmul_precision("highest")  # no TF32: the float32 textbook is what others are judged by
    training = Training(options)
    results = training.results
    weights = sum(x.numel() for x in training.model.parameters())
    print(f"{results['model']['name']}, {weights} weights; {results['text']['bytes']} bytes of text")
    print(f"torch {torch.__version__}, {results['device']}", flush=True)
    for part, run in (("curves", curves_part), ("steps", steps_part)):
        begin = elapsed()
        if part not in options.parts:
            continue
        run(training)
        training.synchronize()
        results["part_seconds"][part] = round(elapsed() - begin, 1)
        print(f"part {part}: {elapsed() - begin:.1f} s, {elapsed():.1f} s since the start", flush=True)
        write(training)
    print(report.check_lines(results["checks"]))
    write(training)
    if options.picture:
        picture(options.out, options.picture)
    failed = [one for one in results["checks"] if not one["passed"]]
    print(f"{len(results['checks']) - len(failed)} checks passed, {len(failed)} failed, "
          f"{len(results['left_out'])} left out for lack of time; {elapsed():.0f} s in all")  # fmt: skip
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
