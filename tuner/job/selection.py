"""The end of a job: the fastest candidates race each other and the vendor library, and one of them wins.

The best of many noisy medians is flattered, and the search measures at clocks that the device does not
hold. So the fastest trials run a semi-final under load, the best of them a final interleaved with the vendor
library. The winner and the vendor library then run a head-to-head whose samples decided nothing: it gives the
reported speed-up. Whether the winner replaces an earlier one is decided by :func:`tuner.store.best.put`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from kernels.registry import FAMILIES
from tilewright.artifact import Artifact
from tilewright.errors import ArtifactError, LaunchError
from tilewright.schema.config import Config
from tilewright.schema.trial import Baseline, BestConfig, Outcome, Timing, Trial
from tuner.job.context import JobContext
from tuner.job.progress import ProgressTracker, timed
from tuner.measure.race import RaceSamples, overlapping
from tuner.measure.stats import CONFIDENCE, median, median_interval, paired_ratio
from tuner.workers.process import WorkerError

SEMIFINAL_CANDIDATES = 32
FINAL_CANDIDATES = 8
WITHIN = 1.15
NEGLIGIBLE = 1.003
RACE_SECONDS = 20.0
SEMIFINAL_SECONDS = RACE_SECONDS / 4
SEMIFINAL_ROUNDS = (6, 6)
RACE_ROUNDS = (16, 32)
HEAD_TO_HEAD_ROUNDS = (16, 64)
SLACK = 5.0


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """A complete trial that may win, with the kernel it measured."""

    trial: Trial
    artifact: Artifact

    @property
    def config(self) -> Config:
        """What was tried."""
        return self.trial.config

    @property
    def sample_s(self) -> float:
        """Seconds that one of its samples took in the search, warm-up shared out."""
        return self.trial.measure_s / len(timed(self.trial).samples_us)

    @property
    def cost(self) -> tuple[int, int, str]:
        """Decides among equals, the lower the better: shared memory, registers, the config's text."""
        used = self.artifact.resources
        return used.static_smem + used.dynamic_smem, used.registers, str(self.config)


@dataclasses.dataclass(frozen=True, slots=True)
class FinalResult:
    """The winner of a race, and the candidates that the race could not tell from the fastest."""

    winner: Candidate
    ties: tuple[Config, ...]


def select_winner(context: JobContext, tracker: ProgressTracker) -> BestConfig | None:
    """The winner of the final races; None if no trial went well or the job was cancelled.

    Raises:
        ArtifactError: no candidate of an interrupted job builds to the kernel it measured.
        WorkerDied, WorkerTimeout, LaunchError: a race broke although every candidate runs alone.
    """
    try:
        return _select_winner(context, tracker)
    except (WorkerError, LaunchError):
        if context.cancelled.is_set():
            return None
        raise


def _select_winner(context: JobContext, tracker: ProgressTracker) -> BestConfig | None:
    candidates = _candidates(context, tracker)
    if not candidates or context.cancelled.is_set():
        return None
    candidates = _semifinal(context, semifinal_candidates(candidates))
    if context.cancelled.is_set():
        return None
    won = _final(context, candidates)
    if context.cancelled.is_set():
        return None
    return best_config(context, won, _race(context, [won.winner], HEAD_TO_HEAD_ROUNDS, seed=2))


def _candidates(context: JobContext, tracker: ProgressTracker) -> list[Candidate]:
    """The shortlist with its kernels; those that an interrupted run measured are built again."""
    chosen = shortlist(tracker.trials)
    lost = [trial.config for trial in chosen if trial.artifact not in tracker.artifacts]
    builds = [context.submit(FAMILIES[config.family].completed(config)) for config in lost]
    rebuilt = {artifact.digest: artifact for build in builds if (artifact := build.result().artifact)}
    kernels = tracker.artifacts | rebuilt
    candidates = [
        Candidate(trial, kernels[digest]) for trial in chosen if (digest := trial.artifact) in kernels
    ]
    if chosen and not candidates:
        raise ArtifactError(
            f"none of {len(chosen)} candidates builds to the kernel that was measured: sources or"
            " compiler changed since the job was interrupted; start a new one"
        )
    return candidates


def shortlist(trials: Sequence[Trial]) -> list[Trial]:
    """The fastest complete trials: at most 32, within 15 % of the best median, each kernel once."""
    ranked = sorted(
        (t for t in trials if t.outcome is Outcome.OK), key=lambda t: (timed(t).median_us, t.number)
    )
    by_kernel: dict[str | None, Trial] = {}
    for trial in ranked:
        if timed(trial).median_us <= timed(ranked[0]).median_us * WITHIN:
            by_kernel.setdefault(trial.artifact, trial)
    return list(by_kernel.values())[:SEMIFINAL_CANDIDATES]


