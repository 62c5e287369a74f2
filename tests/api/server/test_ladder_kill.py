"""A server that is killed in the middle of a ladder: decided rows stay decided, nothing is done twice."""

from __future__ import annotations

import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from api_server import finish, start

from tilewright import Client, GemmProblem
from tilewright.schema.job import JobStatus

WEIGHT, ROWS = GemmProblem(64, 48, 32, "float32", "nn"), [16, 32, 64]


@pytest.mark.long
def test_a_killed_ladder_goes_on_with_the_rows_that_were_not_decided(tmp_path: Path) -> None:
    first = start(tmp_path)
    try:
        with Client(first.url) as client:
            job_id = client.tune(WEIGHT, m=ROWS, max_trials=2, wait=False).id
            deadline = time.monotonic() + 120
            while not (decided := client.job(job_id).rows):
                assert time.monotonic() < deadline
                time.sleep(0.02)
            before = client.trials(job_id, limit=1000).items
        first.stop(signal.SIGKILL)
    finally:
        finish(first)
    second = start(tmp_path)
    try:
        with Client(second.url) as client:
            job = client.wait(job_id)
            after = client.trials(job_id, limit=1000).items
    finally:
        finish(second)
    assert job.status is JobStatus.SUCCEEDED
    assert [trial for trial in after if trial in before] == before  # a row that loses may have more
    assert max(Counter((trial.m, str(trial.config)) for trial in after).values()) == 1
    assert [(one.m, one.outcome) for one in job.outcomes] == [(m, "tuned") for m in ROWS]
    assert [row for row in job.rows if row.m in {one.m for one in decided}] == decided
