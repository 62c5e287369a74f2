"""A family with fewer searched values: the space that a recording covers."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from kernels.family import ConfigSpace, Knob
from tilewright.errors import InvalidProblem


def narrowed(family: ConfigSpace[Any], values: Mapping[str, Sequence[str]]) -> ConfigSpace[Any]:
    """A copy of ``family`` that searches only the given values of the named knobs, written as text.

    Raises:
        InvalidProblem: there is no such knob, or a value is not legal.
    """
    known = {knob.name for knob in family.knobs}
    unknown = sorted(values.keys() - known)
    if unknown:
        raise InvalidProblem(
            f"{family.name} has no knob {', '.join(unknown)}; it has {', '.join(sorted(known))}"
        )
    narrow = copy.copy(family)
    narrow.knobs = tuple(
        _with_values(knob, values[knob.name]) if knob.name in values else knob for knob in family.knobs
    )
    return narrow


def _with_values(knob: Knob, texts: Sequence[str]) -> Knob:
    legal = knob.legal_by_text
    wrong = [text for text in texts if text not in legal]
    if wrong or not texts:
        raise InvalidProblem(
            f"{knob.name} must be one of {', '.join(legal)}, got {', '.join(wrong) or 'nothing'}"
        )
    kept = tuple(value for text, value in legal.items() if text in texts)
    return dataclasses.replace(knob, searched=kept)
