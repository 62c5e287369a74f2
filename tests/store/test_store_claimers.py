"""Sixteen claimers, four in each of four processes, and a thousand jobs: each job runs exactly once."""

from __future__ import annotations

import collections
import subprocess
import sys

from sqlalchemy import func, select
from store_samples import HOST, HOST_CLASS, request

from tuner.store import jobs
from tuner.store.database import Store
from tuner.store.models import JobRow
from tuner.store.records import JobStatus

PROCESSES = 4
JOBS = 1000
CLAIM_ALL = """
import itertools
import sys
from concurrent.futures import ThreadPoolExecutor
from tuner.owner import new_owner
from tuner.store import jobs
from tuner.store.database import Store
from tuner.store.records import JobStatus

store = Store.open(sys.argv[1])


def claim_all(_):
    owner, mine = new_owner(), []
    for turn in itertools.count():
        with store.begin() as session:
            if turn % 10 == 0:
                jobs.requeue_lost(session, sys.argv[2])
            job = jobs.claim(session, sys.argv[2], owner)
        if job is None:
            return mine
        with store.begin() as session:
            jobs.hold(session, job.id, job.attempt)
            jobs.finish(session, job.id, JobStatus.SUCCEEDED)
        mine.append(job.id)


with ThreadPoolExecutor(4) as pool:
    print("ready", flush=True)
    sys.stdin.readline()
    for mine in pool.map(claim_all, range(4)):
        print(*mine)
"""


def test_each_job_is_run_exactly_once(store: Store, url: str) -> None:
    with store.begin() as session:
        submitted = {jobs.submit(session, request(m), HOST)[0].id for m in range(1, JOBS + 1)}
    runs = [mine.split() for output in claim_everything(url) for mine in output.splitlines()]
    assert len(runs) == 4 * PROCESSES
    counts = collections.Counter(job_id for mine in runs for job_id in mine)
    assert set(counts) == submitted
    assert set(counts.values()) == {1}
    assert sum(map(bool, runs)) > PROCESSES, "a few claimers took them all: hardly anything was contended"
    with store.read() as session:
        ended = select(JobRow.status, JobRow.attempt, func.count()).group_by(JobRow.status, JobRow.attempt)
        assert session.execute(ended).all() == [(JobStatus.SUCCEEDED, 1, JOBS)]


def claim_everything(url: str) -> list[str]:
    """What each process printed, all started at the same moment."""
    command = [sys.executable, "-W", "error", "-c", CLAIM_ALL, url, HOST_CLASS]
    pipe = subprocess.PIPE
    claimers = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(PROCESSES)]
    for claimer in claimers:
        assert claimer.stdout is not None
        assert claimer.stdout.readline() == "ready\n"
    for claimer in claimers:
        assert claimer.stdin is not None
        claimer.stdin.write("go\n")
        claimer.stdin.flush()
    outputs = [claimer.communicate(timeout=240)[0] for claimer in claimers]
    assert [claimer.returncode for claimer in claimers] == [0] * PROCESSES
    return outputs
