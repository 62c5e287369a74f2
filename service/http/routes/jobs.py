"""Routes of jobs: ``POST /tune``, ``POST /tune/misses`` and everything below ``/jobs``."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from typing import Annotated

import anyio
from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy.orm import Session

from service.engine import admission
from service.errors import Kind, Refusal
from service.http.conditional import link_next
from service.http.deps import IdempotencyKey, JobId, Service, ServiceDep
from service.http.openapi import errors
from service.http.views import best_view, job_place, job_view, number_place, page_end
from tilewright import wire
from tilewright.schema.device import DeviceSpec
from tilewright.schema.job import JobStatus, TuneRequest
from tuner.store import best, jobs, misses, records, trials
from tuner.store.jobs import submit
from tuner.store.keys import once
from tuner.store.records import EventRecord, JobRecord
from tuner.workers.bench import Bench


def start_for_misses(service: Service, body: wire.TuneMissesBody, key: str | None) -> list[JobRecord]:
    """Start a job for each of the top misses that a device here computes, or give those that a request with
    this idempotency key started.

    As many as ``max_queue`` leaves room for; the rest stays on the list.

    Raises:
        Refusal: no device here is of the class, a limit is exceeded, or the queue has no room at all.
        IdempotencyConflict: the key came with another request before.
    """
    admission.check_trials(body.max_trials, service.settings)
    bench = _bench_for_misses(service, body.from_misses.device_class, body.device)
    digest = records.digest(body.model_dump(mode="json"))
    with service.store.begin() as session:
        answer = once(session, key, digest, lambda: {"jobs": _queue_top(service, session, bench, body)})
        started = [jobs.known(session, job_id) for job_id in answer["jobs"]]
    service.engine.wake()
    return started


def _queue_top(service: Service, session: Session, bench: Bench, body: wire.TuneMissesBody) -> list[str]:
    top = misses.ranked(session, body.from_misses.device_class, body.from_misses.top)
    settings, families = service.settings, body.families
    wanted = [miss.problem for miss in top if admission.is_possible(miss.problem, families, settings, bench)]
    room = settings.max_queue - jobs.queued_count(session)
    if wanted and room <= 0:
        raise admission.queue_full(settings)
    requests = [body.to_request(problem) for problem in wanted[: max(room, 0)]]
    return [submit(session, request, bench.spec)[0].id for request in requests]


def _bench_for_misses(service: Service, device_class: str, device: str | None) -> Bench:
    for name, queue in service.engine.queues.items():
        if queue.bench.spec.device_class.id == device_class and device in (None, name):
            return queue.bench
    named = f"{device} is not" if device else "there is no device"
    raise Refusal(Kind.UNSUPPORTED, f"{named} of class {device_class} here; see GET /devices")


tune_router = APIRouter(tags=["tuning"])


@tune_router.post(
    "/tune",
    status_code=202,
    operation_id="tune",
    responses=errors(
        Kind.UNSUPPORTED,
        Kind.OVER_LIMIT,
        Kind.IDEMPOTENCY_MISMATCH,
        Kind.IDEMPOTENCY_IN_FLIGHT,
        Kind.QUEUE_FULL,
    ),
)
def post_tune(
    body: wire.AnyTuneBody, service: ServiceDep, response: Response, idempotency_key: IdempotencyKey
) -> wire.JobView | wire.JobList:
    """Start tuning a GEMM, or join the job that already does the same; or a job for each of the top misses.
    A problem that is being tuned is no miss."""
    if isinstance(body, wire.TuneMissesBody):
        started = start_for_misses(service, body, idempotency_key)
        return wire.JobList(items=[job_view(job) for job in started])
    request = body.to_request(body.to_problem())
    admission.check_trials(body.max_trials, service.settings)
    admission.check_size(request.problem, service.settings)
    bench = service.engine.bench(body.device)
    admission.check_supported(request.problem, body.families, bench)
    admission.check_memory(request.problem, bench)
    job = _submit(service, request, bench.spec, idempotency_key)
    service.engine.wake()
    response.headers["Location"] = f"/jobs/{job.id}"
    response.headers["Retry-After"] = "1"
    return job_view(job)


def _submit(service: Service, request: TuneRequest, spec: DeviceSpec, key: str | None) -> JobRecord:
    digest = records.request_digest(request, spec.device_class.id)
    with service.store.begin() as session:
        answer = once(session, key, digest, lambda: {"jobs": [_queue(service, session, request, spec)]})
        return jobs.known(session, answer["jobs"][0])


def _queue(service: Service, session: Session, request: TuneRequest, spec: DeviceSpec) -> str:
    job, created = submit(session, request, spec)
    # NOTE: raising inside the transaction takes the job back.
    if created and jobs.queued_count(session) > service.settings.max_queue:
        raise admission.queue_full(service.settings)
    return job.id


router = APIRouter(prefix="/jobs", tags=["tuning"])


class JobsQuery(wire.PageQuery, frozen=True):
    """A page of jobs, of one status or of all."""

    status: wire.JobStatus | None = None


def unknown_job(job_id: str) -> Refusal:
    """The refusal for a job that does not exist."""
    return Refusal(Kind.NOT_FOUND, f"there is no job {job_id}; GET /jobs lists those there are")


@router.get("", operation_id="list_jobs", responses=errors())
def get_jobs(
    query: Annotated[JobsQuery, Query()], service: ServiceDep, request: Request, response: Response
) -> wire.JobList:
    """Jobs, the newest first."""
    before = job_place(query.cursor)
    with service.store.read() as session:
        found = jobs.listing(session, query.status, query.limit, before)
    following = page_end(len(found), query.limit, found[-1].id if found else None)
    link_next(request, response, following)
    return wire.JobList(items=[job_view(job) for job in found], next=following)


@router.get("/{job_id}", operation_id="get_job", responses=errors(Kind.NOT_FOUND))
def get_job(job_id: JobId, service: ServiceDep, response: Response) -> wire.JobView:
    """One job with its progress and, at the end, its winner or its error."""
    with service.store.read() as session:
        job = jobs.get(session, job_id)
        if job is None:
            raise unknown_job(job_id)
        winners = best.exact(session, job.device_class, job.request.problem)
    if not job.status.final:
        response.headers["Retry-After"] = "1"
    return job_view(job, best_view(winners[0], service.quality.view(winners[0].best)) if winners else None)


@router.get("/{job_id}/trials", operation_id="list_trials", responses=errors(Kind.NOT_FOUND))
def get_trials(
    job_id: JobId,
    query: Annotated[wire.PageQuery, Query()],
    service: ServiceDep,
    request: Request,
    response: Response,
) -> wire.TrialList:
    """The trials of a job by number, with their raw samples."""
    first = number_place(query.cursor)
    with service.store.read() as session:
        if jobs.get(session, job_id) is None:
            raise unknown_job(job_id)
        found = trials.of_job(session, job_id, first, query.limit)
    following = page_end(len(found), query.limit, found[-1].number + 1 if found else None)
    link_next(request, response, following)
    return wire.TrialList(items=found, next=following)


@router.delete("/{job_id}", status_code=202, operation_id="cancel_job", responses=errors(Kind.NOT_FOUND))
def delete_job(job_id: JobId, service: ServiceDep) -> wire.JobView:
    """Cancel a job; a running one stops after its trial, its trials are kept. Repeating it is harmless."""
    return job_view(_cancel(service, job_id))


def _cancel(service: Service, job_id: str) -> JobRecord:
    with service.store.begin() as session:
        job = jobs.request_cancel(session, job_id)
    if job is None:
        raise unknown_job(job_id)
    service.engine.cancel(job_id)
    return job


events_router = APIRouter(tags=["tuning"])
_POLL_S = 0.2
_BATCH = 200
_RECONNECT_MS = 1000
LastEventId = Annotated[
    str | None, Header(pattern="^[0-9]{1,18}$", description="The last id that arrived; 0 for all")
]


@dataclasses.dataclass(frozen=True, slots=True)
class _News:
    status: JobStatus
    events: list[EventRecord]

    @property
    def is_last(self) -> bool:
        return self.status.final and len(self.events) < _BATCH


def _existing_job(job_id: JobId, service: ServiceDep) -> str:
    with service.store.read() as session:
        if jobs.get(session, job_id) is None:
            raise unknown_job(job_id)
    return job_id


@events_router.get(
    "/jobs/{job_id}/events",
    operation_id="follow_job",
    response_class=EventSourceResponse,
    responses=errors(Kind.NOT_FOUND),
)
async def get_events(
    job_id: Annotated[str, Depends(_existing_job)], service: ServiceDep, last_event_id: LastEventId = None
) -> AsyncIterator[ServerSentEvent]:
    """What happens to a job: ``status``, ``progress``, ``trial``, ``best`` and, at the end, ``done``.

    Before a service stops it sends ``retry``: the job is not at its end, ask again. Ids grow;
    ``Last-Event-ID`` resumes after one. A comment every 15 s keeps the connection.
    """
    last_id = int(last_event_id or 0)
    yield ServerSentEvent(comment="follow", retry=_RECONNECT_MS)
    while not service.engine.stopping.is_set():
        news = await run_in_threadpool(_news, service, job_id, last_id)
        for event in news.events:
            yield ServerSentEvent(event=event.kind, id=str(event.id), data=event.data)
            last_id = event.id
        if news.is_last:
            yield ServerSentEvent(event="done", data={"status": news.status})
            return
        await anyio.sleep(_POLL_S)
    detail = "the service stops; the job goes on at its next start, ask again with Last-Event-ID"
    yield ServerSentEvent(event="retry", data={"detail": detail}, retry=_RECONNECT_MS)


def _news(service: Service, job_id: str, last_id: int) -> _News:
    with service.store.read() as session:
        job = jobs.get(session, job_id)
        found = jobs.events_after(session, job_id, last_id, _BATCH)
    # NOTE: status first, events second, in one snapshot: a final status means that all events are there.
    return _News(job.status if job else JobStatus.CANCELLED, found)
