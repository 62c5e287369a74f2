"""The start page, what goes on now, jobs, and what is live of them."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Annotated

import anyio
from fastapi import APIRouter, Depends, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import ValidationError

from service.errors import Kind, Refusal
from service.http.deps import AdmittedDep, JobId, Service, ServiceDep
from service.http.pages.base import Form, PageRoute, see_other, show
from service.http.routes import jobs as job_routes
from service.http.routes import tuning
from service.http.routes.jobs import JobsQuery, unknown_job
from service.http.views import job_place, page_end
from service.web import now, overview
from service.web.charts import Chart
from service.web.now import JobNow
from tilewright import wire
from tilewright.errors import InvalidProblem
from tilewright.schema.codec import rule
from tilewright.schema.job import JobStatus, SearchOptions
from tilewright.schema.problem import OPERAND_TYPES
from tuner.store import best, jobs
from tuner.store.faults import quarantine
from tuner.store.records import JobRecord, Unreadable
from tuner.store.reports import trials

router = APIRouter(include_in_schema=False, route_class=PageRoute)
live_router = APIRouter(include_in_schema=False)
_NUMBERS = ("m", "n", "k", "batch", "max_trials")
_FLAGS = {"true": True, "false": False}
_NAMES = ("dtype", "layout", "out_dtype", "acc_dtype", "activation", "has_bias", "has_c", "device")
_EACH_S = 1.0
_LISTED = 20


@router.get("/", operation_id="page_start")
def start(request: Request, service: ServiceDep) -> Response:
    """What is tuned, what is gained, what to do next."""
    return _start_page(request, service, {}, "")


def _start_page(
    request: Request, service: Service, values: dict[str, str], wrong: str, status: int = 200
) -> Response:
    found = service.shared.get("overview", lambda: overview.overview(service.store, service.quality))
    with service.store.read() as session:
        recent = jobs.listing(session, limit=5)
    names = list(service.engine.queues)
    kinds = {name: queue.bench.spec.kind for name, queue in service.engine.queues.items()}
    on_gpu = "cuda" in kinds.values()
    usual = {"dtype": "float16" if on_gpu else "float32", "layout": "nt" if on_gpu else "nn"}
    usual["max_trials"] = str(SearchOptions().max_trials)
    if not found.gains:
        usual |= dict.fromkeys(("m", "n", "k"), "4096" if on_gpu else "512")
    return show(
        request,
        "start.html",
        "/",
        status,
        overview=found,
        jobs=[job for job in recent if isinstance(job, JobRecord)],
        devices=names,
        models={name: queue.bench.spec.name for name, queue in service.engine.queues.items()},
        dtypes=[one.value for one in OPERAND_TYPES],
        values=usual | values,
        wrong=wrong,
    )


@router.post("/view/jobs", operation_id="page_tune")
def tune(request: Request, service: ServiceDep, form: Form) -> Response:
    """Start a job of the form, and go to its page."""
    given = {name: form[name].strip() for name in (*_NUMBERS, *_NAMES) if form.get(name, "").strip()}
    try:
        body = wire.TuneBody.model_validate({name: _value(name, text) for name, text in given.items()})
        job = tuning.start(service, body, None, request)
    except ValidationError as error:
        detail = "; ".join(f"{'.'.join(map(str, e['loc']))}: {rule(e)}" for e in error.errors())
        return _start_page(request, service, given, detail, 422)
    except InvalidProblem as error:
        return _start_page(request, service, given, str(error), 422)
    except Refusal as refusal:
        return _start_page(request, service, given, str(refusal.detail), refusal.status_code)
    return see_other(f"/view/jobs/{job.id}")


def _value(name: str, text: str) -> object:
    """What a field of a form stands for; text that is no number is left for the rules to refuse."""
    if name in _NUMBERS and text.isascii() and text.isdecimal():
        return int(text[:20])
    return _FLAGS.get(text, text)


@router.get("/view/now", operation_id="page_now")
def get_now(request: Request, service: ServiceDep) -> Response:
    """What the devices do, the queue, and the jobs at work."""
    with service.store.read() as session:
        at_work = now.running(session)
        queued = now.running(session, JobStatus.QUEUED)
        found = now.devices(session, service.engine)
        broken = quarantine.listing(session, limit=_LISTED)
    watched = [one for job in at_work if (one := service.watch.now(job.id))]
    return show(
        request,
        "now.html",
        "/view/now",
        devices=found,
        running=watched,
        queued=queued,
        quarantined=broken,
    )


@router.get("/view/now/devices", operation_id="page_devices")
def get_devices(request: Request, service: ServiceDep) -> Response:
    """The devices alone, which an open page asks for again."""
    with service.store.read() as session:
        found = now.devices(session, service.engine)
    return show(request, "devices.html", devices=found)


@router.get("/view/jobs", operation_id="page_jobs")
def get_jobs(request: Request, service: ServiceDep, query: Annotated[JobsQuery, Query()]) -> Response:
    """Jobs, the newest first."""
    with service.store.read() as session:
        found = jobs.listing(
            session, query.status, query.limit, job_place(query.cursor), query.prefix, query.m
        )
    following = page_end(found, query.limit)
    return show(
        request,
        "jobs.html",
        "/view/jobs",
        jobs=[job for job in found if isinstance(job, JobRecord)],
        unreadable=[job for job in found if isinstance(job, Unreadable)],
        following=following,
        status=query.status,
        statuses=list(JobStatus),
        kept=query.model_dump(mode="json", exclude_defaults=True, exclude={"cursor"}),
    )


@router.get("/view/jobs/{job_id}", operation_id="page_job")
def get_job(request: Request, service: ServiceDep, job_id: JobId) -> Response:
    """A job: how it converges, live while it runs, and its result."""
    found = service.watch.now(job_id, fresh=True)
    if found is None:
        raise unknown_job(job_id)
    chart, last = service.shared.get(("convergence", job_id), lambda: _convergence(service, found.job))
    with service.store.read() as session:
        stored = best.exact(session, found.job.device_class, found.job.request.problem)
    mine = [one for one in stored if one.best.job_id == job_id]
    return show(
        request,
        "job.html",
        "/view/jobs",
        charts=(chart,),
        now=found,
        job=found.job,
        last=last,
        result=mine[0] if mine else None,
        other=stored[0] if stored and not mine else None,
    )


def _convergence(service: Service, job: JobRecord) -> tuple[Chart, int]:
    """The plot of a job's trials, of a ladder those for its largest M, and the number of the last one."""
    m = job.request.problem.m
    with service.store.read() as session:
        points = trials.points(session, job.id, m)
    row = f" at M = {m}" if job.request.ladder else ""
    chart = now.convergence(points, f"medians of the search{row}, in bursts where power may limit the clock")
    return chart, points[-1].number if points else -1


