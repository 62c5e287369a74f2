"""Config sets as clients use them: immutable snapshots of what a device class is served, named by their
content. What they look like on the wire is in :mod:`tilewright.wire.sets`; reading them takes no pydantic,
whose import costs more than a whole start from the cache."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from datetime import datetime
from typing import Any, Self

from tilewright.artifact import is_digest
from tilewright.config import Config
from tilewright.errors import ArtifactError, InvalidProblem
from tilewright.problem import GemmProblem
from tilewright.trial import Baseline

# What is written. In sets without a format, or of one below 2, ``deterministic`` was not measured but claimed
# of every kernel family that was known.
FORMAT = 2
_OUTSIDE_THE_DIGEST = ("digest", "created_at")
_PROBLEM_FIELDS = {field.name for field in dataclasses.fields(GemmProblem)}


@dataclasses.dataclass(frozen=True, slots=True)
class Speedup:
    """Vendor time over kernel time with its confidence interval; above 1 the kernel wins."""

    value: float
    low: float
    high: float
    confidence: float

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """From parsed JSON."""
        return cls(*(_number(data, name) for name in ("value", "low", "high", "confidence")))


@dataclasses.dataclass(frozen=True, slots=True)
class SetEntry:
    """One problem of a set and what to run for it: see :class:`tilewright.wire.SetEntry`."""

    problem: GemmProblem
    config: Config
    artifact: str
    artifact_bytes: int
    median_us: float
    low_us: float
    high_us: float
    baseline: Baseline
    speedup: Speedup
    verdict: str
    use_vendor: bool
    numerics: str
    deterministic: bool
    staleness: str
    job_id: str
    created: datetime

    @classmethod
    def from_dict(cls, data: dict[str, Any], measured: bool = True) -> Self:
        """From parsed JSON; only where it was ``measured`` is a kernel deterministic."""
        config, baseline = _read(data, "config", dict), _read(data, "baseline", dict)
        return cls(
            problem=_problem(_read(data, "problem", dict)),
            config=Config.of(_read(config, "family", str), _read(config, "knobs", dict)),
            artifact=_digest(data, "artifact"),
            artifact_bytes=_read(data, "artifact_bytes", int),
            median_us=_number(data, "median_us"),
            low_us=_number(data, "low_us"),
            high_us=_number(data, "high_us"),
            baseline=Baseline(
                _read(baseline, "name", str), _number(baseline, "median_us"), _read(baseline, "detail", dict)
            ),
            speedup=Speedup.from_dict(_read(data, "speedup", dict)),
            verdict=_read(data, "verdict", str),
            use_vendor=_read(data, "use_vendor", bool),
            numerics=_read(data, "numerics", str),
            deterministic=_read(data, "deterministic", bool) and measured,
            staleness=_read(data, "staleness", str),
            job_id=_read(data, "job_id", str),
            created=datetime.fromisoformat(_read(data, "created", str)),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class RegretBand:
    """What a near match costs: see :class:`tilewright.wire.RegretBand`."""

    max_distance: float
    expected: float
    p90: float
    pairs: int

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """From parsed JSON."""
        return cls(
            _number(data, "max_distance"),
            _number(data, "expected"),
            _number(data, "p90"),
            _read(data, "pairs", int),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class ConfigSet:
    """A snapshot: the winners of a device class at one moment, see :class:`tilewright.wire.ConfigSet`."""

    digest: str
    device_class: str
    arch: str
    created_at: datetime
    entries: tuple[SetEntry, ...]
    near: tuple[RegretBand, ...] = ()

    @classmethod
    def from_bytes(cls, content: bytes, digest: str | None = None) -> Self:
        """A snapshot whose content was checked against its digest, and against the one expected.

        Raises:
            ArtifactError: it is damaged, or another one than expected.
        """
        try:
            raw = json.loads(content)
            found = cls.from_dict(raw)
            real = content_digest(raw)
        except (ValueError, OverflowError, RecursionError, InvalidProblem) as error:
            raise ArtifactError(f"not a config set: {str(error)[:500]}") from error
        if found.digest != real or (digest is not None and digest != real):
            raise ArtifactError(f"a config set named {digest or found.digest} has the content of {real}")
        return found

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """From parsed JSON; fields that a newer service added are read over.

        Raises:
            ValueError, OverflowError, InvalidProblem: a field is missing, of another type or out of range.
        """
        looked = measured(data)
        return cls(
            digest=_read(data, "digest", str),
            device_class=_read(data, "device_class", str),
            arch=_read(data, "arch", str),
            created_at=datetime.fromisoformat(_read(data, "created_at", str)),
            entries=tuple(SetEntry.from_dict(entry, looked) for entry in _read(data, "entries", list)),
            near=tuple(RegretBand.from_dict(band) for band in _read({"near": []} | data, "near", list)),
        )

    def expected_regret(self, distance: float) -> float | None:
        """Mean regret of a match ``distance`` octaves away; None where nothing is known that far out."""
        return next((band.expected for band in self.near if distance <= band.max_distance), None)


def measured(raw: Any) -> bool:
    """Whether a snapshot, as parsed from JSON, says of its kernels what was seen: ``deterministic`` of older
    services means nothing."""
    found = _read({"format": 1} | raw if type(raw) is dict else raw, "format", int)
    return bool(found >= 2)


def content_digest(raw: dict[str, Any]) -> str:
    """The digest of a snapshot as parsed from JSON: fields that a newer service added count as well."""
    content = {name: value for name, value in raw.items() if name not in _OUTSIDE_THE_DIGEST}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _problem(data: dict[str, Any]) -> GemmProblem:
    known = {name: value for name, value in data.items() if name in _PROBLEM_FIELDS}
    for name in known.keys() & {"has_bias", "has_c"}:
        _read(known, name, bool)
    return GemmProblem.from_dict(known)


def _digest(data: dict[str, Any], name: str) -> str:
    value: str = _read(data, name, str)
    if not is_digest(value):  # NOTE: it becomes the name of a file
        raise ValueError(f"{name} is no SHA-256 in 64 lower-case hexadecimal digits: {value[:80]!r}")
    return value


def _number(data: dict[str, Any], name: str) -> float:
    return float(_read(data, name, float, int))


def _read(data: Any, name: str, *kinds: type) -> Any:
    """A field of a JSON object, of one of the exact types: a bool is no int."""
    value = data.get(name) if type(data) is dict else None
    if type(value) not in kinds:
        raise ValueError(f"{name} is missing or not {' or '.join(kind.__name__ for kind in kinds)}")
    return value
