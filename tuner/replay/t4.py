"""Recorded spaces in T4, the results format of the auto-tuning community, version 1.0.0.

Schema: github.com/odgaard/TuningSchema, branch T4, ``results-schema.json``. Times are in milliseconds, as
in the files of other tools. What the schema has no place for (values of the knobs, problem, device,
provenance) is under ``metadata``; files without it are read as well, with what the results tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernels.family import Knob
from tilewright.config import KnobValue
from tilewright.device import DeviceSpec
from tilewright.problem import GemmProblem
from tilewright.trial import Outcome
from tuner.replay.space import Entry, RecordedSpace, SpaceError, assemble
from tuner.stats import median

VERSION = "1.0.0"
_DIGITS = 6
_INVALIDITY = {
    Outcome.OK: "correct",
    Outcome.INVALID: "constraints",
    Outcome.COMPILE_ERROR: "compile",
    Outcome.LAUNCH_ERROR: "runtime",
    Outcome.WRONG_RESULT: "correctness",
    Outcome.TIMEOUT: "timeout",
}
_OUTCOMES = {text: outcome for outcome, text in _INVALIDITY.items()}
_UNKNOWN_DEVICE = DeviceSpec("cuda", "unknown", "unknown", 0, 0, 0)


def to_t4(space: RecordedSpace) -> dict[str, Any]:
    """A space as plain data of the format."""
    configs = [dict(space.index.config(row).knobs) for row in range(len(space))]
    metadata = {
        "name": space.name,
        "family": space.family,
        "knobs": {knob.name: list(knob.values) for knob in space.knobs},
        "problem": space.problem.to_dict(),
        "device": space.device.to_dict(),
        "provenance": dict(space.provenance),
    }
    results = [result(config, entry) for config, entry in zip(configs, space.entries, strict=True)]
    return {"schema_version": VERSION, "metadata": metadata, "results": results}


def result(config: Mapping[str, KnobValue], entry: Entry) -> dict[str, Any]:
    """One element of ``results``."""
    times: dict[str, Any] = {"compilation_time": _round(1000 * entry.compile_s)}
    times["validation"] = _round(1000 * entry.check_s)
    times["runtimes"] = [_round(sample / 1000) for sample in entry.samples_us]
    correct = entry.outcome is Outcome.OK
    return {
        "configuration": dict(config),
        "objectives": ["time"],
        "times": times,
        "invalidity": _INVALIDITY[entry.outcome],
        "correctness": int(entry.outcome is not Outcome.WRONG_RESULT),
        "measurements": _measured(entry) if correct else [_measurement("message", entry.message, "")],
    }


def entry(data: Mapping[str, Any]) -> Entry:
    """The inverse of :func:`result`; files of other tools may lack what is not required.

    Raises:
        SpaceError: its validity is none of the format's.
    """
    times = data["times"]
    known = {one["name"]: one["value"] for one in data.get("measurements", ())}
    outcome = _OUTCOMES.get(data["invalidity"])
    if outcome is None:
        raise SpaceError(f"invalidity must be one of {', '.join(_OUTCOMES)}, got {data['invalidity']!r}")
    ok = outcome is Outcome.OK
    samples = (times.get("runtimes") or [known["time"]]) if ok else ()
    return Entry(
        tuple(1000.0 * float(sample) for sample in samples),
        outcome,
        "" if ok else str(known.get("message", data["invalidity"])),
        float(times.get("compilation_time", times.get("compilation", 0.0))) / 1000,
        float(times.get("validation", 0.0)) / 1000,
        int(known.get("registers", 0)),
        int(known.get("smem", 0)),
    )


def from_t4(data: Mapping[str, Any], name: str) -> RecordedSpace:
    """The space of a parsed file.

    Raises:
        SpaceError: the file is empty or contradicts itself.
    """
    results = data.get("results")
    if not results:
        raise SpaceError(f"{name}: a T4 file has a list of results that is not empty")
    metadata = data.get("metadata", {})
    knobs = _knobs(metadata.get("knobs"), results)
    configs = [[one["configuration"][knob.name] for knob in knobs] for one in results]
    points, entries = assemble(knobs, configs, [entry(one) for one in results])
    problem, device = metadata.get("problem"), metadata.get("device")
    return RecordedSpace(
        name=str(metadata.get("name", name)),
        family=str(metadata.get("family", name)),
        knobs=knobs,
        points=points,
        entries=entries,
        problem=GemmProblem.from_dict(problem) if problem else GemmProblem(1, 1, 1),
        device=DeviceSpec.from_dict(device) if device else _UNKNOWN_DEVICE,
        provenance=metadata.get("provenance", {}),
    )


def _knobs(
    given: Mapping[str, Sequence[KnobValue]] | None, results: Sequence[Mapping[str, Any]]
) -> tuple[Knob, ...]:
    if given is not None:
        return tuple(Knob(name, tuple(values), "") for name, values in given.items())
    names = results[0]["configuration"]
    return tuple(Knob(name, _values(name, results), "") for name in names)


def _values(name: str, results: Sequence[Mapping[str, Any]]) -> tuple[KnobValue, ...]:
    values = {one["configuration"][name] for one in results}
    return tuple(sorted(values, key=lambda value: (isinstance(value, str), value)))


def _measured(entry: Entry) -> list[dict[str, Any]]:
    found = [_measurement("time", _round(median(entry.samples_us) / 1000), "ms")]
    found += [_measurement("registers", entry.registers, "")] if entry.registers else []
    found += [_measurement("smem", entry.smem, "B")] if entry.smem else []
    return found


def _measurement(name: str, value: float | str, unit: str) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit}


def _round(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
