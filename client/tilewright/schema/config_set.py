"""Config sets: immutable snapshots of the winners of a device class, named by the digest of their content."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Self

from tilewright.errors import ArtifactError, InvalidProblem
from tilewright.schema.codec import Count, KeyName, Pattern, Positive, Sha256, decode
from tilewright.schema.config import Config
from tilewright.schema.kernel import Preconditions
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import Baseline, LadderKernel

# The format that is written. In sets without a format, or below 2, ``deterministic`` was not measured, but
# set for every kernel of a known family. Sets of a format below 3 lack the preconditions of their kernels.
FORMAT = 3
SetDigest = Annotated[str, Pattern("sha256:[0-9a-f]{64}")]
_OUTSIDE_THE_DIGEST = ("digest", "created_at")
_ARTIFACT = re.compile(r"[0-9a-f]{64}")
# The digest and the class stand before the entries, in every release.
_HEAD_BYTES = 4096
_DIGEST_AT_HEAD = re.compile(rb'"digest":\s*"(sha256:[0-9a-f]{64})"')
_CLASS_AT_HEAD = re.compile(rb'"device_class":\s*"([A-Za-z0-9._-]{1,128})"')
# NOTE: parsed, a value takes up to some hundred bytes however short its text is; those of entries have 16.
_VALUE_BYTES, _ANY_VALUES_BYTES = 12, 2**20


@dataclasses.dataclass(frozen=True, slots=True)
class Speedup:
    """Vendor time over kernel time with its confidence interval in the race; above 1 the kernel wins."""

    value: Positive
    low: float
    high: float
    confidence: float


@dataclasses.dataclass(frozen=True, slots=True)
class SetEntry:
    """One problem of a set and its kernel.

    Attributes:
        artifact: digest of the kernel, ``artifact_bytes`` long; the set's bundle has it.
        median_us: microseconds of one GEMM in the final race; ``low_us`` and ``high_us``: its interval.
        use_vendor: whether to run the vendor library, because the speed-up is below 1.
        numerics, deterministic, staleness: as in :class:`tilewright.wire.BestConfigView`.
        preconditions: preconditions of the kernel, which a near problem must meet.
        kernels: of a row of an M ladder, its kernels that were measured there.
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
    preconditions: Preconditions = dataclasses.field(default_factory=Preconditions)
    kernels: tuple[LadderKernel, ...] | None = None

    @property
    def may_run(self) -> bool:
        """Whether any lookup gives the kernel: on a ladder one that ties with the vendor library, though it
        does not run on its own row, may run between that and the next one."""
        return not self.use_vendor or (self.verdict == "tie" and bool(self.kernels))

    def of_format(self, found: int) -> Self:
        """The entry of a set of an earlier format, with what that format does not tell assumed to the worst:
        the kernel is not deterministic, and needs all that holds for the problem it was tuned for."""
        deterministic = self.deterministic and found >= 2
        assumed = Preconditions.assumed(self.problem)
        return dataclasses.replace(self, deterministic=deterministic, preconditions=assumed)


@dataclasses.dataclass(frozen=True, slots=True)
class RegretBand:
    """The regret of near matches within a distance, from shapes answered by the winners of other shapes.

    Attributes:
        max_distance: largest distance, in octaves of (m, n, k).
        expected: mean regret: time over the best time, less 1.
        p90: 90th percentile of the regret.
        pairs: number of pairs of shapes that this is estimated from, including those of smaller distances.
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
        near: regret of near matches by distance; empty if the store has too few results.
        format: see :data:`FORMAT`.
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
        """The snapshot in ``content``, checked against its own digest and against ``digest`` if given.

        Raises:
            ArtifactError: it is damaged, or has another digest.
        """
        try:
            _check_density(content)
            raw = json.loads(content)
            found = cls.from_dict(raw)
            real = content_digest(raw)
        except (ValueError, OverflowError, RecursionError, InvalidProblem) as error:
            raise ArtifactError(f"not a config set, fetch it again: {str(error)[:500]}") from error
        if found.digest != real or (digest is not None and digest != real):
            raise ArtifactError(
                f"the content of config set {digest or found.digest} has the digest {real}; fetch it again"
            )
        return found

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """The snapshot in parsed JSON; fields that a newer service added are ignored.

        Raises:
            ValueError, OverflowError, InvalidProblem: a field is missing, of another type or out of range.
        """
        found = decode(cls, data)
        if found.format >= FORMAT:
            return found
        entries = tuple(entry.of_format(found.format) for entry in found.entries)
        return dataclasses.replace(found, entries=entries)


def expected_regret(near: Iterable[RegretBand], distance: float) -> float | None:
    """The mean regret of a match ``distance`` octaves away; None if that is unknown."""
    return next((band.expected for band in near if distance <= band.max_distance), None)


def claimed_names(content: bytes) -> tuple[str, str]:
    """The device class and the digest that a snapshot claims, read from its first bytes and not checked.

    Raises:
        ArtifactError: it claims none.
    """
    head = content[:_HEAD_BYTES]
    device_class, digest = _CLASS_AT_HEAD.search(head), _DIGEST_AT_HEAD.search(head)
    if device_class is None or digest is None:
        raise ArtifactError("not a config set, fetch it again: it names no device class or no digest")
    return device_class[1].decode(), digest[1].decode()


def _check_density(content: bytes) -> None:
    """Raise ValueError for values so short that they would take many times their bytes in memory."""
    if len(content) > _ANY_VALUES_BYTES:
        values = sum(content.count(mark) for mark in (b",", b"[", b"{"))
        if values * _VALUE_BYTES > len(content):
            raise ValueError(f"{values} values in {len(content)} bytes are too many")


def content_digest(raw: dict[str, Any]) -> str:
    """The digest of a snapshot in parsed JSON, including fields that a newer service added."""
    content = {name: value for name, value in raw.items() if name not in _OUTSIDE_THE_DIGEST}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return digest_of(text.encode())


def digest_of(*canonical: bytes) -> str:
    """The digest of a snapshot by its JSON, in parts, without ``digest`` and ``created_at``, keys sorted."""
    found = hashlib.sha256()
    for part in canonical:
        found.update(part)
    return f"sha256:{found.hexdigest()}"


def is_digest(name: str) -> bool:
    """Whether a name is a SHA-256 in lower-case hex, and so safe as a file name."""
    return _ARTIFACT.fullmatch(name) is not None