@router.post("/view/jobs/{job_id}/cancel", operation_id="page_cancel")
def cancel(request: Request, service: ServiceDep, job_id: JobId, form: Form) -> Response:
    """Ask a job to stop, and go to its page."""
    del form
    job_routes.cancel(service, job_id, request)
    return see_other(f"/view/jobs/{job_id}")


def _watched(job_id: JobId, service: ServiceDep) -> str:
    if service.watch.now(job_id) is None:
        raise unknown_job(job_id)
    return job_id


After = Annotated[int, Query(ge=-1, lt=2**31, description="The last trial that the page has")]


@live_router.get("/view/jobs/{job_id}/live", operation_id="page_job_live", response_class=EventSourceResponse)
async def follow(
    job_id: Annotated[str, Depends(_watched)], service: ServiceDep, admitted: AdmittedDep, after: After = -1
) -> AsyncIterator[ServerSentEvent]:
    """What changes on the page of a job, at most once a second: ``panel``, ``points`` and, at the end,
    ``done``. One reader of the database serves all who follow."""
    newest, m = await run_in_threadpool(lambda: (_newest(service, job_id), _largest(service, job_id)))
    yield ServerSentEvent(comment="follow", retry=3000)
    with service.events.follow(job_id, newest) as follower:
        missed, sent = await run_in_threadpool(_missed, service, job_id, m, after), ""
        shown = {number for number, *_ in missed}  # of some of them, the events are yet to come
        while follower.ended is None:
            started = time.monotonic()
            if missed:
                yield ServerSentEvent(event="points", raw_data=json.dumps(missed))
            watched = service.watch.known(job_id) or await run_in_threadpool(service.watch.now, job_id)
            if sent != (panel := _panel(watched)):
                sent = panel
                yield ServerSentEvent(event="panel", raw_data=panel)
            news = await follower.news()
            if not await admitted.still():
                return
            missed = [
                [event.data["number"], event.data["median_us"], event.data["outcome"]]
                for event in news.events
                if event.kind == "trial"
                and event.data["number"] > after
                and event.data["number"] not in shown
                and event.data.get("m", m) == m
            ]
            if news.status:
                if missed:
                    yield ServerSentEvent(event="points", raw_data=json.dumps(missed))
                watched = await run_in_threadpool(service.watch.now, job_id, True)
                yield ServerSentEvent(event="panel", raw_data=_panel(watched))
                yield ServerSentEvent(event="done", raw_data=news.status)
                return
            await anyio.sleep(max(0.0, started + _EACH_S - time.monotonic()))


def _newest(service: Service, job_id: str) -> int:
    with service.store.read() as session:
        return jobs.newest_events(session, [job_id]).get(job_id, 0)


def _missed(service: Service, job_id: str, m: int, after: int) -> list[list[object]]:
    with service.store.read() as session:
        return [[one.number, one.median_us, one.outcome] for one in trials.points(session, job_id, m, after)]


def _largest(service: Service, job_id: str) -> int:
    with service.store.read() as session:
        return jobs.known(session, job_id).request.problem.m


def _panel(watched: JobNow | None) -> str:
    if watched is None:
        raise Refusal(Kind.NOT_FOUND, "the job was deleted; see GET /jobs")
    return watched.panel
