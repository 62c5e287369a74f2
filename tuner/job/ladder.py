"""``tune_ladder``: one job for many M of the same (N, K), types, layout and epilogue.

1. Each row of the ladder has a search of its own, the largest M first. It starts from the best kernels of the
   rows beside it and from the families' heuristic configs for its M (:mod:`tuner.job.first_configs`), even if
   these are more trials than its part of the budget.
2. The best kernels of each row are measured on the rows next to it, the best one on until it falls behind
   there. Nothing is compiled for that: the binary of a kernel does not depend on M.
3. A few kernels are chosen such that each row has one within 1 % of the best measured on it.
4. On each row the chosen kernels and the row's own best ones race each other and the vendor library, as in a
   job on one problem. Where power may limit the device, so that each would cost a second, only the fastest of
   them races the vendor library: the second one would gain 0.1 %
   (benchmarks/lab/2026-11-29-seconds-of-races.md). A row that loses to the vendor library has as many trials
   again. If these show a kernel that would race and did not, it races the winner and the vendor library.
   Of a row that another release began, kernels race by the times of each method, which do not compare.

A quick ladder has fewer heuristic configs and trials, races the fastest kernel alone, and gives no row more
trials.

The winner of a row says what the chosen kernels took on it. A lookup between two rows needs that
(:mod:`tilewright.config_sets.lookup`). Trials and winners commit one by one; a killed job replays the trials
and goes on with the rows that had no race.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import itemgetter

from tilewright.errors import LaunchError
from tilewright.schema.job import JobProgress
from tilewright.schema.trial import BestConfig, LadderKernel, Trial
from tuner.job.context import InitialConfigs, JobContext, WinnerRecorder
from tuner.job.helpers import adopt
from tuner.job.ladder_rows import OWN, RACED, LadderJob, Row
from tuner.job.selection import NO_WINNER, SELECTIONS, Selected, select_winner
from tuner.job.shortlist import loads_at_the_limit, shortlist
from tuner.measure.timing import power_may_limit
from tuner.workers.process import WorkerError

COVERED = 0.01  # regret within which a kernel serves a row as well as its best
FOLLOWED = 0.10  # regret up to which a kernel is measured on the next row
_log = logging.getLogger("tilewright.job")


def tune_ladder(
    context: JobContext, winners: WinnerRecorder, initial_configs: InitialConfigs
) -> list[BestConfig]:
    """Search every row, choose the kernels that cover the ladder, race them row by row, record the winners.

    Rows that ``winners`` holds as decided are neither searched nor raced again. ``initial_configs`` gives
    the configs that the search of a row tries after those of its neighbours. A row without a winner is
    recorded with the reason, and the others go on.

    Returns, Raises:
        As :func:`tuner.job.tune.run_job`.
    """
    adopt(context)
    job = LadderJob(context, winners, initial_configs)
    if not job.trials:
        context.recorder.set_progress(JobProgress("enumerate", 0, job.planned))
    rows = job.search()
    if context.board:
        context.board.close()
    if not job.racing:
        _follow(job, rows)
    if not context.cancelled.is_set():
        _race(job, rows)
    if context.cancelled.is_set():
        return []
    job.publish("done")
    kernels = {best.artifact for best in job.results.values()}
    _log.info("job %s: %d rows of a ladder, %d kernels", context.job_id, len(job.results), len(kernels))
    return [job.results[m] for m in sorted(job.results)]


def _follow(job: LadderJob, rows: Sequence[Row]) -> None:
    """Measure the best kernels of each row on the rows on both sides, the best one on until it is too far
    behind there. A row takes as many kernels of others as its part of the trials, 2 at least; the seconds of
    the request bound them all."""
    going = [
        (index, step, trial)
        for rank in range(OWN)
        for index, row in enumerate(rows)
        for step in (1, -1)
        for trial in row.own_best[rank : rank + 1]
    ]
    best = {index: row.tracker.best for index, row in enumerate(rows)}
    for distance in range(1, len(rows)):
        ahead = list[tuple[int, int, Trial]]()
        # Row by row: the device keeps operands for one problem.
        placed = [(index + step * distance, index, step, trial) for index, step, trial in going]
        for place, index, step, trial in sorted(placed, key=itemgetter(0)):
            if not 0 <= place < len(rows):
                continue
            if job.context.cancelled.is_set() or job.time_is_up:
                return
            if rows[place].follow(trial) <= FOLLOWED and trial is best[index]:
                ahead.append((index, step, trial))
        going = ahead


def cover(regrets: Mapping[int, Mapping[str, float]], within: float = COVERED) -> list[str]:
    """Few kernels that cover the ladder: each row has one whose regret is at most ``within``. Greedy: take
    the kernel that serves most of the rows left; among equals, the one with the smallest sum of regrets.

    Args:
        regrets: of each kernel, by M.
    """
    served = defaultdict[str, set[int]](set)
    for m, of_row in regrets.items():
        for digest, regret in of_row.items():
            if regret <= within:
                served[digest].add(m)
    left, chosen = {m for m, of_row in regrets.items() if of_row}, list[str]()
    while left:

        def rank(digest: str, left: frozenset[int] = frozenset(left)) -> tuple[int, float, str]:
            here = served[digest] & left
            return -len(here), sum(regrets[m][digest] for m in here), digest

        chosen.append(min(served, key=rank))
        left -= served[chosen[-1]]
    return chosen


def _race(job: LadderJob, rows: Sequence[Row]) -> None:
    """Race kernels on each row that has no winner yet, and commit the winners.

    A row that loses to the vendor library is searched on, once and unless the job is quick, and races again
    if that brings another kernel into its race.
    """
    chosen = set(cover({row.m: row.regrets() for row in rows}))
    chosen |= {str(trial.artifact) for row in rows for trial in row.own_best}
    for above, row in zip([None, *rows], rows, strict=False):
        if row.m in job.results or row.m in job.errors:
            continue
        # A lookup between two rows needs one kernel that both know.
        if above and (winner := job.results.get(above.m)) and not job.context.cancelled.is_set():
            row.follow(winner, always=True)
            chosen.add(winner.artifact)
        for _ in range(SELECTIONS):
            if _decide(job, row, chosen, job.winners.stored_best(row.problem)):
                break
            _log.info("job %s: another job stored a winner for m = %d", job.context.job_id, row.m)
        if job.context.cancelled.is_set():
            return
        job.publish("race")


def _decide(job: LadderJob, row: Row, chosen: AbstractSet[str], stored: BestConfig | None) -> bool:
    """Race kernels on a row and commit its winner; False if another job stored one meanwhile."""
    known = _racing(row, chosen)
    won, reason = _raced(job, row, chosen, stored)
    if won and job.may_spend_on(won.best) and not row.searched_on:
        known |= {one.artifact for one in (won.best, stored) if one}
        _search_more(job, row)
        # NOTE: a race of the same kernels would only give a result that missed a good verdict another chance.
        if not _racing(row, chosen) <= known:
            later, _ = _raced(job, row, chosen, (won.best.timing.disturbed and stored) or won.best)
            won = later if later and _replaces(later.best, won.best) else won
    if job.context.cancelled.is_set():
        return True
    if won is None:
        job.failed(row.m, reason)
        return True
    regrets = row.regrets()
    on_row = {digest: regrets[digest] for digest in regrets if digest in chosen | {won.best.artifact}}
    return job.decided(with_ladder(won.best, on_row), won.artifact, stored)


def _search_more(job: LadderJob, row: Row) -> None:
    """Search a row on; one whose search fails keeps what it measured."""
    try:
        row.search_more()
    except (WorkerError, LaunchError) as error:
        row.recall()
        _log.info("job %s: m = %d is not searched on: %s", job.context.job_id, row.m, error)
    finally:
        if job.context.board:
            job.context.board.close()


def _replaces(later: BestConfig, first: BestConfig) -> bool:
    """Whether the result of a second race on a row is stored instead of the first one: if another kernel
    won it undisturbed, or the first result was disturbed."""
    return bool(first.timing.disturbed) or (later.artifact != first.artifact and not later.timing.disturbed)


def _racing(row: Row, chosen: AbstractSet[str]) -> set[str]:
    """The kernels that would take part in a race on a row now, besides a stored winner."""
    loads = loads_at_the_limit(row.problem, row.context.device)
    return {str(trial.artifact) for trial in shortlist(_may_race(row, chosen), loads)}


def _may_race(row: Row, chosen: AbstractSet[str]) -> list[Trial]:
    """The trials of whose kernels the fastest race on a row, those of each method."""
    return [*row.tracker.incomparable, *_near(row, chosen)]


def _near(row: Row, chosen: AbstractSet[str]) -> list[Trial]:
    """The fastest trial of each kernel that was chosen or is one of the row's own best, where it is near the
    best of the row; where power may limit the device, of the best one alone."""
    within = 0.0 if power_may_limit(row.problem, row.context.device) else RACED
    own, regrets = {str(trial.artifact) for trial in row.own_best}, row.regrets()
    return [
        trial for digest, trial in row.times().items() if digest in chosen | own and regrets[digest] <= within
    ]


def _raced(
    job: LadderJob, row: Row, chosen: AbstractSet[str], stored: BestConfig | None
) -> tuple[Selected | None, str]:
    """The winner of the races of a row between the kernels chosen, its own best ones and the ``stored``
    winner, which takes part wherever it lies, or None and the reason."""
    near = [str(trial.artifact) for trial in _near(row, chosen)]
    kernels = {digest: kernel for digest in near if (kernel := job.kernel(digest))}
    reason, won = NO_WINNER, None
    row.tracker.publish("race")
    # If no kernel that was chosen builds and runs any more, all that the row measured may win.
    for trials in (_may_race(row, chosen), row.tracker.trials):
        with row.tracker.spending("race"):
            try:
                won = select_winner(row.context, trials, kernels, stored)
            except (WorkerError, LaunchError) as error:
                reason = str(error)
        if won or job.context.cancelled.is_set():
            break
    row.tracker.publish("race")
    return won, reason


def with_ladder(best: BestConfig, regrets: Mapping[str, float]) -> BestConfig:
    """The winner of a row, with the regret and the speed-up of each kernel of the ladder on this row.

    The race compares only the winner with the vendor library. The speed-up of another kernel is the winner's
    multiplied by the ratio of their times in the search, and never above the winner's. If the stored winner
    of the row won and the search did not measure it, nothing is known of the other kernels.
    """
    own = dict(regrets) if best.artifact in regrets else {best.artifact: 0.0}
    ratio = 1.0 + own[best.artifact]
    kernels = (
        LadderKernel(digest, regret, best.speedup * min(1.0, ratio / (1.0 + regret)))
        for digest, regret in own.items()
    )
    return dataclasses.replace(best, kernels=tuple(kernels))
