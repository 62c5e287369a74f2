"""M ladders: one (N, K) with its types and layout, and the M that a job tunes it for."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Annotated

from tilewright.errors import InvalidProblem
from tilewright.schema.codec import Count, MaxLength
from tilewright.schema.problem import Extent

MOST_ROWS = 64
Ladder = Annotated[tuple[Extent, ...], MaxLength(MOST_ROWS)]
_PART = re.compile(r"\s*([0-9]{1,10})(?:\s*\.\.\s*([0-9]{1,10})(?:\s*\+\s*([0-9]{1,10}))?)?\s*")


# NOTE: without slots, so that bodies of the wire can inherit the fields.
@dataclasses.dataclass(frozen=True)
class MRange:
    """Values of M from ``first`` to ``last``, both of them included.

    Attributes:
        first, last: the smallest and the largest M.
        step: the difference between two values; 0 to double from one to the next.
    """

    first: Extent
    last: Extent
    step: Count = 0

    @property
    def rows(self) -> Iterator[int]:
        """The values, the smallest first.

        Raises:
            InvalidProblem: ``last`` is below ``first``, or one of them is 0.
        """
        if not 1 <= self.first <= self.last:
            raise InvalidProblem(
                f"a range of M must go up from 1 or more, got {self.first}..{self.last}; write 1..8192"
            )
        m = self.first
        while m < self.last:
            yield m
            m = m + self.step if self.step else 2 * m
        yield self.last


def ladder_of(values: Iterable[int]) -> tuple[int, ...]:
    """The rows of a ladder: each M once, the smallest first; empty for fewer than two, which are no ladder.

    Raises:
        InvalidProblem: there are more than 64.
    """
    rows = set[int]()
    for value in values:
        rows.add(value)
        if len(rows) > MOST_ROWS:
            raise InvalidProblem(
                f"a ladder has at most {MOST_ROWS} values of M; give fewer, or a range with a larger step"
            )
    return tuple(sorted(rows)) if len(rows) > 1 else ()


def parse_rows(text: str) -> list[int]:
    """The values of M in a text: numbers and ranges with commas between them.

    ``1..8192`` doubles from 1 to 8192, ``512..4096+512`` goes up by 512; both ends are included.

    Raises:
        InvalidProblem: it is neither.
    """
    parts = [_PART.fullmatch(part) for part in text.split(",")]
    if not all(parts):
        raise InvalidProblem(
            f"M must be numbers and ranges such as 1..8192 or 512..4096+512, with commas, got {text[:80]!r}"
        )
    ranges = [MRange(int(one[1]), int(one[2] or one[1]), int(one[3] or 0)) for one in parts if one]
    # NOTE: one more than fit, so that a long range is refused without being counted through.
    return list(itertools.islice(itertools.chain.from_iterable(one.rows for one in ranges), MOST_ROWS + 1))
