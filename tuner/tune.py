"""``tune``: one job from the first config to the winner."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kernels.family import Family
from kernels.registry import FAMILIES, families_for
from tilewright.config import Config
from tilewright.device import DeviceSpec
from tilewright.errors import DeviceUnavailable, InvalidProblem, LaunchError
from tilewright.trial import BestConfig
from tuner.context import JobContext
from tuner.crown import crown
from tuner.job import Progress, Recorder, TuneRequest
from tuner.ledger import Ledger
from tuner.loop import Loop
from tuner.operands import why_too_large
from tuner.process import WorkerError
from tuner.search import Search, open_search

if TYPE_CHECKING:
    from tuner.bench import Bench
    from tuner.builder import Builder

_log = logging.getLogger("tilewright.job")


def tune(
    request: TuneRequest,
    job_id: str,
    bench: Bench,
    builder: Builder,
    recorder: Recorder,
    cancelled: threading.Event,
    seeds: Sequence[Config] = (),
) -> BestConfig | None:
    """Search, race the finalists with the vendor, and record the winner.

    Trials that ``recorder`` holds already are replayed into the search, not measured again, so that an
    interrupted job goes on where it stood. ``seeds`` are tried first, then configs like what the vendor
    library would run. The search ends after ``max_trials`` measured trials, ``max_seconds``, four asks a
    granted trial, the whole space, or where it gains too little; the last progress says which.

    Returns:
        The winner; None where no trial went well or ``cancelled`` was set (trials stay recorded).

    Raises:
        InvalidProblem: a family is unknown, or no config of any family is valid for the problem.
        ArtifactError, WorkerDied, WorkerTimeout, LaunchError: as :func:`tuner.crown.crown`.
        DeviceUnavailable: the compiler or the device's libraries are missing.
    """
    started = time.monotonic()
    context = JobContext(request, job_id, bench, builder, recorder, cancelled)
    recorder.set_progress(Progress("enumerate", 0, request.max_trials))
    search = _open(context, bench, seeds)
    ledger = Ledger(request, recorder, search, started)
    Loop(context, search, ledger).run()
    if cancelled.is_set():
        return None
    ledger.publish("race")
    with ledger.racing():
        best = crown(context, ledger)
    if cancelled.is_set():
        return None
    if best:
        recorder.set_best(best)
    ledger.publish("done")
    ledger.log(job_id)
    return best


def _open(context: JobContext, bench: Bench, seeds: Sequence[Config]) -> Search:
    request, device = context.request, context.device
    families = _families(request, device)
    too_large = why_too_large(request.problem, device)
    if too_large:
        raise InvalidProblem(too_large)
    given = [*seeds, *_vendor_seeds(context, bench, families)]
    search = open_search(
        families, request.problem, device, request.max_trials, request.seed, given, request.policy
    )
    if not search.size:
        names = ", ".join(family.name for family in families) or "any family"
        raise InvalidProblem(f"no config of {names} is valid for {request.problem} on {device.arch}")
    return search


def _vendor_seeds(context: JobContext, bench: Bench, families: Sequence[Family[Any]]) -> list[Config]:
    """Configs like what the vendor library would run; none where it does not tell: others are left."""
    try:
        outlines = bench.vendor_outlines(context.problem, context.trial_timeout_s)
    except (DeviceUnavailable, WorkerError, LaunchError) as error:
        _log.info("job %s: no seeds after the vendor library: %s", context.job_id, error)
        return []
    problem, device = context.problem, context.device
    return [
        config
        for outline in outlines
        for family in families
        for config in family.imitations(outline, problem, device)
    ]


def _families(request: TuneRequest, device: DeviceSpec) -> list[Family[Any]]:
    supported = families_for(request.problem, device)
    for name in request.families:
        if name not in FAMILIES:
            raise InvalidProblem(f"there is no family {name!r}; choose among {', '.join(FAMILIES)}")
        if name not in supported:
            reason = FAMILIES[name].why_unsupported(request.problem, device)
            raise InvalidProblem(f"family {name} does not support {request.problem}: {reason}")
    return [supported[name] for name in request.families or supported]
