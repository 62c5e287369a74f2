"""The end of a job: the fastest candidates race each other and the vendor library, and one of them wins.

The lowest of many noisy medians is too optimistic, and the search measures at clocks that the device does not
hold. So the fastest trials run a final under load, interleaved with the vendor library. A candidate that is
left behind leaves the final (:func:`tuner.measure.stats.left_behind`); a lone candidate runs none. The winner
and the vendor library then run a head-to-head. Its samples took no part in choosing the kernel; they give the
reported speed-up. At the power limit each candidate has one sample in a race, the mean of a whole second. The
stored winner of the problem takes part in the final, so that one race compares it with its challengers. A
final or head-to-head that others disturbed runs again, as long as the job may wait for a quiet device. A
winner whose head-to-head fails twice, or that fails alone, gives way to the other candidates. A quick job has
a short head-to-head of its fastest trial alone, in bursts where power may limit the device. If another job
stored a winner meanwhile, the races run again with that one, at most ``SELECTIONS`` times.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import time
from collections.abc import Iterator, Mapping, Sequence

from kernels.registry import FAMILIES
from tilewright.artifact import Artifact
from tilewright.errors import LaunchError
from tilewright.schema.config import Config
from tilewright.schema.job import Level
from tilewright.schema.trial import Baseline, BestConfig, Outcome, Trial, VendorSamples
from tuner.job.context import JobContext
from tuner.job.loop import why_outdated
from tuner.job.progress import timed
from tuner.job.shortlist import loads_at_the_limit, shortlist
from tuner.measure.interleave import finishers
from tuner.measure.race import RaceRules, RaceSamples
from tuner.measure.stats import CONFIDENCE, median, speed_ratio
from tuner.measure.timing import timing_of
from tuner.workers.process import WorkerError

NO_WINNER = "no config of this problem compiled, ran and gave the right result; its trials say why"
NEGLIGIBLE = 1.003
RACE_SECONDS = 20.0
SLACK = 5.0
STEADY = 1.25
SELECTIONS = 3
_PAUSE_S = 2.0
_log = logging.getLogger("tilewright.job")


@dataclasses.dataclass(frozen=True, slots=True)
class Stage:
    """One of the races that end a job.

    Attributes:
        rules: with the most rounds that it has; the seed counts from that of the job.
        fewest: rounds that it has however long they take.
    """

    rules: RaceRules
    fewest: int

    def rounds(self, round_s: float) -> int:
        """The number of rounds of ``round_s`` seconds that fit into 20 s, within the bounds."""
        most = self.rules.rounds
        return most if round_s * most <= RACE_SECONDS else max(self.fewest, int(RACE_SECONDS / round_s))


FINAL = Stage(RaceRules(32, 0, passes=1, dropping=True), fewest=16)
HEAD_TO_HEAD = Stage(RaceRules(32, 1, passes=1), fewest=16)
QUICK = Stage(RaceRules(12, 2, quick=True, bursts=True), fewest=12)
STAGES = (FINAL, HEAD_TO_HEAD, QUICK)


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """A complete trial that may win, with the kernel that was measured."""

    trial: Trial
    artifact: Artifact

    @property
    def config(self) -> Config:
        """The config of the trial."""
        return self.trial.config

    @property
    def sample_s(self) -> float:
        """Seconds of one of its samples in the search, with its part of all that the trial took beside them:
        an upper bound."""
        return self.trial.measure_s / len(timed(self.trial).samples_us)

    @property
    def cost(self) -> tuple[int, int, str]:
        """The key that decides between ties, lower is better: shared memory, registers, config text."""
        used = self.artifact.resources
        return used.static_smem + used.dynamic_smem, used.registers, str(self.config)


class WrongInRace(LaunchError):
    """Kernels that passed the check gave wrong results in a race.

    Attributes:
        candidates: those that did.
    """

    def __init__(self, message: str, candidates: Sequence[Candidate]) -> None:
        super().__init__(message)
        self.candidates = candidates


@dataclasses.dataclass(frozen=True, slots=True)
class FinalResult:
    """The winner of a race, and the candidates that tie with the fastest.

    Attributes:
        race: the samples of the race; None if one candidate was left, which ran none.
        row: the winner's row of them; the vendor library's is the last one.
    """

    winner: Candidate
    ties: tuple[Config, ...]
    race: RaceSamples | None = None
    row: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Selected:
    """The winner of a job, and its kernel."""

    best: BestConfig
    artifact: Artifact


def select_winner(
    context: JobContext,
    trials: Sequence[Trial],
    kernels: Mapping[str, Artifact],
    stored: BestConfig | None = None,
) -> Selected | None:
    """The winner of the final races, in which the ``stored`` winner takes part; None if no trial succeeded or
    the job was cancelled.

    Args:
        trials: those that may win, of any outcome.
        kernels: their kernels, by digest; one that is missing is built again.

    Raises:
        WorkerDied, WorkerTimeout, LaunchError: a final failed twice, or the head-to-heads of all candidates.
        DeviceUnavailable: the device takes no work for now, or a library is missing.
    """
    try:
        return _select_winner(context, trials, kernels, stored)
    except (WorkerError, LaunchError):
        if context.cancelled.is_set():
            return None
        raise


def _select_winner(
    context: JobContext, trials: Sequence[Trial], kernels: Mapping[str, Artifact], before: BestConfig | None
) -> Selected | None:
    shortlists = _shortlists(context, trials, kernels)
    candidates = next(shortlists, [])
    if not candidates or context.cancelled.is_set():
        return None
    # NOTE: a device where no race works would otherwise race every kernel of the job.
    further = itertools.islice(shortlists, 1)
    if context.request.level is Level.QUICK:
        return _quick(context, candidates, further)
    stored = _stored_winner(context, candidates, before)
    if stored and stored not in candidates:
        candidates.append(stored)
    return _decided(context, candidates, stored, further)


def _quick(context: JobContext, candidates: list[Candidate], further: Iterator[list[Candidate]]) -> Selected:
    """The result of a head-to-head of the fastest candidate that runs in one; ``further`` follow."""
    fastest, *others = candidates
    try:
        best = best_config(context, FinalResult(fastest, ()), _race(context, [fastest], QUICK))
    except (WorkerError, LaunchError):
        others = others or next(further, [])
        if not others or context.cancelled.is_set():
            raise
        return _quick(context, others, further)
    return Selected(best, fastest.artifact)


def _decided(
    context: JobContext,
    candidates: list[Candidate],
    stored: Candidate | None,
    further: Iterator[list[Candidate]],
) -> Selected | None:
    """The result of a final and a head-to-head; None if the job was cancelled. Both run again if other
    processes disturbed them, until the device was quiet or ``quiet_wait_s`` seconds are over. They also run
    again without a winner whose head-to-head failed, and with ``further`` candidates if it was the last."""
    ends: float | None = None
    while not context.cancelled.is_set():
        candidates, won = _final(context, candidates, stored)
        if context.cancelled.is_set():
            break
        try:
            _, samples = _raced(context, [won.winner], HEAD_TO_HEAD)
        except (WorkerError, LaunchError) as error:
            candidates = [one for one in candidates if one is not won.winner] or next(further, [])
            if not candidates or context.cancelled.is_set():
                raise
            _log.info("job %s: %s has no head-to-head: %s", context.job_id, won.winner.config, error)
            continue
        best = best_config(context, won, samples)
        ends = ends or time.monotonic() + context.quiet_wait_s
        if not best.timing.disturbed or time.monotonic() >= ends:
            return Selected(best, won.winner.artifact)
        _log.info("job %s: the race was disturbed, trying again: %s", context.job_id, best.timing.disturbed)
        context.cancelled.wait(_PAUSE_S)
    return None


def _stored_winner(
    context: JobContext, candidates: Sequence[Candidate], best: BestConfig | None
) -> Candidate | None:
    """The stored winner of the problem as a candidate, or None. Also None if its config gives no kernel that
    compiles, runs and is right today: such a winner cannot stay."""
    if best is None or context.cancelled.is_set() or why_outdated(best.config, context):
        return None
    config = FAMILIES[best.config.family].completed(best.config)
    for candidate in candidates:
        if candidate.config == config:
            return candidate
    artifact = context.submit(config).result().artifact
    if artifact is None:
        return None
    tried = Trial(0, config, outcome=Outcome.OK, origin="final")
    trial = context.try_again(tried, artifact)
    return Candidate(trial, artifact) if trial.outcome is Outcome.OK else None


def _shortlists(
    context: JobContext, trials: Sequence[Trial], kernels: Mapping[str, Artifact]
) -> Iterator[list[Candidate]]:
    """Yield the shortlist with its kernels, then that of the trials left, and so on; without those of which
    no kernel builds and computes the right result. Kernels that an interrupted run measured are built again.
    """
    loads = loads_at_the_limit(context.problem, context.device)
    while (chosen := shortlist(trials, loads)) and not context.cancelled.is_set():
        if candidates := _with_kernels(context, chosen, kernels):
            yield candidates
        seen = {trial.artifact for trial in chosen}
        trials = [trial for trial in trials if trial.artifact not in seen]


def _with_kernels(
    context: JobContext, chosen: Sequence[Trial], kernels: Mapping[str, Artifact]
) -> list[Candidate]:
    chosen = [trial for trial in chosen if not _is_quarantined(context, trial)]
    lost = [trial for trial in chosen if trial.artifact not in kernels]
    current = {trial.number: FAMILIES[trial.config.family].completed(trial.config) for trial in lost}
    builds = {number: context.submit(config) for number, config in current.items()}
    by_kernel: dict[str, Candidate] = {}
    for trial in chosen:
        if trial.number in builds:
            rebuilt = dataclasses.replace(trial, config=current[trial.number])
            candidate = _rebuilt(context, rebuilt, builds[trial.number].result().artifact)
        else:
            candidate = Candidate(trial, kernels[str(trial.artifact)])
        if candidate:
            by_kernel.setdefault(candidate.artifact.digest, candidate)
    return list(by_kernel.values())


def _is_quarantined(context: JobContext, trial: Trial) -> bool:
    """Whether the kernel of a trial broke a device since, with today's driver."""
    if trial.provenance is None:
        return False
    today = dataclasses.replace(trial.provenance, driver=context.bench.driver)
    return context.recorder.why_quarantined(trial.config, today) is not None


