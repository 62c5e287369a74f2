"""Jobs for the misses that have most device time at stake."""

from __future__ import annotations

from sqlalchemy.orm import Session

from service import admission
from service.deps import Service
from service.lane import Lane
from service.problems import Kind, Problem
from tilewright import wire
from tilewright.problem import GemmProblem
from tuner.job import TuneRequest
from tuner.store import codec, jobs, misses
from tuner.store.idempotency import once
from tuner.store.records import JobRecord
from tuner.store.submission import submit


def start(service: Service, body: wire.TuneMissesBody, key: str | None) -> list[JobRecord]:
    """Start a job for each of the top misses that a device here computes, or give those that a request with
    this idempotency key started.

    As many as ``max_queue`` leaves room for; the rest stays on the list.

    Raises:
        Problem: no device here is of the class, a limit is exceeded, or the queue has no room at all.
        IdempotencyConflict: the key came with another request before.
    """
    admission.check_trials(body.max_trials, service.settings)
    lane = _lane(service, body.from_misses.device_class)
    digest = codec.digest(body.model_dump(mode="json"))
    with service.store.begin() as session:
        answer = once(session, key, digest, lambda: {"jobs": _queue_top(service, session, lane, body)})
        started = [jobs.known(session, job_id) for job_id in answer["jobs"]]
    service.engine.wake()
    return started


def _queue_top(service: Service, session: Session, lane: Lane, body: wire.TuneMissesBody) -> list[str]:
    top = misses.ranked(session, body.from_misses.device_class, body.from_misses.top)
    settings, families = service.settings, body.families
    wanted = [miss.problem for miss in top if admission.is_possible(miss.problem, families, settings, lane)]
    room = settings.max_queue - jobs.queued_count(session)
    if wanted and room <= 0:
        raise admission.queue_full(settings)
    requests = [_request(problem, body) for problem in wanted[: max(room, 0)]]
    return [submit(session, request, lane.bench.spec)[0].id for request in requests]


def _lane(service: Service, device_class: str) -> Lane:
    for lane in service.engine.lanes.values():
        if lane.bench.spec.device_class.id == device_class:
            return lane
    raise Problem(Kind.UNSUPPORTED, f"there is no device of class {device_class} here; see GET /devices")


def _request(problem: GemmProblem, body: wire.TuneMissesBody) -> TuneRequest:
    families = tuple(sorted(set(body.families)))
    return TuneRequest(problem, families, body.max_trials, body.max_seconds, body.seed)