def semifinal_candidates(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The fastest candidates whose samples take at most 5 s together, and at least 8 of them."""
    rounds, _ = SEMIFINAL_ROUNDS
    spent_s = itertools.accumulate(rounds * one.sample_s for one in candidates)
    return list(candidates[: max(FINAL_CANDIDATES, sum(seconds <= SEMIFINAL_SECONDS for seconds in spent_s))])


def _semifinal(context: JobContext, candidates: list[Candidate]) -> list[Candidate]:
    """The candidates that are fastest under load; the vendor library does not take part."""
    if len(candidates) <= FINAL_CANDIDATES:
        return candidates
    candidates, samples = _raced(context, candidates, SEMIFINAL_ROUNDS, seed=0, vendor=False)
    return advancing(candidates, samples.samples_us)


def advancing(candidates: Sequence[Candidate], rows: Sequence[Sequence[float]]) -> list[Candidate]:
    """The 8 candidates with the lowest medians, from one row of microseconds each; the earlier of equals."""
    ranked = sorted(range(len(rows)), key=lambda i: (median(rows[i]), i))
    return [candidates[i] for i in ranked[:FINAL_CANDIDATES]]


def _final(context: JobContext, candidates: list[Candidate]) -> FinalResult:
    if len(candidates) == 1:
        return FinalResult(candidates[0], ())
    candidates, samples = _raced(context, candidates, RACE_ROUNDS, seed=1)
    return final_result(candidates, samples.samples_us[:-1])


def final_result(candidates: Sequence[Candidate], rows: Sequence[Sequence[float]]) -> FinalResult:
    """The winner and its ties, from one row of microseconds for each candidate, all from the same rounds.

    Candidates whose confidence interval of the paired ratio to the fastest contains 1 are ties. Among ties at
    most 0.3 % behind, the one that costs least wins: a noisy race has many ties, and a slow kernel must
    not win for being small.
    """
    fastest = min(range(len(rows)), key=lambda i: (median(rows[i]), i))
    behind = [paired_ratio(row, rows[fastest]) for row in rows]
    tied = [i for i, ratio in enumerate(behind) if ratio.undecided]
    equals = [i for i in tied if behind[i].value <= NEGLIGIBLE]
    winner = min(equals, key=lambda i: candidates[i].cost)
    return FinalResult(candidates[winner], tuple(candidates[i].config for i in tied if i != winner))


def _raced(
    context: JobContext,
    candidates: list[Candidate],
    bounds: tuple[int, int],
    seed: int,
    *,
    vendor: bool = True,
) -> tuple[list[Candidate], RaceSamples]:
    """The race and its candidates; a race that breaks runs again with those that still run alone."""
    try:
        return candidates, _race(context, candidates, bounds, seed, vendor=vendor)
    except (WorkerError, LaunchError):
        candidates = [
            candidate
            for candidate in candidates
            if not context.cancelled.is_set() and _runs_alone(context, candidate)
        ]
        if not candidates or context.cancelled.is_set():
            raise
    return candidates, _race(context, candidates, bounds, seed, vendor=vendor)


def _runs_alone(context: JobContext, candidate: Candidate) -> bool:
    result = context.bench.trial(candidate.artifact, context.problem, None, context.trial_timeout_s)
    return result.outcome is Outcome.OK


def _race(
    context: JobContext,
    candidates: Sequence[Candidate],
    bounds: tuple[int, int],
    seed: int,
    *,
    vendor: bool = True,
) -> RaceSamples:
    each_s = [candidate.sample_s for candidate in candidates]
    round_s = sum(each_s) + max(each_s)
    if vendor and overlapping([candidate.artifact for candidate in candidates]):
        round_s *= 2  # run apart as well
    count = rounds(round_s, bounds)
    return context.bench.race(
        [candidate.artifact for candidate in candidates],
        context.problem,
        count,
        3 * context.request.seed + seed,
        context.trial_timeout_s * (len(candidates) + 1) + SLACK * round_s * count,
        vendor=vendor,
    )


def rounds(round_s: float, bounds: tuple[int, int]) -> int:
    """Rounds of a race, ``round_s`` seconds each: as many as fit into 20 s, within ``bounds``."""
    fewest, most = bounds
    return most if round_s * most <= RACE_SECONDS else max(fewest, int(RACE_SECONDS / round_s))


def best_config(context: JobContext, won: FinalResult, head_to_head: RaceSamples) -> BestConfig:
    """The job's result: the winner with its lead over the vendor library in a head-to-head of these two.

    If they were also raced apart, the lead and both ends of its interval are the lesser of the two ways;
    times are of launches back to back, and the baseline's detail has the medians apart.
    """
    both = [head_to_head.samples_us] + ([head_to_head.apart_us] if head_to_head.apart_us else [])
    ratios = [paired_ratio(vendor, kernel) for kernel, vendor in both]
    apart = dict(zip(("kernel", "vendor"), map(median, head_to_head.apart_us), strict=False))
    detail = head_to_head.vendor_detail | ({"apart_us": apart} if apart else {})
    artifact = won.winner.artifact
    return BestConfig(
        problem=context.problem,
        device_class=context.device.device_class.id,
        arch=context.device.arch,
        config=won.winner.config,
        artifact=artifact.digest,
        timing=_winner_timing(head_to_head),
        ties=won.ties,
        baseline=Baseline(head_to_head.vendor_name, median(head_to_head.samples_us[1]), detail),
        speedup=min(ratio.value for ratio in ratios),
        speedup_low=min(ratio.low for ratio in ratios),
        speedup_high=min(ratio.high for ratio in ratios),
        confidence=CONFIDENCE,
        provenance=context.provenance(artifact, head_to_head.method),
        resources=artifact.resources,
        job_id=context.job_id,
        repeatable=won.winner.trial.repeatable,
    )


def _winner_timing(head_to_head: RaceSamples) -> Timing:
    interval = median_interval(head_to_head.samples_us[0])
    return Timing(
        samples_us=tuple(head_to_head.samples_us[0]),
        median_us=interval.value,
        low_us=interval.low,
        high_us=interval.high,
        method=head_to_head.method,
        mhz=head_to_head.mhz,
        watts=head_to_head.watts,
    )
