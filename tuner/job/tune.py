"""``tune``: one job from the first config to the winner."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from kernels.base.family import Family
from kernels.prior import prior
from kernels.registry import FAMILIES, families_for
from tilewright.errors import DeviceUnavailable, InvalidProblem, LaunchError
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.job import QUICK_TRIALS, JobProgress, TuneRequest
from tilewright.schema.trial import BestConfig
from tuner.job.context import JobContext, Recorder
from tuner.job.first_configs import in_order_of_asks, promising
from tuner.job.helpers import adopt
from tuner.job.loop import Ahead, Loop
from tuner.job.progress import ProgressTracker
from tuner.job.selection import SELECTIONS, select_winner
from tuner.job.slots import SlotBoard
from tuner.measure.operands import why_too_large
from tuner.search.search import DEPTH, Search, initial_of, open_search
from tuner.workers.bench import Bench
from tuner.workers.builder import Builder
from tuner.workers.process import WorkerError
from tuner.workers.recovery import DeviceAway

NO_WINNER = "no config of this problem compiled, ran and gave the right result; its trials say why"
_log = logging.getLogger("tilewright.job")


def tune(
    request: TuneRequest,
    job_id: str,
    bench: Bench,
    builder: Builder,
    recorder: Recorder,
    cancelled: threading.Event,
    initial_configs: Sequence[Config] = (),
    quiet_wait_s: float = 0.0,
    board: SlotBoard | None = None,
) -> BestConfig | None:
    """Search, race the candidates with the vendor library, and record the winner.

    Trials that ``recorder`` holds already are replayed into the search, not measured again, so that an
    interrupted job continues. ``initial_configs``, configs with the tiling of the vendor library's choice and
    heuristic configs are tried first. The search ends after ``max_trials`` measured trials, after
    ``max_seconds``, after four times as many proposals as ``max_trials``, when every config was tried, or
    when it gains too little. The last progress gives the reason. Final races that others disturb run again
    for ``quiet_wait_s`` seconds. Other devices take trials from ``board``.

    Returns:
        The winner; None if no trial succeeded or ``cancelled`` was set (recorded trials are kept).

    Raises:
        InvalidProblem: a family is unknown, or no config of any family is valid for the problem.
        WorkerDied, WorkerTimeout, LaunchError: as :func:`tuner.job.selection.select_winner`.
        DeviceUnavailable: the compiler or the device's libraries are missing.
    """
    started = time.monotonic()
    context = JobContext(request, job_id, bench, builder, recorder, cancelled, quiet_wait_s, board)
    adopt(context)
    if not recorder.trials():  # else the progress of the interrupted run stands until it is caught up with
        recorder.set_progress(JobProgress("enumerate", 0, request.budget))
    opening = time.monotonic()
    search, ahead = open_for(context, bench, initial_configs)
    tracker = ProgressTracker(request, recorder, search, started, time.monotonic() - opening)
    Loop(context, search, tracker, ahead=ahead).run()
    if board:
        board.close()
    if cancelled.is_set():
        return None
    tracker.publish("race")
    for _ in range(SELECTIONS):
        stored = recorder.stored_best(request.problem)
        with tracker.spending("race"):
            best = select_winner(context, tracker, stored)
        if cancelled.is_set():
            return None
        if best is None or recorder.set_best(best, tracker.artifacts[best.artifact], stored):
            break
        _log.info("job %s: another job stored a winner during the races", job_id)
    tracker.publish("done")
    tracker.log(job_id)
    return best


def open_for(
    context: JobContext,
    bench: Bench,
    initial_configs: Sequence[Config],
    first: Sequence[Config] = (),
    begun: Ahead | None = None,
) -> tuple[Search, Ahead]:
    """The search of a job, whose first configs are ``initial_configs``, those of the vendor library's choice
    and heuristic ones; and compilations that began meanwhile.

    These are of ``first``, or else of what the search will probably ask for first, as many as compile at once
    while one core is left; on the host of none. Those that have ``begun`` already do not begin again.

    Raises:
        InvalidProblem: as :func:`tune`.
    """
    request, device = context.request, context.device
    # What won elsewhere is searched as if the request named it.
    named = {*request.families, *(config.family for config in initial_configs)}
    chances = prior(request.problem, device, named)
    families = _families(request, device, chances)
    too_large = why_too_large(request.problem, device)
    if too_large:
        raise InvalidProblem(too_large)
    given = [*initial_configs, *_vendor_configs(context, bench, families)]
    done = {trial.config for trial in context.recorder.trials()}
    if not first and not done and device.kind != "host":
        most = min(max(DEPTH, context.builder.processes - 1), request.budget, QUICK_TRIALS)
        initial = {family.name: initial_of(family, request.problem, device, given) for family in families}
        first = in_order_of_asks(initial, chances)[:most]
    started = [config for config in first if config not in done and device.kind != "host"]
    known = begun or {}
    ahead = {config: known[config] if config in known else context.submit(config) for config in started}
    search = open_search(
        families, request.problem, device, request.budget, request.seed, given, request.sampler, odds=chances
    )
    if search.exhausted:
        for work in ahead.values():
            work.cancel()
        names = ", ".join(family.name for family in families) or "any family"
        raise InvalidProblem(
            f"no config of {names} is valid for {request.problem} on {device.arch}; tune another problem, or "
            "name other families"
        )
    return search, ahead


def _vendor_configs(context: JobContext, bench: Bench, families: Sequence[Family[Any]]) -> list[Config]:
    """Promising configs that follow the vendor library's tile hints; empty if it gives no hint or fails."""
    try:
        hints = bench.vendor_tile_hints(context.problem, context.trial_timeout_s)
    except DeviceAway:
        raise
    except (DeviceUnavailable, WorkerError, LaunchError) as error:
        _log.info("job %s: no configs from the vendor library: %s", context.job_id, error)
        return []
    problem, device = context.problem, context.device
    followers = (
        config
        for hint in hints
        for family in families
        for config in family.configs_from_hint(hint, problem, device)
    )
    return promising(followers, problem, device)


def _families(request: TuneRequest, device: DeviceSpec, chances: Mapping[str, float]) -> list[Family[Any]]:
    """The families that a job searches: those that the request names, else those that support the problem and
    have a chance above 0."""
    supported = families_for(request.problem, device)
    for name in request.families:
        if name not in FAMILIES:
            raise InvalidProblem(f"there is no family {name!r}; choose among {', '.join(FAMILIES)}")
        if name not in supported:
            reason = FAMILIES[name].why_unsupported(request.problem, device)
            raise InvalidProblem(f"family {name} does not support {request.problem}: {reason}; leave it out")
    names = request.families or [name for name in supported if chances[name] > 0]
    return [supported[name] for name in names]
