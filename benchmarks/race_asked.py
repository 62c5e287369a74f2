"""What a race of configs is asked for, from text: a problem, configs, and the suite's winners."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path

from benchmarks.facts import RESULTS
from benchmarks.suite_book import load_rows
from benchmarks.suite_shapes import Shape
from kernels.registry import FAMILIES
from tilewright.config import Config, KnobValue
from tilewright.device import DeviceSpec
from tilewright.errors import InvalidProblem
from tilewright.problem import DType, GemmProblem, Layout

_CONFIG = re.compile(r"(\w+)\((.*)\)")
_SHAPE = re.compile(r"(\d+)x(\d+)x(\d+)(?:-(nn|nt|tn|tt))?")


def problem_of(shape: str, dtype: str) -> GemmProblem:
    """``MxNxK`` or ``MxNxK-layout``, as the suite has it: without a layout weights are stored N x K.

    Raises:
        InvalidProblem: it is neither, or there is no such problem.
    """
    found = _SHAPE.fullmatch(shape)
    if not found:
        raise InvalidProblem(f"a shape is MxNxK or MxNxK-layout, such as 4096x4096x4096-nn, got {shape!r}")
    m, n, k, layout = found.groups()
    problem = Shape("given", int(m), int(n), int(k), Layout(layout or "nt")).problem(DType(dtype))
    if problem is None:
        raise InvalidProblem(f"there is no {shape} in {dtype}: 8-bit operands lie along k, layout nt")
    return problem


def config_of(text: str) -> Config:
    """The inverse of ``str(config)``.

    Raises:
        InvalidProblem: no family is called so, or a knob has no such value.
    """
    found = _CONFIG.fullmatch(text.strip())
    if not found or found[1] not in FAMILIES:
        raise InvalidProblem(f"a config is family(knob=value, ..) with a family of {', '.join(FAMILIES)}")
    pairs = (item.partition("=") for item in re.split(r",\s*", found[2]) if item)
    return Config.of(found[1], {name: _value(found[1], name, value) for name, _, value in pairs})


def varied(base: Config, changes: Sequence[str]) -> list[Config]:
    """``base`` with every combination of ``knob=value,..``, each knob once.

    Raises:
        InvalidProblem: the family has no such knob, or the knob no such value.
    """
    axes = []
    for change in changes:
        name, _, values = change.partition("=")
        if name in {axis[0][0] for axis in axes}:
            raise InvalidProblem(f"{name} is varied twice; give all of its values at once")
        axes.append([(name, _value(base.family, name, value)) for value in values.split(",")])
    chosen = itertools.product(*axes)
    return [Config.of(base.family, dict(base.knobs) | dict(changed)) for changed in chosen]


def winner(problem: GemmProblem, spec: DeviceSpec, folder: Path = RESULTS) -> Config:
    """The config of the suite's row for a problem, by the knobs of today.

    Raises:
        InvalidProblem: there is no such row.
    """
    path = folder / f"suite-{spec.device_class.id}-{problem.dtype.value}.json"
    for row in load_rows(path) if path.exists() else ():
        if row.problem == problem:
            return FAMILIES[row.family].completed(Config.of(row.family, row.config))
    raise InvalidProblem(f"{path.name} has no row for {problem}; give the config itself")


def _value(family: str, name: str, text: str) -> KnobValue:
    knobs = {knob.name: knob for knob in FAMILIES[family].knobs}
    if name not in knobs:
        raise InvalidProblem(f"{family} has no knob {name!r}; it has {', '.join(knobs)}")
    legal = knobs[name].legal_by_text
    if text not in legal:
        raise InvalidProblem(f"{name} must be one of {', '.join(legal)}, got {text!r}")
    return legal[text]
