"""From trials to the winner: race the finalists, then the winner against the vendor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilewright.errors import ArtifactError, LaunchError
from tilewright.trial import BestConfig, Outcome, Trial
from tuner.context import JobContext
from tuner.finals import (
    DUEL_ROUNDS,
    RACE_ROUNDS,
    Finalist,
    Standing,
    best_config,
    rounds,
    shortlist,
    standing,
)
from tuner.ledger import Ledger
from tuner.process import WorkerError

if TYPE_CHECKING:
    from tuner.race import RaceSamples

SLACK = 5.0


def crown(context: JobContext, ledger: Ledger) -> BestConfig | None:
    """The winner of the final races; None where no trial went well or the job was cancelled.

    Raises:
        ArtifactError: no finalist of an interrupted job builds to the kernel it measured.
        WorkerDied, WorkerTimeout, LaunchError: a race broke although every entrant runs alone.
    """
    chosen = shortlist(ledger.trials)
    finalists = [entry for trial in chosen if (entry := _finalist(context, ledger, trial))]
    if chosen and not finalists:
        raise ArtifactError(
            f"none of {len(chosen)} finalists builds to the kernel that was measured: sources or"
            " compiler changed since the job was interrupted; start a new one"
        )
    if not finalists or context.cancelled.is_set():
        return None
    won = _qualify(context, finalists)
    if context.cancelled.is_set():
        return None
    return best_config(context, won, _race(context, [won.winner], DUEL_ROUNDS, seed=1))


def _finalist(context: JobContext, ledger: Ledger, trial: Trial) -> Finalist | None:
    """A trial with its kernel, rebuilt where another run measured it."""
    artifact = ledger.artifacts.get(trial.artifact or "") or context.submit(trial.config).result().artifact
    return Finalist(trial, artifact) if artifact and artifact.digest == trial.artifact else None


def _qualify(context: JobContext, finalists: list[Finalist]) -> Standing:
    """The first race; one that breaks is run again with those that still run alone."""
    if len(finalists) == 1:
        return Standing(finalists[0], ())
    try:
        samples = _race(context, finalists, RACE_ROUNDS, seed=0)
    except (WorkerError, LaunchError):
        finalists = [finalist for finalist in finalists if _runs_alone(context, finalist)]
        if not finalists:
            raise
        samples = _race(context, finalists, RACE_ROUNDS, seed=0)
    return standing(finalists, samples.samples_us[:-1])


def _runs_alone(context: JobContext, finalist: Finalist) -> bool:
    result = context.bench.trial(finalist.artifact, context.problem, None, context.trial_timeout_s)
    return result.outcome is Outcome.OK


def _race(
    context: JobContext, finalists: Sequence[Finalist], bounds: tuple[int, int], seed: int
) -> RaceSamples:
    each_s = [finalist.sample_s for finalist in finalists]
    round_s = sum(each_s) + max(each_s)
    count = rounds(round_s, bounds)
    return context.bench.race(
        [finalist.artifact for finalist in finalists],
        context.problem,
        count,
        2 * context.request.seed + seed,
        context.trial_timeout_s * (len(finalists) + 1) + SLACK * round_s * count,
    )
