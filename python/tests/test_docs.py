"""Every Python snippet of the pages runs: README.md, CONTRIBUTING.md, docs/ and examples/. scripts/test_snippets.py
runs the other languages. A snippet stands alone, as its reader copies it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
FENCE = re.compile(r"^```python\n(.*?)^```", flags=re.S | re.M)
SNIPPETS = [
    pytest.param(page, snippet, id=f"{page.relative_to(ROOT)}-{number}")
    for page in sorted(PAGES)
    for number, snippet in enumerate(FENCE.findall(page.read_text(encoding="utf-8")), 1)
]


def test_the_pages_have_snippets():
    assert len(SNIPPETS) >= 17


@pytest.mark.parametrize(("page", "snippet"), SNIPPETS)
def test_snippet(page, snippet):
    for module in re.findall(r"^(?:import|from) (\w+)", snippet, flags=re.M):
        pytest.importorskip(module, reason=f"{module} is not installed")
    exec(compile(snippet, str(page), "exec"), {"__name__": "snippet"})
