"""Rows of ladders in the database: kept by job, recorded by claim, exported, deleted and pruned."""

from __future__ import annotations

import dataclasses
import json
from datetime import timedelta
from pathlib import Path

import pytest
from alembic import command
from full_disk import files_of_at_most
from sqlalchemy import select, text, update
from store_samples import HOST, HOST_CLASS, TRUSTED, artifact, best, problem, remove_problem, request, trial

from service.engine import admission
from service.errors import Refusal
from service.results import optuna_export
from service.settings import Settings
from tilewright.schema.codec import gathered
from tilewright.schema.job import JobStatus
from tilewright.schema.trial import BestConfig, LadderKernel
from tuner.job import neighbours
from tuner.store import best as winners
from tuner.store import exchange, imports, jobs, misses, trials
from tuner.store.database import Store, StoreError, alembic_config
from tuner.store.exchange import EndedJob, TrialOfJob
from tuner.store.models import LadderRow
from tuner.store.queue import claims
from tuner.store.records import JobRecord, utc_now
from tuner.store.reports.trials import points
from tuner.store.trials import JobRecorder
from tuner.store.upkeep.retention import Kind, prune

ROWS = (16, 32, 64)
REQUEST = dataclasses.replace(request(), ladder=ROWS)


def submitted(store: Store) -> JobRecord:
    with store.begin() as session:
        return jobs.submit(session, REQUEST, HOST)[0]


def winner(m: int, regret: float = 0.01) -> BestConfig:
    kernels = (LadderKernel(artifact().digest, regret, 1.25), LadderKernel("f" * 64, 0.2, 1.1))
    return dataclasses.replace(best(problem(m)), kernels=kernels)


def recorded(store: Store) -> tuple[JobRecord, JobRecorder]:
    """A running job with a trial on each row and winners of two of them."""
    job = submitted(store)
    with store.begin() as session:
        assert claims.claim(session, HOST_CLASS, "me")
    recorder = JobRecorder(store, job.id)
    for number, m in enumerate(ROWS):
        recorder.add_trial(dataclasses.replace(trial(number, 2.0 + number), m=m), artifact())
    for m in ROWS[1:]:
        recorder.set_best(winner(m), artifact())
    return job, recorder


def finished(store: Store) -> JobRecord:
    job, _ = recorded(store)
    with store.begin() as session:
        jobs.finish(session, job.id, JobStatus.SUCCEEDED)
        return jobs.known(session, job.id)


def test_a_job_on_a_ladder_is_read_as_it_was_submitted(store: Store) -> None:
    job = submitted(store)
    assert job.request == REQUEST
    with store.begin() as session:
        again, created = jobs.submit(session, REQUEST, HOST)
        other, new = jobs.submit(session, dataclasses.replace(REQUEST, ladder=(32, 64)), HOST)
    assert (again.id, created) == (job.id, False)
    assert (other.id == job.id, new) == (False, True)


def test_a_recorder_keeps_the_winner_of_each_row(store: Store) -> None:
    job, recorder = recorded(store)
    found = recorder.row_results()
    assert found == {m: dataclasses.replace(winner(m), job_id=job.id) for m in ROWS[1:]}
    stored = recorder.stored_best(problem(32))
    assert stored == found[32]
    assert stored is not None
    assert stored.regret == 0.01
    assert recorder.stored_best(problem(16)) is None
    with store.read() as session:
        record = jobs.known(session, job.id)
        events = jobs.events_after(session, job.id)
    assert record.result is None
    assert record.progress is not None
    assert (record.progress.measured, record.progress.m, record.progress.best_us) == (3, 64, 4.0)
    assert [event.data["m"] for event in events if event.kind == "trial"] == list(ROWS)
    assert [(event.data["m"], event.data["regret"]) for event in events if event.kind == "best"] == [
        (32, 0.01),
        (64, 0.01),
    ]
    assert [one.m for one in JobRecorder(store, job.id).trials()] == list(ROWS)


def test_another_claim_goes_on_with_the_rows(store: Store) -> None:
    job, recorder = recorded(store)
    with store.begin() as session:
        claims.requeue_interrupted(session, HOST_CLASS, "me")
        assert claims.claim(session, HOST_CLASS, "another")
    with pytest.raises(Exception, match="another may work on it"):
        recorder.set_best(winner(16), artifact())
    later = JobRecorder(store, job.id)
    assert sorted(later.row_results()) == [32, 64]
    later.set_best(winner(16), artifact())
    assert sorted(later.row_results()) == list(ROWS)


