"""From trials to the winner: a semi-final, the race of the finalists, then the winner against the vendor."""

from __future__ import annotations

from collections.abc import Sequence

from kernels.registry import FAMILIES
from tilewright.errors import ArtifactError, LaunchError
from tilewright.trial import BestConfig, Outcome
from tuner.context import JobContext
from tuner.finals import (
    DUEL_ROUNDS,
    FINALISTS,
    RACE_ROUNDS,
    SEMIFINAL_ROUNDS,
    Finalist,
    Standing,
    advancing,
    best_config,
    field,
    rounds,
    shortlist,
    standing,
)
from tuner.ledger import Ledger
from tuner.process import WorkerError
from tuner.race import RaceSamples, overlapping

SLACK = 5.0


def crown(context: JobContext, ledger: Ledger) -> BestConfig | None:
    """The winner of the final races; None where no trial went well or the job was cancelled.

    Raises:
        ArtifactError: no finalist of an interrupted job builds to the kernel it measured.
        WorkerDied, WorkerTimeout, LaunchError: a race broke although every entrant runs alone.
    """
    try:
        return _crown(context, ledger)
    except (WorkerError, LaunchError):
        if context.cancelled.is_set():
            return None
        raise


def _crown(context: JobContext, ledger: Ledger) -> BestConfig | None:
    entrants = _entrants(context, ledger)
    if not entrants or context.cancelled.is_set():
        return None
    finalists = _semifinal(context, field(entrants))
    if context.cancelled.is_set():
        return None
    won = _final(context, finalists)
    if context.cancelled.is_set():
        return None
    return best_config(context, won, _race(context, [won.winner], DUEL_ROUNDS, seed=2))


def _entrants(context: JobContext, ledger: Ledger) -> list[Finalist]:
    """The shortlist with its kernels, rebuilt where another run measured them, by the knobs of today."""
    chosen = shortlist(ledger.trials)
    lost = [trial.config for trial in chosen if trial.artifact not in ledger.artifacts]
    builds = [context.submit(FAMILIES[config.family].completed(config)) for config in lost]
    rebuilt = {artifact.digest: artifact for build in builds if (artifact := build.result().artifact)}
    kernels = ledger.artifacts | rebuilt
    entrants = [Finalist(trial, kernels[digest]) for trial in chosen if (digest := trial.artifact) in kernels]
    if chosen and not entrants:
        raise ArtifactError(
            f"none of {len(chosen)} finalists builds to the kernel that was measured: sources or"
            " compiler changed since the job was interrupted; start a new one"
        )
    return entrants


def _semifinal(context: JobContext, entrants: list[Finalist]) -> list[Finalist]:
    """Who is fastest under load; the vendor need not be there to tell."""
    if len(entrants) <= FINALISTS:
        return entrants
    entrants, samples = _raced(context, entrants, SEMIFINAL_ROUNDS, seed=0, vendor=False)
    return advancing(entrants, samples.samples_us)


def _final(context: JobContext, finalists: list[Finalist]) -> Standing:
    if len(finalists) == 1:
        return Standing(finalists[0], ())
    finalists, samples = _raced(context, finalists, RACE_ROUNDS, seed=1)
    return standing(finalists, samples.samples_us[:-1])


def _raced(
    context: JobContext, entrants: list[Finalist], bounds: tuple[int, int], seed: int, *, vendor: bool = True
) -> tuple[list[Finalist], RaceSamples]:
    """A race and who ran it; one that breaks is run again with those that still run alone."""
    try:
        return entrants, _race(context, entrants, bounds, seed, vendor=vendor)
    except (WorkerError, LaunchError):
        entrants = [
            entrant
            for entrant in entrants
            if not context.cancelled.is_set() and _runs_alone(context, entrant)
        ]
        if not entrants or context.cancelled.is_set():
            raise
    return entrants, _race(context, entrants, bounds, seed, vendor=vendor)


def _runs_alone(context: JobContext, finalist: Finalist) -> bool:
    result = context.bench.trial(finalist.artifact, context.problem, None, context.trial_timeout_s)
    return result.outcome is Outcome.OK


def _race(
    context: JobContext,
    finalists: Sequence[Finalist],
    bounds: tuple[int, int],
    seed: int,
    *,
    vendor: bool = True,
) -> RaceSamples:
    each_s = [finalist.sample_s for finalist in finalists]
    round_s = sum(each_s) + max(each_s)
    if vendor and overlapping([finalist.artifact for finalist in finalists]):
        round_s *= 2  # run apart as well
    count = rounds(round_s, bounds)
    return context.bench.race(
        [finalist.artifact for finalist in finalists],
        context.problem,
        count,
        3 * context.request.seed + seed,
        context.trial_timeout_s * (len(finalists) + 1) + SLACK * round_s * count,
        vendor=vendor,
    )
