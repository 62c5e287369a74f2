"""Views of a job's configs: which knobs matter, a slice for each, and all of them side by side."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import TrialState, create_trial

from service.web.charts import Cell, Chart, Column
from service.web.html import clip
from tilewright.schema.codec import KnobValue
from tuner.store.reports.trials import Measured, Point

MOST_RATED = 1000  # trials that the importance is computed from
MOST_SHOWN = 800  # trials that slices and parallel coordinates show
_BEST = 0.1  # fraction of the shown trials that are the fastest ones
_FEWEST = 20
_SEED = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """The trials of one family of a job that its plots are made from.

    Attributes:
        family: its name.
        total: how many of its trials were measured.
        rated: numbers of trials chosen at random, to rate knobs by.
        shown: numbers of trials to draw, the fastest among them.
    """

    family: str
    total: int
    rated: frozenset[int]
    shown: frozenset[int]

    @property
    def numbers(self) -> frozenset[int]:
        """All of them."""
        return self.rated | self.shown


@dataclasses.dataclass(frozen=True, slots=True)
class KnobViews:
    """The plots of one family of a job: importance, and the slices of the knobs that matter most."""

    family: str
    trials: int
    importance: Chart | None
    slices: list[Chart]


def families(points: Sequence[Point]) -> list[str]:
    """The families of the measured trials, those with most first."""
    return [name for name, _ in Counter(one.family for one in points if one.measured).most_common()]


def choose(points: Sequence[Point], family: str) -> Sample:
    """The trials that the plots of a family are made from: all, or of many some at random, always the same,
    with the fastest among those that are shown."""
    mine = [one for one in points if one.measured and one.family == family]
    ranked = sorted(mine, key=lambda one: one.median_us or math.inf)
    fast = ranked[: int(MOST_SHOWN * _BEST)]
    others = _some(ranked[len(fast) :], MOST_SHOWN - len(fast))
    shown = frozenset(one.number for one in (*fast, *others))
    return Sample(family, len(mine), frozenset(one.number for one in _some(mine, MOST_RATED)), shown)


def knob_views(trials: Sequence[Measured], sample: Sample, method: str) -> KnobViews:
    """What the trials of a sample say about the knobs of its family."""
    rated = [one for one in trials if one.number in sample.rated]
    shown = [one for one in trials if one.number in sample.shown]
    names = varied(rated)
    found = importance(rated, names)
    note = f"PED-ANOVA of Optuna on {_part(sample.total, MOST_RATED)}; {method}"
    chart = _importance_chart(found, note) if found else None
    order = sorted(names, key=lambda name: -found.get(name, 0.0))
    basis = f"{_part(sample.total, MOST_SHOWN, 'the fastest always')}; {method}"
    return KnobViews(sample.family, sample.total, chart, [_slice(shown, name, basis) for name in order[:12]])


def varied(trials: Sequence[Measured]) -> list[str]:
    """The knobs that have more than one value."""
    seen: dict[str, set[KnobValue]] = {}
    for one in trials:
        for name, value in one.knobs.items():
            seen.setdefault(name, set()).add(value)
    return sorted(name for name, values in seen.items() if len(values) > 1)


def importance(trials: Sequence[Measured], names: Sequence[str]) -> dict[str, float]:
    """The importance of knobs by Optuna's PED-ANOVA: how much the fastest tenth differs from all. None is
    rated where fewer than twenty trials have them all."""
    full = [one for one in trials if all(name in one.knobs for name in names)]
    if not names or len(full) < _FEWEST:
        return {}
    values = {name: sorted({str(one.knobs[name]) for one in full}) for name in names}
    spaces: dict[str, BaseDistribution] = {name: CategoricalDistribution(values[name]) for name in names}
    study = optuna.create_study(direction="minimize")
    study.add_trials(
        create_trial(
            state=TrialState.COMPLETE,
            value=math.log(one.median_us),
            params={name: str(one.knobs[name]) for name in names},
            distributions=spaces,
        )
        for one in full
    )
    return get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())


def _some(points: Sequence[Point], most: int) -> Sequence[Point]:
    if len(points) <= most:
        return points
    picked = np.random.default_rng(_SEED).choice(len(points), most, replace=False)
    return [points[index] for index in np.sort(picked)]


def _importance_chart(rated: dict[str, float], note: str) -> Chart:
    columns = (Column("knob", "knob"), Column("importance", "importance, part of the whole"))
    order = sorted(rated, key=lambda name: -rated[name])
    rows: list[tuple[Cell, ...]] = [(name, rated[name]) for name in order]
    title = "Which knobs decide who is fast"
    return Chart("importance", "bars", title, columns, rows, note, {"x": 0, "y": 1})


def _slice(trials: Sequence[Measured], name: str, note: str) -> Chart:
    columns = (Column(name, name), Column("median", "median time", "µs"), Column("trial", "trial"))
    ordered = sorted((one for one in trials if name in one.knobs), key=lambda one: _order(one.knobs[name]))
    rows: list[tuple[Cell, ...]] = [(str(one.knobs[name]), one.median_us, one.number) for one in ordered]
    options = {"x": 0, "y": 1, "categories": True, "logy": True}
    return Chart(f"slice-{_file_part(name)}", "scatter", f"Time by {name}", columns, rows, note, options)


def _file_part(name: str) -> str:
    """A knob's name as part of a file's; names that others made up may hold anything."""
    plain = re.fullmatch(r"[A-Za-z0-9_]{1,40}", name)
    return name if plain else hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:12]


def _order(value: KnobValue) -> tuple[bool, int, str]:
    # NOTE: no float: what an earlier release imported may be an integer beyond any.
    return isinstance(value, str), 0 if isinstance(value, str) else value, str(value)


def _part(count: int, most: int, more: str = "") -> str:
    if count <= most:
        return f"all {count:,} measured trials"
    part = f"{most:,} of {count:,} measured trials, chosen at random with a fixed seed"
    return f"{part}, {more}" if more else part


def parallel(trials: Sequence[Measured], sample: Sample, method: str) -> Chart:
    """The configs of a sample side by side, a line each; its time is the last axis."""
    shown = [one for one in trials if one.number in sample.shown]
    names = varied(shown)
    columns = (*(Column(name, name) for name in names), Column("median", "median time", "µs"))
    rows: list[tuple[Cell, ...]] = [
        (*(str(one.knobs.get(name, "")) for name in names), one.median_us)
        for one in sorted(shown, key=lambda one: -one.median_us)
    ]
    listed: list[list[str] | None] = [_values(shown, name) for name in names]
    times = [one.median_us for one in shown]
    high = float(np.quantile(times, 0.9)) if times else 1.0
    options = {"names": [*listed, None], "colour": len(names), "log": len(names)}
    options |= {"low": min(times, default=0.0), "high": high}
    part = _part(sample.total, MOST_SHOWN, "the fastest always")
    note = f"{part}; {method}; drag along an axis to keep a part, click to release"
    title = f"Configs of {clip(sample.family, 40)} by knob and time"
    return Chart("parallel", "parallel", title, columns, rows, note, options)


def _values(trials: Sequence[Measured], name: str) -> list[str]:
    found = {one.knobs[name] for one in trials if name in one.knobs}
    return [str(value) for value in sorted(found, key=_order)]
