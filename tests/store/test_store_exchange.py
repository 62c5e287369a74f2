"""Merging results of another store: a union that repeating does not change."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import pytest
from databases import Databases, migrate, opened
from signers import signer
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from store_samples import (
    HOST,
    HOST_CLASS,
    TRUSTED,
    UNTRUSTED,
    artifact,
    best,
    failed_trial,
    problem,
    request,
    trial,
)

from service.results import export, importing
from service.results.uploads import BadLine
from tilewright.schema.job import JobStatus, TuneRequest
from tilewright.schema.kernel import Preconditions
from tilewright.wire import ExportQuery, Format, ImportAnswer
from tuner.store import best as winners
from tuner.store import entities, exchange, imports, jobs, trials
from tuner.store.database import Store
from tuner.store.exchange import EndedJob
from tuner.store.models import DeviceRow, FamilySourceRow
from tuner.store.queue import claims
from tuner.store.records import StoredKernel
from tuner.store.trials import JobRecorder
from tuner.store.upkeep import staging

THEN = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
JOB = EndedJob("a" * 32, request(), HOST, JobStatus.FAILED, THEN, THEN + timedelta(minutes=1), error="broke")


@pytest.fixture
def store(store: Store) -> Store:
    """A store into which both imports were opened."""
    with store.begin() as session:
        for entering in (TRUSTED, UNTRUSTED):
            assert imports.enter(session, entering)
    return store


def test_a_job_enters_once_and_as_it_was(store: Store) -> None:
    for expected in (True, False):
        with store.begin() as session:
            assert exchange.merge_job(session, JOB, TRUSTED) is expected
    with store.read() as session:
        (found,) = exchange.ended_jobs(session, HOST_CLASS, None, 10)
    assert (found.id, found.request, found.device, found.status) == (JOB.id, JOB.request, HOST, JOB.status)
    assert (found.error, found.created, found.finished) == ("broke", JOB.created, JOB.finished)


@pytest.mark.parametrize("kind", ["job", "best"])
def test_an_arch_is_no_longer_than_a_database_keeps(store: Store, kind: str) -> None:
    longest, line = DeviceRow.__table__.c.arch.type.length, exchange.Winner(best(problem()), THEN)  # type: ignore[attr-defined]
    for arch, refused in (("x" * longest, False), ("x" * (longest + 1), True)):
        job = exchange.to_plain(dataclasses.replace(JOB, device=dataclasses.replace(HOST, arch=arch)))
        plain = {"job": job, "best": {**exchange.to_plain(line), "job_id": "", "arch": arch}}[kind]
        source = io.BytesIO(json.dumps(plain).encode())
        if refused:
            with pytest.raises(BadLine, match=r"line 1: .*arch: must be 1 to 32 letters"):
                importing.merge(store, source, Format.NDJSON, None, "me")
        else:
            importing.merge(store, source, Format.NDJSON, None, "me")


def test_a_merged_job_is_never_joined_or_claimed(store: Store) -> None:
    with store.begin() as session:
        exchange.merge_job(session, JOB, TRUSTED)
        assert claims.claim(session, HOST_CLASS, "me") is None
        job, created = jobs.submit(session, request(), HOST)
    assert created
    assert job.id != JOB.id


def test_trials_are_a_union(store: Store) -> None:
    with store.begin() as session:
        exchange.merge_job(session, JOB, TRUSTED)
        assert trials.merge(
            session,
            JOB.id,
            [trials.prepared(trial(0), THEN), trials.prepared(failed_trial(2), THEN)],
            TRUSTED,
        ) == [0, 2]
        assert trials.merge(session, JOB.id, [trials.prepared(trial(0, median=9.0), THEN)], TRUSTED) == []
        assert trials.merge(session, JOB.id, [], TRUSTED) == []
    with store.read() as session:
        found = trials.dated(session, JOB.id, None, 0, 10)
        assert found == [(trial(0), THEN), (failed_trial(2), THEN)]
        assert [row[0] for row in session.execute(select(FamilySourceRow.source_digest))] == ["a" * 64]
        assert trials.dated(session, JOB.id, "simt", 0, 10) == []
        assert trials.dated(session, JOB.id, None, 1, 10) == found[1:]


def test_a_trial_without_its_job_is_refused(store: Store) -> None:
    with pytest.raises(IntegrityError), store.begin() as session:
        trials.merge(session, JOB.id, [trials.prepared(trial(0), THEN)], TRUSTED)


def test_only_ended_jobs_leave(store: Store) -> None:
    with store.begin() as session:
        running, _ = jobs.submit(session, request(), HOST)
        claims.claim(session, HOST_CLASS, "me")
        exchange.merge_job(session, JOB, TRUSTED)
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
@pytest.mark.parametrize(
    ("days", "speedup", "merged"), [(1, 1.5, "in use"), (0, 1.5, "known"), (-1, 3.0, "in use")]
)
def test_the_later_winner_stays(store: Store, days: int, speedup: float, merged: str) -> None:
    with store.begin() as session:
        entities.put_artifact(session, artifact())
        assert winners.merge(session, best(problem(), speedup=1.45), THEN, TRUSTED) == "in use"
        later = THEN + timedelta(days=days)
        assert winners.merge(session, best(problem(), speedup=speedup), later, TRUSTED) == merged
        (found,) = winners.exact(session, HOST_CLASS, problem())
    assert found.best.speedup == (speedup if merged == "in use" else 1.45)
    assert found.created == (later if merged == "in use" else THEN)
    assert found.import_id == TRUSTED.id


def test_a_decidedly_better_winner_stays(store: Store) -> None:
    with store.begin() as session:
        entities.put_artifact(session, artifact())
        winners.merge(session, best(problem(), speedup=2.0), THEN, TRUSTED)
        later = THEN + timedelta(days=1)
        assert winners.merge(session, best(problem(), speedup=1.5), later, TRUSTED) == "known"


def test_the_later_winner_stays_where_the_driver_is_another(store: Store) -> None:
    """Though it is slower: the other one is stale."""
    slower = best(problem(), speedup=1.5)
    slower = dataclasses.replace(slower, provenance=dataclasses.replace(slower.provenance, driver="linux 7"))
    with store.begin() as session:
        entities.put_artifact(session, artifact())
        winners.merge(session, best(problem(), speedup=2.0), THEN, TRUSTED)
        assert winners.merge(session, slower, THEN + timedelta(days=1), TRUSTED) == "in use"


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_winners_that_differ_end_with_the_best_in_any_order(store: Store, order: tuple[int, ...]) -> None:
    """Each lies within the spread between races of the next."""
    narrow = [
        dataclasses.replace(best(problem(), speedup=one), speedup_low=one - 0.01, speedup_high=one + 0.01)
        for one in (1.65, 1.56, 1.48)
    ]
    with store.begin() as session:
        entities.put_artifact(session, artifact())
        for day in order:
            winners.merge(session, narrow[day], THEN + timedelta(days=day), TRUSTED)
        [kept] = winners.exact(session, narrow[0].device_class, problem())
        assert kept.best.speedup == 1.65


def test_a_disturbed_winner_of_another_store_takes_nothing_away(store: Store) -> None:
    loud = best(problem(), speedup=3.4, disturbed="others were busy")
    with store.begin() as session:
        entities.put_artifact(session, artifact())
        assert winners.merge(session, loud, THEN + timedelta(days=1), TRUSTED) == "in use"
        assert winners.merge(session, best(problem()), THEN, TRUSTED) == "in use"
        assert winners.merge(session, loud, THEN + timedelta(days=1), TRUSTED) == "known"


def test_winners_are_listed_by_class_and_time(store: Store) -> None:
    with store.begin() as session:
        entities.put_artifact(session, artifact())
        for day in range(3):
            winners.merge(session, best(problem(64 + day)), THEN + timedelta(days=day), TRUSTED)
        everything = winners.listing(session, None, None, 10)
        assert [stored.best.problem.m for stored in everything] == [64, 65, 66]
        assert winners.listing(session, HOST_CLASS, THEN + timedelta(days=1), 10) == everything[1:]
        assert winners.listing(session, None, None, 1, everything[0].id) == everything[1:2]
        assert winners.listing(session, "sm_90", None, 10) == []
        kept = StoredKernel(len(artifact().to_bytes()), Preconditions())
        assert winners.kernels(session, [artifact().digest]) == {artifact().digest: kept}


def imported(databases: Databases, lines: Iterable[bytes]) -> ImportAnswer:
    """What becomes of an export in another store."""
    with opened(databases.copy(migrate)) as other:
        own = signer(1).public_key
        return importing.merge(other, io.BytesIO(b"".join(lines)), Format.NDJSON, own, "me")


def test_the_winners_of_a_ladder_that_runs_leave_without_its_job(store: Store, databases: Databases) -> None:
    """Else the whole file could not be imported."""
    with store.begin() as session:
        job, _ = jobs.submit(session, TuneRequest(problem(64), (32, 64), max_trials=20), HOST)
        assert claims.claim(session, HOST_CLASS, "me")
    JobRecorder(store, job.id).set_best(best(problem(32)), artifact())
    answer = imported(databases, export.ndjson(store, ExportQuery(), signer(1)))
    assert (answer.added.jobs, answer.added.artifacts, answer.added.best) == (0, 1, 1)


def test_a_winner_that_is_deleted_meanwhile_spoils_no_export(store: Store, databases: Databases) -> None:
    with store.begin() as session:
        for m, binary in ((64, b"one"), (65, b"two")):
            kernel = artifact(binary)
            entities.put_artifact_bytes(session, kernel.to_bytes(), TRUSTED.id)
            won = dataclasses.replace(best(problem(m)), artifact=kernel.digest)
            assert winners.merge(session, won, THEN, TRUSTED) == "in use"
    lines = export.ndjson(store, ExportQuery(), signer(1))
    first = next(lines)
    assert staging.remove(store, TRUSTED.id, "me").artifacts == 2
    answer = imported(databases, [first, *lines])
    assert (answer.added.artifacts, answer.added.best) == (1, 1)
