"""Recorded spaces in T4, the results format of the auto-tuning community, version 1.0.0.

Schema: github.com/odgaard/TuningSchema, branch T4, ``results-schema.json``. Times are in milliseconds, as in
the files of other tools. Values of the knobs, problem, device and provenance, for which the schema has no
fields, are under ``metadata``. Files without metadata are read too, with knobs derived from the results.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import secrets
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernels.base.knobs import Knob
from kernels.registry import FAMILIES, RENAMED
from tilewright.errors import naming
from tilewright.schema.codec import KnobValue
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import Outcome
from tuner.measure.stats import median
from tuner.replay.space import Entry, RecordedSpace, SpaceError, assemble

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
    """The inverse of :func:`result`; files of other tools may lack optional fields.

    Raises:
        SpaceError: its validity is not one of the format, or it has no time.
    """
    times = data["times"]
    known = {one["name"]: one["value"] for one in data.get("measurements", ())}
    outcome = _OUTCOMES.get(data["invalidity"])
    if outcome is None:
        raise SpaceError(f"invalidity must be one of {', '.join(_OUTCOMES)}, got {data['invalidity']!r}")
    ok = outcome is Outcome.OK
    if ok and not times.get("runtimes") and "time" not in known:
        raise SpaceError(
            f"no time of {data['configuration']}: a search needs runtimes or a measurement 'time'"
        )
    return Entry(
        _samples("runtimes", times.get("runtimes") or [known["time"]]) if ok else (),
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
        raise SpaceError("a T4 file must have a list of results that is not empty")
    metadata = data.get("metadata", {})
    knobs = _knobs(metadata.get("knobs"), results)
    configs = [[_value(one["configuration"][knob.name]) for knob in knobs] for one in results]
    points, entries = assemble(knobs, configs, [entry(one) for one in results])
    problem, device = metadata.get("problem"), metadata.get("device")
    family = RENAMED.get(metadata.get("family"), metadata.get("family", name))
    return RecordedSpace(
        name=str(metadata.get("name", name)),
        family=family,
        knobs=_renamed(knobs, family),
        points=points,
        entries=entries,
        problem=GemmProblem.from_dict(problem) if problem else GemmProblem(1, 1, 1),
        device=DeviceSpec.from_dict(device) if device else _UNKNOWN_DEVICE,
        provenance=dict(metadata.get("provenance", {})),
    )


def _knobs(
    given: Mapping[str, Sequence[KnobValue]] | None, results: Sequence[Mapping[str, Any]]
) -> tuple[Knob, ...]:
    if given is not None:
        return tuple(Knob(name, tuple(values), "") for name, values in given.items())
    names = results[0]["configuration"]
    return tuple(Knob(name, _values(name, results), "") for name in names)


def _renamed(recorded: Sequence[Knob], family: str) -> tuple[Knob, ...]:
    """Recorded knobs under the current names of a family of ours and of its values."""
    own = FAMILIES[family].knobs if family in FAMILIES else ()
    today = {name: one for one in own for name in (one.was, one.name)}
    return tuple(today[one.name].renamed(one) if one.name in today else one for one in recorded)


def _values(name: str, results: Sequence[Mapping[str, Any]]) -> tuple[KnobValue, ...]:
    values = {_value(one["configuration"][name]) for one in results}
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


_ERRORS = {
    "InvalidConfig": Outcome.INVALID,
    "CompilationFailedConfig": Outcome.COMPILE_ERROR,
    "RuntimeFailedConfig": Outcome.LAUNCH_ERROR,
}
_KEYS = ("device_name", "kernel_name", "tune_params_keys", "tune_params", "cache")


def from_cache(data: Mapping[str, Any], name: str) -> RecordedSpace:
    """The space of a parsed cache file, by its times, whatever its objective was.

    Raises:
        SpaceError: it lacks a key or the times, or a config contradicts the parameters of the file.
    """
    missing = [key for key in _KEYS if key not in data]
    if missing:
        raise SpaceError(f"a Kernel Tuner cache must have {', '.join(missing)}")
    names = list(data["tune_params_keys"])
    values = {name: dict.fromkeys(map(_value, data["tune_params"][name])) for name in names}
    knobs = tuple(Knob(name, tuple(found), "") for name, found in values.items())
    objective = str(data.get("objective", "time"))
    rows = list(data["cache"].values())
    configs = [[_value(row[name]) for name in names] for row in rows]
    points, entries = assemble(knobs, configs, [_entry(row, names, objective) for row in rows])
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


def _value(value: Any) -> KnobValue:
    """An integer or a name unchanged; another number as an integer if it is whole, else as a name."""
    if isinstance(value, str | int):
        return int(value) if isinstance(value, bool) else value
    return int(value) if isinstance(value, float) and value.is_integer() else str(value)


def _entry(row: Mapping[str, Any], names: Sequence[str], objective: str) -> Entry:
    time, compile_s = row.get("time"), _seconds(row, "compile_time")
    named = [one for one in (row.get("__error__"), time, row.get(objective)) if isinstance(one, str)]
    if named:
        error = named[0]
        return Entry((), _ERRORS.get(error, Outcome.LAUNCH_ERROR), error, compile_s)
    if time is None:
        config = {name: row[name] for name in names}
        raise SpaceError(f"no time of {config}: a search needs the key 'time', whatever the objective was")
    return Entry(
        _samples("times", row.get("times") or [time]),
        compile_s=compile_s,
        check_s=_seconds(row, "verification_time"),
    )


def _samples(key: str, listed: Any) -> tuple[float, ...]:
    """Milliseconds of a file as microseconds."""
    if not isinstance(listed, list) or not all(isinstance(one, int | float) for one in listed):
        raise SpaceError(
            f"{key} must be a list of numbers, milliseconds of one launch each, got {listed!r:.80}"
        )
    return tuple(1000.0 * float(sample) for sample in listed)


def _seconds(row: Mapping[str, Any], key: str) -> float:
    value = row.get(key, 0.0)
    return float(value) / 1000 if isinstance(value, int | float) else 0.0


def _problem(size: Any) -> GemmProblem:
    """A stand-in problem, with the extents of D if the size is that of a matrix; such files hold no more."""
    extents = size if isinstance(size, list) and all(isinstance(one, int) and one > 0 for one in size) else []
    m, n, *_ = [*extents, 1, 1]
    return GemmProblem(m, n, 1)


_GZIP = b"\x1f\x8b"
_SUFFIXES = (".gz", ".json", ".t4")


def read_space(path: Path) -> RecordedSpace:
    """A Kernel Tuner cache or a T4 file as a space.

    Raises:
        SpaceError: the file cannot be read, or has neither format.
    """
    data, closed = _parsed(path)
    space = _space(data, path)
    return (
        space if closed else dataclasses.replace(space, provenance={**space.provenance, "interrupted": True})
    )


def _space(data: Mapping[str, Any], path: Path) -> RecordedSpace:
    name = space_name(path)
    try:
        if "results" in data:
            return from_t4(data, name)
        if "cache" in data:
            return from_cache(data, name)
    except SpaceError as error:
        raise SpaceError(f"{path}: {error}") from error
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
        raise SpaceError(f"{path} is damaged, record it again: {type(error).__name__}: {error}") from error
    raise SpaceError(f"{path} must be T4 (key results) or a Kernel Tuner cache (key cache)")


def write_space(space: RecordedSpace, path: Path) -> None:
    """Write a gzipped T4 file, the same bytes for the same space; replaces an existing file once the disk has
    all of the new one.

    Raises:
        OSError: it cannot be written; names it.
    """
    text = json.dumps(to_t4(space), separators=(",", ":"))
    data = gzip.compress(text.encode(), 9, mtime=0)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with naming(path, beside):
        try:
            with beside.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)


def space_name(path: Path) -> str:
    """The file's name without its suffixes."""
    name = path.name
    while name.endswith(_SUFFIXES):
        name = name.rpartition(".")[0]
    return name


def _parsed(path: Path) -> tuple[dict[str, Any], bool]:
    """The object in a file, and whether its JSON was closed."""
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if data.startswith(_GZIP) else data).decode()
        parsed, closed = _json(text)
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:  # of text and JSON, too
        raise SpaceError(f"cannot read {path}, check it: {error}") from error
    if not isinstance(parsed, dict):
        raise SpaceError(f"{path} must hold a JSON object")
    return parsed, closed


def _json(text: str) -> tuple[Any, bool]:
    try:
        return json.loads(text), True
    except json.JSONDecodeError:
        # NOTE: Kernel Tuner closes the JSON of a cache file only at the end of a run; an interrupted file is
        # valid too.
        return json.loads(text.rstrip().rstrip(",") + "}}"), False
