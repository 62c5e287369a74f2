"""A config set made ready to be asked: exact, else near within the allowed regret, else the vendor."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterator
from typing import Literal

from tilewright.artifact import Serves
from tilewright.problem import GemmProblem
from tilewright.sets import ConfigSet, SetEntry

Kind = Literal["exact", "nearest", "vendor"]
_Group = list[tuple[GemmProblem, SetEntry]]
_MOST_PICKS = 65536


@dataclasses.dataclass(frozen=True, slots=True)
class Policy:
    """What may answer for a problem.

    Attributes:
        max_regret: most that a near match may be expected to lose to a kernel tuned for the very problem,
            as a part of its time; None for exact matches only.
        deterministic: only kernels that give the same bits at every launch.
    """

    max_regret: float | None = 0.1
    deterministic: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Pick:
    """What answers for a problem, and how it was found.

    Attributes:
        kind: ``exact``, ``nearest`` or ``vendor``.
        reason: why it is the vendor library; equal to ``kind`` otherwise.
        entry: the tuned kernel and what is known of it; None where the set has none that may run.
        distance: octaves between its problem and the one asked for.
        expected_regret: of a near match.
        miss: a kernel tuned for the very problem is missing.
    """

    kind: Kind
    reason: str
    entry: SetEntry | None = None
    distance: float = 0.0
    expected_regret: float = 0.0
    miss: bool = False


class Catalog:
    """Answers for one config set; safe to share between threads.

    Attributes:
        config_set: what it was made of.
    """

    def __init__(self, config_set: ConfigSet) -> None:
        self.config_set = config_set
        self._exact = {entry.problem: entry for entry in config_set.entries}
        self._near: collections.defaultdict[tuple[Serves, int], _Group] = collections.defaultdict(list)
        for problem, entry in self._exact.items():
            self._near[Serves.of(problem), problem.batch].append((problem, entry))
        self._picks: dict[tuple[GemmProblem, Policy], Pick] = {}

    def pick(self, problem: GemmProblem, policy: Policy) -> Pick:
        """The answer for a problem; under 2 microseconds from the second time on."""
        asked = problem, policy
        found = self._picks.get(asked)
        if found is None:
            if len(self._picks) >= _MOST_PICKS:
                self._picks.clear()
            found = self._picks[asked] = self._search(problem, policy)
        return found

    def _search(self, problem: GemmProblem, policy: Policy) -> Pick:
        entry = self._exact.get(problem)
        if entry is None:
            return next(self._near_matches(problem, policy), Pick("vendor", "no tuned kernel", miss=True))
        if entry.use_vendor:
            return Pick("vendor", "the vendor library was faster in the race", entry)
        if policy.deterministic and not entry.deterministic:
            return Pick("vendor", "the tuned kernel is not repeatable bit by bit", entry)
        return Pick("exact", "exact", entry)

    def _near_matches(self, problem: GemmProblem, policy: Policy) -> Iterator[Pick]:
        """Those that may run and are expected to beat the vendor library nevertheless, nearest first."""
        if policy.max_regret is None:
            return
        group = self._near.get((Serves.of(problem), problem.batch), [])
        for distance, entry in sorted(
            ((octaves(problem, other), entry) for other, entry in group), key=lambda pair: pair[0]
        ):
            regret = self.config_set.expected_regret(distance)
            if regret is None or regret > policy.max_regret:
                return
            if entry.use_vendor or (policy.deterministic and not entry.deterministic):
                continue
            if entry.speedup.low >= 1.0 + regret:
                yield Pick("nearest", "nearest", entry, distance, regret, miss=True)


def octaves(one: GemmProblem, other: GemmProblem) -> float:
    """The length of the difference of (log2 m, log2 n, log2 k)."""
    return math.hypot(math.log2(one.m / other.m), math.log2(one.n / other.n), math.log2(one.k / other.k))
