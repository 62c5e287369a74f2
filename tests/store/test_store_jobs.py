"""Jobs: submit or join, claim, finish, cancel, take up again.

Leases: who holds a job, who may take it over, and what a holder that lost it can still do.
"""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from databases import opened
from sqlalchemy import select, text, update
from store_samples import HOST, HOST_CLASS, OTHER_CLASS, OTHER_HOST, request, trial

from tilewright.schema.job import JobProgress, JobStatus
from tuner.store import database, entities, jobs
from tuner.store.database import JobTaken, Store, StoreError
from tuner.store.models import JobRow
from tuner.store.queue import claims, owners
from tuner.store.queue.owners import is_gone, new_owner
from tuner.store.records import JobRecord, utc_now
from tuner.store.trials import JobRecorder


def submit(store: Store, m: int = 64, device=HOST) -> tuple[JobRecord, bool]:
    with store.begin() as session:
        return jobs.submit(session, request(m), device)


def claim(store: Store, device_class: str = HOST_CLASS, owner: str = "me") -> JobRecord | None:
    with store.begin() as session:
        return claims.claim(session, device_class, owner)


def get(store: Store, job_id: str) -> JobRecord:
    with store.read() as session:
        found = jobs.get(session, job_id)
    assert found is not None
    return found


def finish(store: Store, job_id: str, status: JobStatus, error: str | None = None) -> None:
    with store.begin() as session:
        jobs.finish(session, job_id, status, error)


def cancel(store: Store, job_id: str) -> JobRecord | None:
    with store.begin() as session:
        assert jobs.request_cancel(session, job_id) is not None
        return jobs.get(session, job_id)


def statuses(store: Store, job_id: str) -> list[tuple[str, bool]]:
    with store.read() as session:
        log = jobs.events_after(session, job_id)
    return [(event.data["status"], bool(event.data.get("cancel_requested"))) for event in log]


def test_a_new_job_comes_back_as_submitted(store: Store) -> None:
    job, created = submit(store)
    assert created
    assert (job.request, job.device, job.device_class) == (request(), HOST, HOST_CLASS)
    assert (job.status, job.attempt, job.progress, job.error) == (JobStatus.QUEUED, 0, None, None)
    assert abs(datetime.now(UTC) - job.created) < timedelta(minutes=1)
    assert (job.started, job.finished, job.owner, job.cancel_requested) == (None, None, None, False)
    assert get(store, job.id) == job


def test_a_job_of_a_clock_before_1970_ends_as_any_other(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: -(10**17))
    job, _ = submit(store)
    assert re.fullmatch("[0-9a-f]{32}", job.id)
    with store.begin() as session:
        jobs.request_cancel(session, job.id)
    assert get(store, job.id).status is JobStatus.CANCELLED


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
def test_times_are_read_whatever_the_database_server_is_set_to(store: Store, url: str, zone: str) -> None:
    """An import may bring a job of any year."""
    job, _ = submit(store)
    if store.engine.dialect.name == "postgresql":
        with store.engine.begin() as connection:
            for name, value in (("timezone", zone), ("datestyle", "German, DMY")):
                connection.execute(text(f"ALTER DATABASE {store.engine.url.database} SET {name} = '{value}'"))
    with opened(url) as again:
        for created in (datetime(1, 1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, tzinfo=UTC)):
            with again.begin() as session:
                session.execute(update(JobRow).values(created=created))
            assert get(again, job.id).created == created


def test_unknown_jobs(store: Store) -> None:
    with store.begin() as session:
        assert jobs.get(session, "none") is None
        assert jobs.request_cancel(session, "none") is None
        with pytest.raises(StoreError, match="there is no job none"):
            jobs.finish(session, "none", JobStatus.FAILED)


def test_a_cancel_tells_whether_it_changed_something(store: Store) -> None:
    waiting, _ = submit(store)
    with store.begin() as session:
        assert [jobs.request_cancel(session, waiting.id) for _ in range(2)] == [True, False]
    running, _ = submit(store)
    with store.begin() as session:
        claims.claim(session, HOST_CLASS, "me")
        assert [jobs.request_cancel(session, running.id) for _ in range(2)] == [True, False]
        jobs.finish(session, running.id, JobStatus.SUCCEEDED)
        assert jobs.request_cancel(session, running.id) is False


