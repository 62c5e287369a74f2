"""Merging results of another store: a union that repeating does not change."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from store_samples import HOST, HOST_CLASS, artifact, best, failed_trial, problem, request, trial

from tilewright.schema.job import JobStatus
from tuner.store import best as winners
from tuner.store import entities, exchange, jobs, trials
from tuner.store.database import Store, StoreError
from tuner.store.exchange import EndedJob
from tuner.store.models import FamilySourceRow

THEN = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
JOB = EndedJob("a" * 32, request(), HOST, JobStatus.FAILED, THEN, THEN + timedelta(minutes=1), error="broke")


def test_a_job_enters_once_and_as_it_was(store: Store) -> None:
    for expected in (True, False):
        with store.begin() as session:
            assert exchange.merge_job(session, JOB) is expected
    with store.read() as session:
        (found,) = exchange.ended_jobs(session, HOST_CLASS, None, 10)
    assert (found.id, found.request, found.device, found.status) == (JOB.id, JOB.request, HOST, JOB.status)
    assert (found.error, found.created, found.finished) == ("broke", JOB.created, JOB.finished)


def test_a_merged_job_is_never_joined_or_claimed(store: Store) -> None:
    with store.begin() as session:
        exchange.merge_job(session, JOB)
        assert jobs.claim(session, HOST_CLASS, "me") is None
        job, created = jobs.submit(session, request(), HOST)
    assert created
    assert job.id != JOB.id


def test_trials_are_a_union(store: Store) -> None:
    with store.begin() as session:
        exchange.merge_job(session, JOB)
        assert trials.merge(session, JOB.id, [(trial(0), THEN), (failed_trial(2), THEN)]) == 2
        assert trials.merge(session, JOB.id, [(trial(0, median=9.0), THEN)]) == 0
        assert trials.merge(session, JOB.id, []) == 0
    with store.read() as session:
        found = trials.dated(session, JOB.id, None, 0, 10)
        assert found == [(trial(0), THEN), (failed_trial(2), THEN)]
        assert [row[0] for row in session.execute(select(FamilySourceRow.source_digest))] == ["a" * 64]
        assert trials.dated(session, JOB.id, "simt", 0, 10) == []
        assert trials.dated(session, JOB.id, None, 1, 10) == found[1:]


def test_a_trial_without_its_job_is_refused(store: Store) -> None:
    with pytest.raises(IntegrityError), store.begin() as session:
        trials.merge(session, JOB.id, [(trial(0), THEN)])


def test_only_ended_jobs_leave(store: Store) -> None:
    with store.begin() as session:
        running, _ = jobs.submit(session, request(), HOST)
        jobs.claim(session, HOST_CLASS, "me")
        exchange.merge_job(session, JOB)
        assert [job.id for job in exchange.ended_jobs(session, None, None, 10)] == [JOB.id]
        jobs.finish(session, running.id, JobStatus.SUCCEEDED)
        everything = [job.id for job in exchange.ended_jobs(session, None, None, 10)]
        assert everything == sorted([running.id, JOB.id])
        assert [job.id for job in exchange.ended_jobs(session, None, None, 10, after=everything[0])] == [
            everything[1]
        ]
        since = JOB.finished + timedelta(seconds=1)
        assert [job.id for job in exchange.ended_jobs(session, None, since, 10)] == [running.id]
        assert exchange.ended_jobs(session, "sm_90", None, 10) == []


# The intervals are +-0.1: 1.45 and 1.5 overlap, 3 is decidedly better.
@pytest.mark.parametrize(("days", "speedup", "taken"), [(1, 1.5, True), (0, 1.5, False), (-1, 3.0, True)])
def test_the_later_winner_stays(store: Store, days: int, speedup: float, taken: bool) -> None:
    with store.begin() as session:
        entities.put_artifact(session, artifact())
        assert winners.merge(session, best(problem(), speedup=1.45), THEN)
        later = THEN + timedelta(days=days)
        assert winners.merge(session, best(problem(), speedup=speedup), later) is taken
        (found,) = winners.exact(session, HOST_CLASS, problem())
    assert found.best.speedup == (speedup if taken else 1.45)
    assert found.created == (later if taken else THEN)


def test_a_decidedly_better_winner_stays(store: Store) -> None:
    with store.begin() as session:
        entities.put_artifact(session, artifact())
        winners.merge(session, best(problem(), speedup=2.0), THEN)
        assert not winners.merge(session, best(problem(), speedup=1.5), THEN + timedelta(days=1))


def test_a_winner_without_its_kernel_is_refused(store: Store) -> None:
    with store.begin() as session, pytest.raises(StoreError, match="store it first"):
        winners.merge(session, dataclasses.replace(best(problem()), artifact="0" * 64), THEN)


def test_winners_are_listed_by_class_and_time(store: Store) -> None:
    with store.begin() as session:
        entities.put_artifact(session, artifact())
        for day in range(3):
            winners.merge(session, best(problem(64 + day)), THEN + timedelta(days=day))
        everything = winners.listing(session, None, None, 10)
        assert [stored.best.problem.m for stored in everything] == [64, 65, 66]
        assert winners.listing(session, HOST_CLASS, THEN + timedelta(days=1), 10) == everything[1:]
        assert winners.listing(session, None, None, 1, everything[0].id) == everything[1:2]
        assert winners.listing(session, "sm_90", None, 10) == []
        assert winners.artifact_sizes(session, HOST_CLASS) == {artifact().digest: len(artifact().to_bytes())}
