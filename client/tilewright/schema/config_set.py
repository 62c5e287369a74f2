"""Config sets: immutable snapshots of what a device class is served, named by their content."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from datetime import datetime
from typing import Annotated, Any, Self

from tilewright.errors import ArtifactError, InvalidProblem
from tilewright.schema.codec import Count, KeyName, Pattern, Sha256, decode
from tilewright.schema.config import Config
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import Baseline

# What is written. In sets without a format, or of one below 2, ``deterministic`` was not measured but claimed
# of every kernel family that was known.
FORMAT = 2
SetDigest = Annotated[str, Pattern("sha256:[0-9a-f]{64}")]
_OUTSIDE_THE_DIGEST = ("digest", "created_at")
_ARTIFACT = re.compile(r"[0-9a-f]{64}")


@dataclasses.dataclass(frozen=True, slots=True)
class Speedup:
    """Vendor time over kernel time with its confidence interval; above 1 the kernel wins."""

    value: float
    low: float
    high: float
    confidence: float


@dataclasses.dataclass(frozen=True, slots=True)
class SetEntry:
    """One problem of a set and what to run for it.

    Attributes:
        artifact: digest of the kernel, ``artifact_bytes`` long; the set's bundle has it.
        median_us: microseconds of one GEMM in the final race; ``low_us`` and ``high_us`` enclose it.
        use_vendor: the vendor library was faster in the race, if only by less than it can tell: run that.
        numerics, deterministic, staleness: as in :class:`tilewright.wire.BestConfigView`.
    """

    problem: GemmProblem
    config: Config
    artifact: Sha256
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


@dataclasses.dataclass(frozen=True, slots=True)
class RegretBand:
    """What a near match costs, learned by leaving one shape out and answering it from another one.

    Attributes:
        max_distance: of the band, in octaves of (m, n, k).
        expected: mean of time over the best time, less 1.
        p90: nine in ten cost at most this.
        pairs: shapes answered from another one that this rests on, nearer bands included.
    """

    max_distance: float
    expected: float
    p90: float
    pairs: Count


@dataclasses.dataclass(frozen=True, slots=True)
class ConfigSet:
    """A snapshot: the winners of a device class at one moment.

    Attributes:
        digest: ``sha256:`` of the canonical JSON of everything but ``digest`` and ``created_at``.
        near: what near matches cost, by distance; empty where the store cannot tell yet.
        format: of sets below 2 nobody measured which kernels are deterministic.
    """

    digest: SetDigest
    device_class: KeyName
    arch: KeyName
    created_at: datetime
    entries: tuple[SetEntry, ...]
    near: tuple[RegretBand, ...] = ()
    format: Count = 1

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
        found = decode(cls, data)
        if found.format >= 2:
            return found
        entries = tuple(dataclasses.replace(entry, deterministic=False) for entry in found.entries)
        return dataclasses.replace(found, entries=entries)

    def expected_regret(self, distance: float) -> float | None:
        """Mean regret of a match ``distance`` octaves away; None where nothing is known that far out."""
        return next((band.expected for band in self.near if distance <= band.max_distance), None)


def content_digest(raw: dict[str, Any]) -> str:
    """The digest of a snapshot as parsed from JSON: fields that a newer service added count as well."""
    content = {name: value for name, value in raw.items() if name not in _OUTSIDE_THE_DIGEST}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def is_digest(name: str) -> bool:
    """Whether a name is the SHA-256 of an artifact in lower-case hex, and so safe as the name of a file."""
    return _ARTIFACT.fullmatch(name) is not None
