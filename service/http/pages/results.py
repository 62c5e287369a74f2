"""Views of results: did it pay, can I believe it, why this config, coverage, the roofline, two sides."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.orm import Session

from service.errors import Kind, Refusal
from service.http.deps import Service, ServiceDep
from service.http.pages.base import PageRoute, show
from service.http.routes.best import get_report
from service.results.explaining import device_of, explained
from service.web import coverage, results
from service.web.charts import Chart
from service.web.coverage import Coverage
from service.web.results import Filter, Roofline, Side
from tilewright.schema.codec import KeyName
from tilewright.schema.problem import OPERAND_TYPES, DType, GemmProblem
from tilewright.schema.trial import BestConfig
from tilewright.wire import ReportQuery
from tuner.store import best, jobs, misses, sets
from tuner.store.records import JobRecord, StoredBest, utc_now
from tuner.store.reports import trials, winners
from tuner.store.reports.winners import Headline

router = APIRouter(prefix="/view", include_in_schema=False, route_class=PageRoute)
ResultId = Annotated[int, Path(ge=1, lt=2**31)]
_MOST_TIES = 8
_MOST_MISSES = 1000


class ResultQuery(BaseModel):
    """Which results are shown; an empty field leaves a choice open, ``days`` is the greatest age."""

    model_config = ConfigDict(extra="forbid")

    dtype: DType | Literal[""] = ""
    family: Annotated[str, Field(max_length=64)] = ""
    device_class: KeyName | Literal[""] = ""
    verdict: Literal["", "kernel", "tie", "vendor", "disturbed", "alone"] = ""
    days: Annotated[int, Field(ge=0, le=36_500)] | Literal[""] = ""
    csv: Annotated[str, Field(max_length=100)] | None = None

    @property
    def filter(self) -> Filter:
        """The same as the views take it."""
        return Filter(self.dtype, self.family, self.device_class, self.verdict, self.days or 0)


@router.get("/results", operation_id="page_results")
def get_results(request: Request, service: ServiceDep, query: Annotated[ResultQuery, Query()]) -> Response:
    """Did it pay? The speed-up of each result, losers first."""
    wanted = query.filter
    values = service.shared.get(("results", wanted), lambda: _results(service, wanted))
    dtypes = [one.value for one in OPERAND_TYPES]
    return show(request, "results.html", "/view/results", query=wanted, dtypes=dtypes, **values)


def _results(service: Service, wanted: Filter) -> dict[str, Any]:
    since = utc_now() - timedelta(days=wanted.days) if wanted.days else None
    with service.store.read() as session:
        classes = winners.device_classes(session)
        targets = [wanted.device_class] if wanted.device_class else best.archs(session)
        every = winners.headlines(session, targets, dtype=wanted.dtype or None, since=since)
    found = [one for one in every if wanted.takes(one)]
    return {
        "charts": (results.payoff(found),),
        **results.summary(found),
        "classes": classes,
        "families": sorted({one.family for one in every} | ({wanted.family} if wanted.family else set())),
    }


@router.get("/results/{result_id}", operation_id="page_result")
def get_result(request: Request, service: ServiceDep, result_id: ResultId) -> Response:
    """Can I believe it? One result with its raw samples, and where it comes from."""
    with service.store.read() as session:
        stored = _known(session, result_id)
        winner = stored.best
        shown = [winner.config, *winner.ties[:_MOST_TIES]]
        tried = trials.of_configs(session, winner.job_id, winner.problem.m, shown) if winner.job_id else []
    age = f"measured {stored.created.date().isoformat()}"
    return show(
        request,
        "result.html",
        "/view/results",
        charts=(results.distributions(winner, age), results.samples(winner, tried, age)),
        stored=stored,
        best=winner,
        quality=service.quality.view(winner, stored.drifted),
        tried=tried,
        apart=results.apart(winner),
    )


@router.get("/results/{result_id}/why", operation_id="page_why")
def get_why(request: Request, service: ServiceDep, result_id: ResultId) -> Response:
    """Why this config? Its limits, how it fills the device, and the alternatives."""
    with service.store.read() as session:
        stored = _known(session, result_id)
        explanation = explained(session, stored)
    own = dict(stored.best.config.knobs)
    return show(
        request, "why.html", "/view/results", stored=stored, best=stored.best, why=explanation, own=own
    )


def _known(session: Session, result_id: int) -> StoredBest:
    stored = winners.by_id(session, result_id)
    if stored is None:
        raise Refusal(Kind.NOT_FOUND, f"there is no result {result_id}; GET /best-config lists them")
    return stored


class ClassQuery(BaseModel):
    """A device class; the first one that has anything unless given."""

    model_config = ConfigDict(extra="forbid")

    device_class: KeyName | Literal[""] = ""
    csv: Annotated[str, Field(max_length=100)] | None = None


@router.get("/coverage", operation_id="page_coverage")
def get_coverage(request: Request, service: ServiceDep, query: Annotated[ClassQuery, Query()]) -> Response:
    """Coverage: what is tuned, near, vendor, stale or missing, and how much device time is at stake."""
    here = {queue.bench.spec.device_class.id: name for name, queue in service.engine.queues.items()}
    names, seen = service.shared.get(
        ("coverage", query.device_class), lambda: _coverage(service, query.device_class, here)
    )
    return show(
        request,
        "coverage.html",
        "/view/coverage",
        charts=(seen.chart,),
        coverage=seen,
        classes=names,
        device=here.get(seen.device_class),
    )


def _coverage(service: Service, wanted: str, here: Collection[str]) -> tuple[list[str], Coverage]:
    """The device classes that there are, and the coverage of one."""
    with service.store.read() as session:
        with_winner = winners.device_classes(session)
        names = sorted(
            {*with_winner, *here, *(one.device_class for one in misses.ranked(session, None, 200))}
        )
        chosen = wanted or next(iter(with_winner), names[0] if names else "")
        found = winners.headlines(session, [chosen])
        open_misses = misses.ranked(session, chosen, _MOST_MISSES)
    catalog = service.served.catalog(chosen) if chosen in with_winner else None
    return names, coverage.coverage(chosen, found, open_misses, catalog, _staleness(service))


def _staleness(service: Service) -> Callable[[Headline], str]:
    """What changed since a result was measured; each family and provenance is judged once."""
    judged = functools.cache(service.quality.staleness_of)
    return lambda one: judged(one.family, one.provenance, one.drifted)


@router.get("/roofline", operation_id="page_roofline")
def get_roofline(request: Request, service: ServiceDep, query: Annotated[ResultQuery, Query()]) -> Response:
    """All results against the limits of their devices, with the time that they lose."""
    wanted = query.filter
    classes, seen = service.shared.get(("roofline", wanted), lambda: _roofline(service, wanted))
    return show(
        request,
        "roofline.html",
        "/view/roofline",
        charts=(seen.chart,),
        unknown=seen.unknown,
        count=seen.count,
        query=wanted,
        classes=classes,
        dtypes=[one.value for one in OPERAND_TYPES],
    )


def _roofline(service: Service, wanted: Filter) -> tuple[list[str], Roofline]:
    """The device classes that there are, and the roofline of what passes a filter."""
    with service.store.read() as session:
        classes = winners.device_classes(session)
        targets = [wanted.device_class] if wanted.device_class else best.archs(session)
        found = winners.headlines(session, targets, dtype=wanted.dtype or None)
        devices = {name: spec for name in classes if (spec := device_of(session, name))}
    return classes, results.roofline([one for one in found if wanted.takes(one)], devices)


@router.get("/report", operation_id="page_report")
def save_report(service: ServiceDep, query: Annotated[ReportQuery, Query()]) -> Response:
    """The results as one file, as ``GET /report`` gives them."""
    return get_report(query, service)


What = Literal["classes", "jobs", "sets"]
Name = Annotated[str, Query(max_length=200, pattern="^[A-Za-z0-9._:-]*$")]  # of a class, a job or a set


@router.get("/compare", operation_id="page_compare")
def get_compare(
    request: Request, service: ServiceDep, what: What = "classes", left: Name = "", right: Name = ""
) -> Response:
    """Two device classes, jobs or config sets side by side."""
    choices, charts = service.shared.get(
        ("compare", what, left, right), lambda: _compared(service, what, left, right)
    )
    return show(
        request,
        "compare.html",
        "/view/compare",
        charts=charts,
        what=what,
        left=left,
        right=right,
        choices=choices,
    )


def _compared(
    service: Service, what: What, left: str, right: str
) -> tuple[list[tuple[str, str]], tuple[Chart, ...]]:
    """What there is to compare, and the plot of two sides, if they were chosen."""
    with service.store.read() as session:
        choices = _choices(session, what)
        if not left or not right:
            return choices, ()
        sides = [_side(session, service, what, name) for name in (left, right)]
    return choices, (results.compared(*sides),)


def _choices(session: Session, what: What) -> list[tuple[str, str]]:
    """What there is to compare: names, and what people read."""
    if what == "classes":
        return [(name, name) for name in winners.device_classes(session)]
    if what == "jobs":
        found = [one for one in jobs.listing(session, limit=100) if isinstance(one, JobRecord)]
        return [
            (one.id, f"{one.request.problem}, {one.device_class}, {one.created:%Y-%m-%d %H:%M}")
            for one in found
        ]
    listed = sets.listing(session, None, 100)
    return [
        (one.digest, f"{one.device_class}, {one.created:%Y-%m-%d %H:%M}, {one.entries} results")
        for one in listed
    ]


def _side(session: Session, service: Service, what: What, name: str) -> Mapping[GemmProblem, Side]:
    if what == "classes":
        ids = [one.id for one in winners.headlines(session, [name])]
        return {one.best.problem: _of_best(one.best) for one in best.of_ids(session, ids)}
    if what == "jobs":
        job = jobs.get(session, name)
        found = [job.result] if job and job.result else []
        if rows := jobs.row_results(session, name):  # of a ladder
            found = list(rows.values())
        if not found:
            raise Refusal(Kind.NOT_FOUND, "there is no such job with a result; choose another one")
        return {one.problem: _of_best(one) for one in found}
    entries = service.served.loaded(name).config_set.entries
    return {one.problem: Side(one.median_us, one.low_us, one.high_us, one.config.family) for one in entries}


def _of_best(found: BestConfig) -> Side:
    timing = found.timing
    return Side(timing.median_us, timing.low_us, timing.high_us, found.config.family)
