"""Sweeps of which ``make test`` runs a part and ``make test-long`` the rest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

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


def _name(value: Any) -> str:
    return value.name if isinstance(value, (Family, Knob)) else str(value)
