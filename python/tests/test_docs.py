"""Every Python snippet of docs/python.md runs, in the page's order, each page in one namespace."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.S | re.M)


def test_the_page_has_snippets():
    assert len(SNIPPETS) >= 5


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_snippet(number):
    snippet = SNIPPETS[number]
    for module in re.findall(r"^(?:import|from) (\w+)", snippet, flags=re.M):
        pytest.importorskip(module, reason=f"{module} is not installed")
    exec(compile(snippet, f"{PAGE.name} snippet {number + 1}", "exec"), {"__name__": "snippet"})
