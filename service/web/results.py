"""Views of results: did it pay, can I believe it, the roofline, two sides compared, and the report."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from kernels import limits
from service.web import html
from service.web.charts import Cell, Chart, Column
from tilewright import __version__
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import DType, GemmProblem
from tilewright.schema.trial import BestConfig, Trial
from tuner.measure.between_races import BETWEEN_RACES, Figure
from tuner.store.records import utc_now
from tuner.store.reports.winners import Headline

MOST_ROWS = 200
MOST_SAMPLES = 1000  # of a row: no race here takes so many, but an import may hold any number
_DAY_S = 86400.0
_LONGEST_US = 1e12


@dataclasses.dataclass(frozen=True, slots=True)
class Filter:
    """Which results are shown: an empty text or 0 leaves a choice open; ``days`` is the greatest age."""

    dtype: str = ""
    family: str = ""
    device_class: str = ""
    verdict: str = ""
    days: int = 0

    def takes(self, one: Headline) -> bool:
        """Whether a result is shown, as far as the query of the database did not choose already."""
        return self.family in ("", one.family) and self.verdict in ("", verdict_of(one))


def summary(found: Sequence[Headline]) -> dict[str, Any]:
    """What the views of results tell above their plots, and the first results."""
    return {
        "found": found[:MOST_ROWS],
        "count": len(found),
        "verdicts": Counter(verdict_of(one) for one in found),
        "mean": mean(found),
        "methods": methods(found),
        "span": span(found),
    }


def verdict_of(one: Headline) -> str:
    """The verdict, but ``alone`` where the vendor library has no kernel and another product stood in: no race
    says that ours is faster."""
    return "alone" if one.stands_in and one.verdict == "kernel" else one.verdict


def mean(found: Sequence[Headline]) -> float:
    """Geometric mean of the speed-ups of what is run for these problems: those that the race proved. All else
    counts as 1: of ties chance alone decides which are above."""
    logs = [math.log(one.speedup) if verdict_of(one) == "kernel" else 0.0 for one in found]
    return math.exp(sum(logs) / len(logs)) if logs else 1.0


def confidence(found: Sequence[Headline]) -> str:
    """The levels of the intervals of results."""
    levels = sorted({one.confidence for one in found})
    return " to ".join(f"{100 * level:.3g} %" for level in dict.fromkeys([*levels[:1], *levels[-1:]]))


Field = tuple[Column, Callable[[Headline], Cell]]
_WHERE: tuple[Field, ...] = (
    (Column("problem", "problem"), lambda one: str(one.problem)),
    (Column("device_class", "device class"), lambda one: html.clip(one.device_class, 60)),
)
_MEDIAN: Field = Column("median", "median time", "µs"), lambda one: one.median_us
_HOW: tuple[Field, ...] = (
    (Column("family", "family"), lambda one: html.clip(one.family, 40)),
    (Column("method", "method"), lambda one: html.clip(one.method, 40)),
    (Column("age", "age", "days"), lambda one: days_old(one.created)),
    (Column("result", "result"), lambda one: one.id),
)


def _table(
    fields: Sequence[Field], found: Sequence[Headline]
) -> tuple[tuple[Column, ...], list[tuple[Cell, ...]]]:
    """The columns and the rows of some results."""
    return tuple(column for column, _ in fields), [tuple(of(one) for _, of in fields) for one in found]


def payoff(found: Sequence[Headline]) -> Chart:
    """The speed-up of each result with its interval, losers first."""
    fields: tuple[Field, ...] = (
        *_WHERE,
        (Column("speedup", "speed-up over the vendor library"), lambda one: one.speedup),
        (Column("low", f"{confidence(found)} interval from".lstrip()), lambda one: one.low),
        (Column("high", "to"), lambda one: one.high),
        (Column("verdict", "verdict"), verdict_of),
        _MEDIAN,
        (Column("vendor", "vendor's median", "µs"), lambda one: one.baseline_us),
        *_HOW,
    )
    shown = found[:MOST_ROWS]
    columns, rows = _table(fields, shown)
    note = f"{len(found):,} results of head-to-heads ({methods(found)}), {span(found)}; 1 is no difference"
    if len(shown) < len(found):
        note += f"; the {len(shown)} with the lowest speed-up are shown, a filter narrows them"
    options = {"use": [0, 2, 3, 4, 5], "x": 2, "link": 11, "to": "/view/results/"}
    return Chart("payoff", "intervals", "Speed-up over the vendor library", columns, rows, note, options)


def methods(found: Sequence[Headline]) -> str:
    """The methods of measurement of results, the first few by name."""
    names = sorted({one.method for one in found})
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return html.clip(", ".join(names[:3]), 120) + more if names else "none"


def span(found: Sequence[Headline]) -> str:
    """From when to when results were measured."""
    if not found:
        return "none measured"
    days = sorted({one.created.date().isoformat() for one in found})
    return f"measured {days[0]}" if len(days) == 1 else f"measured {days[0]} to {days[-1]}"


def days_old(when: datetime) -> float:
    """The age of a result in days."""
    return round((datetime.now(UTC) - when).total_seconds() / _DAY_S, 2)


_SAMPLES = (
    Column("sample", "sample"),
    Column("time", "time", "µs"),
    Column("of", "of"),
    Column("mhz", "clock", "MHz"),
    Column("watts", "power", "W"),
    Column("method", "method"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """Raw samples under a name, with the mean clock and power meanwhile and the method."""

    name: str
    samples_us: Sequence[float]
    mhz: float | None
    watts: float | None
    method: str


def raced(best: BestConfig) -> list[Row]:
    """The rows of the races of a result, as far as they are stored. Clock and power are the means of a race,
    of the winner and the vendor library together."""
    timing, vendor, name = best.timing, best.vendor_samples, html.clip(best.baseline.name, 20)
    method = html.clip(timing.method, 40)
    rows = [Row("winner, head-to-head", timing.samples_us, timing.mhz, timing.watts, method)]
    if vendor:
        final = (vendor.final_mhz, vendor.final_watts, method)
        rows += [
            Row(f"{name}, head-to-head", vendor.head_to_head_us, timing.mhz, timing.watts, method),
            Row("winner, launches apart", vendor.winner_apart_us, timing.mhz, timing.watts, method),
            Row(f"{name}, launches apart", vendor.apart_us, timing.mhz, timing.watts, method),
            Row("winner, final", vendor.winner_final_us, *final),
            Row(f"{name}, final", vendor.final_us, *final),
        ]
    return [
        dataclasses.replace(row, samples_us=row.samples_us[:MOST_SAMPLES]) for row in rows if row.samples_us
    ]


def apart(best: BestConfig) -> dict[str, float] | None:
    """The medians of the ``kernel`` and the ``vendor`` library with launches apart; None if those were not
    timed."""
    times = best.baseline.detail.get("apart_us")
    known = isinstance(times, dict) and all(
        isinstance(times.get(of), int | float) and 0 < times[of] < _LONGEST_US for of in ("kernel", "vendor")
    )
    return times if known else None


def distributions(best: BestConfig, age: str) -> Chart:
    """The distribution of the samples of the races: for each sample, the part of its row that took no
    longer."""
    columns = (
        Column("time", "time", "µs"),
        Column("part", "part of the samples"),
        Column("of", "of"),
        Column("mhz", "mean clock", "MHz"),
        Column("watts", "mean power", "W"),
        Column("method", "method"),
    )
    rows: list[tuple[Cell, ...]] = []
    for one in raced(best):
        count = len(one.samples_us)
        rows += [
            (us, index / count, one.name, one.mhz, one.watts, one.method)
            for index, us in enumerate(sorted(one.samples_us), 1)
        ]
    kept = "" if best.vendor_samples else "; this result keeps no samples of the vendor library"
    note = f"for each sample the part of its row that took no longer, {age}{kept}"
    options = {"x": 0, "y": 1, "group": 2}
    return Chart("distributions", "scatter", "Distributions of the races", columns, rows, note, options)


def samples(best: BestConfig, tried: Sequence[Trial], age: str) -> Chart:
    """The raw samples of a result in their order: of its races, and of the search for the winner and its
    ties."""
    searched = [
        Row(_role(one, best), one.timing.samples_us, one.timing.mhz, one.timing.watts, one.timing.method)
        for one in tried
        if one.timing and one.timing.samples_us
    ]
    rows: list[tuple[Cell, ...]] = []
    for row in [*raced(best), *searched][:12]:
        rows += [
            (index, value, row.name, row.mhz, row.watts, html.clip(row.method, 40))
            for index, value in enumerate(row.samples_us[:MOST_SAMPLES])
        ]
    note = (
        f"one mark a sample, in the order taken, {age}; the line is the vendor library's median in the race"
    )
    lines = [
        {
            "name": f"{html.clip(best.baseline.name, 20)}, median",
            "points": _level(rows, best.baseline.median_us),
        }
    ]
    options = {"x": 0, "y": 1, "group": 2, "lines": lines}
    return Chart("samples", "scatter", "Raw samples", _SAMPLES, rows, note, options)


def _role(trial: Trial, best: BestConfig) -> str:
    name = "winner" if trial.config == best.config else "tie"
    return f"{name}, search trial {trial.number}"


def _level(rows: Sequence[Sequence[Cell]], value: float) -> list[list[float]]:
    last = max((float(row[0]) for row in rows if isinstance(row[0], int)), default=1.0)
    return [[0, value], [last, value]]


_MOST_POINTS = 2000


@dataclasses.dataclass(frozen=True, slots=True)
class Roofline:
    """The plot, of how many results, and how many of them have no known limit."""

    chart: Chart
    count: int
    unknown: int


def roofline(found: Sequence[Headline], devices: Mapping[str, DeviceSpec]) -> Roofline:
    """All results against the limits of their devices, those that lose most time first."""
    roofs = {
        one.id: roof
        for one in found
        if (device := devices.get(one.device_class)) and (roof := limits.roof(one.problem, device, one.mhz))
    }
    limit = {result: roof.us for result, roof in roofs.items() if roof.us}

    def lost(one: Headline) -> Cell:
        return one.median_us - limit[one.id] if one.id in limit else None

    def reached(one: Headline) -> Cell:
        return limit[one.id] / one.median_us if one.id in limit else None

    def intensity(one: Headline) -> Cell:
        return one.problem.flops / one.problem.total_bytes

    fields: tuple[Field, ...] = (
        *_WHERE,
        (Column("intensity", "arithmetic intensity", "FLOP/byte"), intensity),
        (Column("tflops", "throughput", "TFLOP/s"), lambda one: one.tflops),
        (Column("limit", "limit", "µs"), lambda one: limit.get(one.id)),
        _MEDIAN,
        (Column("lost", "time lost to the limit", "µs"), lost),
        (Column("reached", "part of the limit reached"), reached),
        (Column("bound", "bound by"), lambda one: roofs[one.id].name if one.id in roofs else "unknown"),
        *_HOW,
    )
    columns, rows = _table(fields, found)
    rows.sort(key=lambda row: -float(row[6] or 0))
    note = f"{len(rows):,} results ({methods(found)}), {span(found)}; limits at each result's own clock"
    if len(rows) > _MOST_POINTS:
        note += f"; the {_MOST_POINTS} that lose most are shown"
    lines = [line for device in devices.values() for line in _roofs(device, rows)]
    options = {"x": 2, "y": 3, "group": 9, "logx": True, "logy": True, "lines": lines}
    options |= {"link": 12, "to": "/view/results/"}
    title = "Throughput by arithmetic intensity"
    chart = Chart("roofline", "scatter", title, columns, rows[:_MOST_POINTS], note, options)
    return Roofline(chart, len(found), len(found) - len(roofs))


def _roofs(device: DeviceSpec, rows: Sequence[Sequence[Cell]]) -> list[dict[str, object]]:
    """The memory roof of a device up to the compute roof of 16-bit types at its highest clock."""
    mine = [float(row[2] or 1) for row in rows if row[1] == device.device_class.id]
    rate = limits.multiply_adds(DType.FLOAT16, device)
    if not mine or not rate or not device.memory_gbps or not device.clock_mhz:
        return []
    peak = 2 * rate * device.sm_count * device.clock_mhz / 1e6
    ridge = peak / device.memory_gbps * 1e3
    low, high = min([*mine, ridge]), max([*mine, ridge])
    points = [[low, low * device.memory_gbps / 1e3], [ridge, peak], [high, peak]]
    return [
        {
            "name": f"{device.arch}: memory, and 16-bit tensor cores at {device.clock_mhz} MHz",
            "points": points,
        }
    ]


_COMPARED = (
    Column("problem", "problem"),
    Column("ratio", "time of the left over the right"),
    Column("low", "interval from"),
    Column("high", "to"),
    Column("verdict", "verdict"),
    Column("left", "left", "µs"),
    Column("right", "right", "µs"),
    Column("left_family", "left family"),
    Column("right_family", "right family"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Side:
    """A result on one side of a comparison: its time with the interval of its race, in microseconds."""

    median_us: float
    low_us: float
    high_us: float
    family: str


def compared(left: Mapping[GemmProblem, Side], right: Mapping[GemmProblem, Side]) -> Chart:
    """The problems that both sides have; above 1 the right side is faster."""
    rows: list[tuple[Cell, ...]] = []
    for problem in left.keys() & right.keys():
        a, b = left[problem], right[problem]
        times = [Figure(one.median_us, one.low_us, one.high_us) for one in (a, b)]
        ratio, low, high = times[0].over(times[1])
        verdict = "kernel" if low > 1 else "vendor" if high < 1 else "tie"
        rows.append((str(problem), ratio, low, high, verdict, a.median_us, b.median_us, a.family, b.family))
    rows.sort(key=lambda row: (float(row[1] or 0), str(row[0])))
    note = (
        f"{len(rows):,} problems of both; {len(left.keys() - right.keys()):,} only left, "
        f"{len(right.keys() - left.keys()):,} only right; intervals are {100 * (BETWEEN_RACES - 1):.0f} % "
        "or more on both sides, as races of one kernel differ"
    )
    shown = rows[:MOST_ROWS]
    options = {"use": [0, 1, 2, 3, 4], "x": 1}
    return Chart(
        "compared",
        "intervals",
        "Left over right: above 1 the right is faster",
        _COMPARED,
        shown,
        note,
        options,
    )


def report(found: Sequence[Headline], devices: Mapping[str, DeviceSpec], title: str) -> str:
    """The results with their plots; scripts and styles are in the file."""
    roof = roofline(found, devices)
    charts = (payoff(found), roof.chart)
    return html.page(
        "report.html",
        title=title,
        charts={chart.name: chart for chart in charts},
        **summary(found),
        unknown=roof.unknown,
        made=utc_now(),
        version=__version__,
        csv_query="",
    )