def _rebuilt(context: JobContext, trial: Trial, artifact: Artifact | None) -> Candidate | None:
    """The candidate of a trial whose kernel was built again; None if it fails or the job is cancelled.

    If sources or compiler changed since, it is another kernel, which is checked and measured first.
    """
    if artifact is None or context.cancelled.is_set():
        return None
    if artifact.digest != trial.artifact:
        trial = context.try_again(trial, artifact)
    return Candidate(trial, artifact) if trial.outcome is Outcome.OK else None


def _final(
    context: JobContext, candidates: list[Candidate], stored: Candidate | None
) -> tuple[list[Candidate], FinalResult]:
    """The candidates that run, and which of them wins."""
    if len(candidates) == 1:
        return candidates, FinalResult(candidates[0], ())
    candidates, samples = _raced(context, candidates, FINAL)
    won = final_result(candidates, samples.samples_us[:-1], stored, periods=samples.periods)
    return candidates, dataclasses.replace(won, race=samples, row=candidates.index(won.winner))


def final_result(
    candidates: Sequence[Candidate],
    rows: Sequence[Sequence[float]],
    stored: Candidate | None = None,
    *,
    periods: bool = False,
) -> FinalResult:
    """The winner and its ties.

    A candidate that was dropped has lost. Others whose confidence interval of the paired ratio to the fastest
    contains 1 are ties. Of those within 0.3 % of the fastest, the stored winner stays, else the one with the
    lowest cost wins. The bound keeps a slow kernel from winning a noisy race with many ties because it is
    small.

    Args:
        rows: one row of microseconds for each candidate, all from the same rounds; shorter if it was dropped.
        stored: the candidate that is the stored winner.
        periods: whether samples are means of whole periods, as at the power limit.
    """
    stayed = finishers(rows)
    if len(stayed) == 1:
        return FinalResult(candidates[stayed[0]], ())
    fastest = min(stayed, key=lambda i: (median(rows[i]), i))
    ratios = {i: speed_ratio(rows[i], rows[fastest], periods) for i in stayed}
    tied = [i for i, ratio in ratios.items() if ratio.undecided]
    equals = [i for i in tied if ratios[i].value <= NEGLIGIBLE]
    winner = min(equals, key=lambda i: (candidates[i] is not stored, candidates[i].cost))
    return FinalResult(candidates[winner], tuple(candidates[i].config for i in tied if i != winner))


