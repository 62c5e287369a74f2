"""Reads Kernel Tuner's cache files: one object a config, times in milliseconds.

Format: kernel_tuner/schema/cache of the Kernel Tuner project. A config that failed has the name of its
error in the place of the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernels.family import Knob
from tilewright.config import KnobValue
from tilewright.device import DeviceSpec
from tilewright.problem import GemmProblem
from tilewright.trial import Outcome
from tuner.replay.space import Entry, RecordedSpace, SpaceError, assemble

_ERRORS = {
    "InvalidConfig": Outcome.INVALID,
    "CompilationFailedConfig": Outcome.COMPILE_ERROR,
    "RuntimeFailedConfig": Outcome.LAUNCH_ERROR,
}
_KEYS = ("device_name", "kernel_name", "tune_params_keys", "tune_params", "cache")


def from_cache(data: Mapping[str, Any], name: str) -> RecordedSpace:
    """The space of a parsed cache file.

    Raises:
        SpaceError: it lacks a key, or a config is not what the file says of its parameters.
    """
    missing = [key for key in _KEYS if key not in data]
    if missing:
        raise SpaceError(f"{name}: a Kernel Tuner cache has {', '.join(missing)}")
    names = list(data["tune_params_keys"])
    knobs = tuple(_knob(name, data["tune_params"][name]) for name in names)
    objective = str(data.get("objective", "time"))
    rows = list(data["cache"].values())
    configs = [[_value(row[name]) for name in names] for row in rows]
    points, entries = assemble(knobs, configs, [_entry(row, objective) for row in rows])
    return RecordedSpace(
        name=name,
        family=str(data["kernel_name"]),
        knobs=knobs,
        points=points,
        entries=entries,
        problem=_problem(data.get("problem_size")),
        device=DeviceSpec("cuda", "unknown", str(data["device_name"]), 0, 0, 0),
        provenance={"format": "Kernel Tuner cache", "device": data["device_name"]},
    )


def _knob(name: str, values: list[Any]) -> Knob:
    return Knob(name, tuple(dict.fromkeys(_value(value) for value in values)), "")


def _value(value: Any) -> KnobValue:
    """Integers and names as they are; other numbers become integers where they are whole, else names."""
    if isinstance(value, str | int):
        return int(value) if isinstance(value, bool) else value
    return int(value) if isinstance(value, float) and value.is_integer() else str(value)


def _entry(row: Mapping[str, Any], objective: str) -> Entry:
    time, compile_s = row.get(objective), _seconds(row, "compile_time")
    error = row.get("__error__") or (time if isinstance(time, str) else None)
    if error is not None or time is None:
        return Entry((), _ERRORS.get(str(error), Outcome.LAUNCH_ERROR), str(error or "no time"), compile_s)
    samples = row.get("times") or [time]
    return Entry(
        tuple(1000.0 * float(sample) for sample in samples),
        compile_s=compile_s,
        check_s=_seconds(row, "verification_time"),
    )


def _seconds(row: Mapping[str, Any], key: str) -> float:
    value = row.get(key, 0.0)
    return float(value) / 1000 if isinstance(value, int | float) else 0.0


def _problem(size: Any) -> GemmProblem:
    """A stand-in with the extents of D where the size is that of a matrix: such files do not say more."""
    extents = size if isinstance(size, list) and all(isinstance(one, int) and one > 0 for one in size) else []
    m, n, *_ = [*extents, 1, 1]
    return GemmProblem(m, n, 1)
