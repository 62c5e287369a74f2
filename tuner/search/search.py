"""Ask and tell over one or several families: which config to try next.

Each family is an arm with its own study, since their knobs differ. The rule:

1. Choose the family with the fewest asks relative to its weight. The weight is (best time of any family /
   best time of this family) ** e, at least 0.05. Only as many results of each family count as this family
   has, so that no family falls behind because another one was asked more often. e is a quarter of these
   results, at most 4: chance counts little early, and later a family half as fast gets one ask in sixteen.
   The weight of a family whose configs all failed falls as slowly. A family may have odds: how likely it is
   to be the fastest. Its weight begins with them. They count less with each of its results and the further it
   leads, and not while no result of another family is faster.
2. Ask for an initial config of that family: one of the caller's (winners of near shapes, then configs with
   the tiling of the vendor library's choice), then two of the family's heuristic configs, and so on.
   Initial configs spend at most a third of the budget, or that of a quick job if it is more: a model learns
   too little from fewer trials. The first ask of a family is always an initial config.
3. When no initial config is left, or their part of the budget is spent, ask the sampler, by default
   :class:`tuner.search.staged.StagedSampler`.

So the sampler chooses most of every budget that is not small. Failed configs count too: the model ranks them
below every measured one. If the budget covers the whole space, the search tries every config.

Several proposals may be pending, asked for and without a result: those that compile ahead of the device, and
those on other devices. :attr:`Search.ready` keeps them at most ``depth``. The samplers take them into account
(:mod:`tuner.search.samplers`), and each family's count of asks includes them.

Proposals are a function of the seed, of the initial configs and of the order of asks and results. Results may
come in any order. A caller that asks whenever the search is ready and then tells one result gets the same
proposals for the same order of results, however long each of them took, and may replay recorded trials to
restore an interrupted search.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from kernels.base.family import ConfigSpace
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.job import QUICK_TRIALS, Sampler
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import Outcome
from tuner.search.arm import Arm
from tuner.search.pool import Pool

DEPTH = 4
INITIAL = "initial"
INITIAL_FRACTION = 1 / 3
RESULTS_PER_POWER = 4
SHARPEST = 4.0
LEAST_WEIGHT = 0.05
FEWEST_RESULTS, MAY_WIN = 3, 2.0
MEASURED = (Outcome.OK, Outcome.PRUNED)


@dataclasses.dataclass(frozen=True, slots=True)
class Proposal:
    """A config to try.

    Attributes:
        number: position among all asks, from 0.
        config: the config to try.
        origin: ``initial`` or ``search``.
    """

    number: int
    config: Config
    origin: str

    @property
    def family(self) -> str:
        """The family of the config."""
        return self.config.family


class Search:
    """Ask and tell over several arms.

    Attributes:
        budget: the number of measured trials to plan for.
        measured: ``ok`` and ``pruned`` results told so far.
        asked: proposals made so far.
        depth: the most proposals that are pending at a time: ``DEPTH`` for one device, one more for each
            further one. It may change at any time.
    """

    def __init__(self, arms: Sequence[Arm], budget: int, seed: int = 0, depth: int = DEPTH) -> None:
        self._arms = {arm.family: arm for arm in arms}
        self._seed = seed
        self._open: dict[Proposal, None] = {}
        self.depth = depth
        self._initial_left = max(QUICK_TRIALS, int(INITIAL_FRACTION * budget))
        self.budget = budget
        self.measured = 0
        self.asked = 0

    @property
    def size(self) -> int:
        """The number of valid configs of the families that were listed so far."""
        return sum(arm.size or 0 for arm in self._arms.values())

    @property
    def planned(self) -> int:
        """The budget, or the number of configs if all are listed and they are fewer."""
        if any(arm.size is None for arm in self._arms.values()):
            return self.budget
        return min(self.budget, self.size + sum(arm.unsearched for arm in self._arms.values()))

    @property
    def exhausted(self) -> bool:
        """Whether every config of every family was proposed or is reserved."""
        return all(arm.exhausted for arm in self._arms.values())

    def list_configs(self) -> None:
        """List the valid configs of all families, in any thread, so that no ask has to."""
        for arm in self._arms.values():
            len(arm.pool)

    @property
    def pending(self) -> tuple[Proposal, ...]:
        """The proposals without a result, in the order of asks."""
        return tuple(self._open)

    @property
    def in_flight(self) -> int:
        """The number of proposals without a result."""
        return len(self._open)

    @property
    def ready(self) -> bool:
        """Whether another proposal may be asked for before the next result."""
        return self.in_flight < self.depth

    def ask(self) -> Proposal | None:
        """The next config to try, or None if every valid one was proposed or is reserved.

        Raises:
            RuntimeError: the search is not :attr:`ready`.
        """
        self._need_ready()
        arms = sorted(self._arms.values(), key=lambda one: (one.asked + 1) / self._weight(one))
        arm = next((arm for arm in arms if not arm.exhausted), None)
        if arm is None:
            return None
        more = self._initial_left > 0 or not arm.asked or not arm.unclaimed
        initial_configs = arm.initial_configs if more else []
        if initial_configs:
            return self._proposal(arm.fixed(initial_configs[0], self._ask_seed, is_initial=True), INITIAL)
        return self._proposal(arm.search(self._ask_seed), "search")

    def propose(self, config: Config, origin: str) -> Proposal:
        """The proposal of a given config, whose result is told like any other: of a trial that an interrupted
        search recorded, or of a first config of a ladder row.

        A config whose family is not searched takes a number, and its result is not learned.

        Raises:
            ValueError: it was proposed before.
        """
        arm = self._arms.get(config.family)
        if arm is None:
            return self._proposal(config, origin)
        return self._proposal(arm.fixed(config, self._ask_seed, origin == INITIAL), origin)

    def reserve(self, configs: Iterable[Config]) -> None:
        """Propose these configs by :meth:`propose` alone.

        An interrupted search of several devices has recorded trials whose numbers have gaps: proposals that
        never got a result. Reserve the recorded ones first, then propose a recorded number and ask for a
        missing one. The ask gives the config that was lost if results are told in their recorded order and
        ``depth`` is the same, else another one, but never one that was recorded.
        """
        for config in configs:
            if arm := self._arms.get(config.family):
                arm.reserve(config)

    def tell(self, proposal: Proposal, outcome: Outcome, value_us: float | None) -> None:
        """Learn the result of a pending proposal; ``value_us`` is its median if it was measured.

        Raises:
            ValueError: the proposal is not pending, or the outcome requires or excludes a value.
        """
        if proposal not in self._open:
            raise ValueError(f"proposal {proposal.number} is not pending; tell each one once")
        if (outcome in MEASURED) != (value_us is not None):
            raise ValueError(
                f"an outcome has a value exactly if it was measured, got {outcome} with {value_us}"
            )
        del self._open[proposal]
        self.measured += outcome in MEASURED
        if arm := self._arms.get(proposal.family):
            arm.tell(proposal.config, value_us)

    @property
    def expected_gain(self) -> float | None:
        """The gain that the models expect of the next ask, as a fraction of the best time; None without one.

        Families without a model count if they may be faster: if they have fewer than 3 results, or one that
        takes at most twice the best time; with odds o, fewer than 3 * o results or one within 2 ** o times.
        """
        best_us = self._best_us
        if best_us is None:
            return None
        gains = []
        for arm in self._arms.values():
            gain = arm.expected_gain(best_us)
            if gain is not None:
                gains.append(gain)
            elif not arm.exhausted and _may_win(arm, best_us):
                return None
        return max(gains, default=None)

    @property
    def _best_us(self) -> float | None:
        """The lowest time of any family."""
        times = (arm.best_us(len(arm.shown_us)) for arm in self._arms.values())
        return min((us for us in times if us is not None), default=None)

    @property
    def _ask_seed(self) -> int:
        return int(np.random.SeedSequence((self._seed, self.asked)).generate_state(1)[0])

    def _proposal(self, config: Config, origin: str) -> Proposal:
        proposal = Proposal(self.asked, config, origin)
        self._open[proposal] = None
        self.asked += 1
        self._initial_left -= origin == INITIAL
        return proposal

    def _need_ready(self) -> None:
        if not self.ready:
            raise RuntimeError(f"{self.in_flight} proposals are pending; tell a result before the next ask")

    def _weight(self, arm: Arm) -> float:
        results = len(arm.shown_us)
        own_us = arm.best_us(results)
        others = [one.best_us(results) for one in self._arms.values() if one is not arm]
        times = [us for us in others if us is not None]
        sharpness = min(SHARPEST, results / RESULTS_PER_POWER)
        if own_us is None:
            return _odds_left(arm) * (math.pow(LEAST_WEIGHT, sharpness / SHARPEST) if times else 1.0)
        if own_us == self._best_us:
            return 1.0
        lead = min(times, default=own_us) / own_us
        weight = _odds_left(arm) * math.pow(lead, SHARPEST if lead > 1 else sharpness)
        return min(1.0, max(LEAST_WEIGHT, weight))


def _odds_left(arm: Arm) -> float:
    """The odds of a family, which come nearer to 1 with each of its results."""
    shown = len(arm.shown_us) / (RESULTS_PER_POWER * SHARPEST)
    return math.pow(arm.odds, max(0.0, 1 - shown))


def _may_win(arm: Arm, best_us: float) -> bool:
    left, own_us = _odds_left(arm), arm.best_us(len(arm.shown_us))
    near = own_us is not None and own_us <= math.pow(MAY_WIN, left) * best_us
    return near or len(arm.shown_us) < FEWEST_RESULTS * left


def open_search(
    families: Sequence[ConfigSpace[Any]],
    problem: GemmProblem,
    device: DeviceSpec,
    budget: int,
    seed: int = 0,
    initial_configs: Iterable[Config] = (),
    sampler: Sampler = Sampler.STAGED,
    depth: int = DEPTH,
    odds: Mapping[str, float] = MappingProxyType({}),
) -> Search:
    """A search over the valid configs of ``families``, with up to ``depth`` proposals pending.

    ``initial_configs`` and the families' heuristic configs come first, then the sampler chooses. Initial
    configs of an earlier version are completed; those that are not valid for the problem are left out.
    ``odds`` says how likely some families are the fastest, above 0 and at most 1; 1 for the others. They
    count relative to the highest of these families.
    """
    given = list(initial_configs)
    chances = [odds.get(family.name, 1.0) for family in families]
    arms = []
    for family, chance in zip(families, chances, strict=True):
        listing = functools.partial(Pool.of, family, problem, device)
        initial = initial_of(family, problem, device, given)
        arms.append(Arm(family.name, listing, initial, sampler, chance / max(chances)))
    return Search([arm for arm in arms if not arm.exhausted], budget, seed, depth)


def initial_of(
    family: ConfigSpace[Any], problem: GemmProblem, device: DeviceSpec, given: Iterable[Config]
) -> list[Config]:
    """The initial configs of a family for a search, in the order in which it tries them."""
    known = [family.completed(config) for config in given if config.family == family.name]
    ranked = heuristic_configs(family, problem, device)
    # NOTE: few are tried, and most problems have their best first config among the heuristic ones
    # (benchmarks/lab/2026-11-29-first-configs.md); those that won elsewhere must not crowd them out.
    both = itertools.chain(*itertools.zip_longest(known, ranked[::2], ranked[1::2]))
    valid = (one for one in both if one and family.why_invalid(one, problem, device) is None)
    return list(dict.fromkeys(valid))


@functools.lru_cache(maxsize=64)
def heuristic_configs(
    family: ConfigSpace[Any], problem: GemmProblem, device: DeviceSpec
) -> tuple[Config, ...]:
    """The heuristic configs of a family. They are cached, because a job asks for them before its search
    opens, and the next row of a ladder asks for them again."""
    return tuple(family.heuristic_configs(problem, device))
