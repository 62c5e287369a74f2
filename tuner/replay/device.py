"""A recorded space behind the interfaces of family, compiler, device and recorder, for replayed jobs."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from kernels.base.family import ConfigSpace
from kernels.base.knobs import Knob
from kernels.base.tile_hint import TileHint
from tilewright.artifact import Artifact, Grid, LaunchPlan, Resources, Serves
from tilewright.errors import InvalidProblem
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.job import JobProgress
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import Outcome, Provenance, Trial, TrialResult
from tuner.measure import timing
from tuner.measure.race import RaceRules, RaceSamples
from tuner.measure.timing import timing_of
from tuner.replay.space import Entry, RecordedSpace
from tuner.workers.builder import Compiled


class RecordedFamily(ConfigSpace[dict[str, Any]]):
    """The configs of a recorded space, with the heuristic configs of its family if that is ours."""

    def __init__(self, space: RecordedSpace) -> None:
        self.name = space.family
        self.knobs = space.knobs
        self.rules = ()
        self._space = space

    def why_unsupported(self, problem: GemmProblem, device: DeviceSpec) -> str | None:
        """The reason, unless problem and device are the recorded ones."""
        space = self._space
        same = (problem, device) == (space.problem, space.device)
        return None if same else f"{space.name} was recorded for {space.problem} on {space.device.name}"

    def why_invalid(self, config: Config, problem: GemmProblem, device: DeviceSpec) -> str | None:
        """The reason, unless the config was recorded; one that failed is valid, as the rules allowed it."""
        recorded = self._space.index.index_of(config) is not None
        return self.why_unsupported(problem, device) or (None if recorded else f"{config} was not recorded")

    def listed(self, problem: GemmProblem, device: DeviceSpec) -> Sequence[Sequence[int]] | None:
        """The recorded points."""
        points: list[list[int]] = self._space.points.tolist()
        return points if self.why_unsupported(problem, device) is None else []

    def heuristic_configs(self, problem: GemmProblem, device: DeviceSpec) -> list[Config]:
        """Those that were recorded."""
        return self._space.heuristic_configs if self.why_unsupported(problem, device) is None else []

    def knob_values(self, config: Config) -> dict[str, Any]:
        """The knobs by name."""
        return dict(config.knobs)

    def config(self, knobs: dict[str, Any]) -> Config:
        """The inverse of :meth:`knob_values`."""
        return Config.of(self.name, knobs)


def narrowed(family: ConfigSpace[Any], values: Mapping[str, Sequence[str]]) -> ConfigSpace[Any]:
    """A copy of ``family`` that searches only the given values of the named knobs, written as text.

    Raises:
        InvalidProblem: there is no such knob, or a value is not legal.
    """
    known = {knob.name for knob in family.knobs}
    unknown = sorted(values.keys() - known)
    if unknown:
        raise InvalidProblem(
            f"{family.name} has no knob {', '.join(unknown)}; use one of {', '.join(sorted(known))}"
        )
    narrow = copy.copy(family)
    narrow.knobs = tuple(
        _with_values(knob, values[knob.name]) if knob.name in values else knob for knob in family.knobs
    )
    return narrow


def _with_values(knob: Knob, texts: Sequence[str]) -> Knob:
    legal = knob.legal_by_text
    wrong = [text for text in texts if text not in legal]
    if wrong or not texts:
        raise InvalidProblem(
            f"{knob.name} must be one of {', '.join(legal)}, got {', '.join(wrong) or 'nothing'}"
        )
    kept = tuple(value for text, value in legal.items() if text in texts)
    return dataclasses.replace(knob, searched=kept)


METHOD = "recorded"
_COMPILED = frozenset({Outcome.OK, Outcome.LAUNCH_ERROR, Outcome.WRONG_RESULT})


class ReplayBuilder:
    """A builder that finishes at once; configs whose recorded compilation failed fail again."""

    processes = 1

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
        """A finished future; the binary of the artifact is the row number of the config."""
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
    """Trials and races from recorded samples; the vendor library of a race is the optimum.

    The noise is a function of ``seed`` and config, in any order of calls.

    Attributes:
        name, spec, driver: those of the recorded device.
    """

    def __init__(self, space: RecordedSpace, seed: int) -> None:
        self.name = space.name
        self.spec = space.device
        self.driver = METHOD
        self._space = space
        self._seed = seed
        self._best = int(np.nanargmin(space.true_us))

    def trial(
        self,
        artifact: Artifact,
        problem: GemmProblem,
        incumbent_us: float | None,
        timeout_s: float,
        fewest_samples: int = timing.FEWEST_SAMPLES,
    ) -> TrialResult:
        """The result of a trial, drawn from the recorded samples."""
        del problem, timeout_s
        row = row_of(artifact)
        entry = self._space.entries[row]
        if not entry.samples_us:
            return TrialResult(outcome=entry.outcome, message=entry.message, check_s=entry.check_s)
        samples, pruned = timing.take(self._sampler(row, 0), incumbent_us, fewest_samples)
        return TrialResult(
            outcome=Outcome.PRUNED if pruned else Outcome.OK,
            timing=timing_of(samples, METHOD),
            check_s=entry.check_s,
            measure_s=timing.WARM_UP_S + sum(max(timing.SAMPLE_US, one) for one in samples) / 1e6,
        )

    def race(
        self,
        artifacts: Sequence[Artifact],
        problem: GemmProblem,
        rules: RaceRules,
        timeout_s: float,
        cancelled: threading.Event | None = None,
    ) -> RaceSamples:
        """Independent samples of each candidate; another seed gives another race, and none is dropped."""
        del problem, timeout_s, cancelled
        candidates = [*map(row_of, artifacts), *[self._best] * rules.vendor]
        samplers = [self._sampler(row, 1, rules.seed, place) for place, row in enumerate(candidates)]
        return RaceSamples(
            candidates=(*(artifact.digest for artifact in artifacts), *["vendor"] * rules.vendor),
            samples_us=tuple(tuple(map(sample, range(rules.rounds))) for sample in samplers),
            vendor_name="recorded optimum" if rules.vendor else "",
            vendor_detail={},
            mhz=None,
            watts=None,
            method=METHOD,
        )

    def vendor_tile_hints(self, problem: GemmProblem, timeout_s: float) -> list[TileHint]:
        """None: the hints of the vendor library are not recorded."""
        del problem, timeout_s
        return []

    def _sampler(self, row: int, *purpose: int) -> Callable[[int], float]:
        rng = np.random.default_rng((self._seed, row, *purpose))
        stored = self._space.entries[row].samples_us
        drawn = itertools.cycle(rng.choice(stored, size=128).tolist())
        return lambda _number: next(drawn)


class ReplayRecorder:
    """A recorder that stores nothing: a replay lives in memory."""

    def trials(self) -> list[Trial]:
        """No trials: a replay never resumes."""
        return []

    def add_trial(self, trial: Trial, artifact: Artifact | None) -> None:
        """Discard it."""

    def why_quarantined(self, config: Config, today: Provenance) -> str | None:  # noqa: ARG002
        """None: nothing runs."""
        return None

    def quarantine(self, trial: Trial) -> None:
        """Discard it."""

    def set_progress(self, progress: JobProgress) -> None:
        """Discard it."""


def row_of(artifact: Artifact) -> int:
    """The row number of an artifact of :class:`ReplayBuilder`."""
    return int(artifact.binary.decode())
