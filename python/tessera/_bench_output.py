"""What command lines of the bench share: arguments, result files, and how a wrong one ends: in one line on stderr."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any, Callable, NoReturn

from . import Problem


class BadInput(Exception):
    """An argument that cannot be meant: one line with its name, its value and what was expected. Exit code 2."""


class Lacking(Exception):
    """What this machine lacks, in one line. Exit code 3."""


def ended(program: str, run: Callable[[], int]) -> int:
    """run()'s exit code, or that of what it found wrong after a line on stderr."""
    try:
        return run()
    except (BadInput, Lacking) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2 if isinstance(error, BadInput) else 3


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage."""

    def __init__(self, module: str, description: str | None):
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(prog=f"python -m {module}", description=description, formatter_class=formatter)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def problem_of(text: str) -> Problem:
    try:
        return Problem(text)
    except ValueError as error:
        raise BadInput(f"{text!r}: {error}") from None


def output_file(path: str) -> str:
    """The type of an argument that names a file to write: refused before the work, not after it."""
    target = Path(path)
    if target.is_dir() or not os.access(target if target.exists() else target.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{path!r} cannot be written, expected a file in a folder that can")
    return path


def number(kind: Callable[[str], Any], least: float) -> Callable[[str], Any]:
    """The type of an argument that is a finite number, int or float, from `least` on."""

    def parsed(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = least - 1
        if not least <= value < float("inf"):
            noun = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"{text!r}, expected {noun} from {least:g} on")
        return value

    return parsed


def read_results(path: str) -> dict[str, Any]:
    """A result file: an object whose `rows` are objects that name a problem."""
    try:
        results = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise BadInput(f"{path!r}: {error}; expected a result file of python -m tessera.bench") from None
    rows = results.get("rows") if isinstance(results, dict) else None
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) and "problem" in row for row in rows):
        raise BadInput(f"{path!r} has no `rows` of problems; expected a result file of python -m tessera.bench")
    return dict(results)


def shown(path: str, show: Callable[[dict[str, Any]], Any]) -> Any:
    """show() of a result file; whatever it misses there is the file's fault."""
    results = read_results(path)
    try:
        return show(results)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        raise BadInput(f"{path!r} cannot be shown ({what}); expected rows of python -m tessera.bench") from None
