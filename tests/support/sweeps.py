"""Sweeps of which ``make test`` runs a part and ``make test-long`` the rest."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from kernels.arch import ARCHS
from kernels.base.family import Family
from kernels.base.knobs import Knob


def every(step: int, cases: Iterable[Any]) -> list[Any]:
    """Parameter sets of all cases, tuples or single values; all but each ``step``-th one are ``long``.

    A step that divides none of the extents of a product still meets every value of each factor.
    """
    sets = []
    for index, case in enumerate(cases):
        values = case if isinstance(case, tuple) else (case,)
        marks = [pytest.mark.long] if index % step else []
        sets.append(pytest.param(*values, id="-".join(map(_name, values)), marks=marks))
    return sets


def on_generations(
    cases: Iterable[Any],
    archs: Callable[[Any], Iterable[str]] = lambda _: ARCHS,
    most: int | None = None,
) -> Iterator[tuple[Any, ...]]:
    """Each case with one architecture of each generation (``sm_8x``, ``sm_9x``, ...) of ``archs``, which
    takes a case. Those of one generation, whose kernels differ little, take turns from case to case, and so
    do the generations if a case gets ``most`` of them."""
    for turn, case in enumerate(cases):
        values = case if isinstance(case, tuple) else (case,)
        found = [list(group) for _, group in itertools.groupby(archs(case), key=lambda arch: arch[:-1])]
        for alike in (found * 2)[turn % len(found) :][: min(len(found), most or len(found))]:
            yield (*values, alike[(turn + turn // len(found)) % len(alike)])


def _name(value: Any) -> str:
    return value.name if isinstance(value, (Family, Knob)) else str(value)
