"""Which kernel ran: the last run of this process, and scopes that refuse every other kernel.

Each run of a plan passes through here: `expected` is looked at before it, `last` is set behind it.
"""

from __future__ import annotations

import contextlib
import fnmatch
import threading
from typing import TYPE_CHECKING, Any, Iterator

if TYPE_CHECKING:
    from ._problem import Plan

last: "Plan | None" = None  # the plan of the last run that succeeded, of any thread
expected: "tuple[Expectation, ...]" = ()  # the scopes that are open now, of any thread
_lock = threading.Lock()


class UnexpectedKernel(RuntimeError):
    """Inside expect_kernel() another kernel was about to run, or none ran."""


class Expectation:
    """What an expect_kernel() scope waits for, and which kernels ran in it so far."""

    __slots__ = ("pattern", "ran")

    def __init__(self, pattern: str):
        self.pattern = pattern
        self.ran: list[str] = []

    def check(self, plan: "Plan") -> None:
        if not fnmatch.fnmatchcase(plan.kernel, self.pattern):
            raise UnexpectedKernel(
                f"expected a kernel like {self.pattern!r}, but {plan.kernel} is chosen for {plan.problem}\n{_why(plan)}"
            )
        self.ran.append(plan.kernel)


def check(plan: "Plan") -> None:
    """Raises UnexpectedKernel where an open scope expects another kernel; before a run, so nothing is written."""
    for one in expected:
        one.check(plan)


@contextlib.contextmanager
def expect_kernel(pattern: str) -> Iterator[Expectation]:
    """A scope in which every run of this library must use a kernel of this name or glob, and at least one must run.

        with tessera.expect_kernel("cpu.avx2.*"):
            model(tokens)

    It sees the runs of every thread of the process, and gives an object whose `ran` lists the kernels so far.

    UnexpectedKernel (a RuntimeError): another kernel was chosen, raised before it runs, with the reasons; or no kernel
    of this library ran until the scope's end, as when a framework quietly used one of its own.
    """
    global expected
    if not isinstance(pattern, str) or not pattern:
        raise TypeError(f"pattern: expected the name or glob of a kernel, not {pattern!r}")
    one = Expectation(pattern)
    with _lock:
        expected = (*expected, one)
    try:
        yield one
    finally:
        with _lock:
            expected = tuple(other for other in expected if other is not one)
    if not one.ran:
        raise UnexpectedKernel(f"expected a kernel like {pattern!r}, but no kernel of this library ran")


def _why(plan: "Plan") -> str:
    if not plan.passed_over:
        return "nothing that stands before it refused"
    return f"{plan.passed_over} before it refused; the first: {plan.first_reason}"


class Which:
    """The answer of which(): `kernel` and `problem` (text), `passed_over` and `first_reason` as a Plan has them, and
    explain() with the tile, the cost and every other kernel's reason for refusing."""

    __slots__ = ("kernel", "problem", "passed_over", "first_reason", "_plan")

    def __init__(self, plan: "Plan"):
        self._plan = plan
        self.kernel: str = plan.kernel
        self.problem = str(plan.problem)
        self.passed_over: int = plan.passed_over
        self.first_reason: str = plan.first_reason

    def explain(self, json: bool = False) -> Any:
        return self._plan.explain(json)

    def __str__(self) -> str:
        return f"{self.kernel} for {self.problem} ({_why(self._plan)})"

    def __repr__(self) -> str:
        return f"<tessera.Which {self}>"


def which(*call: Any, **options: Any) -> "Which | None":
    """Which kernel, and why.

    which()                        the last run of this process, of any thread; None: nothing ran yet
    which(q, k, v, causal=True)    what attention() would run for these arrays and options
    which("fwd f32 sq128 d64")     what would run for a problem (text, Problem or Plan) on this machine

    Errors as for attention() and Plan: what no kernel takes is a NotImplementedError with each kernel's reason.
    """
    from . import _attention
    from ._problem import Plan

    if not call:
        if options:
            raise TypeError(f"which(): {', '.join(options)} given, but no arrays")
        return None if last is None else Which(last)
    if len(call) == 1:
        if options:
            raise TypeError(f"which(): {', '.join(options)} given beside a problem, which has them in its words")
        return Which(call[0] if isinstance(call[0], Plan) else Plan(call[0]))
    return Which(_attention.plan(*call, **options))
