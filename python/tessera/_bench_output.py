"""The names of result files."""

from __future__ import annotations

import argparse
import os
from pathlib import Path


def output_file(path: str) -> str:
    """The type of an argument that names a file to write: refused before the work, not after it."""
    target = Path(path)
    if target.is_dir() or not os.access(target if target.exists() else target.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{path!r} cannot be written, expected a file in a folder that can")
    return path
