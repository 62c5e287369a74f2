"""Retention: exactly what is old goes, what winners and sets need stays, and a stopped prune goes on."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
import store_samples as samples
from alembic import command
from databases import Databases, migrate, opened
from set_server import config_set, entry
from signers import signer
from sqlalchemy import delete, event, func, insert, select, update
from typer.testing import CliRunner

from service.cli.main import app
from service.engine import upkeep
from service.engine.upkeep import kept_days
from service.results.export import ndjson
from service.settings import Settings
from tilewright.artifact import Artifact
from tilewright.schema.config import Config
from tilewright.schema.config_set import ConfigSet
from tilewright.schema.job import JobStatus
from tilewright.schema.trial import Trial
from tilewright.wire import ExportQuery
from tuner.job import neighbours
from tuner.store import best, entities, jobs, misses, sets, trials
from tuner.store.database import Store, alembic_config
from tuner.store.models import ArtifactRow, Base, ConfigSetRow, EventRow, JobRow, ProblemRow, TrialRow
from tuner.store.queue import claims
from tuner.store.records import JobRecord, utc_now
from tuner.store.upkeep import retention
from tuner.store.upkeep.check import damages
from tuner.store.upkeep.retention import Kind, prune

DAYS = dict.fromkeys(Kind, 30.0)
NOTHING = dict.fromkeys(Kind, 0)
WINNER, SECOND, LOSER = samples.config(16), samples.config(17), samples.config(99)
KERNELS = {name: samples.artifact(b"\x7fELF" + name.encode()) for name in ("won", "named", "lost", "other")}


def run_job(store: Store, m: int, tried: dict[Config, Artifact], wins: Config | None = None) -> str:
    """A job that ended, with a trial of each config, and a winner."""
    with store.begin() as session:
        job, _ = jobs.submit(session, samples.request(m=m), samples.HOST)
        claims.claim(session, samples.HOST_CLASS, "me")
    recorder = trials.JobRecorder(store, job.id)
    for number, (config, kernel) in enumerate(tried.items()):
        trial = dataclasses.replace(samples.trial(number), config=config, artifact=kernel.digest)
        recorder.add_trial(trial, kernel)
    if wins is not None:
        found = samples.best(samples.problem(m))
        recorder.set_best(dataclasses.replace(found, config=wins, artifact=tried[wins].digest), tried[wins])
    with store.begin() as session:
        jobs.finish(session, job.id, JobStatus.SUCCEEDED)
    return job.id


def keep_set(store: Store, kernel: Artifact, m: int) -> str:
    content = config_set([entry(samples.problem(m), kernel)])
    digest = ConfigSet.from_bytes(content).digest
    with store.begin() as session:
        kept = sets.Snapshot(digest, samples.HOST_CLASS, samples.HOST.arch, 1, sets.pack(content), utc_now())
        sets.keep(session, kept, "1 here")
    return digest


def age(store: Store, days: float, *tables: type[Base]) -> None:
    """Make every row of the tables, or all of it, so many days older."""
    names = ("created", "finished", "made_latest", "sampled", "started", "unpinned")
    with store.begin() as session:
        for table in tables or (JobRow, TrialRow, ArtifactRow, ConfigSetRow, EventRow):
            for row in session.scalars(select(table)):
                for name in names:
                    if getattr(row, name, None) is not None:
                        setattr(row, name, getattr(row, name) - timedelta(days=days))


def populate(url: str) -> None:
    """A winner and a loser for each of two problems, old ones; then young ones; and three sets."""
    migrate(url)
    with opened(url) as store:
        first = {WINNER: KERNELS["won"], SECOND: KERNELS["named"], LOSER: KERNELS["lost"]}
        run_job(store, 64, first, WINNER)
        run_job(store, 65, {SECOND: KERNELS["other"], WINNER: KERNELS["won"], LOSER: KERNELS["lost"]}, SECOND)
        run_job(store, 66, {LOSER: KERNELS["lost"]})
        pinned = keep_set(store, KERNELS["named"], 64)
        keep_set(store, KERNELS["lost"], 64)
        keep_set(store, KERNELS["won"], 65)
        with store.begin() as session:
            sets.pin(session, samples.HOST_CLASS, pinned)
        age(store, 100)
        keep_set(store, KERNELS["won"], 66)
        run_job(store, 67, {LOSER: samples.artifact(b"\x7fELFyoung")})


@pytest.fixture
def store(databases: Databases) -> Iterator[Store]:
    with opened(databases.copy(populate)) as made:
        yield made


def counted(store: Store) -> dict[str, int]:
    tables = (JobRow, TrialRow, EventRow, ArtifactRow, ConfigSetRow)
    with store.read() as session:
        return {
            table.__tablename__: session.scalar(select(func.count()).select_from(table)) or 0
            for table in tables
        }


def trials_of(store: Store, m: int) -> list[Trial]:
    with store.read() as session:
        found = [job for job in jobs.listing(session) if isinstance(job, JobRecord)]
        (job,) = [job for job in found if job.request.problem.m == m]
        return trials.of_job(session, job.id)


EXPECTED = {
    Kind.SAMPLES: 7,  # of all trials of the three old jobs
    Kind.EVENTS: 3 * 3 + 7 + 2,  # queued, running, succeeded of each; its trials; two winners
    Kind.TRIALS: 3,  # the loser on each of the old problems
    Kind.SETS: 1,  # one set followed it more than 30 days ago, and it is not pinned
    Kind.ARTIFACTS: 1,  # that of the loser
    Kind.JOBS: 1,  # the one without a winner
    Kind.AUDIT: 0,
}


def test_exactly_what_is_old_goes(store: Store) -> None:
    before = counted(store)
    assert prune(store, DAYS, dry_run=True) == EXPECTED
    assert counted(store) == before
    assert prune(store, DAYS) == EXPECTED
    after = counted(store)
    gone = {name: before[name] - after[name] for name in before}
    assert gone == {"job": 1, "trial": 3, "event": 18, "artifact": 1, "config_set": 1}
    assert prune(store, DAYS) == NOTHING
    assert damages(store) == []


def sets_there(store: Store, digests: Iterable[str]) -> list[bool]:
    with store.read() as session:
        return [sets.get(session, digest) is not None for digest in digests]


def test_a_set_that_was_the_latest_again_is_as_old_as_that(store: Store) -> None:
    """With its kernel: it was served until now, and what came between was not for two years."""
    again, between = keep_set(store, KERNELS["other"], 70), keep_set(store, KERNELS["won"], 71)
    assert keep_set(store, KERNELS["other"], 70) == again
    age(store, 730)
    keep_set(store, KERNELS["won"], 72)
    prune(store, DAYS)
    assert sets_there(store, [again, between]) == [True, False]
    assert damages(store) == []
    with store.read() as session:
        assert entities.has_artifact(session, KERNELS["other"].digest)
    age(store, 100)
    keep_set(store, KERNELS["won"], 73)
    prune(store, DAYS)
    assert sets_there(store, [again]) == [False]


def test_a_set_is_as_old_as_its_pin(store: Store) -> None:
    with store.begin() as session:
        was = sets.served(session, samples.HOST_CLASS).pinned
        assert was
        sets.pin(session, samples.HOST_CLASS, None)
    prune(store, DAYS)
    assert sets_there(store, [was]) == [True]
    with store.read() as session:
        assert entities.has_artifact(session, KERNELS["named"].digest)
    age(store, 100)
    prune(store, DAYS)
    assert sets_there(store, [was]) == [False]


def test_problems_that_nothing_names_go(store: Store) -> None:
    """Anyone who reports misses makes up as many as there are numbers."""

    def problems_of(named: bool) -> set[int]:
        with store.read() as session:
            unnamed = set(session.scalars(entities.unnamed_problems()))
            return set(session.scalars(select(ProblemRow.id))) - unnamed if named else unnamed

    with store.begin() as session:
        for first in range(1000, 2000, 100):
            reports = [misses.Report(samples.problem(first + more), 1, 1.0, False) for more in range(100)]
            misses.note(session, samples.HOST_CLASS, reports, most=50, caller=f"192.0.2.{first}")
    named, unnamed = problems_of(named=True), problems_of(named=False)
    assert len(unnamed) > 50
    prune(store, dict.fromkeys(Kind, 0.0), dry_run=True)
    assert problems_of(named=False) == unnamed
    prune(store, dict.fromkeys(Kind, 0.0))
    assert problems_of(named=False) == set()
    assert problems_of(named=True) == named


def test_a_problem_that_is_being_named_stays(store: Store) -> None:
    if store.engine.dialect.name == "sqlite":
        pytest.skip("writers of SQLite follow each other")
    with store.begin() as session:
        kept = entities.ensure_problem(session, samples.problem(4711))
    with store.begin() as session:
        assert entities.ensure_problem(session, samples.problem(4711)) == kept
        prune(store, dict.fromkeys(Kind, 0.0))
        misses.note(session, samples.HOST_CLASS, [misses.Report(samples.problem(4711), 1, 1.0, False)], 100)
    with store.read() as session:
        assert entities.find_problem(session, samples.problem(4711)) == kept


def test_the_dry_run_of_each_kind_alone_is_what_goes(store: Store) -> None:
    for kind in reversed(Kind):
        told = prune(store, {kind: 30.0}, dry_run=True)
        assert prune(store, {kind: 30.0}) == told


def test_young_rows_and_kinds_kept_for_ever_stay(store: Store) -> None:
    before = counted(store)
    assert prune(store, dict.fromkeys(Kind, 101.0)) == NOTHING
    assert prune(store, dict.fromkeys(Kind, 0.0)) == {}
    assert counted(store) == before
    prune(store, DAYS)
    (young,) = trials_of(store, 67)
    assert young.timing is not None
    assert young.timing.samples_us == samples.TIMING.samples_us


def test_a_job_that_has_not_ended_stays_with_all_it_has(store: Store) -> None:
    prune(store, DAYS)
    with store.begin() as session:
        job, _ = jobs.submit(session, samples.request(m=68), samples.HOST)
        claims.claim(session, samples.HOST_CLASS, "me")
    trials.JobRecorder(store, job.id).add_trial(samples.trial(0), samples.artifact())
    age(store, 100, JobRow, TrialRow, EventRow)
    prune(store, {kind: days for kind, days in DAYS.items() if kind is not Kind.ARTIFACTS})
    with store.read() as session:
        assert len(jobs.events_after(session, job.id)) == 3
        assert trials.of_job(session, job.id) == [samples.trial(0)]


def test_what_winners_and_sets_name_stays(store: Store) -> None:
    with store.read() as session:
        winners = [(one.best.problem, one.best.config) for one in best.for_arch(session, samples.HOST_CLASS)]
        pairs = neighbours.pairs(session, samples.HOST_CLASS, winners)
        lookups = [best.exact(session, samples.HOST_CLASS, problem) for problem, _ in winners]
        served = sets.served(session, samples.HOST_CLASS)
    assert len(pairs) == 2
    prune(store, DAYS)
    with store.read() as session:
        assert [best.exact(session, samples.HOST_CLASS, problem) for problem, _ in winners] == lookups
        assert (neighbours.pairs(session, samples.HOST_CLASS, winners) == pairs).all()
        assert sets.served(session, samples.HOST_CLASS) == served
        assert served.pinned is not None
        assert sets.packed(session, served.pinned)
        kept = {name: entities.has_artifact(session, kernel.digest) for name, kernel in KERNELS.items()}
    assert kept == {"won": True, "named": True, "other": True, "lost": False}
    assert [trial.config for trial in trials_of(store, 64)] == [WINNER, SECOND]
    assert {trial.timing.samples_us for trial in trials_of(store, 64) if trial.timing} == {()}
    assert {trial.timing.median_us for trial in trials_of(store, 64) if trial.timing} == {2.0}


def test_an_export_holds_what_is_left(store: Store) -> None:
    prune(store, DAYS)
    exported = b"".join(ndjson(store, ExportQuery(artifacts=True), signer(1)))
    kinds = [json.loads(line)["kind"] for line in exported.splitlines()]
    assert (kinds.count("job"), kinds.count("trial"), kinds.count("best")) == (3, 5, 2)


class StopAfter(threading.Event):
    """Is set by itself after a number of waits."""

    def __init__(self, waits: int) -> None:
        super().__init__()
        self._left = waits

    def wait(self, timeout: float | None = None) -> bool:
        self._left -= 1
        if self._left <= 0:
            self.set()
        return super().wait(timeout)


def test_a_stopped_prune_goes_on(store: Store) -> None:
    removed = dict.fromkeys(Kind, 0)
    rounds = 0
    while any(found := prune(store, DAYS, stopping=StopAfter(1))) and any(found.values()):
        assert sum(found.values()) <= 16
        removed = {kind: removed[kind] + found.get(kind, 0) for kind in Kind}
        rounds += 1
    assert rounds >= len(Kind)
    assert removed == EXPECTED


def test_trials_that_are_deleted_meanwhile_stop_no_prune(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = retention._Run._step

    def deleting(run: retention._Run, *given: Any) -> int:
        with store.begin() as session:
            session.execute(delete(TrialRow).where(TrialRow.number == 1))
        return step(run, *given)

    monkeypatch.setattr(retention._Run, "_step", deleting)
    assert prune(store, {Kind.SAMPLES: 30.0}) == {Kind.SAMPLES: 5}  # two of the seven were deleted
    assert trials_of(store, 67)[0].timing == samples.trial(0).timing, "of the young job"


def test_a_kernel_that_is_needed_again_stays(store: Store) -> None:
    """A trial that makes an old kernel again, and a winner that another one follows, renew it."""
    run_job(store, 70, {LOSER: KERNELS["lost"]})
    run_job(store, 65, {samples.config(5): samples.artifact(b"\x7fELFnew")}, samples.config(5))
    days = {Kind.SETS: 30.0, Kind.ARTIFACTS: 30.0}
    assert prune(store, days) == {Kind.SETS: 1, Kind.ARTIFACTS: 0}
    age(store, 31, ArtifactRow)
    assert prune(store, days) == {Kind.SETS: 0, Kind.ARTIFACTS: 3}  # both, and the young one of another job


@pytest.mark.long
def test_no_step_holds_the_writer_for_long(store: Store) -> None:
    with store.begin() as session:
        job, _ = jobs.submit(session, samples.request(m=90), samples.HOST)
        jobs.finish(session, job.id, JobStatus.SUCCEEDED)
        timing = dataclasses.replace(samples.TIMING, samples_us=tuple(map(float, range(300))))
        tried = dataclasses.replace(samples.trial(0), config=LOSER, timing=timing, artifact=None)
        trials.add(session, job.id, tried)
        first = session.get_one(TrialRow, (job.id, 0))
        values = {column.key: getattr(first, column.key) for column in TrialRow.__table__.columns}
        session.execute(insert(TrialRow), [values | {"number": number} for number in range(1, 3000)])
        long_ago = utc_now() - timedelta(days=100)
        session.execute(update(TrialRow).values(created=long_ago, sampled=long_ago))
    held = list[float]()
    began = threading.local()
    event.listen(store.engine, "begin", lambda _: setattr(began, "at", time.perf_counter()))
    event.listen(store.engine, "commit", lambda _: held.append(time.perf_counter() - began.at))
    assert prune(store, {Kind.SAMPLES: 30.0, Kind.TRIALS: 30.0}) == {Kind.SAMPLES: 3008, Kind.TRIALS: 3001}
    held.sort()
    assert len(held) > 10
    assert held[len(held) * 9 // 10] < 0.05


def test_trials_of_a_downgrade_and_upgrade_are_pruned_as_before(databases: Databases) -> None:
    with opened(databases.copy(populate)) as store:
        prune(store, {Kind.SAMPLES: 30.0})
        with store.engine.begin() as connection:
            command.downgrade(alembic_config(connection), "0008_results_of_jobs")
        store.migrate()
        assert prune(store, DAYS) == EXPECTED


def test_the_settings_name_every_kind() -> None:
    days = kept_days(Settings())
    assert days.keys() == set(Kind)
    assert days[Kind.SAMPLES] < days[Kind.TRIALS]
    assert not any(kept_days(Settings(**{f"keep_{kind}_days": 0 for kind in Kind})).values())


def test_the_command_and_the_service_prune_as_the_settings_say(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = store.engine.url.render_as_string(hide_password=False)
    env = {f"TILEWRIGHT_KEEP_{kind.upper()}_DAYS": "30" for kind in Kind}

    def run(*options: str, **more: str) -> dict[str, int]:
        arguments = ["db", "prune", *options, "--database-url", url, "--json"]
        result = CliRunner().invoke(app, arguments, env=env | more)
        assert result.exit_code == 0, result.output
        removed: dict[str, int] = json.loads(result.stdout)["removed"]
        return removed

    assert run("--dry-run") == EXPECTED
    kept = {kind: count for kind, count in EXPECTED.items() if kind is not Kind.TRIALS}
    assert run(TILEWRIGHT_KEEP_TRIALS_DAYS="0") == kept | {Kind.JOBS: 0}
    monkeypatch.setattr(upkeep, "_FIRST_S", 0.01)
    monkeypatch.setattr(upkeep, "_LOOK_S", 0.01)
    monkeypatch.setattr(upkeep, "_STEADY", timedelta())
    worked(store, days_ago=2)
    settings = Settings(**{f"keep_{kind}_days": 30 for kind in Kind})
    service = upkeep.Upkeep(store, settings)
    service.start()
    until = time.monotonic() + 30
    while counted(store)["job"] > 3 and time.monotonic() < until:
        time.sleep(0.02)
    service.stop()
    assert prune(store, DAYS) == NOTHING


def worked(store: Store, days_ago: float) -> None:
    """Somebody did something so many days ago, and nothing later."""
    with store.begin() as session:
        job = jobs.submit(session, samples.request(m=1000 + int(days_ago)), samples.HOST)[0]
        session.get_one(JobRow, job.id).created = utc_now() - timedelta(days=days_ago)


class FakeClock:
    """The clock of a machine: the time, and the time since its start, both of which go on by themselves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wrong, self.passed = timedelta(), timedelta()
        monkeypatch.setattr(upkeep, "utc_now", self.now)
        monkeypatch.setattr(time, "clock_gettime", lambda _: 1e6 + self.passed.total_seconds())

    def now(self) -> datetime:
        return utc_now() + self.wrong + self.passed


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    return FakeClock(monkeypatch)


