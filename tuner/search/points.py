"""``valid_points``: every config of a space that is valid for a problem on a device."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.base.family import ConfigSpace, Rule
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem

Points = npt.NDArray[np.int16]
Mask = npt.NDArray[np.bool_]
_MOST_CODES = 2**22  # of a table with one entry for each choice of the knobs that a rule reads


def valid_points(space: ConfigSpace[Any], problem: GemmProblem, device: DeviceSpec) -> Points:
    """The valid configs among the searched values: (N, knobs) value indices in lexicographic order,
    or as the space lists them.

    One knob after another is added to all points that are valid so far. A rule is tested once the last knob
    that it reads is added, and called once for each choice of the knobs that it reads.
    """
    listed = space.listed(problem, device)
    if listed is not None:
        return np.array(listed, dtype=np.int16).reshape(-1, len(space.knobs))
    if space.why_unsupported(problem, device):
        return np.empty((0, len(space.knobs)), dtype=np.int16)
    columns: list[npt.NDArray[np.int16]] = []  # one a knob: whole columns are read, not rows
    for knob, rules in zip(space.knobs, space.rules_by_last_knob(), strict=True):
        count, values = len(columns[0]) if columns else 1, len(knob.values)
        columns = [np.repeat(column, values) for column in columns]
        columns.append(np.tile(np.arange(values, dtype=np.int16), count))
        for rule in rules:
            kept = _keeping(space, rule, problem, device, columns)
            if not kept.all():
                columns = [column[kept] for column in columns]
    return np.stack(columns, axis=1)


def _keeping(
    space: ConfigSpace[Any],
    rule: Rule[Any],
    problem: GemmProblem,
    device: DeviceSpec,
    columns: list[npt.NDArray[np.int16]],
) -> Mask:
    """Which points keep a rule."""
    read = [(place, knob) for place, knob in enumerate(space.knobs) if knob.name in rule.reads]
    sizes = [len(knob.values) for _, knob in read]
    codes = np.zeros(len(columns[0]), dtype=np.int64)
    for place, knob in read:
        codes = codes * len(knob.values) + columns[place]
    size = math.prod(sizes)
    if size <= _MOST_CODES:
        met = np.zeros(size, dtype=bool)
        met[codes] = True
        choices = np.flatnonzero(met)
    else:
        choices, codes = np.unique(codes, return_inverse=True)
    names = [knob.name for _, knob in read]
    values = [
        [knob.values[place] for place in places.tolist()]
        for (_, knob), places in zip(read, np.unravel_index(choices, sizes), strict=True)
    ]
    knobs = space.knobs_type(**{knob.name: knob.values[0] for knob in space.knobs})
    keeps = []
    for choice in zip(*values, strict=True):
        for name, value in zip(names, choice, strict=True):
            setattr(knobs, name, value)
        keeps.append(rule.why(knobs, problem, device) is None)
    if size <= _MOST_CODES:
        met[choices] = keeps
        return met[codes]
    return np.array(keeps, dtype=bool)[codes]
