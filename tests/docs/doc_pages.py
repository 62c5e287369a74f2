"""The pages, their links, their tables and the commands in their code blocks."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    return [README, *sorted(DOCS.glob("*.md"))]


def text(name: str) -> str:
    return (DOCS / name).read_text()


def links(page: Path) -> list[str]:
    """Targets of the links outside code blocks."""
    return re.findall(r"\]\(([^)\s]+)\)", _FENCE.sub("", page.read_text()))


def anchors(page: Path) -> set[str]:
    """The anchors that headings give."""
    headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def rows(markdown: str) -> list[list[str]]:
    """The cells of every row of every table, headers included."""
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def commands(page: Path) -> list[str]:
    """What follows a ``$`` prompt in the code blocks, continued lines joined."""
    found: list[str] = []
    for block in _FENCE.findall(page.read_text()):
        found += re.findall(r"^\$ (.*)$", block.replace("\\\n", " "), re.MULTILINE)
    return found


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
