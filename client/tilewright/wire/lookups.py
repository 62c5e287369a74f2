"""Many lookups in one request."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tilewright.wire.requests import KeyName, Policy, ProblemFields
from tilewright.wire.sets import SetEntry


class LookupProblem(ProblemFields):
    """One problem of a :class:`LookupBody`."""

    model_config = ConfigDict(extra="forbid")


class LookupBody(BaseModel):
    """``POST /best-config/lookup``: what to run for each problem on a device class or architecture.

    Attributes:
        max_regret: of near matches: most that one may be expected to lose to a kernel tuned for the very
            problem, as a part of its time.
        deterministic: only kernels that give the same bits at every launch.
    """

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"arch": "sm_90", "policy": "nearest", "problems": [{"m": 4096, "n": 4096, "k": 4096}]}
            ]
        },
    )

    arch: KeyName | None = None
    device_class: KeyName | None = None
    problems: list[LookupProblem] = Field(min_length=1, max_length=500)
    policy: Policy = Policy.EXACT
    max_regret: float = Field(default=0.1, ge=0.0, le=1000.0, allow_inf_nan=False)
    deterministic: bool = Field(default=False, strict=True)

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