def test_a_claim_whose_clock_is_behind_keeps_the_order_of_the_trials(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ladder goes on with the number after the last trial, which must be free."""
    job, recorder = recorded(store)
    now = utc_now()
    monkeypatch.setattr("tuner.store.trials.utc_now", lambda: now - timedelta(minutes=1))
    recorder.add_trial(dataclasses.replace(trial(3, 5.0), m=16), artifact())
    assert [one.number for one in JobRecorder(store, job.id).trials()] == [0, 1, 2, 3]


def test_rows_count_as_problems_of_their_own_for_near_matches(store: Store) -> None:
    finished(store)
    with store.read() as session:
        medians = neighbours._medians(session, HOST_CLASS, {trial(0).config.digest, trial(1).config.digest})
    assert {
        name.count('"m":16') or 2 * name.count('"m":32'): list(of.values()) for name, of in medians.items()
    } == {
        1: [2.0],
        2: [3.0],
    }


def test_a_row_of_a_live_job_is_no_open_miss(store: Store) -> None:
    job = submitted(store)
    report = misses.Report(problem(16), 3, 2.0, measured=True)
    with store.begin() as session:
        misses.note(session, HOST_CLASS, [report], most=10)
        assert misses.ranked(session, HOST_CLASS, 10) == []
        jobs.request_cancel(session, job.id)
        assert [miss.problem for miss in misses.ranked(session, HOST_CLASS, 10)] == [problem(16)]


def test_a_ladder_goes_out_and_comes_in_again(store: Store) -> None:
    job = finished(store)
    with store.read() as session:
        (ended,) = exchange.ended_jobs(session, None, None, 10)
        line = EndedJob(ended.id, ended.request, ended.device, ended.status, ended.created, utc_now())
        kept = trials.of_job(session, job.id)
        (of_32,) = winners.exact(session, HOST_CLASS, problem(32))
    lines = [line, TrialOfJob(job.id, kept[1], utc_now()), exchange.Winner(of_32.best, of_32.created)]
    read = [exchange.of_plain(exchange.to_plain(one)) for one in lines]
    assert read == lines
    moved = dataclasses.replace(line, id="0" * 32)
    with store.begin() as session:
        imports.enter(session, TRUSTED)
        assert exchange.merge_job(session, moved, TRUSTED)
        assert jobs.known(session, "0" * 32).request == REQUEST
        rows = select(LadderRow.m).where(LadderRow.job_id == "0" * 32).order_by(LadderRow.m)
        assert list(session.scalars(rows)) == list(ROWS)
        imports.remove(session, TRUSTED.id)
        assert list(session.scalars(rows)) == []


def test_a_problem_is_deleted_from_a_ladder(store: Store) -> None:
    job, _ = recorded(store)
    with store.begin() as session, pytest.raises(imports.InUse, match="cancel it"):
        remove_problem(session, problem(32))
    with store.begin() as session:
        jobs.finish(session, job.id, JobStatus.SUCCEEDED)
        gone = remove_problem(session, problem(32))
        assert (gone.jobs, gone.trials, gone.best) == (0, 1, 1)
        assert [one.m for one in trials.of_job(session, job.id)] == [16, 64]
        assert sorted(jobs.row_results(session, job.id)) == [64]
        for m in (16, 64):
            gone = remove_problem(session, problem(m))
        assert (gone.jobs, gone.trials) == (1, 1)
        assert jobs.get(session, job.id) is None


def test_an_old_ladder_is_pruned_with_its_rows(store: Store) -> None:
    job = finished(store)
    with store.begin() as session:
        for m in ROWS[1:]:
            imports.remove_best(session, HOST_CLASS, problem(m))
    days = dict.fromkeys(Kind, timedelta(microseconds=1) / timedelta(days=1))
    removed = prune(store, days)
    assert (removed[Kind.TRIALS], removed[Kind.JOBS]) == (3, 1)
    with store.read() as session:
        assert jobs.get(session, job.id) is None
        assert session.scalars(select(LadderRow.m)).all() == []


def test_a_row_without_a_winner_has_its_reason(store: Store) -> None:
    job, recorder = recorded(store)
    recorder.set_row_error(16, "the process died")
    assert JobRecorder(store, job.id).row_errors() == {16: "the process died"}
    with store.read() as session:
        told = [event.data for event in jobs.events_after(session, job.id) if event.kind == "row"]
    assert told == [{"m": 16, "error": "the process died"}]
    recorder.set_best(winner(16), artifact())
    assert (recorder.row_errors(), sorted(recorder.row_results())) == ({}, list(ROWS))


def test_a_row_that_the_ladder_lacks_is_refused(store: Store) -> None:
    _, recorder = recorded(store)
    with pytest.raises(StoreError, match="no row for m = 17"):
        recorder.set_best(winner(17), artifact())
    with pytest.raises(StoreError, match="no row for m = 17"):
        recorder.set_row_error(17, "it broke")


def test_a_result_of_a_newer_release_leaves_its_row_undecided(store: Store) -> None:
    _, recorder = recorded(store)
    with store.begin() as session:
        newer = {"config": {"family": 5}}
        session.execute(update(LadderRow).where(LadderRow.m == 32).values(result=newer))
    assert sorted(recorder.row_results()) == [64]


def test_a_release_before_keeps_the_largest_row_alone(store: Store) -> None:
    job = finished(store)
    with store.engine.begin() as connection:
        command.downgrade(alembic_config(connection), "0011_audit")
        kept = connection.execute(text("SELECT number FROM trial")).all()
        options = connection.execute(text("SELECT options FROM job")).scalar_one()
    assert [number for (number,) in kept] == [2]
    assert "ladder" not in options
    store.migrate()
    with store.read() as session:
        known = jobs.known(session, job.id)
        assert known.request == dataclasses.replace(REQUEST, ladder=())
        assert known.result is not None
        assert known.result.problem == REQUEST.problem


def test_quotas_count_the_trials_of_a_ladder(store: Store) -> None:
    long = dataclasses.replace(REQUEST, ladder=(*range(1, 63), 64))
    with store.begin() as session:
        jobs.submit(session, long, HOST, "me")
        jobs.submit(session, REQUEST, HOST, "another")
        assert jobs.queued_count(session) == 2
        assert (jobs.queued_work(session, "me"), jobs.queued_work(session)) == (17, 19)
        with pytest.raises(Refusal, match="16 jobs of this caller are queued"):
            admission.check_queue(session, "me", Settings(max_queue=20))
        assert admission.check_queue(session, "another", Settings(max_queue=20)) == 1


def test_a_job_is_listed_and_cancelled_by_any_m_of_its_ladder(store: Store) -> None:
    ladder = submitted(store)
    with store.begin() as session:
        alone, _ = jobs.submit(session, request(128), HOST)

    def found(m: int) -> list[list[str]]:
        with store.read() as session:
            return [[job.id for job in jobs.listing(session, m=m)], jobs.to_cancel(session, m=m)]

    assert [found(m) for m in ROWS] == [[[ladder.id]] * 2] * 3
    assert found(128) == [[alone.id]] * 2
    assert found(48) == [[], []]
    with store.read() as session:
        assert jobs.to_cancel(session, m=16, n=1) == []


def test_points_are_of_one_row(store: Store) -> None:
    job, _ = recorded(store)
    with store.read() as session:
        assert [[one.number for one in points(session, job.id, m)] for m in ROWS] == [[0], [1], [2]]
        assert points(session, job.id, 64, after=2) == []


def test_an_optuna_storage_has_a_study_for_each_row(store: Store, tmp_path: Path) -> None:
    job = finished(store)
    with store.read() as session:
        tried = trials.of_job(session, job.id, 0, 10)
    ended = EndedJob(**gathered(EndedJob, job))
    records = [ended, *(TrialOfJob(job.id, one, job.created) for one in tried)]
    lines = [json.dumps(exchange.to_plain(record)).encode() for record in records]
    assert optuna_export.write(lines, tmp_path / "optuna.db") == len(ROWS)


@pytest.mark.long
@pytest.mark.parametrize("databases", ["sqlite"], indirect=True)
def test_an_optuna_storage_that_cannot_be_written_leaves_nothing(store: Store, tmp_path: Path) -> None:
    """The disk is full once its tables are made."""
    job = finished(store)
    long = dataclasses.replace(trial(0, 1.0), message="x" * 400)
    records = [EndedJob(**gathered(EndedJob, job)), *[TrialOfJob(job.id, long, job.created)] * 60]
    lines = [json.dumps(exchange.to_plain(record)).encode() for record in records]
    told = r"optuna\.db cannot be written: .* space"
    with files_of_at_most(131_072), pytest.raises(StoreError, match=told):
        optuna_export.write(lines, tmp_path / "optuna.db")
    assert list(tmp_path.iterdir()) == []
