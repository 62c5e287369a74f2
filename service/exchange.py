"""Results out of the store, one record at a time."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator

from pydantic import BaseModel

from service import records
from tilewright.wire import ExportQuery
from tilewright.wire.exchange import ArtifactLine, BestLine, TrialLine
from tuner.store import artifacts, best, exchange, trials
from tuner.store.database import Store
from tuner.store.records import JobRecord

_PAGE = 200


def jobs_of(store: Store, query: ExportQuery) -> Iterator[JobRecord]:
    """Jobs that have ended, oldest first; no transaction stays open between two pages."""
    after = ""
    while True:
        with store.read() as session:
            page = exchange.ended_jobs(session, query.device_class, query.since, _PAGE, after)
        yield from page
        if len(page) < _PAGE:
            return
        after = page[-1].id


def trials_of(store: Store, query: ExportQuery, job_id: str) -> Iterator[TrialLine]:
    """The trials of a job."""
    first = 0
    while True:
        with store.read() as session:
            page = trials.dated(session, job_id, query.family, first, _PAGE)
        yield from (records.trial_line(job_id, trial, created) for trial, created in page)
        if len(page) < _PAGE:
            return
        first = page[-1][0].number + 1


def winners_of(store: Store, query: ExportQuery) -> Iterator[ArtifactLine | BestLine]:
    """Winners, each after its kernel where kernels are wanted."""
    after = 0
    while True:
        with store.read() as session:
            page = best.listing(session, query.device_class, query.since, _PAGE, after)
        for stored in page:
            if query.family not in (None, stored.best.config.family):
                continue
            if query.artifacts:
                with store.read() as session:
                    data = artifacts.get(session, stored.best.artifact) or b""
                yield ArtifactLine(digest=stored.best.artifact, data=base64.b64encode(data).decode())
            yield records.best_line(stored)
        if len(page) < _PAGE:
            return
        after = page[-1].id


def ndjson(store: Store, query: ExportQuery) -> Iterator[bytes]:
    """Everything that a query chooses, a line each."""
    for job in jobs_of(store, query):
        found = trials_of(store, query, job.id)
        first = next(found, None)
        if first or query.family is None:
            yield _text(records.job_line(job))
        yield from map(_text, itertools.chain([first] if first else [], found))
    yield from map(_text, winners_of(store, query))


def _text(line: BaseModel) -> bytes:
    return line.model_dump_json(exclude_none=True).encode() + b"\n"
