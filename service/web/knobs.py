"""Views of a job's configs: which knobs matter, a slice for each, and all of them side by side."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import TrialState, create_trial

from service.web.charts import Cell, Chart, Column
from tilewright.schema.codec import KnobValue
from tuner.store.reports.trials import Measured

MOST_RATED = 1500  # trials that the importance is computed from
MOST_DRAWN = 600  # lines of parallel coordinates
MOST_SLICED = 800  # marks of one knob's slice
_BEST = 0.1  # fraction of the drawn trials that are the fastest ones
_FEWEST = 20
_SEED = 0


@dataclasses.dataclass(frozen=True, slots=True)
class KnobViews:
    """The plots of one family of a job: importance, and the slices of the knobs that matter most."""

    family: str
    trials: int
    importance: Chart | None
    slices: list[Chart]


def families(trials: Sequence[Measured]) -> list[str]:
    """The families of trials, those with most first."""
    return [name for name, _ in Counter(one.family for one in trials).most_common()]


def knob_views(trials: Sequence[Measured], family: str, method: str) -> KnobViews:
    """What the trials of one family say about its knobs."""
    mine = [one for one in trials if one.family == family]
    names = varied(mine)
    rated = importance(mine, names) if len(mine) >= _FEWEST and names else {}
    chart = _importance_chart(rated, mine, method) if rated else None
    order = sorted(names, key=lambda name: -rated.get(name, 0.0))
    return KnobViews(family, len(mine), chart, [_slice(mine, name, method) for name in order[:12]])


def varied(trials: Sequence[Measured]) -> list[str]:
    """The knobs that have more than one value."""
    seen: dict[str, set[KnobValue]] = {}
    for one in trials:
        for name, value in one.knobs.items():
            seen.setdefault(name, set()).add(value)
    return sorted(name for name, values in seen.items() if len(values) > 1)


def importance(trials: Sequence[Measured], names: Sequence[str]) -> dict[str, float]:
    """The importance of knobs by Optuna's PED-ANOVA: how much the fastest tenth differs in a knob from all.

    Every trial counts up to ``MOST_RATED``; of more, as many chosen at random with a fixed seed.
    """
    some = _chosen(trials, MOST_RATED)
    full = [one for one in some if all(name in one.knobs for name in names)]
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


def _chosen(trials: Sequence[Measured], most: int) -> list[Measured]:
    """All of the trials, or as many of them at random, always the same."""
    if len(trials) <= most:
        return list(trials)
    picked = np.random.default_rng(_SEED).choice(len(trials), most, replace=False)
    return [trials[index] for index in np.sort(picked)]


def _importance_chart(rated: dict[str, float], trials: Sequence[Measured], method: str) -> Chart:
    columns = (Column("knob", "knob"), Column("importance", "importance, part of the whole"))
    rows: list[tuple[Cell, ...]] = [
        (name, rated[name]) for name in sorted(rated, key=lambda name: -rated[name])
    ]
    note = f"PED-ANOVA of Optuna on {_part(len(trials), MOST_RATED)}; {method}"
    return Chart(
        "importance", "bars", "Which knobs decide who is fast", columns, rows, note, {"x": 0, "y": 1}
    )


def _slice(trials: Sequence[Measured], name: str, method: str) -> Chart:
    columns = (Column(name, name), Column("median", "median time", "µs"), Column("trial", "trial"))
    drawn = _with_fastest([one for one in trials if name in one.knobs], MOST_SLICED)
    ordered = sorted(drawn, key=lambda one: _order(one.knobs[name]))
    rows: list[tuple[Cell, ...]] = [(str(one.knobs[name]), one.median_us, one.number) for one in ordered]
    options = {"x": 0, "y": 1, "categories": True, "logy": True}
    note = f"{_part(len(trials), MOST_SLICED)}; {method}"
    return Chart(f"slice-{name}", "scatter", f"Time by {name}", columns, rows, note, options)


def _order(value: KnobValue) -> tuple[bool, float, str]:
    return isinstance(value, str), 0.0 if isinstance(value, str) else float(value), str(value)


def _with_fastest(trials: Sequence[Measured], most: int) -> list[Measured]:
    """As many trials, the fastest among them: a tenth of the fastest, the others at random."""
    if len(trials) <= most:
        return list(trials)
    ranked = sorted(trials, key=lambda one: one.median_us)
    fast = int(most * _BEST)
    return ranked[:fast] + _chosen(ranked[fast:], most - fast)


def _part(count: int, most: int) -> str:
    if count <= most:
        return f"all {count:,} measured trials"
    return f"{most:,} of {count:,} measured trials, chosen at random with a fixed seed, the fastest always"


def parallel(trials: Sequence[Measured], family: str, method: str) -> Chart:
    """The configs of one family side by side, a line each; its time is the last axis."""
    mine = [one for one in trials if one.family == family]
    names = varied(mine)
    drawn = _with_fastest(mine, MOST_DRAWN)
    columns = (*(Column(name, name) for name in names), Column("median", "median time", "µs"))
    rows: list[tuple[Cell, ...]] = [
        (*(str(one.knobs.get(name, "")) for name in names), one.median_us)
        for one in sorted(drawn, key=lambda one: -one.median_us)
    ]
    listed: list[list[str] | None] = [_values(drawn, name) for name in names]
    times = [one.median_us for one in drawn]
    high = float(np.quantile(times, 0.9)) if times else 1.0
    options = {"names": [*listed, None], "colour": len(names), "log": len(names)}
    options |= {"low": min(times, default=0.0), "high": high}
    note = (
        f"{_part(len(mine), MOST_DRAWN)}; {method}; drag along an axis to keep part of it, click to release"
    )
    return Chart(
        "parallel", "parallel", f"Configs of {family} by knob and time", columns, rows, note, options
    )


def _values(trials: Sequence[Measured], name: str) -> list[str]:
    found = {one.knobs[name] for one in trials if name in one.knobs}
    return [str(value) for value in sorted(found, key=_order)]
