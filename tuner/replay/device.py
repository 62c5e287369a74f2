"""Stand-ins for compilers, device and store that answer a tuning job from a recorded space.

They have the methods that the live ones have, so that the job above them is the same code. Each
sample is drawn, with replacement, from those that were stored for its config; how many are drawn and
when a candidate is stopped follows :func:`tuner.measure.take`, as on the device.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import numpy as np

from tilewright.artifact import Artifact, Grid, LaunchPlan, Resources, Serves
from tilewright.config import Config
from tilewright.device import DeviceSpec
from tilewright.problem import GemmProblem
from tilewright.trial import BestConfig, Outcome, Timing, Trial
from tuner import measure
from tuner.bench import TrialResult
from tuner.builder import Compiled
from tuner.job import Progress
from tuner.race import RaceSamples
from tuner.replay.space import Entry, RecordedSpace
from tuner.stats import median_interval

METHOD = "recorded"
_COMPILED = frozenset({Outcome.OK, Outcome.LAUNCH_ERROR, Outcome.WRONG_RESULT})


class ReplayBuilder:
    """Answers compilations at once; what failed to compile when it was recorded fails again."""

    def __init__(self, space: RecordedSpace) -> None:
        self._space = space
        self._serves = Serves.of(space.problem)

    def submit(
        self,
        family_name: str,
        config: Config,
        problem: GemmProblem,
        device: DeviceSpec,
    ) -> Future[Compiled]:
        """A finished future; the artifact's binary is the number of the config's row."""
        del family_name, problem, device
        row = self._space.row(config)
        entry = self._space.entries[row]
        done: Future[Compiled] = Future()
        if entry.outcome in _COMPILED:
            done.set_result(Compiled(self._artifact(row, entry), Outcome.OK, "", entry.compile_s))
        else:
            done.set_result(Compiled(None, entry.outcome, entry.message, entry.compile_s))
        return done

    def _artifact(self, row: int, entry: Entry) -> Artifact:
        plan = LaunchPlan("elf", "recorded", METHOD, (1, 1, 1), Grid(1, 1), (), self._serves)
        resources = Resources(registers=entry.registers, static_smem=entry.smem)
        return Artifact(plan, resources, METHOD, METHOD, str(row).encode())


class ReplayBench:
    """Answers trials and races from stored samples; the vendor library of a race is the optimum.

    Noise follows from ``seed`` and the config alone: whoever asks, and in which order.

    Attributes:
        name, spec, driver: of what was recorded.
    """

    def __init__(self, space: RecordedSpace, seed: int) -> None:
        self.name = space.name
        self.spec = space.device
        self.driver = METHOD
        self._space = space
        self._seed = seed
        self._best = int(np.nanargmin(space.true_us))

    def trial(
        self, artifact: Artifact, problem: GemmProblem, incumbent_us: float | None, timeout_s: float
    ) -> TrialResult:
        """What the device would have answered."""
        del problem, timeout_s
        row = row_of(artifact)
        entry = self._space.entries[row]
        if not entry.samples_us:
            return TrialResult(entry.outcome, entry.message, check_s=entry.check_s)
        samples, pruned = measure.take(self._sampler(row, 0), incumbent_us)
        return TrialResult(
            Outcome.PRUNED if pruned else Outcome.OK,
            timing=_timing(samples),
            check_s=entry.check_s,
            measure_s=measure.WARM_UP_S + sum(max(measure.SAMPLE_US, one) for one in samples) / 1e6,
        )

    def race(
        self,
        artifacts: Sequence[Artifact],
        problem: GemmProblem,
        rounds: int,
        seed: int,
        timeout_s: float,
        *,
        vendor: bool = True,
    ) -> RaceSamples:
        """Independent samples of each contender; ``seed`` tells one race from another."""
        del problem, timeout_s
        entrants = [*map(row_of, artifacts), *[self._best] * vendor]
        samplers = [self._sampler(row, 1, seed, place) for place, row in enumerate(entrants)]
        return RaceSamples(
            contenders=(*(artifact.digest for artifact in artifacts), *["vendor"] * vendor),
            samples_us=tuple(tuple(map(sample, range(rounds))) for sample in samplers),
            vendor_name="recorded optimum" if vendor else "",
            vendor_detail={},
            mhz=None,
            watts=None,
            method=METHOD,
        )

    def _sampler(self, row: int, *purpose: int) -> Callable[[int], float]:
        rng = np.random.default_rng((self._seed, row, *purpose))
        stored = self._space.entries[row].samples_us
        drawn = itertools.cycle(rng.choice(stored, size=128).tolist())
        return lambda _number: next(drawn)


class ReplayRecorder:
    """Keeps nothing and resumes nothing: a replay lives in memory."""

    def trials(self) -> list[Trial]:
        """None."""
        return []

    def add_trial(self, trial: Trial, artifact: Artifact | None) -> None:
        """Dropped."""

    def set_progress(self, progress: Progress) -> None:
        """Dropped."""

    def set_best(self, best: BestConfig) -> None:
        """Dropped."""


def row_of(artifact: Artifact) -> int:
    """The row that an artifact of :class:`ReplayBuilder` stands for."""
    return int(artifact.binary.decode())


def _timing(samples: Sequence[float]) -> Timing:
    interval = median_interval(samples)
    return Timing(tuple(samples), interval.value, interval.low, interval.high, METHOD)
