"""The knob tables of ``docs/families.md``; ``python -m kernels.knob_tables`` writes them again."""

from __future__ import annotations

from pathlib import Path

from kernels.base.knobs import markdown_table
from kernels.registry import FAMILIES

PAGE = Path(__file__).parents[1] / "docs" / "families.md"


def with_tables(page: str) -> str:
    """The page with the table of every family between its marks, ``<!-- knobs NAME -->`` and
    ``<!-- end knobs NAME -->``.

    Raises:
        ValueError: the page lacks the marks of a family.
    """
    for name, family in FAMILIES.items():
        first, last = f"<!-- knobs {name} -->", f"<!-- end knobs {name} -->"
        before, begin, rest = page.partition(first)
        _, end, after = rest.partition(last)
        if not begin or not end:
            raise ValueError(f"{PAGE.name} lacks the lines {first} and {last}")
        page = f"{before}{first}\n{markdown_table(family.knobs)}\n{last}{after}"
    return page


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
