"""Config sets on the wire, and lookups in them."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from tilewright.schema.codec import KeyName, Sha256
from tilewright.schema.config_set import SetDigest, SetEntry
from tilewright.schema.match import LookupResult
from tilewright.schema.problem import GemmProblem
from tilewright.wire.requests import Body, LookupQuery, ProblemBody


class SetInfo(BaseModel):
    """A snapshot without its entries.

    ``serving`` is ``pinned`` or ``latest`` if ``current`` of its class answers with it.
    """

    digest: str
    device_class: str
    arch: str
    created_at: datetime
    entries: int
    serving: Literal["pinned", "latest"] | None = None


class SetList(BaseModel):
    """A page of snapshots, the latest first; ``next`` is the cursor of the next page."""

    items: list[SetInfo]
    next: str | None = None


class SetChange(BaseModel):
    """A problem on which two sets differ.

    Attributes:
        before, after: the entries; None if a set has none for the problem.
        time_ratio: median of ``before`` over that of ``after``, above 1 if it got faster; None if either is
            missing.
        decided: whether the medians differ by more than their intervals and 7 %, as those of one kernel may
            from race to race.
    """

    problem: GemmProblem
    before: SetEntry | None = None
    after: SetEntry | None = None
    time_ratio: float | None = None
    decided: bool = False


class SetDiff(BaseModel):
    """The changes from set ``a`` to set ``b``; ``unchanged`` counts the entries that are equal in both."""

    a: str
    b: str
    added: list[SetChange]
    removed: list[SetChange]
    changed: list[SetChange]
    unchanged: int


class PinBody(Body, frozen=True):
    """``POST /config-sets/current``: the set that ``current`` of a device class answers with."""

    device_class: KeyName
    digest: SetDigest


class BundleBody(Body, frozen=True):
    """``POST /config-sets/{digest}/bundle``: the artifacts of the set to send."""

    want: list[Sha256] = Field(min_length=1, max_length=900)


class LookupBody(Body, LookupQuery, frozen=True):
    """``POST /best-config/lookup``: problems to look up for a device class or architecture."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"arch": "sm_90", "match": "nearest", "problems": [{"m": 4096, "n": 4096, "k": 4096}]}
            ]
        },
    )

    problems: list[ProblemBody] = Field(min_length=1, max_length=500)


class LookupView(BaseModel, LookupResult, frozen=True):
    """The result of a lookup, the same that a client finds in the config set.

    Attributes:
        device_class: the device class whose set has the result; None if none has one.
    """

    device_class: str | None = None


class LookupAnswer(BaseModel):
    """One result for each problem, in their order."""

    items: list[LookupView]