def test_identical_work_is_joined_while_it_lives(store: Store) -> None:
    first, _ = submit(store)
    assert submit(store) == (first, False)
    running = claim(store)
    assert submit(store) == (running, False)
    finish(store, first.id, JobStatus.SUCCEEDED)
    second, created = submit(store)
    assert created
    assert second.id > first.id


def test_other_work_is_not_joined(store: Store) -> None:
    made = [submit(store), submit(store, m=65), submit(store, device=OTHER_HOST)]
    with store.begin() as session:
        made.append(jobs.submit(session, request(seed=1), HOST))
        made.append(jobs.submit(session, dataclasses.replace(request(), families=()), HOST))
    assert all(created for _, created in made)
    assert len({job.id for job, _ in made}) == 5


def test_same_class_under_another_clock_is_joined(store: Store) -> None:
    first, _ = submit(store)
    joined, created = submit(store, device=dataclasses.replace(HOST, clock_mhz=4000))
    assert (joined.id, created) == (first.id, False)


def test_claims_go_oldest_first_within_a_class(store: Store) -> None:
    first, second = submit(store)[0], submit(store, m=65)[0]
    other, _ = submit(store, device=OTHER_HOST)
    claimed = claim(store, owner="queue 0")
    assert claimed is not None
    assert (claimed.id, claimed.status, claimed.owner) == (first.id, JobStatus.RUNNING, "queue 0")
    assert claimed.attempt == 1
    assert claimed.started is not None
    assert claim(store).id == second.id
    assert claim(store) is None
    assert claim(store, OTHER_CLASS).id == other.id


def test_listing_pages_newest_first(store: Store) -> None:
    ids = [submit(store, m=m)[0].id for m in range(1, 6)]
    claim(store)
    with store.read() as session:
        page = jobs.listing(session, limit=2)
        rest = jobs.listing(session, limit=9, before=page[-1].id)
        queued = jobs.listing(session, status=JobStatus.QUEUED)
        assert [job.id for job in page + rest] == ids[::-1]
        assert [job.id for job in queued] == ids[:0:-1]
        assert jobs.queued_count(session) == jobs.queued_count(session, HOST_CLASS) == 4
        assert jobs.queued_count(session, OTHER_CLASS) == 0


def test_the_first_end_holds(store: Store) -> None:
    job, _ = submit(store)
    claim(store)
    finish(store, job.id, JobStatus.FAILED, "broke\0down \udc80")
    ended = get(store, job.id)
    assert (ended.status, ended.error) == (JobStatus.FAILED, "broke\\x00down \\udc80")
    assert ended.finished is not None
    finish(store, job.id, JobStatus.SUCCEEDED)
    assert get(store, job.id) == ended
    with store.begin() as session, pytest.raises(StoreError, match="cannot finish as running"):
        jobs.finish(session, job.id, JobStatus.RUNNING)
    assert statuses(store, job.id) == [("queued", False), ("running", False), ("failed", False)]


def test_cancel_of_a_queued_job_is_at_once(store: Store) -> None:
    job, _ = submit(store)
    cancelled = cancel(store, job.id)
    assert cancelled is not None
    assert (cancelled.status, cancelled.cancel_requested) == (JobStatus.CANCELLED, True)
    assert cancel(store, job.id) == cancelled
    assert claim(store) is None
    assert submit(store)[1]


def test_cancel_of_a_running_job_is_a_request(store: Store) -> None:
    job, _ = submit(store)
    claim(store)
    asked = cancel(store, job.id)
    assert asked is not None
    assert (asked.status, asked.cancel_requested) == (JobStatus.RUNNING, True)
    assert cancel(store, job.id) == asked
    assert submit(store)[1], "a job that is to stop is not joined"
    finish(store, job.id, JobStatus.CANCELLED)
    assert statuses(store, job.id) == [
        ("queued", False),
        ("running", False),
        ("running", True),
        ("cancelled", False),
    ]


def test_cancel_leaves_a_finished_job(store: Store) -> None:
    job, _ = submit(store)
    claim(store)
    finish(store, job.id, JobStatus.SUCCEEDED)
    assert cancel(store, job.id) == get(store, job.id)
    assert get(store, job.id).cancel_requested is False


