"""Jobs for the misses that have most device time at stake."""

from __future__ import annotations

from service import admission
from service.deps import Service
from service.lane import Lane
from service.problems import Kind, Problem
from tilewright import wire
from tilewright.problem import GemmProblem
from tuner.job import TuneRequest
from tuner.store import jobs, misses
from tuner.store.records import JobRecord
from tuner.store.submission import submit

_RETRY_AFTER_S = 30


def start(service: Service, body: wire.TuneMissesBody) -> list[JobRecord]:
    """Start or join a job for each of the top misses that a device here computes.

    As many as ``max_queue`` leaves room for; the rest stays on the list.

    Raises:
        Problem: no device here is of the class, a limit is exceeded, or the queue has no room at all.
    """
    admission.check_trials(body.max_trials, service.settings)
    lane = _lane(service, body.from_misses.device_class)
    with service.store.read() as session:
        top = misses.ranked(session, body.from_misses.device_class, body.from_misses.top)
    wanted = [miss.problem for miss in top if _is_possible(service, lane, miss.problem, body.families)]
    started = [job for problem in wanted if (job := _submit(service, lane, problem, body))]
    if wanted and not started:
        limit = service.settings.max_queue
        detail = f"{limit} jobs are queued (max_queue); try again later or cancel one"
        raise Problem(Kind.QUEUE_FULL, detail, retry_after=_RETRY_AFTER_S)
    service.engine.wake()
    return started


def _lane(service: Service, device_class: str) -> Lane:
    for lane in service.engine.lanes.values():
        if lane.bench.spec.device_class.id == device_class:
            return lane
    raise Problem(Kind.UNSUPPORTED, f"there is no device of class {device_class} here; see GET /devices")


def _is_possible(service: Service, lane: Lane, problem: GemmProblem, families: list[str]) -> bool:
    try:
        admission.check_size(problem, service.settings)
        admission.check_supported(problem, families, lane)
        admission.check_memory(problem, lane)
    except Problem:
        return False
    return True


def _submit(
    service: Service, lane: Lane, problem: GemmProblem, body: wire.TuneMissesBody
) -> JobRecord | None:
    families = tuple(sorted(set(body.families)))
    request = TuneRequest(problem, families, body.max_trials, body.max_seconds, body.seed)
    with service.store.begin() as session:
        full = jobs.queued_count(session) >= service.settings.max_queue
        if full:
            return None
        return submit(session, request, lane.bench.spec)[0]
