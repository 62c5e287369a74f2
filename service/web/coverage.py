"""Coverage: which products are tuned, by device class, weight and rows, and where device time is at stake."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Literal

from service.web.charts import Cell, Chart, Column
from service.web.html import clip
from tilewright.config_sets.lookup import Catalog
from tilewright.schema.entries import MissRecord
from tilewright.schema.match import MatchLimits
from tilewright.schema.problem import GemmProblem
from tuner.store.reports.winners import Headline

State = Literal["tuned", "near", "vendor", "stale", "missing"]
MOST_WEIGHTS = 40
MOST_ROWS = 24
_LIMITS = MatchLimits()
_COLUMNS = (
    Column("m", "M, rows"),
    Column("weight", "weight: N x K, type, layout, options"),
    Column("state", "state"),
    Column("stake", "device time at stake", "s"),
    Column("median", "median time", "µs"),
    Column("basis", "basis"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Cover:
    """One product of the grid: what answers for it, and the device seconds at stake."""

    problem: GemmProblem
    state: State
    stake_s: float
    median_us: float | None
    basis: str

    @property
    def weight(self) -> str:
        """The product without M."""
        one = self.problem
        return f"{one.n} x {one.k} {one.without_extents}{f' x{one.batch}' if one.batch > 1 else ''}"


@dataclasses.dataclass(frozen=True, slots=True)
class Coverage:
    """The grid of one device class, and the products that are worth tuning, most at stake first."""

    device_class: str
    chart: Chart
    to_tune: list[Cover]
    counts: dict[State, int]


def coverage(
    device_class: str,
    found: Sequence[Headline],
    misses: Sequence[MissRecord],
    catalog: Catalog | None,
    staleness: Callable[[Headline], str],
) -> Coverage:
    """What is tuned on a device class, what is near, and what is missing.

    Args:
        found: the winners of the class.
        misses: its open misses, the largest stake first.
        catalog: what the class is served, for near matches; None if it has no winner.
        staleness: what changed since a result was measured.
    """
    covers = {one.problem: _of_winner(one, staleness(one)) for one in found}
    for miss in misses:
        covers[miss.problem] = _of_miss(miss, covers.get(miss.problem), catalog)
    weights = _ranked(list(covers.values()))
    chosen = weights[:MOST_WEIGHTS]
    grid = [cover for weight in chosen for cover in _row(weight, covers, catalog)]
    rows: list[tuple[Cell, ...]] = [
        (one.problem.m, one.weight, one.state, one.stake_s, one.median_us, one.basis)
        for one in sorted(grid, key=lambda one: one.problem.m)
    ]
    counts = {state: sum(one.state == state for one in covers.values()) for state in _STATES}
    note = (
        f"{len(weights):,} weights, {len(covers):,} products of winners and of misses that clients reported; "
        "a cell between them is filled where a near result answers"
    )
    if len(chosen) < len(weights):
        note += f"; the {len(chosen)} weights with most at stake are shown"
    chart = Chart(
        "coverage",
        "grid",
        f"Coverage of {clip(device_class, 60)}",
        _COLUMNS,
        rows,
        note,
        {"use": [0, 1, 2], "x": 0},
    )
    return Coverage(device_class, chart, _worth(list(covers.values())), counts)


_STATES: tuple[State, ...] = ("tuned", "near", "vendor", "stale", "missing")


def _of_winner(one: Headline, stale: str) -> Cover:
    if stale != "fresh":
        return Cover(one.problem, "stale", 0.0, one.median_us, stale)
    if one.verdict in ("vendor", "disturbed") or (one.speedup < 1.0 and not one.stands_in):
        basis = f"{clip(one.baseline, 20)} is run: speed-up {one.speedup:.3f}"
        return Cover(one.problem, "vendor", 0.0, one.median_us, basis)
    return Cover(
        one.problem, "tuned", 0.0, one.median_us, f"speed-up {one.speedup:.3f}, {clip(one.method, 40)}"
    )


def _of_miss(miss: MissRecord, known: Cover | None, catalog: Catalog | None) -> Cover:
    basis = (
        f"ran {miss.count:,} times, {'measured' if miss.measured else 'estimated'} {miss.time_us:.4g} µs each"
    )
    if known:
        return dataclasses.replace(known, stake_s=miss.stake_s, basis=f"{known.basis}; {basis}")
    state = _nearest(miss.problem, catalog)
    return Cover(miss.problem, state, miss.stake_s, miss.time_us, basis)


def _nearest(problem: GemmProblem, catalog: Catalog | None) -> State:
    found = catalog.lookup(problem, _LIMITS) if catalog else None
    return "near" if found and found.kind in ("ladder", "nearest") else "missing"


def _ranked(covers: Sequence[Cover]) -> list[str]:
    """The weights, those with most at stake first, then those with most products."""
    stakes: dict[str, tuple[float, int]] = defaultdict(lambda: (0.0, 0))
    for one in covers:
        stake, count = stakes[one.weight]
        stakes[one.weight] = stake + one.stake_s, count + 1
    return sorted(stakes, key=lambda name: (-stakes[name][0], -stakes[name][1], name))


def _row(weight: str, covers: dict[GemmProblem, Cover], catalog: Catalog | None) -> list[Cover]:
    """The known products of a weight, and those between them that a near result answers."""
    mine = [one for one in covers.values() if one.weight == weight]
    known = {one.problem.m for one in mine}
    others = [m for m in _rows_of(covers) if m not in known]
    base = mine[0].problem
    between = (dataclasses.replace(base, m=m) for m in others)
    near = (problem for problem in between if _nearest(problem, catalog) == "near")
    filled = [Cover(problem, "near", 0.0, None, "a near result answers") for problem in near]
    return [*mine, *filled]


def _rows_of(covers: dict[GemmProblem, Cover]) -> list[int]:
    """The values of M that occur most often, in order."""
    counts: dict[int, int] = defaultdict(int)
    for one in covers.values():
        counts[one.problem.m] += 1
    return sorted(sorted(counts, key=lambda m: -counts[m])[:MOST_ROWS])


def _worth(covers: Sequence[Cover]) -> list[Cover]:
    open_ones = [one for one in covers if one.state != "tuned" or one.stake_s]
    return sorted(open_ones, key=lambda one: (-one.stake_s, one.state != "vendor"))[:50]
