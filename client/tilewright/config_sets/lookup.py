"""Looks up a problem in a config set: an exact match, else a near one, else the vendor library."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterator
from typing import Literal

from tilewright.artifact import Serves
from tilewright.schema.config_set import ConfigSet, SetEntry
from tilewright.schema.problem import GemmProblem

Kind = Literal["exact", "nearest", "vendor"]
_Group = list[tuple[GemmProblem, SetEntry]]
_MOST_RESULTS = 65536


@dataclasses.dataclass(frozen=True, slots=True)
class MatchLimits:
    """Which tuned kernels may run for a problem.

    Attributes:
        max_regret: the most that a near match may be expected to lose to a kernel tuned for the problem, as a
            fraction of its time; None for exact matches only.
        deterministic: only kernels that give the same bits at every launch.
    """

    max_regret: float | None = 0.1
    deterministic: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class LookupResult:
    """The kernel to run for a problem, and how it was found.

    Attributes:
        kind: ``exact``, ``nearest`` or ``vendor``.
        reason: why the vendor library is to run; equal to ``kind`` otherwise.
        entry: the tuned kernel and what is known about it; None if the set has none that may run.
        distance: octaves between the kernel's problem and this one.
        expected_regret: of a near match.
        miss: whether no kernel was tuned for this problem.
    """

    kind: Kind
    reason: str
    entry: SetEntry | None = None
    distance: float = 0.0
    expected_regret: float = 0.0
    miss: bool = False


class Catalog:
    """A config set, indexed for lookups; safe to share between threads."""

    def __init__(self, config_set: ConfigSet) -> None:
        self.config_set = config_set
        self._exact = {entry.problem: entry for entry in config_set.entries}
        self._near: collections.defaultdict[tuple[Serves, int], _Group] = collections.defaultdict(list)
        for problem, entry in self._exact.items():
            self._near[Serves.of(problem), problem.batch].append((problem, entry))
        self._results: dict[tuple[GemmProblem, MatchLimits], LookupResult] = {}

    def lookup(self, problem: GemmProblem, limits: MatchLimits) -> LookupResult:
        """The kernel to run for a problem; takes under 2 microseconds from the second time on."""
        key = problem, limits
        found = self._results.get(key)
        if found is None:
            if len(self._results) >= _MOST_RESULTS:
                self._results.clear()
            found = self._results[key] = self._search(problem, limits)
        return found

    def _search(self, problem: GemmProblem, limits: MatchLimits) -> LookupResult:
        entry = self._exact.get(problem)
        if entry is None:
            return next(
                self._near_matches(problem, limits), LookupResult("vendor", "no tuned kernel", miss=True)
            )
        if entry.use_vendor:
            return LookupResult("vendor", "the vendor library was faster in the race", entry)
        if limits.deterministic and not entry.deterministic:
            return LookupResult("vendor", "the tuned kernel is not repeatable bit by bit", entry)
        return LookupResult("exact", "exact", entry)

    def _near_matches(self, problem: GemmProblem, limits: MatchLimits) -> Iterator[LookupResult]:
        """Near matches that may run and should be faster than the vendor library, nearest first."""
        if limits.max_regret is None:
            return
        group = self._near.get((Serves.of(problem), problem.batch), [])
        for distance, entry in sorted(
            ((octaves(problem, other), entry) for other, entry in group), key=lambda pair: pair[0]
        ):
            regret = self.config_set.expected_regret(distance)
            if regret is None or regret > limits.max_regret:
                return
            if entry.use_vendor or (limits.deterministic and not entry.deterministic):
                continue
            if entry.speedup.low >= 1.0 + regret:
                yield LookupResult("nearest", "nearest", entry, distance, regret, miss=True)


def octaves(one: GemmProblem, other: GemmProblem) -> float:
    """The length of the difference of (log2 m, log2 n, log2 k)."""
    return math.hypot(math.log2(one.m / other.m), math.log2(one.n / other.n), math.log2(one.k / other.k))
