"""Exports of any size: one job with as many small trials as fit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime

from store_samples import HOST, config, request

from tilewright.schema.job import JobStatus
from tuner.store import exchange
from tuner.store.exchange import EndedJob

THEN = datetime(2026, 1, 2, tzinfo=UTC)


def job_line(job_id: str) -> bytes:
    """The line of a job."""
    job = EndedJob(job_id, request(), HOST, JobStatus.SUCCEEDED, THEN, THEN)
    return json.dumps(exchange.to_plain(job)).encode() + b"\n"


def trial_lines(job_id: str, count: int) -> Iterator[bytes]:
    """The lines of its trials, about 170 bytes each."""
    fields = {"kind": "trial", "job": job_id, "config": config().to_dict(), "outcome": "invalid"}
    text = json.dumps({**fields, "created": THEN.isoformat(), "number": None}, separators=(",", ":"))
    before, after = text.split("null")
    return (f"{before}{number}{after}\n".encode() for number in range(count))


def large_export(job_id: str, size: int) -> bytes:
    """About ``size`` bytes of a job and its trials, which nobody signed."""
    head = job_line(job_id)
    each = len(next(trial_lines(job_id, 1))) + 5
    return head + b"".join(trial_lines(job_id, size // each))
