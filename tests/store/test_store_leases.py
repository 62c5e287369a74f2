"""Leases: who holds a job, who may take it over, and what a holder that lost it can still do."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from sqlalchemy import select, update
from store_samples import HOST, HOST_CLASS, request, trial

from tuner.owner import is_gone, new_owner
from tuner.store import clock, jobs
from tuner.store.database import Store
from tuner.store.errors import JobTaken
from tuner.store.models import JobRow
from tuner.store.recorder import JobRecorder
from tuner.store.records import JobRecord, JobStatus, utc_now

OF_A_DEAD_PROCESS = "import tuner.owner; print(tuner.owner.new_owner())"


def claimed(store: Store, owner: str, lease_s: float = 30.0) -> JobRecord:
    with store.begin() as session:
        jobs.submit(session, request(), HOST)
        job = jobs.claim(session, HOST_CLASS, owner, lease_s)
    assert job is not None
    return job


def take_over(store: Store) -> list[str]:
    with store.begin() as session:
        return jobs.requeue_lost(session, HOST_CLASS)


def seconds_left(store: Store, job_id: str) -> float:
    with store.read() as session:
        until = session.scalars(select(JobRow.lease_until).where(JobRow.id == job_id)).one()
        assert until is not None
        return (until - utc_now()).total_seconds()


def lapse(store: Store, job_id: str) -> None:
    with store.begin() as session:
        past = {"lease_until": clock.ahead(session, -1.0)}
        session.execute(update(JobRow).where(JobRow.id == job_id).values(past))


def test_a_job_of_a_living_server_is_not_stolen(store: Store) -> None:
    job = claimed(store, new_owner())
    assert 29 < seconds_left(store, job.id) <= 30
    assert take_over(store) == []
    elsewhere = new_owner().replace("/", "-other/", 1)
    with store.begin() as session:
        session.execute(update(JobRow).values(owner=elsewhere))
    assert take_over(store) == [], "of another machine, and its lease has not ended"


def test_a_job_whose_lease_ended_is_taken_over_and_its_holder_locked_out(store: Store) -> None:
    job = claimed(store, "on another machine", lease_s=60)
    holder = JobRecorder(store, job.id)
    lapse(store, job.id)
    holder.add_trial(trial(0), None)  # nobody took it yet: its work is still welcome
    assert take_over(store) == [job.id]
    with pytest.raises(JobTaken):
        holder.add_trial(trial(1), None)
    with store.begin() as session:
        again = jobs.claim(session, HOST_CLASS, "the next")
    assert again is not None
    assert again.attempt == 2
    with pytest.raises(JobTaken):
        holder.add_trial(trial(1), None)
    with store.begin() as session, pytest.raises(JobTaken):
        jobs.renew(session, job.id, job.attempt)
    JobRecorder(store, job.id).add_trial(trial(1), None)


def test_a_lease_is_renewed(store: Store) -> None:
    job = claimed(store, "on another machine", lease_s=1)
    with store.begin() as session:
        assert jobs.renew(session, job.id, job.attempt, 100.0).id == job.id
    assert 99 < seconds_left(store, job.id) <= 100
    assert take_over(store) == []


def test_a_job_of_a_dead_process_is_taken_over_at_once(store: Store) -> None:
    answer = subprocess.run([sys.executable, "-c", OF_A_DEAD_PROCESS], capture_output=True, check=True)
    owner = answer.stdout.decode().strip()
    job = claimed(store, owner)
    assert take_over(store) == [job.id]


def test_a_lost_job_that_was_to_stop_is_cancelled(store: Store) -> None:
    job = claimed(store, "on another machine")
    with store.begin() as session:
        jobs.request_cancel(session, job.id)
    lapse(store, job.id)
    assert take_over(store) == []
    with store.read() as session:
        ended = jobs.get(session, job.id)
    assert ended is not None
    assert ended.status is JobStatus.CANCELLED


def test_whom_the_name_of_an_owner_tells_gone() -> None:
    here = new_owner()
    place, pid, start, token = here.rsplit("/", 3)
    assert here != new_owner()
    assert not is_gone(here)
    assert is_gone(f"{place}/{pid}/{int(start) + 1}/{token}"), "the process id was given out again"
    assert is_gone(f"{place}/{2**22 + 1}/{start}/{token}")
    assert not is_gone(f"elsewhere/{place}/{2**22 + 1}/{start}/{token}")
    for unknown in ("", "me", "///", f"{place}/x/{start}/{token}"):
        assert not is_gone(unknown)


def test_a_process_that_waits_to_be_reaped_is_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", OF_A_DEAD_PROCESS], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        owner = child.stdout.read().decode().strip()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert is_gone(owner)
