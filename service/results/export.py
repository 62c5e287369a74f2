"""Export of stored results as NDJSON or in the T4 format of the auto-tuning community, version 1.0.0.

T4 is one JSON object with ``results``. Times are milliseconds, as Kernel Tuner writes them. The format has no
place for a problem, a device or raw provenance, so each result carries our own job and trial in a member
``tilewright``, which other readers skip; a file without it says too little to be imported.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterator
from typing import Any

from service.results.uploads import T4_VERSION
from service.signing import Signer
from tilewright.schema.codec import gathered
from tilewright.schema.trial import Outcome
from tilewright.trust import SIGNATURE_LINE, About
from tilewright.wire import ExportQuery
from tuner.store import best, entities, exchange, trials
from tuner.store.database import Store
from tuner.store.exchange import ArtifactData, EndedJob, Line, Signed, TrialOfJob, Winner

_INVALIDITY = {
    Outcome.OK: "correct",
    Outcome.PRUNED: "correct",
    Outcome.INVALID: "constraints",
    Outcome.COMPILE_ERROR: "compile",
    Outcome.LAUNCH_ERROR: "runtime",
    Outcome.WRONG_RESULT: "correctness",
    Outcome.TIMEOUT: "timeout",
}


def export(store: Store, query: ExportQuery) -> Iterator[bytes]:
    """The trials that a query chooses, as one T4 document, piece by piece."""
    yield f'{{"schema_version":"{T4_VERSION}","results":['.encode()
    before = b"\n"
    for job in jobs_of(store, query):
        own = exchange.to_plain(job)
        for trial in trials_of(store, query, job.id):
            yield before + json.dumps(result(trial, own), separators=(",", ":")).encode()
            before = b",\n"
    yield b"\n]}\n"


def result(line: TrialOfJob, job: dict[str, Any]) -> dict[str, Any]:
    """One trial as a T4 result."""
    trial = line.trial
    invalidity = _INVALIDITY[trial.outcome]
    runtimes = [micros / 1e3 for micros in trial.timing.samples_us] if trial.timing else []
    measured = trial.timing.median_us / 1e3 if trial.timing else None
    return {
        "timestamp": line.created.isoformat(),
        "configuration": {"family": trial.config.family, **dict(trial.config.knobs)},
        "objectives": ["time"],
        "times": {
            "compilation_time": trial.compile_s * 1e3,
            "validation": trial.check_s * 1e3,
            "benchmark": trial.measure_s * 1e3,
            "framework": 0.0,
            "search_algorithm": 0.0,
            "runtimes": runtimes,
        },
        "invalidity": invalidity,
        "correctness": 1.0 if invalidity == "correct" else 0.0,
        "measurements": [{"name": "time", "value": measured, "unit": "ms"}] if measured else [],
        "tilewright": {"job": job, "trial": exchange.to_plain(line)},
    }


_PAGE = 200
_SIGNED_BYTES = 2**20


def jobs_of(store: Store, query: ExportQuery) -> Iterator[EndedJob]:
    """Jobs that have ended, oldest first; no transaction stays open between two pages."""
    after = ""
    while True:
        with store.read() as session:
            page = exchange.ended_jobs(session, query.device_class, query.since, _PAGE, after)
        yield from (EndedJob(**gathered(EndedJob, job)) for job in page)
        if len(page) < _PAGE:
            return
        after = page[-1].id


def trials_of(store: Store, query: ExportQuery, job_id: str) -> Iterator[TrialOfJob]:
    """The trials of a job."""
    first = 0
    while True:
        with store.read() as session:
            page = trials.dated(session, job_id, query.family, first, _PAGE)
        yield from (TrialOfJob(job_id, trial, created) for trial, created in page)
        if len(page) < _PAGE:
            return
        first = page[-1][0].number + 1


def winners_of(store: Store, query: ExportQuery) -> Iterator[ArtifactData | Winner]:
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
                    data = entities.get_artifact(session, stored.best.artifact)
                if data is None:  # deleted with its winner since the page was read
                    continue
                yield ArtifactData(stored.best.artifact, base64.b64encode(data).decode())
            yield Winner(stored.best, stored.created)
        if len(page) < _PAGE:
            return
        after = page[-1].id


def ndjson(store: Store, query: ExportQuery, signer: Signer) -> Iterator[bytes]:
    """Everything that a query chooses, a line each, with a signature after each mebibyte and at the end."""
    covered, size = hashlib.sha256(), 0
    for text in _lines(store, query):
        yield text
        covered.update(text)
        size += len(text)
        if size >= _SIGNED_BYTES:
            yield _signature(signer, covered.hexdigest())
            covered, size = hashlib.sha256(), 0
    if size:
        yield _signature(signer, covered.hexdigest())


def _signature(signer: Signer, digest: str) -> bytes:
    line = _text(Signed(signer.sign(About.EXPORT, digest)))
    assert line.startswith(SIGNATURE_LINE)
    return line


def _lines(store: Store, query: ExportQuery) -> Iterator[bytes]:
    written = set[str]()
    for job in jobs_of(store, query):
        found = trials_of(store, query, job.id)
        first = next(found, None)
        if first or query.family is None:
            written.add(job.id)
            yield _text(job)
        yield from map(_text, itertools.chain([first] if first else [], found))
    for line in winners_of(store, query):
        # NOTE: a ladder has winners before it ends, and a job may end meanwhile: an import would miss it.
        if isinstance(line, Winner) and line.best.job_id not in written:
            line = dataclasses.replace(line, best=dataclasses.replace(line.best, job_id=""))
        yield _text(line)


def _text(line: Line) -> bytes:
    return json.dumps(exchange.to_plain(line), ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
