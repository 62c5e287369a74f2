"""Looks up a problem in a config set: an exact match, else a near one, else the vendor library."""

from __future__ import annotations

import collections
import math
import operator
from collections.abc import Iterator

from tilewright.artifact import Serves
from tilewright.schema.config_set import ConfigSet, SetEntry
from tilewright.schema.match import LookupResult, MatchLimits
from tilewright.schema.problem import GemmProblem

_Point = tuple[float, float, float]
_Group = list[tuple[_Point, SetEntry]]
_MOST_RESULTS = 65536


class Catalog:
    """A config set, indexed for lookups; safe to share between threads."""

    def __init__(self, config_set: ConfigSet) -> None:
        self.config_set = config_set
        self._exact = {entry.problem: entry for entry in config_set.entries}
        self._near: collections.defaultdict[tuple[Serves, int], _Group] = collections.defaultdict(list)
        for problem, entry in self._exact.items():
            self._near[Serves.of(problem), problem.batch].append((_point(problem), entry))
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
        reason = _why_not(entry, problem, limits)
        if reason:
            return LookupResult("vendor", reason)
        if entry.use_vendor:
            disturbed = "others disturbed the race; tune again on an idle device"
            faster = "the vendor library was faster in the race"
            return LookupResult("vendor", disturbed if entry.verdict == "disturbed" else faster, entry)
        return LookupResult("exact", "exact", entry)

    def _near_matches(self, problem: GemmProblem, limits: MatchLimits) -> Iterator[LookupResult]:
        """Near matches that may run and should be faster than the vendor library, nearest first."""
        if limits.max_regret is None:
            return
        here, group = _point(problem), self._near.get((Serves.of(problem), problem.batch), [])
        near = [(math.dist(here, point), entry) for point, entry in group]
        for distance, entry in sorted(near, key=operator.itemgetter(0)):
            regret = self.config_set.expected_regret(distance)
            if regret is None or regret > limits.max_regret:
                return
            faster = not entry.use_vendor and entry.speedup.low >= 1.0 + regret
            if faster and not _why_not(entry, problem, limits):
                yield LookupResult("nearest", "nearest", entry, distance, regret, miss=True)


def _why_not(entry: SetEntry, problem: GemmProblem, limits: MatchLimits) -> str | None:
    """The reason a tuned kernel may not run for a problem, or None."""
    if limits.deterministic and not entry.deterministic:
        return "the tuned kernel is not repeatable bit by bit"
    return entry.preconditions.why_not(problem)


def octaves(one: GemmProblem, other: GemmProblem) -> float:
    """How far two shapes are apart: the length of the difference of (log2 m, log2 n, log2 k)."""
    return math.dist(_point(one), _point(other))


def _point(problem: GemmProblem) -> _Point:
    return math.log2(problem.m), math.log2(problem.n), math.log2(problem.k)
