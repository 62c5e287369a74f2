"""``run_job``: a job from the first config to its winners, on one problem or on a ladder."""

from __future__ import annotations

import logging
import time

from tilewright.schema.job import JobProgress
from tilewright.schema.trial import BestConfig
from tuner.job.context import InitialConfigs, JobContext, WinnerRecorder
from tuner.job.first_configs import open_for
from tuner.job.helpers import adopt
from tuner.job.ladder import tune_ladder
from tuner.job.loop import Loop
from tuner.job.progress import ProgressTracker
from tuner.job.selection import SELECTIONS, select_winner

_log = logging.getLogger("tilewright.job")


def run_job(
    context: JobContext, winners: WinnerRecorder, initial_configs: InitialConfigs = lambda _: ()
) -> list[BestConfig]:
    """Search, race the candidates with the vendor library, and record the winners.

    Trials that the context's recorder holds already are replayed into the search, not measured again, so that
    an interrupted job continues. ``initial_configs``, configs with the tiling of the vendor library's choice
    and heuristic configs are tried first. Final races that others disturb run again for ``quiet_wait_s``
    seconds. Other devices take trials from the board of the context.

    Returns:
        The winner, or those of a ladder, the smallest M first. Empty if no trial succeeded or ``cancelled``
        was set (recorded trials are kept).

    Raises:
        InvalidProblem: a family is unknown, or no config of any family is valid for the problem.
        WorkerDied, WorkerTimeout, LaunchError: as :func:`tuner.job.selection.select_winner`; of a ladder, as
            :meth:`tuner.job.ladder_rows.LadderJob.search`.
        DeviceUnavailable: the compiler or the device's libraries are missing.
    """
    if context.request.ladder:
        return tune_ladder(context, winners, initial_configs)
    best = _tune(context, winners, initial_configs)
    return [best] if best else []


def _tune(context: JobContext, winners: WinnerRecorder, initial_configs: InitialConfigs) -> BestConfig | None:
    """The winner of a job on one problem; None if it has none.

    The search ends after ``max_trials`` measured trials, after ``max_seconds``, after four times as many
    proposals as ``max_trials``, when every config was tried, or when it gains too little. The last progress
    gives the reason.
    """
    initial = initial_configs(context.problem)
    started = time.monotonic()
    request, recorder = context.request, context.recorder
    adopt(context)
    if not recorder.trials():  # else the progress of the interrupted run stands until it is caught up with
        recorder.set_progress(JobProgress("enumerate", 0, request.budget))
    opening = time.monotonic()
    search, ahead = open_for(context, initial)
    tracker = ProgressTracker(request, recorder, search, started, time.monotonic() - opening)
    Loop(context, search, tracker, ahead=ahead).run()
    if context.board:
        context.board.close()
    if context.cancelled.is_set():
        return None
    tracker.publish("race")
    for _ in range(SELECTIONS):
        stored = winners.stored_best(context.problem)
        with tracker.spending("race"):
            won = select_winner(context, tracker.trials, tracker.artifacts, stored)
        if context.cancelled.is_set():
            return None
        if won is None or winners.set_best(won.best, won.artifact, stored):
            break
        _log.info("job %s: another job stored a winner during the races", context.job_id)
    tracker.publish("done")
    tracker.log(context.job_id)
    return won.best if won else None
