"""Rows that this release cannot read: they are passed over and named, and all others are served."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import store_samples as samples
from databases import Databases, migrate, opened
from sqlalchemy import select, text

from tilewright.schema.entries import Import
from tilewright.schema.job import JobStatus
from tilewright.schema.kernel import Preconditions
from tilewright.schema.problem import GemmProblem
from tuner.job import neighbours
from tuner.store import best, entities, exchange, imports, jobs, misses, records, trials
from tuner.store.database import Store
from tuner.store.faults import quarantine
from tuner.store.models import ArtifactRow
from tuner.store.queue import claims, imported
from tuner.store.records import JobRecord, Unreadable
from tuner.store.reports import winners
from tuner.store.trials import JobRecorder

HOST_CLASS = samples.HOST_CLASS
DAMAGES = {
    "an option of a newer release": "UPDATE job SET options = :json WHERE id = :id",
    "a status of a newer release": "UPDATE job SET status = 'paused' WHERE id = :id",
    "a type of a newer release": "UPDATE problem SET dtype = 'float3', canonical = '{\"m\": 1}' WHERE m = 1",
    "a device of a newer release": "UPDATE device SET spec = '{}' WHERE id = "
    "(SELECT device_id FROM job WHERE id = :id)",
}


@pytest.fixture(autouse=True)
def _told_once() -> None:
    records.log_unreadable.cache_clear()


def damage(store: Store, statement: str, **values: Any) -> None:
    with store.begin() as session:
        session.execute(text(statement), values)


def submit(store: Store, problem: GemmProblem, device: Any = samples.HOST) -> str:
    request = dataclasses.replace(samples.request(), problem=problem)
    with store.begin() as session:
        return jobs.submit(session, request, device)[0].id


@pytest.fixture
def pair(store: Store, request: pytest.FixtureRequest) -> tuple[str, str]:
    """A job that cannot be read, and one behind it that can."""
    statement = DAMAGES[request.param]
    of_another = dataclasses.replace(samples.HOST, clock_mhz=4000)
    bad = submit(store, samples.problem(1), of_another)
    good = submit(store, samples.problem(2))
    options = json.dumps({**samples.request().options, "sampler": "oracle"})
    bound = {"json": options} if ":json" in statement else {}
    damage(store, statement, **({"id": bad} if ":id" in statement else {}), **bound)
    return bad, good


EACH = pytest.mark.parametrize("pair", DAMAGES, indirect=True)


@EACH
def test_an_unreadable_job_is_listed_by_name_and_left_to_a_server_that_can_read_it(
    store: Store, pair: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = pair
    for _ in range(2):
        with store.read() as session:
            found = jobs.listing(session)
        assert [(type(one), one.id) for one in found] == [(JobRecord, good), (Unreadable, bad)]
    with store.read() as session, pytest.raises(Unreadable, match=f"cannot read job {bad}: .*; upgrade"):
        jobs.get(session, bad)
    with store.begin() as session:
        claimed = claims.claim(session, HOST_CLASS, "me")
        assert claimed is not None
        assert claimed.id == good
        assert claims.claim(session, HOST_CLASS, "me") is None
    with store.read() as session:
        status = session.execute(text("SELECT status FROM job WHERE id = :id"), {"id": bad}).scalar_one()
    assert status in ("queued", "paused"), "it is left as it was"
    told = [record.message for record in caplog.records if bad in record.message]
    assert len(told) == 1, "the log names it once"


@pytest.mark.parametrize("pair", ["an option of a newer release"], indirect=True)
def test_an_unreadable_job_can_be_cancelled(store: Store, pair: tuple[str, str]) -> None:
    with store.begin() as session:
        assert jobs.request_cancel(session, pair[0])
    with store.read() as session:
        assert jobs.counts(session) == {JobStatus.CANCELLED: 1, JobStatus.QUEUED: 1}


@EACH
def test_an_export_passes_over_unreadable_jobs(store: Store, pair: tuple[str, str]) -> None:
    _, good = pair
    damage(store, "UPDATE job SET status = 'failed' WHERE status = 'queued'")
    with store.read() as session:
        assert [one.id for one in exchange.ended_jobs(session, None, None, limit=1)] == [good]
        assert exchange.ended_jobs(session, None, None, limit=1, after=good) == []


def test_a_page_of_trials_is_filled_behind_unreadable_ones(store: Store) -> None:
    job_id = submit(store, samples.problem())
    with store.begin() as session:
        claims.claim(session, HOST_CLASS, "me")
    recorder = JobRecorder(store, job_id)
    for number in range(5):
        recorder.add_trial(samples.trial(number), samples.artifact())
    damage(store, "UPDATE trial SET outcome = 'melted' WHERE number IN (0, 2)")
    with store.read() as session:
        pages = [trials.of_job(session, job_id, first, limit=2) for first in (0, 4, 5)]
        assert [[one.number for one in page] for page in pages] == [[1, 3], [4], []]
        dated = trials.dated(session, job_id, None, 0, limit=2)
        assert [trial.number for trial, _ in dated] == [1, 3]
    with pytest.raises(Unreadable, match=f"cannot read trial 0 of job {job_id}: outcome: must be one of"):
        recorder.trials()


@pytest.mark.parametrize("newer", ["provenance = '{}'", "outcome = 'melted'"])
def test_a_page_of_the_quarantine_is_filled_behind_unreadable_entries(store: Store, newer: str) -> None:
    with store.begin() as session:
        for tile in (16, 17, 18):
            broken = dataclasses.replace(
                samples.failed_trial(0), config=samples.config(tile), provenance=samples.PROVENANCE
            )
            assert quarantine.put(session, broken, quarantine.Evidence(samples.problem(), None, "host"))
        first, second, third = reversed([one.id for one in quarantine.listing(session)])
    damage(store, f"UPDATE quarantine SET {newer} WHERE id = :id", id=second)
    with store.read() as session:
        assert [one.id for one in quarantine.listing(session, limit=2)] == [third, first]


def test_unreadable_winners_are_not_served_and_all_others_are(store: Store) -> None:
    with store.begin() as session:
        entities.put_artifact(session, samples.artifact())
        for m in range(1, 6):
            best.put(session, samples.best(samples.problem(m)))
    first = "SELECT problem.id FROM problem WHERE m IN (1, 3)"
    damage(store, f"UPDATE best_config SET timing = '{{}}' WHERE problem_id IN ({first})")
    damage(store, "UPDATE best_config SET provenance = '{}' WHERE id = (SELECT min(id) FROM best_config)")
    with store.read() as session:
        assert best.exact(session, HOST_CLASS, samples.problem(1)) == []
        page = best.for_arch(session, HOST_CLASS, limit=2)
        assert [one.best.problem.m for one in page] == [2, 4]
        rest = best.listing(session, None, None, 2, after=page[-1].id)
        assert [one.best.problem.m for one in rest] == [5]
        near = best.nearest(session, HOST_CLASS, samples.problem(2))
        assert {one.best.problem.m for one in near} <= {2, 4, 5}
        assert [number for *_, number in best.origins(session, HOST_CLASS)] == [4]


def test_an_idle_device_passes_over_unreadable_misses(store: Store) -> None:
    with store.begin() as session:
        reports = [misses.Report(samples.problem(m), m, 1.0, measured=True) for m in range(1, 5)]
        entities.put_artifact(session, samples.artifact())
        for m in range(1, 5):
            best.put(session, samples.best(samples.problem(m)))
        kept = misses.note(session, HOST_CLASS, reports, 10, reason="stale")
        misses.ask(session, HOST_CLASS, kept, "today")
    damage(store, "UPDATE problem SET canonical = '{}' WHERE m = 4")
    with store.read() as session:
        assert [one.problem.m for one in misses.ranked(session, HOST_CLASS, limit=2)] == [3, 2]
        assert misses.top(session, HOST_CLASS, "today") == samples.problem(3)


def test_a_miss_for_a_reason_of_a_newer_release_is_passed_over(store: Store) -> None:
    with store.begin() as session:
        reports = [misses.Report(samples.problem(m), m, 1.0, measured=True) for m in (1, 2)]
        misses.note(session, HOST_CLASS, reports, 10)
    damage(store, "UPDATE miss SET reason = 'slow' WHERE count = 2")
    with store.read() as session:
        assert [one.problem.m for one in misses.ranked(session, HOST_CLASS, limit=1)] == [1]


def test_an_idle_device_passes_over_unreadable_imported_winners(store: Store) -> None:
    entered = Import("1" * 32, False, None, None, records.utc_now())
    with store.begin() as session:
        imports.enter(session, entered)
        for m in range(1, 5):
            best.merge(session, samples.best(samples.problem(m), speedup=m), entered.created, entered)
    for m, text_of_it in ((3, "{}"), (4, "[]")):
        damage(store, f"UPDATE problem SET canonical = '{text_of_it}' WHERE m = {m}")
    with store.read() as session:
        assert imported.waiting_problem(session, HOST_CLASS) == samples.problem(2)


def test_damaged_json_costs_its_own_row_only(tmp_path: Any) -> None:
    """PostgreSQL checks JSON by itself."""
    store = Store.open(f"sqlite:///{tmp_path}/store.db")
    store.migrate()
    bad, good = submit(store, samples.problem(1)), submit(store, samples.problem(2))
    damage(store, "UPDATE job SET options = '{\"max_tri' WHERE id = :id", id=bad)
    with store.read() as session:
        found = jobs.listing(session)
    assert [(type(one), one.id) for one in found] == [(JobRecord, good), (Unreadable, bad)]
    store.close()


def test_a_damaged_event_keeps_no_job_from_being_given_back(sqlite_databases: Databases) -> None:
    with opened(sqlite_databases.empty()) as store:
        store.migrate()
        ids = [submit(store, samples.problem(m)) for m in (1, 2)]
        with store.begin() as session:
            assert claims.claim(session, HOST_CLASS, "me")
        damage(store, "UPDATE event SET data = '{' WHERE job_id = :id", id=ids[0])
        with store.begin() as session:
            assert claims.requeue_interrupted(session, HOST_CLASS, "me") == ids[:1]


def test_a_damaged_problem_of_a_ladder_keeps_no_regret_from_being_estimated(
    sqlite_databases: Databases,
) -> None:
    winner = samples.best(samples.problem(64))
    with opened(sqlite_databases.copy(migrate)) as store:
        asked = dataclasses.replace(samples.request(), problem=samples.problem(512), ladder=(256, 512))
        with store.begin() as session:
            job, _ = jobs.submit(session, asked, samples.HOST)
            claims.claim(session, HOST_CLASS, "me")
        tried = dataclasses.replace(samples.trial(0), m=512, config=winner.config)
        JobRecorder(store, job.id).add_trial(tried, samples.artifact())
        damage(store, "UPDATE problem SET canonical = '{' WHERE m = 512")
        with store.read() as session:
            assert neighbours.estimate(session, HOST_CLASS, [(winner.problem, winner.config)]) == []


def test_a_kernel_that_says_nothing_sound_of_its_needs_is_passed_over(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    needs = (dataclasses.replace(Preconditions(), align_a=2), Preconditions())
    with store.begin() as session:
        kernels = [entities.put_artifact(session, samples.artifact(needs=one)) for one in needs]
        for m, digest in enumerate(kernels, 1):
            best.put(session, dataclasses.replace(samples.best(samples.problem(m)), artifact=digest))
        row = session.scalars(select(ArtifactRow).where(ArtifactRow.digest == kernels[0])).one()
        header = json.loads(json.dumps(row.header))
        header["plan"]["preconditions"]["align_a"] = 0
        row.header = header
    with store.read() as session:
        assert list(best.kernels(session, kernels)) == kernels[1:]
    assert f"cannot read kernel {kernels[0]}: align_a" in caplog.text


def test_damaged_json_of_a_winner_costs_its_own_row_only(sqlite_databases: Databases) -> None:
    """PostgreSQL checks JSON by itself."""
    with opened(sqlite_databases.copy(migrate)) as store:
        headers = [samples.artifact(needs=dataclasses.replace(Preconditions(), align_a=n)) for n in (1, 2)]
        with store.begin() as session:
            kernels = [entities.put_artifact(session, one) for one in headers]
            for m in range(1, 5):
                best.put(session, dataclasses.replace(samples.best(samples.problem(m)), artifact=kernels[0]))
        for m, column in enumerate(("config", "timing", "baseline"), 1):
            which = "problem_id = (SELECT id FROM problem WHERE m = :m)"
            damage(store, f"UPDATE best_config SET {column} = '{{\"family' WHERE {which}", m=m)
        damage(store, "UPDATE artifact SET header = '{\"pl' WHERE digest = :digest", digest=kernels[1])
        broken = samples.best(samples.problem(4))
        failed = dataclasses.replace(
            samples.failed_trial(0), config=broken.config, provenance=broken.provenance
        )
        with store.begin() as session:
            assert [one.problem.m for one in winners.headlines(session, [HOST_CLASS])] == [4]
            assert [number for *_, number in best.origins(session, HOST_CLASS)] == [3]
            assert list(best.kernels(session, kernels)) == kernels[:1]
            assert quarantine.put(session, failed, quarantine.Evidence(broken.problem, None, "host"))
            assert winners.headlines(session, [HOST_CLASS]) == []