def by_itself(store: Store) -> upkeep.Upkeep:
    """What a service does by itself, with rows that are kept for 30 days."""
    days: dict[str, Any] = {f"keep_{kind}_days": 30 for kind in Kind}
    return upkeep.Upkeep(store, Settings(**days))


HOUR, YEARS = timedelta(hours=1), timedelta(days=3650)


def test_a_clock_that_is_wrong_for_a_while_deletes_no_history(
    store: Store, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    worked(store, days_ago=2)
    before = counted(store)
    service = by_itself(store)
    clock.wrong = YEARS  # after the start, for a minute
    service.prune()
    clock.wrong = timedelta()
    service.prune()
    clock.passed += HOUR / 2
    service.prune()
    assert counted(store) == before, "it was not right for an hour"
    assert caplog.text.count("the clock was set by") == 2
    clock.wrong = YEARS  # for an hour and more
    service.prune()
    for hours in (1, 2, 20):
        clock.passed += hours * HOUR
        service.prune()
    assert counted(store) == before
    assert caplog.text.count("nothing is pruned: the clock says") == 1
    assert "use 'tilewright db prune'" in caplog.text
    clock.wrong = timedelta()
    service.prune()
    clock.passed += HOUR
    service.prune()
    assert counted(store)["job"] == before["job"] - EXPECTED[Kind.JOBS]


def test_a_service_that_starts_with_a_wrong_clock_deletes_no_history(store: Store, clock: FakeClock) -> None:
    worked(store, days_ago=2)
    before = counted(store)
    clock.wrong = YEARS
    for _ in range(3):
        service = by_itself(store)
        service.prune()
        clock.passed += 2 * HOUR
        service.prune()
        with store.begin() as session:  # work of the wrong clock
            job = jobs.submit(session, samples.request(m=int(clock.passed.total_seconds())), samples.HOST)[0]
            session.get_one(JobRow, job.id).created = clock.now()
    assert counted(store) == before | {"job": before["job"] + 3, "event": before["event"] + 3}


def test_a_service_prunes_again_a_day_after_a_long_pause(store: Store, clock: FakeClock) -> None:
    worked(store, days_ago=60)
    before = counted(store)["job"]
    service = by_itself(store)
    clock.passed += 2 * HOUR
    service.prune()
    worked(store, days_ago=0)
    service.prune()
    assert counted(store)["job"] == before + 1
    clock.passed += 25 * HOUR
    service.prune()
    assert counted(store)["job"] == before + 1 - EXPECTED[Kind.JOBS]


def test_an_unknown_error_does_not_end_the_upkeep_of_a_service(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    turns = threading.Semaphore(0)

    def broken(*_: object, **__: object) -> None:
        turns.release()
        raise KeyError("winner")

    monkeypatch.setattr(upkeep, "_FIRST_S", 0.01)
    monkeypatch.setattr(upkeep, "_PAUSE_S", 0.01)
    monkeypatch.setattr(upkeep, "_LOOK_S", 0.01)
    monkeypatch.setattr(upkeep, "prune", broken)
    service = upkeep.Upkeep(store, Settings())
    service.start()
    assert all(turns.acquire(timeout=10) for _ in range(3))
    service.stop()
    assert "pruning failed and is tried again within an hour" in caplog.messages
    assert "KeyError: 'winner'" in caplog.text
