"""Which config to try next: ask and tell over one or several families.

Each family is an arm with its own study, since their knobs differ. The rule:

1. The family that has had the least for its weight: (best time of any family / its own best
   time) ** e, at least 0.05, where only as many results of each family count as this one has had, so
   that none stays behind because another one was asked more often. e is a quarter of these results, at
   most 4: luck counts little early, and later a family half as fast gets one ask in sixteen. The weight of
   one whose configs all failed falls as slowly.
2. Of that family an initial config, alternating between the caller's configs (the best of near shapes, then
   what follows the vendor library's own choice) and its picks. Initial configs spend at most half of the
   budget, but every family tries one.
3. Once it has none left, or that half is spent, what the sampler draws: by default
   :class:`tuner.search.staged.StagedSampler`.

So half of a budget, if it is not very small, is the search's own, whatever the initial configs say. A failed
config teaches too: the model ranks it below every measured one. If the budget covers the whole space, the
order is all that is left to choose, and the search tries every config.

Proposals are a function of the seed, of the initial configs and of what was told before each ask.
Tells come in the order of asks, and :attr:`Search.ready` holds asks at most ``DEPTH`` ahead of tells; who
asks whenever it is ready gets the same proposals however long each compile takes, and may replay recorded
trials to stand where an interrupted search stood.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from kernels.base.family import ConfigSpace
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.job import Sampler
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import Outcome
from tuner.search.arm import Arm, Draw
from tuner.search.pool import Pool

DEPTH = 4
INITIAL = "initial"
INITIAL_SHARE = 0.5
RESULTS_PER_POWER = 4
SHARPEST = 4.0
LEAST_WEIGHT = 0.05
MEASURED = (Outcome.OK, Outcome.PRUNED)


@dataclasses.dataclass(frozen=True, slots=True)
class Proposal:
    """A config to try.

    Attributes:
        number: position among all asks, from 0.
        config: what to try.
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
    """Ask and tell.

    Attributes:
        size: valid configs over all families.
        measured: ``ok`` and ``pruned`` results told so far.
        asked: proposals made so far.
    """

    def __init__(self, arms: Sequence[Arm], budget: int, seed: int = 0) -> None:
        """``budget`` is the number of measured trials to count on, no more than there are configs."""
        self._arms = {arm.pool.family: arm for arm in arms}
        self._seed = seed
        self._open: deque[tuple[Proposal, Draw]] = deque()
        self._initial_left = max(len(arms), int(INITIAL_SHARE * budget))
        self.size = sum(len(arm.pool) for arm in arms)
        self.budget = min(budget, self.size)
        self.measured = 0
        self.asked = 0

    @property
    def in_flight(self) -> int:
        """Proposals not told yet."""
        return len(self._open)

    @property
    def ready(self) -> bool:
        """Another proposal may be asked for before the next tell."""
        return self.in_flight < DEPTH

    def ask(self) -> Proposal | None:
        """The next config to try, or None where every valid one was proposed.

        Raises:
            RuntimeError: the search is not :attr:`ready`.
        """
        self._need_ready()
        arms = [arm for arm in self._arms.values() if not arm.exhausted]
        if not arms:
            return None
        arm = min(arms, key=lambda one: (one.asked + 1) / self._weight(one))
        initial_configs = arm.initial_configs if self._initial_left > 0 or not arm.pool.free else []
        if initial_configs:
            return self._propose(arm.fixed(initial_configs[0], self._ask_seed, is_initial=True), INITIAL)
        return self._propose(arm.search(self._ask_seed), "search")

    def replay(self, config: Config, origin: str) -> Proposal:
        """Propose what an earlier run proposed at this point; told like any other.

        Raises:
            ValueError: its family is not searched, or it was proposed before.
            RuntimeError: the search is not :attr:`ready`.
        """
        if config.family not in self._arms:
            raise ValueError(
                f"family {config.family} is not searched; give it to the search or start a new job"
            )
        return self._propose(
            self._arms[config.family].fixed(config, self._ask_seed, origin == INITIAL), origin
        )

    def tell(self, proposal: Proposal, outcome: Outcome, value_us: float | None) -> None:
        """Learn how the oldest open proposal ended: ``value_us`` is the median of a measured one.

        Raises:
            ValueError: another proposal is older, or value and outcome do not go together.
        """
        if not self._open or self._open[0][0] != proposal:
            raise ValueError(
                f"tell proposals in the order of asks; {proposal.number} is not the oldest open one"
            )
        if (outcome in MEASURED) != (value_us is not None):
            raise ValueError(
                f"an outcome has a value exactly if it was measured, got {outcome} with {value_us}"
            )
        _, draw = self._open.popleft()
        self.measured += outcome in MEASURED
        self._arms[proposal.family].tell(draw, value_us)

    @property
    def _ask_seed(self) -> int:
        return int(np.random.SeedSequence((self._seed, self.asked)).generate_state(1)[0])

    def _propose(self, draw: Draw, origin: str) -> Proposal:
        proposal = Proposal(self.asked, draw.config, origin)
        self._open.append((proposal, draw))
        self.asked += 1
        self._initial_left -= origin == INITIAL
        return proposal

    def _need_ready(self) -> None:
        if not self.ready:
            raise RuntimeError(f"{DEPTH} proposals are open; tell the oldest before the next ask")

    def _weight(self, arm: Arm) -> float:
        results = len(arm.shown_us)
        own_us = arm.best_us(results)
        times = [us for one in self._arms.values() if (us := one.best_us(results)) is not None]
        sharpness = min(SHARPEST, results / RESULTS_PER_POWER)
        if own_us is None:
            return math.pow(LEAST_WEIGHT, sharpness / SHARPEST) if times else 1.0
        return max(LEAST_WEIGHT, math.pow(min(times) / own_us, sharpness))


def open_search(
    families: Sequence[ConfigSpace[Any]],
    problem: GemmProblem,
    device: DeviceSpec,
    budget: int,
    seed: int = 0,
    initial_configs: Iterable[Config] = (),
    sampler: Sampler = Sampler.STAGED,
) -> Search:
    """A search over the valid configs of ``families``: initial configs and picks alternate, then the sampler
    chooses. Configs of an earlier version are completed, and those that are not valid here left out."""
    given = list(initial_configs)
    pools = [Pool.of(family, problem, device) for family in families]
    size = sum(len(pool) for pool in pools)
    arms = []
    for family, pool in zip(families, pools, strict=True):
        known = [family.completed(config) for config in given if config.family == family.name]
        # NOTE: they alternate because few are tried: configs that won before a knob existed must not keep out
        # those that set it.
        both = itertools.chain(*itertools.zip_longest(known, family.heuristic_configs(problem, device)))
        valid = [one for one in both if one and family.why_invalid(one, problem, device) is None]
        drawn_by = Sampler.RANDOM if size <= budget else sampler
        arms.append(Arm(pool, dict.fromkeys(valid), drawn_by))
    return Search([arm for arm in arms if not arm.exhausted], min(budget, size), seed)
