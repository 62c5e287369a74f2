"""The T4 format of the auto-tuning community, version 1.0.0: one JSON object with ``results``.

Times are milliseconds, as Kernel Tuner writes them. The format has no place for a problem, a device or
raw provenance, so each result carries our own job and trial in a member ``tilewright``, which other
readers skip; a file without it says too little to be imported.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from service import records
from service.exchange import jobs_of, trials_of
from service.importing import BadLine, Named, record, strict_json
from tilewright.trial import Outcome
from tilewright.wire import ExportQuery
from tilewright.wire.exchange import TrialLine
from tuner.store.database import Store

VERSION = "1.0.0"
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
    yield f'{{"schema_version":"{VERSION}","results":['.encode()
    before = b"\n"
    for job in jobs_of(store, query):
        own = records.job_line(job).model_dump(mode="json", exclude_none=True)
        for trial in trials_of(store, query, job.id):
            yield before + json.dumps(result(trial, own), separators=(",", ":")).encode()
            before = b",\n"
    yield b"\n]}\n"


def result(trial: TrialLine, job: dict[str, Any]) -> dict[str, Any]:
    """One trial as a T4 result."""
    invalidity = _INVALIDITY[trial.outcome]
    runtimes = [micros / 1e3 for micros in trial.timing.samples_us] if trial.timing else []
    measured = trial.timing.median_us / 1e3 if trial.timing else None
    return {
        "timestamp": trial.created.isoformat(),
        "configuration": {"family": trial.config.family, **trial.config.knobs},
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
        "tilewright": {"job": job, "trial": trial.model_dump(mode="json", exclude_none=True)},
    }


def parse(body: bytes) -> Iterator[Named]:
    """The jobs and trials of a T4 document that :func:`export` wrote.

    Raises:
        BadLine: it is not one; the message names the result.
    """
    document = strict_json("the T4 file", body)
    if not isinstance(document, dict) or not isinstance(document.get("results"), list):
        raise BadLine("the T4 file: an object with a list 'results' is needed")
    version = document.get("schema_version", VERSION)
    if not isinstance(version, str) or not version.startswith("1."):
        raise BadLine(f"the T4 file: schema_version must be 1.x.y as text, got {str(version)[:50]!r}")
    seen: set[str] = set()
    for number, item in enumerate(document["results"]):
        name = f"result {number}"
        own = item.get("tilewright") if isinstance(item, dict) else None
        if not isinstance(own, dict):
            raise BadLine(
                f"{name}: no member 'tilewright', which tells problem, device and provenance; only T4"
                " files that tilewright exported can be imported"
            )
        job = record(name, own.get("job"))
        trial = record(name, own.get("trial"))
        if job.kind != "job" or trial.kind != "trial":
            raise BadLine(f"{name}: member 'tilewright' needs a job and a trial")
        if job.id not in seen:
            seen.add(job.id)
            yield name, job
        yield name, trial
