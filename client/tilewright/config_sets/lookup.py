"""Looks up a problem in a config set: an exact match, else a kernel between two rows of the M ladder, else a
near match, else the vendor library."""

from __future__ import annotations

import bisect
import copy
import math
import operator
from collections.abc import Iterator, Sequence
from typing import Self

from tilewright.artifact import Serves
from tilewright.schema.config_set import ConfigSet, RegretBand, SetEntry, expected_regret
from tilewright.schema.match import LookupResult, MatchLimits
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import LadderKernel

_Point = tuple[float, float, float]
_Group = dict[GemmProblem, tuple[_Point, SetEntry]]
_Weight = tuple[Serves, int, int, int]
_Alike = tuple[Serves, int]
WIDEST = 2  # how far apart two rows may be that answer between them, as a factor
_MOST_RESULTS = 65536
_LEAST_SPEEDUP = 0.99  # a kernel whose speed-up is below it counts as slower between two rows


class Catalog:
    """The entries of a config set, indexed for lookups; safe to share between threads."""

    def __init__(self) -> None:
        self._bands: Sequence[RegretBand] = ()
        self._exact: dict[GemmProblem, SetEntry] = {}
        self._near: dict[_Alike, _Group] = {}
        self._rows: dict[_Weight, list[SetEntry]] = {}
        self._results: dict[tuple[GemmProblem, MatchLimits], LookupResult] = {}

    @classmethod
    def of(cls, config_set: ConfigSet) -> Self:
        """The catalog of a set."""
        return cls().changed((), config_set.entries, config_set.near)

    def changed(self, gone: Sequence[SetEntry], new: Sequence[SetEntry], near: Sequence[RegretBand]) -> Self:
        """The catalog without the entries ``gone`` and with those that are ``new``, for what near matches
        cost now. It shares what stays, so that a few changes among thousands of entries cost little."""
        made = copy.copy(self)
        made._bands, made._results = near, {}
        made._exact, made._near, made._rows = self._exact.copy(), self._near.copy(), self._rows.copy()
        problems = [entry.problem for entry in (*gone, *new)]
        for alike in set(map(_alike, problems)):
            made._near[alike] = self._near.get(alike, {}).copy()
        for weight in set(map(_weight, problems)):
            made._rows[weight] = list(self._rows.get(weight, ()))
        for entry in gone:
            del made._exact[entry.problem], made._near[_alike(entry.problem)][entry.problem]
            made._rows[_weight(entry.problem)].remove(entry)
        for entry in new:
            made._exact[entry.problem] = entry
            made._near[_alike(entry.problem)][entry.problem] = _point(entry.problem), entry
            bisect.insort(made._rows[_weight(entry.problem)], entry, key=_m)
        return made

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
            found = self._between_rows(problem, limits) or next(self._near_matches(problem, limits), None)
            return found or LookupResult("vendor", "no tuned kernel", miss=True)
        reason = _why_not(entry, problem, limits)
        if reason:
            return LookupResult("vendor", reason)
        if entry.use_vendor:
            disturbed = "others disturbed the race; tune again on an idle device"
            faster = "the vendor library was faster in the race"
            return LookupResult("vendor", disturbed if entry.verdict == "disturbed" else faster, entry)
        return LookupResult("exact", "exact", entry)

    def _between_rows(self, problem: GemmProblem, limits: MatchLimits) -> LookupResult | None:
        """The winner of one of the two rows around a problem: the winner that lost less on the other row.

        It must not be slower than the vendor library on either row; the vendor library if no such winner may
        run. None if near matches are off, if the problem is not between two rows of a ladder that are at most
        a factor of 2 apart, if the vendor library won a race of a single problem between them, or if neither
        winner was measured on both.
        """
        if limits.max_regret is None:
            return None
        rows = self._rows.get(_weight(problem), [])
        place = bisect.bisect(rows, problem.m, key=_m)
        below = next((row for row in range(place - 1, -1, -1) if rows[row].kernels), None)
        above = next((row for row in range(place, len(rows)) if rows[row].kernels), None)
        if below is None or above is None or rows[above].problem.m > WIDEST * rows[below].problem.m:
            return None
        if any(one.verdict == "vendor" for one in rows[below + 1 : above]):
            return None
        both = rows[below], rows[above]
        known = [(entry, on) for entry in both if (on := _measured(entry, both))]
        if not known:
            return None
        faster = [(entry, on) for entry, on in known if not _slower(both, on)]
        regrets = [(max(one.regret for one in on), entry) for entry, on in faster]
        allowed = [
            (regret, entry)
            for regret, entry in regrets
            if regret <= limits.max_regret and not _why_not(entry, problem, limits)
        ]
        if not allowed:
            slower = "the vendor library was faster on a row beside it"
            reason = "no kernel of its ladder may run" if faster else slower
            return LookupResult("vendor", reason, miss=bool(faster))
        regret, entry = min(allowed, key=operator.itemgetter(0))
        return LookupResult("ladder", "ladder", entry, octaves(problem, entry.problem), regret)

    def _near_matches(self, problem: GemmProblem, limits: MatchLimits) -> Iterator[LookupResult]:
        """Near matches that may run and should be faster than the vendor library, nearest first."""
        if limits.max_regret is None:
            return
        here, group = _point(problem), self._near.get(_alike(problem), {})
        near = [(math.dist(here, point), point, entry) for point, entry in group.values()]
        for distance, _, entry in sorted(near, key=operator.itemgetter(0, 1)):
            regret = expected_regret(self._bands, distance)
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


def _measured(entry: SetEntry, rows: Sequence[SetEntry]) -> list[LadderKernel]:
    """The figures of a kernel on each of two rows; empty if it was not measured on both."""
    found = [one for row in rows for one in row.kernels or () if one.artifact == entry.artifact]
    return found if len(found) == len(rows) else []


def _slower(rows: Sequence[SetEntry], on: Sequence[LadderKernel]) -> bool:
    """Whether the vendor library was faster than a kernel on a row; True if that is unknown."""
    return any(
        row.verdict == "disturbed" or (_loses(row, one) and not row.baseline.stands_in)
        for row, one in zip(rows, on, strict=True)
    )


def _loses(row: SetEntry, kernel: LadderKernel) -> bool:
    """Whether a kernel is slower than the vendor library: by more than 1 %, or beyond an interval as wide as
    that of the row's winner."""
    upper = kernel.speedup * row.speedup.high / row.speedup.value
    return upper < 1.0 or kernel.speedup < _LEAST_SPEEDUP


def _alike(problem: GemmProblem) -> _Alike:
    """All fields of a problem except m, n and k."""
    return Serves.of(problem), problem.batch


def _weight(problem: GemmProblem) -> _Weight:
    """All fields of a problem except m."""
    return Serves.of(problem), problem.batch, problem.n, problem.k


def _m(entry: SetEntry) -> int:
    return entry.problem.m


def octaves(one: GemmProblem, other: GemmProblem) -> float:
    """How far two shapes are apart: the length of the difference of (log2 m, log2 n, log2 k)."""
    return math.dist(_point(one), _point(other))


def _point(problem: GemmProblem) -> _Point:
    return math.log2(problem.m), math.log2(problem.n), math.log2(problem.k)
