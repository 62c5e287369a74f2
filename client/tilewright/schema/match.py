"""Limits on the tuned kernels that may run for a problem, and the result of a lookup."""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from typing import Annotated, Literal

from tilewright.schema.codec import Bounds
from tilewright.schema.config_set import SetEntry


class Match(StrEnum):
    """The kinds of stored results that may answer for a problem."""

    EXACT = "exact"
    NEAREST = "nearest"


@dataclasses.dataclass(frozen=True, slots=True)
class MatchLimits:
    """Limits on the tuned kernels that may run for a problem.

    Attributes:
        max_regret: largest expected regret of a near match, or between two rows of a ladder, against a kernel
            tuned for the problem, as a fraction of its time; None for exact matches only.
        deterministic: only kernels that give the same bits at every launch.
    """

    max_regret: float | None = 0.1
    deterministic: bool = False


# NOTE: without slots, so that requests of the wire can inherit the fields.
@dataclasses.dataclass(frozen=True, kw_only=True)
class MatchOptions:
    """The limits as fields of a request.

    Attributes:
        match: ``exact`` or ``nearest``.
        max_regret: the most that a near match may be expected to lose to a kernel tuned for the problem, as a
            fraction of its time; near matches of unknown regret are refused.
        deterministic: only kernels that give the same bits at every launch.
    """

    match: Match = Match.EXACT
    max_regret: Annotated[float, Bounds(0.0, 1000.0)] = 0.1
    deterministic: bool = False

    @property
    def limits(self) -> MatchLimits:
        """The limits of these options."""
        return MatchLimits(self.max_regret if self.match is Match.NEAREST else None, self.deterministic)


# NOTE: without slots, so that the answer of the wire can inherit the fields.
@dataclasses.dataclass(frozen=True)
class LookupResult:
    """The kernel to run for a problem, and the kind of the match.

    Attributes:
        kind: ``exact``, ``ladder`` (between two rows of an M ladder), ``nearest`` or ``vendor``.
        reason: the reason to run the vendor library; equal to ``kind`` otherwise.
        entry: the tuned kernel, even if the vendor library was faster; None if none may run.
        distance: octaves between the kernel's problem and this one.
        expected_regret: expected regret of a near match; between two rows of a ladder the larger of those
            that the kernel had on them.
        miss: whether no kernel was tuned for this problem.
    """

    kind: Literal["exact", "ladder", "nearest", "vendor"]
    reason: str
    entry: SetEntry | None = None
    distance: float = 0.0
    expected_regret: float = 0.0
    miss: bool = False