def test_interrupted_jobs_are_queued_again(store: Store) -> None:
    first, second = submit(store)[0], submit(store, m=65)[0]
    third, _ = submit(store, m=66)
    for _ in range(3):
        claim(store)
    cancel(store, second.id)
    with store.begin() as session:
        jobs.set_progress(session, first.id, JobProgress("search", measured=3, planned=7))
        assert claims.requeue_interrupted(session, OTHER_CLASS, "me") == []
        assert claims.requeue_interrupted(session, HOST_CLASS, "someone else") == []
        assert claims.requeue_interrupted(session, HOST_CLASS, "me") == [first.id, third.id]
    assert get(store, second.id).status is JobStatus.CANCELLED
    again = claim(store)
    assert again is not None
    assert (again.id, again.attempt) == (first.id, 2)
    assert again.progress == JobProgress("search", measured=3, planned=7)
    assert submit(store)[0].id == first.id, "still joined after the interruption"


def test_a_job_is_held_by_its_last_claim_only(store: Store) -> None:
    job, _ = submit(store)
    with store.begin() as session, pytest.raises(JobTaken):
        claims.hold(session, job.id, 0)
    claim(store)
    with store.begin() as session:
        assert claims.hold(session, job.id, 1) == claims.Held(cancel_requested=False, progress=None)
        claims.requeue_interrupted(session, HOST_CLASS, "me")
    claim(store)
    with store.begin() as session, pytest.raises(JobTaken, match="claim 1; stop"):
        claims.hold(session, job.id, 1)


def test_devices_are_known_once(store: Store) -> None:
    with store.begin() as session:
        first = entities.see_device(session, HOST)
        other = entities.see_device(session, OTHER_HOST)
        before = {record.spec: record for record in entities.list_devices(session)}
    with store.begin() as session:
        assert entities.see_device(session, HOST) == first != other
        records = entities.list_devices(session)
    assert [record.spec for record in records] == [HOST, OTHER_HOST]
    assert records[0].first_seen == before[HOST].first_seen
    assert records[0].last_seen > before[HOST].last_seen
    assert records[0].device_class == HOST_CLASS


OF_A_DEAD_PROCESS = "from tuner.store.queue.owners import new_owner; print(new_owner())"


def claimed(store: Store, owner: str, lease_s: float = 30.0) -> JobRecord:
    with store.begin() as session:
        jobs.submit(session, request(), HOST)
        job = claims.claim(session, HOST_CLASS, owner, lease_s)
    assert job is not None
    return job


class Expired(claims.LeaseWatch):
    """A watch to which every lease has ended."""

    def ended(self, leases: Iterable[Any]) -> list[Any]:
        return list(leases)


def take_over(store: Store, of: type[claims.LeaseWatch] = claims.LeaseWatch) -> list[str]:
    with store.begin() as session:
        return claims.requeue_lost(session, HOST_CLASS, of(30.0, 4.0))


def seconds_left(store: Store, job_id: str) -> float:
    with store.read() as session:
        until = session.scalars(select(JobRow.lease_until).where(JobRow.id == job_id)).one()
        assert until is not None
        now = database.ahead(session)
        now = now if isinstance(now, datetime) else session.scalars(select(now)).one()
        return (until - now).total_seconds()


def lapse(store: Store, job_id: str) -> None:
    with store.begin() as session:
        past = {"lease_until": database.ahead(session, -1.0)}
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
    assert take_over(store, Expired) == [job.id]
    with pytest.raises(JobTaken):
        holder.add_trial(trial(1), None)
    with store.begin() as session:
        again = claims.claim(session, HOST_CLASS, "the next")
    assert again is not None
    assert again.attempt == 2
    with pytest.raises(JobTaken):
        holder.add_trial(trial(1), None)
    with store.begin() as session, pytest.raises(JobTaken):
        claims.renew(session, job.id, job.attempt)
    JobRecorder(store, job.id).add_trial(trial(1), None)


