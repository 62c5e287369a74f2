"""``GET /jobs/{id}/events``: server-sent events, resumable from the database."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from typing import Annotated

import anyio
from fastapi import APIRouter, Depends, Header
from fastapi.concurrency import run_in_threadpool
from fastapi.sse import EventSourceResponse, ServerSentEvent

from service.deps import JobId, Service, ServiceDep
from service.openapi import errors
from service.problems import Kind
from service.routes.jobs import unknown_job
from tuner.store import events, jobs
from tuner.store.records import EventRecord, JobStatus

router = APIRouter(tags=["tuning"])
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
        return self.status.is_final and len(self.events) < _BATCH


def _existing_job(job_id: JobId, service: ServiceDep) -> str:
    with service.store.read() as session:
        if jobs.get(session, job_id) is None:
            raise unknown_job(job_id)
    return job_id


@router.get(
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
        found = events.after(session, job_id, last_id, _BATCH)
    # NOTE: status first, events second, in one snapshot: a final status means that all events are there.
    return _News(job.status if job else JobStatus.CANCELLED, found)
