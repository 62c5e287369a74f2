"""How the search of a job opens, and the first configs of a ladder row: winners of the neighbouring rows,
then heuristic configs for its M.

The ladder shows which families are worth a trial: a family that was far behind on the nearest row that tried
it gets one config again two octaves further on. One without a chance (:func:`kernels.prior.prior`) gets none,
unless the nearest row that tried it measured it not far behind, or the request names it. One that no row
tried counts by its chance, and configs come in the order of the chances. Rows of one class of M have the same
heuristic configs and share their measurements: a config that was behind on the nearest row makes room for the
next config of its family.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from kernels.base.family import Family
from kernels.prior import prior
from kernels.registry import FAMILIES, families_for
from tilewright.errors import DeviceUnavailable, InvalidProblem, LaunchError
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.job import QUICK_TRIALS, Level, TuneRequest
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import Trial
from tuner.job.context import JobContext
from tuner.job.loop import Ahead
from tuner.job.progress import timed
from tuner.measure.operands import why_too_large
from tuner.search.search import DEPTH, MEASURED, Search, heuristic_configs, initial_of, open_search
from tuner.store.exchange import current_config
from tuner.workers.process import WorkerError
from tuner.workers.recovery import DeviceAway

CLOSE = 1.15  # times the best of a row: the family may win on the next one
FAR = 1.6  # times the best of a row: it is not tried on the next one
AGAIN = 2.0  # octaves of M after which it is
UNLIKELY = 1 / 4  # odds up to which a family that no row tried has few configs
SLOWER = 1.2  # times the least estimate of its family's heuristic configs: a config is not promising
_log = logging.getLogger("tilewright.job")


@dataclasses.dataclass(frozen=True, slots=True)
class Counts:
    """How many first configs a row has.

    Attributes:
        close, other: of a family that may win, and of each other one.
        neighbours: winners of rows beside it.
        most: of all.
    """

    close: int
    other: int
    neighbours: int
    most: int


COUNTS = {Level.FULL: Counts(6, 2, 4, 16), Level.QUICK: Counts(3, 1, 2, 8)}


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """What a row of the ladder measured.

    Attributes:
        m: of the row.
        us: the lowest median of each config, in microseconds.
    """

    m: int
    us: Mapping[Config, float]

    @classmethod
    def of(cls, m: int, trials: Iterable[Trial]) -> Measured:
        """From the trials of a row."""
        found: dict[Config, float] = {}
        for trial in trials:
            if trial.outcome in MEASURED:
                found[trial.config] = min(found.get(trial.config, math.inf), timed(trial).median_us)
        return cls(m, found)

    @property
    def ranked(self) -> list[Config]:
        """The configs, the fastest first."""
        return sorted(self.us, key=self.us.__getitem__)

    def behind(self, config: Config) -> float:
        """How many times the best of the row a config took; 1 if it was not measured."""
        return self.us[config] / min(self.us.values()) if config in self.us else 1.0

    def family_behind(self, name: str) -> float | None:
        """How many times the best of the row the best of a family took; None if it was not measured."""
        times = [self.behind(config) for config in self.us if config.family == name]
        return min(times, default=None)


def first_configs(
    request: TuneRequest, device: DeviceSpec, done: Sequence[Measured], known: Iterable[Config] = ()
) -> list[Config]:
    """The configs that a row tries before its search chooses, the most promising ones first; each once.

    Args:
        request: of the row.
        done: the rows that were searched.
        known: configs from the database, of any release.
    """
    problem, counts = request.problem, COUNTS[request.level]
    near = nearest(done, problem.m)
    chances = prior(problem, device, request.families)
    of_families = {
        name: family_configs(name, problem, device, near, counts, chances[name])
        for name in families_for(problem, device)
        if name in request.families or not request.families
    }
    own = in_order_of_asks(of_families, {name: chance or 1.0 for name, chance in chances.items()})
    beside = winners(near)[: counts.neighbours]
    # NOTE: if there are none, the row beside this one measured them far behind its winner, which counts more
    # than the model.
    if own:
        beside = promising(beside, problem, device)
    chosen = dict.fromkeys([*map(current_config, [*beside, *known]), *own])
    return [config for config in chosen if _valid(config, problem, device)][: counts.most]


def in_order_of_asks(initial: Mapping[str, Sequence[Config]], chances: Mapping[str, float]) -> list[Config]:
    """Initial configs in the order in which a search asks for them, as long as no family leads."""
    asks = [
        ((asked + 1) / chances[name], place, config)
        for place, (name, configs) in enumerate(initial.items())
        for asked, config in enumerate(configs)
    ]
    return [config for *_, config in sorted(asks, key=itemgetter(0, 1))]


def promising(configs: Iterable[Config], problem: GemmProblem, device: DeviceSpec) -> list[Config]:
    """Those of the configs, with today's names, that their family's cost model does not rate far slower than
    the family's heuristic configs; these themselves and what no model rates stay.

    Of 150 first trials that had won on other rows of three weights or had the vendor library's tile, the
    model rates 91 as slower, and none of these came within 2 % of the best
    (benchmarks/lab/2026-11-29-first-configs.md).
    """
    return [one for one in map(current_config, configs) if _estimated_behind(one, problem, device) <= SLOWER]


def _estimated_behind(config: Config, problem: GemmProblem, device: DeviceSpec) -> float:
    """How many times the least estimate of its family's heuristic configs the cost model gives a config; 1 if
    it is one of them, or no model rates it."""
    if not _valid(config, problem, device):
        return 1.0
    family = FAMILIES[config.family]
    clocks = family.estimated_clocks(config, problem, device)
    ranked = heuristic_configs(family, problem, device) if clocks else ()
    if not clocks or config in ranked:
        return 1.0
    estimates = (family.estimated_clocks(one, problem, device) or math.inf for one in ranked)
    return clocks / min(estimates, default=clocks)


def nearest(done: Sequence[Measured], m: int) -> list[Measured]:
    """The rows that measured something, those nearest to ``m`` in octaves first."""
    return sorted((row for row in done if row.us), key=lambda row: abs(math.log2(row.m / m)))


def winners(near: Sequence[Measured]) -> list[Config]:
    """The best config of each of the three nearest rows, and the second best of the nearest row if it is
    close."""
    first = [config for row in near[:3] for config in row.ranked[:1]]
    second = [config for row in near[:1] for config in row.ranked[1:2] if row.behind(config) <= CLOSE]
    return first + second


def family_configs(
    name: str,
    problem: GemmProblem,
    device: DeviceSpec,
    near: Sequence[Measured],
    counts: Counts,
    chance: float = 1.0,
) -> list[Config]:
    """The heuristic configs of a family that a row tries, as many as the rows beside it make worthwhile.

    Args:
        near: the rows that were searched, the nearest first.
        chance: its odds, which decide if none of these tried it; 0 if it gets no config before one of them
            shows that it may win.
    """
    shown = ((row, behind) for row in near if (behind := row.family_behind(name)) is not None)
    row, behind = next(shown, (None, 1.0 if chance > UNLIKELY else FAR if chance else math.inf))
    again = row and chance and abs(math.log2(row.m / problem.m)) >= AGAIN
    if behind > FAR and not again:
        return []
    wanted = counts.close if behind <= CLOSE else counts.other if behind <= FAR else 1
    ranked = heuristic_configs(FAMILIES[name], problem, device)
    for beside in near[:1]:
        there = heuristic_configs(FAMILIES[name], dataclasses.replace(problem, m=beside.m), device)
        if there[:wanted] == ranked[:wanted]:
            ranked = tuple(config for config in ranked if beside.behind(config) <= CLOSE)
    return list(ranked[:wanted])


def _valid(config: Config, problem: GemmProblem, device: DeviceSpec) -> bool:
    family = FAMILIES.get(config.family)
    return family is not None and family.why_invalid(config, problem, device) is None


def open_for(
    context: JobContext,
    initial_configs: Sequence[Config],
    first: Sequence[Config] = (),
    begun: Ahead | None = None,
) -> tuple[Search, Ahead]:
    """The search of a job, whose first configs are ``initial_configs``, those of the vendor library's choice
    and heuristic ones; and compilations that began meanwhile.

    These are of ``first``, or else of what the search will probably ask for first, as many as compile at once
    while one core is left; on the host of none. Those that have ``begun`` already do not begin again.

    Raises:
        InvalidProblem: a family is unknown, or no config of any family is valid for the problem.
    """
    request, device = context.request, context.device
    # What won elsewhere is searched as if the request named it.
    named = {*request.families, *(config.family for config in initial_configs)}
    chances = prior(request.problem, device, named)
    families = _families(request, device, chances)
    too_large = why_too_large(request.problem, device)
    if too_large:
        raise InvalidProblem(too_large)
    given = [*initial_configs, *_vendor_configs(context, families)]
    done = {trial.config for trial in context.recorder.trials()}
    if not first and not done and device.kind != "host":
        most = min(max(DEPTH, context.builder.processes - 1), request.budget, QUICK_TRIALS)
        initial = {family.name: initial_of(family, request.problem, device, given) for family in families}
        first = in_order_of_asks(initial, chances)[:most]
    started = [config for config in first if config not in done and device.kind != "host"]
    known = begun or {}
    ahead = {config: known[config] if config in known else context.submit(config) for config in started}
    search = open_search(
        families, request.problem, device, request.budget, request.seed, given, request.sampler, odds=chances
    )
    if search.exhausted:
        for work in ahead.values():
            work.cancel()
        names = ", ".join(family.name for family in families) or "any family"
        raise InvalidProblem(
            f"no config of {names} is valid for {request.problem} on {device.arch}; tune another problem, or "
            "name other families"
        )
    return search, ahead


def _vendor_configs(context: JobContext, families: Sequence[Family[Any]]) -> list[Config]:
    """Promising configs that follow the vendor library's tile hints; empty if it gives no hint or fails."""
    try:
        hints = context.bench.vendor_tile_hints(context.problem, context.trial_timeout_s)
    except DeviceAway:
        raise
    except (DeviceUnavailable, WorkerError, LaunchError) as error:
        _log.info("job %s: no configs from the vendor library: %s", context.job_id, error)
        return []
    problem, device = context.problem, context.device
    followers = (
        config
        for hint in hints
        for family in families
        for config in family.configs_from_hint(hint, problem, device)
    )
    return promising(followers, problem, device)


def _families(request: TuneRequest, device: DeviceSpec, chances: Mapping[str, float]) -> list[Family[Any]]:
    """The families that a job searches: those that the request names, else those that support the problem and
    have a chance above 0."""
    supported = families_for(request.problem, device)
    for name in request.families:
        if name not in FAMILIES:
            raise InvalidProblem(f"there is no family {name!r}; choose among {', '.join(FAMILIES)}")
        if name not in supported:
            reason = FAMILIES[name].why_unsupported(request.problem, device)
            raise InvalidProblem(f"family {name} does not support {request.problem}: {reason}; leave it out")
    names = request.families or [name for name in supported if chances[name] > 0]
    return [supported[name] for name in names]
