"""``/jobs``: listing, one job, its trials, cancelling."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import ConfigDict

from service.deps import JobId, Service, ServiceDep
from service.openapi import errors
from service.paging import link_next
from service.problems import Kind, Problem
from service.views import best_view, job_place, job_view, number_place, page_end
from tilewright import wire
from tuner.store import best, jobs, trials
from tuner.store.records import JobRecord, JobStatus

router = APIRouter(prefix="/jobs", tags=["tuning"])


class JobsQuery(wire.PageQuery):
    """A page of jobs, of one status or of all."""

    model_config = ConfigDict(extra="forbid")

    status: wire.JobStatus | None = None


def unknown_job(job_id: str) -> Problem:
    """The refusal for a job that does not exist."""
    return Problem(Kind.NOT_FOUND, f"there is no job {job_id}; GET /jobs lists those there are")


@router.get("", operation_id="list_jobs", responses=errors())
def get_jobs(
    query: Annotated[JobsQuery, Query()], service: ServiceDep, request: Request, response: Response
) -> wire.JobList:
    """Jobs, the newest first."""
    status = JobStatus(query.status.value) if query.status else None
    before = job_place(query.cursor)
    with service.store.read() as session:
        found = jobs.listing(session, status, query.limit, before)
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
    if not job.status.is_final:
        response.headers["Retry-After"] = "1"
    return job_view(job, best_view(winners[0], service.trust.view(winners[0].best)) if winners else None)


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
    return wire.TrialList(items=[wire.TrialView.model_validate(trial) for trial in found], next=following)


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
