"""Routes of jobs: ``POST /tune``, ``POST /tune/misses`` and everything below ``/jobs``."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import Field
from sqlalchemy.orm import Session

from service.engine.event_feed import BATCH, Follower
from service.errors import Kind, Refusal
from service.http.access import Admitted
from service.http.deps import AdmittedDep, IdempotencyKey, JobId, Service, ServiceDep, caller, who
from service.http.openapi import errors
from service.http.routes.tuning import in_turn, start, start_for_misses
from service.http.views import job_place, job_view, link_next, number_place, page_end, unreadable_view
from tilewright import wire
from tilewright.schema.job import JobStatus
from tilewright.schema.problem import Extent
from tilewright.schema.trial import BestConfig
from tuner.store import best, jobs, trials
from tuner.store.access import audit
from tuner.store.access.audit import Action
from tuner.store.records import EventRecord, JobRecord, Unreadable

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
    body: Annotated[wire.AnyTuneBody, Depends(in_turn, scope="function")],
    service: ServiceDep,
    request: Request,
    response: Response,
    idempotency_key: IdempotencyKey,
) -> wire.JobView | wire.JobList:
    """Start tuning a GEMM, or join the job that already does the same; or jobs for the top misses. A problem
    that is being tuned is no miss. Several ``m`` are one job on a ladder."""
    if isinstance(body, wire.TuneMissesBody):
        started = start_for_misses(service, body, idempotency_key, request)
        return wire.JobList(items=[job_view(job) for job in started])
    job = start(service, body, idempotency_key, request)
    response.headers["Location"] = f"/jobs/{job.id}"
    response.headers["Retry-After"] = "1"
    with service.store.read() as session:
        return _with_results(service, session, job)


router = APIRouter(prefix="/jobs", tags=["tuning"])
_CANCELLED_AT_ONCE = 50  # NOTE: in one transaction, so that other writers have their turns


class JobsQuery(wire.PageQuery, frozen=True):
    """A page of jobs, of one status or of all; ``prefix`` is how their ids begin, ``m`` that of their problem
    or of a row of their ladder."""

    status: wire.JobStatus | None = None
    prefix: Annotated[str, Field(pattern="^[0-9a-f]{1,32}$")] = ""
    m: Extent | None = None


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
        found = jobs.listing(session, query.status, query.limit, before, query.prefix, query.m)
    following = link_next(request, response, page_end(found, query.limit))
    items = [
        job_view(job, waiting=service.engine.why_waiting(job)) for job in found if isinstance(job, JobRecord)
    ]
    unreadable = [unreadable_view(job) for job in found if isinstance(job, Unreadable)]
    return wire.JobList(items=items, unreadable=unreadable, next=following)


@router.get("/{job_id}", operation_id="get_job", responses=errors(Kind.NOT_FOUND, Kind.UNREADABLE))
def get_job(job_id: JobId, service: ServiceDep, response: Response) -> wire.JobView:
    """One job with its progress and, at the end, its winner or its error."""
    with service.store.read() as session:
        job = jobs.get(session, job_id)
        if job is None:
            raise unknown_job(job_id)
        view = _with_results(service, session, job)
    if not job.status.final:
        response.headers["Retry-After"] = "1"
    return view


def _with_results(service: Service, session: Session, job: JobRecord) -> wire.JobView:
    now: Any = {"waiting": service.engine.why_waiting(job), "neighbours": service.engine.neighbours(job)}
    if job.request.ladder:
        return job_view(job, rows=_rows(session, job), errors=jobs.row_errors(session, job.id), **now)
    winners = best.exact(session, job.device_class, job.request.problem)
    stored = service.quality.best_view(winners[0]) if winners else None
    if stored and stored.job_id == job.id:
        return job_view(job, stored, **now)
    own = None
    if job.result is not None:
        quality = service.quality.view(job.result)
        own = wire.BestConfigView.of(job.result, quality, created=job.finished or job.created)
    return job_view(job, own, stored, **now)


def _rows(session: Session, job: JobRecord) -> list[BestConfig]:
    """The winners of the rows of a ladder, the smallest M first; of an imported job, those in use here, as
    an export has no others."""
    if job.import_id is None:
        return list(jobs.row_results(session, job.id).values())
    found = (best.exact(session, job.device_class, problem) for problem in job.request.problems)
    return [one.best for stored in found for one in stored if one.best.job_id == job.id]


@router.get("/{job_id}/trials", operation_id="list_trials", responses=errors(Kind.NOT_FOUND, Kind.UNREADABLE))
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
    following = link_next(request, response, page_end(found, query.limit, lambda trial: trial.number + 1))
    return wire.TrialList(items=found, next=following)


@router.delete(
    "/{job_id}",
    status_code=202,
    operation_id="cancel_job",
    responses=errors(Kind.NOT_FOUND, Kind.UNREADABLE),
)
def delete_job(job_id: JobId, service: ServiceDep, request: Request) -> wire.JobView:
    """Cancel a job; a running one stops after its trial, its trials are kept. Repeating it is harmless."""
    job = cancel(service, job_id, request)
    with service.store.read() as session:
        return _with_results(service, session, job)


def cancel(service: Service, job_id: str, request: Request) -> JobRecord:
    """Ask a job to stop.

    Raises:
        Refusal: there is no such job, or this release cannot read it; the message says what was done.
    """
    asked = _cancel(service, [job_id], request)
    try:
        with service.store.read() as session:
            job = jobs.get(session, job_id)
    except Unreadable as error:
        done = "it is cancelled anyway" if asked.get(job_id) else "it had ended, or was cancelled before"
        raise Refusal(Kind.UNREADABLE, f"{error}; {done}") from error
    if job is None:  # NOTE: also one of an import on its way in or out, or that was deleted just now
        raise unknown_job(job_id)
    return job


def _cancel(service: Service, ids: Sequence[str], request: Request) -> dict[str, bool]:
    """Cancel jobs in one transaction; gives for each job that there is whether that changed something."""
    with service.store.begin() as session:
        changed = {job_id: jobs.request_cancel(session, job_id) for job_id in ids}
        for job_id in filter(changed.get, ids):
            audit.note(session, who(request), Action.CANCEL_JOB, job_id)
    for job_id in ids:
        service.engine.cancel(job_id)
    return {job_id: one for job_id, one in changed.items() if one is not None}


@router.delete("", operation_id="cancel_jobs", responses=errors())
def delete_jobs(
    query: Annotated[wire.CancelQuery, Query()], service: ServiceDep, request: Request
) -> wire.Counts:
    """Cancel every job of a filter that has not ended; says how many were not asked to stop before."""
    owner = caller(request) if query.mine else None
    with service.store.read() as session:
        ids = jobs.to_cancel(session, owner, query.status, **query.alike)
    starts = range(0, len(ids), _CANCELLED_AT_ONCE)
    parts = (_cancel(service, ids[start : start + _CANCELLED_AT_ONCE], request) for start in starts)
    return wire.Counts(jobs=sum(sum(part.values()) for part in parts))


events_router = APIRouter(tags=["tuning"])
_RECONNECT_MS = 1000
_NUMBERS = re.compile(r"[\d.]+")  # some reasons count seconds down
_ENDS = {
    "failed": "the service failed; its log has the reason, ask again with Last-Event-ID",
    "stopping": "the service stops; the job goes on at its next start, ask again with Last-Event-ID",
    "key": "the key was not found to open this any more; ask again with one that does",
    "slow": "events were not read for too long; ask again with Last-Event-ID",
}
LastEventId = Annotated[
    str | None, Header(pattern="^[0-9]{1,18}$", description="The last id that arrived; 0 for all")
]


def _existing_job(job_id: JobId, service: ServiceDep) -> JobRecord:
    with service.store.read() as session:
        job = jobs.get(session, job_id)
    if job is None:
        raise unknown_job(job_id)
    return job


@events_router.get(
    "/jobs/{job_id}/events",
    operation_id="follow_job",
    response_class=EventSourceResponse,
    responses=errors(Kind.NOT_FOUND, Kind.UNREADABLE),
)
async def get_events(
    job: Annotated[JobRecord, Depends(_existing_job)],
    service: ServiceDep,
    admitted: AdmittedDep,
    last_event_id: LastEventId = None,
) -> AsyncIterator[ServerSentEvent]:
    """What happens to a job: ``status``, ``progress``, ``trial``, ``best``, ``waiting`` and, at the end,
    ``done``.

    Before a service stops, to those who read too slowly, and where a key no longer opens, it sends ``retry``:
    the job is not at its end, ask again. Ids grow; ``Last-Event-ID`` resumes after one. A comment every 15 s
    keeps the connection.

    ``waiting`` says what keeps the job from going on, null for nothing: as it is now, then within 5 s of each
    change other than of numbers. It is not kept, so it has no id.
    """
    last_id = await run_in_threadpool(_last_of, service, job.id, int(last_event_id or 0))
    yield ServerSentEvent(comment="follow", retry=_RECONNECT_MS)
    with service.events.follow(job.id, last_id) as follower:
        async for event in _kept(service, job.id, last_id):
            yield _sent(event)
            job, last_id = _after(job, event), event.id
        async for sent in _news(service, admitted, follower, job, last_id):
            yield sent


async def _kept(service: Service, job_id: str, last_id: int) -> AsyncIterator[EventRecord]:
    """The events of a job after one, until there is none."""
    while events := await run_in_threadpool(_next_events, service, job_id, last_id):
        for event in events:
            yield event
        last_id = events[-1].id


async def _news(
    service: Service, admitted: Admitted, follower: Follower, job: JobRecord, last_id: int
) -> AsyncIterator[ServerSentEvent]:
    """What happens to a job after an event, to its end or that of the following."""
    sent_reason: str | None = None
    while follower.ended is None:
        waiting = service.engine.why_waiting(job)
        reason = _NUMBERS.sub("", waiting or "")
        if reason != sent_reason and not job.status.final:
            yield ServerSentEvent(event="waiting", data={"waiting": waiting})
            sent_reason = reason
        news = await follower.news()
        if not await admitted.still():
            if follower.ended is None:
                follower.end("key")
            continue
        for event in news.events:
            if event.id > last_id:
                yield _sent(event)
                job, last_id = _after(job, event), event.id
        if news.status:
            yield ServerSentEvent(event="done", data={"status": news.status})
            return
    yield ServerSentEvent(event="retry", data={"detail": _ENDS[follower.ended]}, retry=_RECONNECT_MS)


def _last_of(service: Service, job_id: str, last_id: int) -> int:
    """The last event that a follower has, at most the newest one that exists: with a higher id the
    follower would miss the events up to it."""
    with service.store.read() as session:
        return min(last_id, jobs.newest_events(session, [job_id]).get(job_id, 0))


def _next_events(service: Service, job_id: str, last_id: int) -> list[EventRecord]:
    with service.store.read() as session:
        return jobs.events_after(session, job_id, last_id, BATCH)


def _after(job: JobRecord, event: EventRecord) -> JobRecord:
    """The job with the status that an event tells; a damaged event, which is text, or one of a later release
    changes nothing."""
    if event.kind != "status" or not isinstance(event.data, dict):
        return job
    status = event.data.get("status")
    return dataclasses.replace(job, status=JobStatus(status)) if status in list(JobStatus) else job


def _sent(event: EventRecord) -> ServerSentEvent:
    return ServerSentEvent(event=event.kind, id=str(event.id), data=event.data)