def _raced(
    context: JobContext, candidates: list[Candidate], stage: Stage, *, again: bool = True
) -> tuple[list[Candidate], RaceSamples]:
    """The samples of a race and its candidates. A race runs again without those that were wrong in it; one
    that fails runs ``again``, once, with those that run alone."""
    try:
        return candidates, _race(context, candidates, stage)
    except WrongInRace as wrong:
        candidates = [one for one in candidates if one not in wrong.candidates]
        if not candidates:
            raise
    except (WorkerError, LaunchError):
        if not again:
            raise
        again = False
        candidates = [
            candidate
            for candidate in candidates
            if not context.cancelled.is_set() and _runs_alone(context, candidate)
        ]
        if not candidates or context.cancelled.is_set():
            raise
    return _raced(context, candidates, stage, again=again)


def _runs_alone(context: JobContext, candidate: Candidate) -> bool:
    return context.try_again(candidate.trial, candidate.artifact).outcome is Outcome.OK


def _race(context: JobContext, candidates: Sequence[Candidate], stage: Stage) -> RaceSamples:
    rules = stage.rules
    each_s = [candidate.sample_s for candidate in candidates]
    round_s = sum(each_s) + max(each_s)
    rules = dataclasses.replace(
        rules, rounds=stage.rounds(round_s), seed=len(STAGES) * context.request.seed + rules.seed
    )
    raced = context.bench.race(
        [candidate.artifact for candidate in candidates],
        context.problem,
        rules,
        context.trial_timeout_s * (len(candidates) + 1) + SLACK * round_s * rules.rounds,
        context.cancelled,
    )
    if any(raced.wrong):
        wrong = [pair for pair in zip(candidates, raced.wrong, strict=True) if pair[1]]
        for candidate, reason in wrong:
            _log.warning("job %s: %s was wrong in a race: %s", context.job_id, candidate.config, reason)
        config, why = wrong[0][0].config, wrong[0][1]
        raise WrongInRace(
            f"{config} gave wrong results under the load of a race: {why}; tune with other families",
            [candidate for candidate, _ in wrong],
        )
    return raced