def test_a_suspended_machine_takes_no_job_from_a_holder_that_could_not_renew(store: Store) -> None:
    """The clock of the leases goes on meanwhile, that of the process may not."""
    job = claimed(store, "on another machine")
    lapse(store, job.id)
    assert take_over(store) == []
    with store.begin() as session:
        claims.renew(session, job.id, job.attempt)


def test_a_job_that_ends_whatever_runs_it_is_not_started_for_ever(store: Store) -> None:
    with store.begin() as session:
        jobs.submit(session, request(), HOST)

    def interrupted() -> JobRecord:
        with store.begin() as session:
            job = claims.claim(session, HOST_CLASS, "me")
            assert job is not None
        if job.attempt == 15:
            JobRecorder(store, job.id).add_trial(trial(0), None)
        with store.begin() as session:
            claims.requeue_interrupted(session, HOST_CLASS, "me")
            return jobs.known(session, job.id)

    seen = [interrupted() for _ in range(15 + 20 - 1)]
    assert {job.status for job in seen} == {JobStatus.QUEUED}
    last = interrupted()
    assert last.status is JobStatus.FAILED
    assert "started 20 times" in str(last.error)


def test_a_lease_is_renewed(store: Store) -> None:
    job = claimed(store, "on another machine", lease_s=1)
    with store.begin() as session:
        assert not claims.renew(session, job.id, job.attempt, 100.0).cancel_requested
    assert 99 < seconds_left(store, job.id) <= 100
    assert take_over(store) == []


def test_a_job_of_a_dead_process_is_taken_over_at_once(store: Store) -> None:
    answer = subprocess.run([sys.executable, "-c", OF_A_DEAD_PROCESS], capture_output=True, check=True)
    owner = answer.stdout.decode().strip()
    job = claimed(store, owner)
    assert take_over(store) == [job.id]


def test_leases_of_before_the_machines_start_have_ended(store: Store) -> None:
    """Of a SQLite file, whose machine it was; the times of leases began anew with it."""
    place, *rest = new_owner().split("/", 1)
    job = claimed(store, "/".join(["0" * 8 + place[8:], *rest]), lease_s=3600)
    is_local = store.engine.dialect.name == "sqlite"
    assert take_over(store) == ([job.id] if is_local else [])


def test_a_lease_that_ends_later_than_any_may_has_ended(store: Store) -> None:
    """Earlier releases counted those in a SQLite file from 1970."""
    job = claimed(store, "on another machine")
    with store.begin() as session:
        far = {"lease_until": utc_now() + timedelta(days=1), "lease_s": None}
        session.execute(update(JobRow).where(JobRow.id == job.id).values(far))
    assert take_over(store, Expired) == [job.id]


def test_a_lost_job_that_was_to_stop_is_cancelled(store: Store) -> None:
    job = claimed(store, "on another machine")
    with store.begin() as session:
        jobs.request_cancel(session, job.id)
    assert take_over(store, Expired) == []
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


def test_a_living_process_whose_entry_is_hidden_is_not_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for ``/proc`` that shows no other process, as ``hidepid=2`` does, or shows one without its
    contents, as ``hidepid=1`` does."""
    owner = new_owner()
    place, pid, start, token = owner.rsplit("/", 3)
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text(place.partition("/")[0])
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/pid").symlink_to(place.partition("/")[2])
    monkeypatch.setattr(owners, "_PROC", tmp_path)
    assert not is_gone(owner)
    (tmp_path / pid / "stat").mkdir(parents=True)  # cannot be read as a file
    assert not is_gone(owner)
    assert is_gone(f"{place}/{2**22 + 1}/{start}/{token}")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting /proc needs root")
@pytest.mark.parametrize("hidepid", [0, 1, 2])
def test_a_process_of_another_user_is_not_gone_under(hidepid: int) -> None:
    ask = f"from tuner.store.queue.owners import is_gone; print(is_gone({new_owner()!r}))"
    as_nobody = 'exec setpriv --reuid 65534 --regid 65534 --clear-groups "$@"'
    script = f"mount -t proc -o hidepid={hidepid} proc /proc && {as_nobody}"
    command = ["unshare", "--mount", "sh", "-c", script, "sh", sys.executable, "-c", ask]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (answer.stdout, answer.stderr) == ("False\n", "")
