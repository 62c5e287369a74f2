"""Config sets on the wire, and lookups that answer from them."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tilewright.schema.codec import KeyName, Sha256
from tilewright.schema.config_set import SetDigest, SetEntry
from tilewright.schema.problem import GemmProblem
from tilewright.wire.requests import Body, Match, ProblemBody


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

    problem: GemmProblem
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


class PinBody(Body, frozen=True):
    """``POST /config-sets/current``: what ``current`` of a device class is to answer from now on."""

    device_class: KeyName
    digest: SetDigest


class BundleBody(Body, frozen=True):
    """``POST /config-sets/{digest}/bundle``: which of the set's artifacts are wanted."""

    want: list[Sha256] = Field(min_length=1, max_length=900)


class LookupBody(Body, frozen=True):
    """``POST /best-config/lookup``: what to run for each problem on a device class or architecture.

    Attributes:
        max_regret: of near matches: most that one may be expected to lose to a kernel tuned for the very
            problem, as a part of its time.
        deterministic: only kernels that give the same bits at every launch.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"arch": "sm_90", "match": "nearest", "problems": [{"m": 4096, "n": 4096, "k": 4096}]}
            ]
        },
    )

    arch: KeyName | None = None
    device_class: KeyName | None = None
    problems: list[ProblemBody] = Field(min_length=1, max_length=500)
    match: Match = Match.EXACT
    max_regret: float = Field(default=0.1, ge=0.0, le=1000.0, allow_inf_nan=False)
    deterministic: bool = False

    @model_validator(mode="after")
    def _somewhere(self) -> LookupBody:
        if self.arch is None and self.device_class is None:
            raise ValueError("give arch or device_class; GET /devices lists those of this service")
        return self


class LookupView(BaseModel):
    """What answers for a problem: the same as a client decides by itself from the config set.

    Attributes:
        kind: ``exact``, ``nearest``, or ``vendor``: run the vendor library.
        reason: why it is the vendor library; equal to ``kind`` otherwise.
        device_class: whose set answered; None where none has anything.
        entry: the tuned kernel and what is known of it; None where none may run.
        distance: octaves between its problem and the one asked for.
        expected_regret: of a near match.
        miss: a kernel tuned for the very problem is missing.
    """

    kind: Literal["exact", "nearest", "vendor"]
    reason: str
    device_class: str | None = None
    entry: SetEntry | None = None
    distance: float = 0.0
    expected_regret: float = 0.0
    miss: bool = False


class LookupAnswer(BaseModel):
    """One answer for each problem, in their order."""

    items: list[LookupView]