def best_config(context: JobContext, won: FinalResult, head_to_head: RaceSamples) -> BestConfig:
    """The result of the job: the winner with its speed-up over the vendor library in a head-to-head."""
    kernel_us, vendor_us = head_to_head.samples_us
    ratio = head_to_head.ratio(-1, 0)
    artifact = won.winner.artifact
    return BestConfig(
        problem=context.problem,
        device_class=context.device.device_class.id,
        arch=context.device.arch,
        config=won.winner.config,
        artifact=artifact.digest,
        timing=timing_of(
            kernel_us,
            head_to_head.method,
            head_to_head.mhz,
            head_to_head.watts,
            disturbed="; ".join(interference(won, head_to_head)),
            periods=head_to_head.periods,
        ),
        ties=won.ties,
        baseline=Baseline(head_to_head.vendor_name, median(vendor_us), head_to_head.vendor_detail),
        speedup=ratio.value,
        speedup_low=ratio.low,
        speedup_high=ratio.high,
        confidence=CONFIDENCE,
        provenance=context.provenance(artifact, head_to_head.method),
        resources=artifact.resources,
        job_id=context.job_id,
        repeatable=won.winner.trial.repeatable,
        vendor_samples=_vendor_samples(won, head_to_head),
    )


def _vendor_samples(won: FinalResult, head_to_head: RaceSamples) -> VendorSamples:
    kept = VendorSamples(head_to_head.samples_us[1])
    if won.race is None:
        return kept
    rows = won.race.samples_us
    return dataclasses.replace(
        kept,
        final_us=rows[-1],
        winner_final_us=rows[won.row],
        final_mhz=won.race.mhz,
        final_watts=won.race.watts,
    )


def interference(won: FinalResult, head_to_head: RaceSamples) -> list[str]:
    """What disturbed the final or the head-to-head: what the device reported, and a vendor library whose time
    differs between the two races by more than the factor ``STEADY``."""
    reasons = [f"{text} during the final" for text in (won.race.interference if won.race else ())]
    reasons += [f"{text} during the head-to-head" for text in head_to_head.interference]
    vendor_us = median(head_to_head.samples_us[1])
    change = vendor_us / median(won.race.samples_us[-1]) if won.race else 1.0
    if not 1 / STEADY <= change <= STEADY:
        reasons.append(f"{head_to_head.vendor_name} took {change:.2f} times as long as in the final")
    return reasons
