"""Config sets on the wire: immutable snapshots of what a device class is served, named by their content."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from tilewright.wire.requests import KeyName, ProblemFields
from tilewright.wire.results import BaselineView, ConfigView, SpeedupView, View

SetDigest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$", max_length=71)]
ArtifactDigest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", max_length=64)]


class SetEntry(View):
    """One problem of a set and what to run for it.

    Attributes:
        artifact: digest of the kernel, ``artifact_bytes`` long; the set's bundle has it.
        median_us: microseconds of one GEMM in the final race; ``low_us`` and ``high_us`` enclose it.
        use_vendor: the vendor library was faster in the race, if only by less than it can tell: run that.
        numerics, deterministic, staleness: as in :class:`tilewright.wire.BestConfigView`.
    """

    problem: ProblemFields
    config: ConfigView
    artifact: str
    artifact_bytes: int
    median_us: float
    low_us: float
    high_us: float
    baseline: BaselineView
    speedup: SpeedupView
    verdict: str
    use_vendor: bool
    numerics: str
    deterministic: bool
    staleness: str
    job_id: str
    created: datetime


class RegretBand(BaseModel):
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
    pairs: int


class ConfigSet(BaseModel):
    """A snapshot: the winners of a device class at one moment.

    Attributes:
        digest: ``sha256:`` of the canonical JSON of everything but ``digest`` and ``created_at``.
        near: what near matches cost, by distance; empty where the store cannot tell yet.
    """

    digest: SetDigest
    device_class: str
    arch: str
    created_at: datetime
    entries: list[SetEntry]
    near: list[RegretBand] = []


class SetInfo(BaseModel):
    """A snapshot without its entries.

    ``serving`` is ``pinned`` or ``latest`` where it is what ``current`` of its class answers.
    """

    digest: str
    device_class: str
    arch: str
    created_at: datetime
    entries: int
    serving: Literal["pinned", "latest"] | None = None


class SetList(BaseModel):
    """A page of snapshots, the newest first; ``next`` is the cursor of the next page."""

    items: list[SetInfo]
    next: str | None = None


class SetChange(BaseModel):
    """A problem on which two sets differ.

    Attributes:
        before, after: the entries; None where a set has none for the problem.
        time_ratio: median of ``before`` over that of ``after``: above 1 it got faster. None where either
            is missing.
        decided: the two medians' intervals do not overlap.
    """

    problem: ProblemFields
    before: SetEntry | None = None
    after: SetEntry | None = None
    time_ratio: float | None = None
    decided: bool = False


class SetDiff(BaseModel):
    """From set ``a`` to set ``b``; ``unchanged`` counts the entries that say the same in both."""

    a: str
    b: str
    added: list[SetChange]
    removed: list[SetChange]
    changed: list[SetChange]
    unchanged: int


class PinBody(BaseModel):
    """``POST /config-sets/current``: what ``current`` of a device class is to answer from now on."""

    model_config = ConfigDict(extra="forbid")

    device_class: KeyName
    digest: SetDigest


class BundleBody(BaseModel):
    """``POST /config-sets/{digest}/bundle``: which of the set's artifacts are wanted."""

    model_config = ConfigDict(extra="forbid")

    want: list[ArtifactDigest] = Field(min_length=1, max_length=900)
