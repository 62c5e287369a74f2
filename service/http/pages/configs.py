"""Views of a job's configs: which knobs matter, and all configs side by side."""

from __future__ import annotations

import functools
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from service.errors import Kind, Refusal
from service.http.deps import JobId, Service, ServiceDep
from service.http.pages.base import PageRoute, show
from service.http.routes.jobs import unknown_job
from service.web import knobs
from service.web.charts import Chart
from service.web.knobs import KnobViews, Sample
from tuner.store import jobs
from tuner.store.records import JobRecord
from tuner.store.reports import trials
from tuner.store.reports.trials import Measured

router = APIRouter(prefix="/view/jobs/{job_id}", include_in_schema=False, route_class=PageRoute)
Family = Annotated[str | None, Query(max_length=64)]
Row = Annotated[int | None, Query(ge=1, lt=2**31, description="The row of a ladder; its largest without")]


@router.get("/knobs", operation_id="page_knobs")
def get_knobs(
    request: Request, service: ServiceDep, job_id: JobId, family: Family = None, m: Row = None
) -> Response:
    """Which knobs of a family matter in a job, and a slice for each."""
    work = functools.partial(_knobs, service, job_id, family, m)
    job, names, views = service.shared.get(("knobs", job_id, family, m), work)
    first = (views.importance,) if views and views.importance else ()
    charts = (*first, *(views.slices if views else ()))
    return show(request, "knobs.html", "/view/jobs", charts=charts, job=job, views=views, names=names, m=m)


def _knobs(
    service: Service, job_id: str, family: str | None, m: int | None
) -> tuple[JobRecord, list[str], KnobViews | None]:
    job, names, sample, found = _sample(service, job_id, family, m)
    return job, names, knobs.knob_views(found, sample, _method(job, m)) if sample else None


@router.get("/parallel", operation_id="page_parallel")
def get_parallel(
    request: Request, service: ServiceDep, job_id: JobId, family: Family = None, m: Row = None
) -> Response:
    """All configs of a family in a job, side by side."""
    work = functools.partial(_parallel, service, job_id, family, m)
    job, names, chosen, charts = service.shared.get(("parallel", job_id, family, m), work)
    return show(
        request, "parallel.html", "/view/jobs", charts=charts, job=job, names=names, family=chosen, m=m
    )


def _parallel(
    service: Service, job_id: str, family: str | None, m: int | None
) -> tuple[JobRecord, list[str], str, tuple[Chart, ...]]:
    job, names, sample, found = _sample(service, job_id, family, m)
    charts = (knobs.parallel(found, sample, _method(job, m)),) if sample else ()
    return job, names, sample.family if sample else "", charts


def _sample(
    service: Service, job_id: str, family: str | None, m: int | None
) -> tuple[JobRecord, list[str], Sample | None, list[Measured]]:
    """A job, the families that it measured for an M, and what is shown of the chosen one."""
    with service.store.read() as session:
        job = jobs.get(session, job_id)
        if job is None:
            raise unknown_job(job_id)
        points = trials.points(session, job_id, m or job.request.problem.m)
        names = knobs.families(points)
        if not names:
            return job, names, None, []
        sample = knobs.choose(points, _chosen(names, family))
        return job, names, sample, trials.measured(session, job_id, sample.numbers)


def _chosen(names: list[str], family: str | None) -> str:
    if family is not None and family not in names:
        raise Refusal(Kind.NOT_FOUND, f"this job measured no such family; use one of {', '.join(names)}")
    return family or names[0]


def _method(job: JobRecord, m: int | None) -> str:
    when = job.finished or job.started or job.created
    row = f" at M = {m or job.request.problem.m}, ?m= for others," if job.request.ladder else ","
    return f"medians of the search{row} {when.date().isoformat()}"
