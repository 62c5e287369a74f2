"""Converts records of the store to models of the wire, in one visible place."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from types import MappingProxyType
from typing import Literal, TypeVar

from fastapi import Request, Response

from service.errors import Kind, Refusal
from tilewright import wire
from tilewright.schema.codec import gathered
from tilewright.schema.entries import Import, ImportCounts
from tilewright.schema.job import JobStatus
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import BestConfig
from tilewright.wire.results import speedup_of
from tuner.store import imports
from tuner.store.misses import Place
from tuner.store.records import JobRecord, Unreadable, WaitingBest
from tuner.store.sets import ServedSetRecord, SetRecord

T = TypeVar("T")
_JOB_ID = re.compile("[0-9a-f]{32}")
_NUMBER = re.compile("[0-9]{1,18}")
_INT = 2**31 - 1  # the greatest number that most columns of ids hold
BIG_INT = 2**63 - 1  # and those of :data:`tuner.store.tables.columns.BigId`
_STAKE = re.compile(r"[0-9]+(\.[0-9]+)?(e[+-]?[0-9]{1,3})?")
_MICROS = re.compile("[0-9]{1,16}")  # until the year 2286
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)


def job_view(
    job: JobRecord,
    best: wire.BestConfigView | None = None,
    stored: wire.BestConfigView | None = None,
    waiting: str | None = None,
    rows: Sequence[BestConfig] | None = None,
    errors: Mapping[int, str] = MappingProxyType({}),
    neighbours: Sequence[str] = (),
) -> wire.JobView:
    """A job, the result of its race once it succeeded, the stored winner of its problem if another job found
    it, the reason why it waits, other processes on its device, and of a ladder the winners of rows and why
    others have none; without ``rows`` nothing is said of them."""
    found = best if job.status is JobStatus.SUCCEEDED else None
    decided = [wire.LadderRowView.of(one) for one in rows or ()]
    fields = {
        "rows": decided,
        "outcomes": [] if rows is None else _outcomes(job, {row.m for row in decided}, errors),
        "ranges": wire.LadderRange.merged(decided),
        "baseline_ratio": found.speedup.value if found else None,
        "best": found,
        "stored": stored,
        "error": Kind.JOB_FAILED.document(job.error) if job.error else None,
        "waiting": waiting,
        "neighbours": list(neighbours),
        "links": _links(job.id, found),
    }
    return wire.JobView(**gathered(wire.JobView, job, job.request, **fields))


def _outcomes(job: JobRecord, tuned: Collection[int], errors: Mapping[int, str]) -> list[wire.RowOutcome]:
    """The state of each row of a ladder; of an imported job, of those with a winner: an export tells nothing
    of the others."""

    def outcome(m: int) -> Literal["tuned", "failed", "waiting", "not tuned"]:
        if m in tuned:
            return "tuned"
        if m in errors:
            return "failed"
        return "not tuned" if job.status.final else "waiting"

    rows = job.request.ladder if job.import_id is None else sorted(tuned)
    return [wire.RowOutcome(m=m, outcome=outcome(m), error=errors.get(m)) for m in rows]


def unreadable_view(job: Unreadable) -> wire.UnreadableJob:
    """A job that cannot be read, and why."""
    return wire.UnreadableJob(id=job.id, detail=str(job))


def import_view(entered: Import, counts: ImportCounts) -> wire.ImportView:
    """An import and how much of it there is."""
    return wire.ImportView(**gathered(wire.ImportView, entered, counts))


def waiting_view(stored: WaitingBest) -> wire.WaitingView:
    """A winner that waits to be raced here."""
    best = stored.best
    fields = {"median_us": best.timing.median_us, "speedup": speedup_of(best), "queued": stored.queued}
    return wire.WaitingView(**gathered(wire.WaitingView, best, **fields))


def set_info(record: SetRecord, served: ServedSetRecord) -> wire.SetInfo:
    """A config set without its entries, and whether it is what its device class is served."""
    serving: Literal["pinned", "latest"] | None = None
    if record.digest == served.pinned:
        serving = "pinned"
    elif served.pinned is None and record.digest == served.latest:
        serving = "latest"
    return wire.SetInfo(**gathered(wire.SetInfo, record, created_at=record.created, serving=serving))


def cursor(after: object) -> str:
    """An opaque cursor for the place after a record."""
    return base64.urlsafe_b64encode(str(after).encode()).decode().rstrip("=")


def place(text: str) -> str:
    """The inverse of :func:`cursor`.

    Raises:
        Refusal: it is not a cursor of this service.
    """
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode("ascii")
    except ValueError:
        raise _bad_cursor() from None


def job_place(text: str | None) -> str | None:
    """A cursor that stands for a job; None for none.

    Raises:
        Refusal: it is not such a cursor.
    """
    if text is None:
        return None
    job_id = place(text)
    if not _JOB_ID.fullmatch(job_id):
        raise _bad_cursor()
    return job_id


def number_place(text: str | None, most: int = _INT) -> int:
    """A cursor that stands for a number up to ``most``; 0 for none.

    Raises:
        Refusal: it is not such a cursor.
    """
    if text is None:
        return 0
    return _number(place(text), most)


def _number(text: str, most: int) -> int:
    if not _NUMBER.fullmatch(text) or int(text) > most:
        raise _bad_cursor()
    return int(text)


def miss_place(text: str | None) -> Place | None:
    """A cursor that stands for a place among the misses; None for none.

    Raises:
        Refusal: it is not such a cursor.
    """
    if text is None:
        return None
    stake, _, number = place(text).partition(" ")
    if not _STAKE.fullmatch(stake):
        raise _bad_cursor()
    return float(stake), _number(number, _INT)


def import_cursor(entered: Import) -> str:
    """What stands for the place of an import in a cursor."""
    return f"{(entered.created - _EPOCH) // _MICROSECOND} {entered.id}"


def import_place(text: str | None) -> imports.Place | None:
    """A cursor that stands for a place among the imports; None for none.

    Raises:
        Refusal: it is not such a cursor.
    """
    if text is None:
        return None
    micros, _, import_id = place(text).partition(" ")
    if not _MICROS.fullmatch(micros) or not _JOB_ID.fullmatch(import_id):
        raise _bad_cursor()
    return _EPOCH + int(micros) * _MICROSECOND, import_id


def tune_hint(problem: GemmProblem) -> dict[str, object]:
    """A body for ``POST /tune`` that would produce a missing result, without what is default."""
    plain = GemmProblem(problem.m, problem.n, problem.k, problem.dtype).to_dict()
    named = ("m", "n", "k", "dtype", "layout")
    return {name: value for name, value in problem.to_dict().items() if name in named or value != plain[name]}


def page_end(found: Sequence[T], limit: int, last: Callable[[T], object] = attrgetter("id")) -> str | None:
    """The cursor after a page, of what ``last`` tells of its last entry; None if no page follows."""
    return cursor(last(found[-1])) if found and len(found) == limit else None


def link_next(request: Request, response: Response, cursor: str | None) -> str | None:
    """Tell where the next page is: this request with another cursor, which is given back. Nothing where this
    page is the last."""
    if cursor:
        url = request.url.include_query_params(cursor=cursor)
        response.headers["Link"] = f'<{url.path}?{url.query}>; rel="next"'
    return cursor


def _bad_cursor() -> Refusal:
    return Refusal(
        Kind.INVALID_REQUEST, "cursor is not one of this list; take it from next of the page before"
    )


def _links(job_id: str, best: wire.BestConfigView | None) -> dict[str, str]:
    base = f"/jobs/{job_id}"
    links = {"self": base, "trials": f"{base}/trials", "events": f"{base}/events"}
    return links | ({"artifact": best.artifact.href} if best else {})
