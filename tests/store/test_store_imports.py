"""What imports bring, what of it is used, and how it is taken out again."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from device_samples import HOPPER
from sqlalchemy import func, select
from sqlalchemy.orm import Session
from store_samples import (
    ENTERED,
    HOST,
    HOST_CLASS,
    OTHER_CLASS,
    OTHER_HOST,
    TRUSTED,
    UNTRUSTED,
    artifact,
    best,
    config,
    problem,
    remove_problem,
    request,
    trial,
)

from kernels.registry import FAMILIES
from service.engine import retune
from service.http.views import cursor, import_cursor, import_place
from service.settings import Settings
from tilewright.schema.entries import Import, ImportCounts, RecordCounts
from tilewright.schema.job import JobStatus, TuneRequest
from tilewright.schema.problem import GemmProblem, Layout
from tilewright.schema.trial import QUICK_METHOD, BestConfig, LadderKernel, Outcome, Trial
from tuner.job import neighbours
from tuner.store import best as winners
from tuner.store import entities, exchange, imports, jobs, misses, sets, trials
from tuner.store.database import Store, StoreError, lock_results
from tuner.store.exchange import EndedJob
from tuner.store.faults import drift, quarantine
from tuner.store.faults.drift import Cause, Reading, Watched
from tuner.store.imports import InUse
from tuner.store.models import Base, EventRow, ImportedBestRow, JobRow, ProblemRow
from tuner.store.queue import claims, imported
from tuner.store.records import utc_now
from tuner.store.sets import Snapshot
from tuner.store.trials import JobRecorder

JOB = EndedJob("a" * 32, request(), HOST, JobStatus.SUCCEEDED, ENTERED, ENTERED)
ELSE = artifact(b"\x7fELF\0other")
BENCH: Any = SimpleNamespace(name="host", spec=HOST, driver="driver 1")


@pytest.fixture
def store(store: Store) -> Store:
    """A store into which both imports were opened, and which keeps a kernel of its own."""
    with store.begin() as session:
        for entering in (TRUSTED, UNTRUSTED):
            imports.enter(session, entering)
        entities.put_artifact(session, artifact())
    return store


def foreign(of: GemmProblem, speedup: float = 99.0, tile: int = 32) -> BestConfig:
    """A winner of another store with a kernel of its own."""
    return dataclasses.replace(best(of, speedup=speedup), artifact=ELSE.digest, config=config(tile))


def rows(store: Store) -> dict[str, int]:
    """How many rows each table has."""
    with store.read() as session:
        tables = Base.metadata.tables.values()
        return {table.name: session.scalar(select(func.count()).select_from(table)) or 0 for table in tables}


def test_an_import_goes_on_and_does_not_change_its_signer(store: Store) -> None:
    with store.begin() as session:
        later = dataclasses.replace(TRUSTED, created=ENTERED + timedelta(days=1), key_id="else")
        assert not imports.enter(session, later)
        assert imports.get(session, TRUSTED.id) == TRUSTED
        for changes in ({"trusted": False}, {"signer": f"ed25519:{'2' * 64}"}):
            with pytest.raises(StoreError, match="began with other signatures"):
                imports.enter(session, dataclasses.replace(TRUSTED, **changes))
        assert imports.get(session, "f" * 32) is None


def test_imports_are_listed_the_last_first(store: Store) -> None:
    with store.begin() as session:
        third = Import("0" * 32, False, None, None, ENTERED + timedelta(seconds=1))
        imports.enter(session, third)
        everything = imports.listing(session)
        assert everything == [third, UNTRUSTED, TRUSTED]
        assert imports.listing(session, 1) == [third]
        assert imports.listing(session, 5, (third.created, third.id)) == [UNTRUSTED, TRUSTED]


def test_pages_of_imports_go_on_behind_one_that_is_deleted(store: Store) -> None:
    later = [
        Import(digit * 32, False, None, None, ENTERED + timedelta(microseconds=n))
        for n, digit in enumerate("345", 1)
    ]
    with store.begin() as session:
        for one in later:
            imports.enter(session, one)
        first = imports.listing(session, 2)
        assert first == [later[2], later[1]]
        told = import_place(cursor(import_cursor(first[-1])))
        imports.remove(session, first[-1].id)
        assert imports.listing(session, 2, told) == [later[0], UNTRUSTED]


@pytest.mark.parametrize("entering", [TRUSTED, UNTRUSTED])
def test_a_device_that_an_import_describes_stands_behind_those_that_were_here(
    store: Store, entering: Import
) -> None:
    lie = dataclasses.replace(HOST, memory_gbps=1, clock_mhz=1)
    later = dataclasses.replace(JOB, device=lie, created=utc_now() + timedelta(days=9999))
    with store.begin() as session:
        entities.see_device(session, HOST)
        assert exchange.merge_job(session, later, entering)
        assert [one.spec for one in entities.devices_of(session, HOST_CLASS)] == [HOST, lie]


def test_nobody_displaces_a_winner_that_was_raced_here(store: Store) -> None:
    of = problem()
    with store.begin() as session:
        winners.put(session, best(of, speedup=1.1))
        entities.put_artifact_bytes(session, ELSE.to_bytes(), TRUSTED.id)
        for entering in (TRUSTED, UNTRUSTED):
            won = foreign(of, tile=32 if entering is TRUSTED else 48)
            assert winners.merge(session, won, ENTERED + timedelta(days=9999), entering) == "waiting"
        (stored,) = winners.exact(session, HOST_CLASS, of)
        assert (stored.best.speedup, stored.import_id) == (1.1, None)
    assert neighbours.first_tries(store, HOST, of)[:2] == [config(32), config(48)]


def held(store: Store, won: BestConfig) -> int:
    """Quarantine the config of a winner, as if its kernel had broken a device; gives the entry."""
    with store.begin() as session:
        mine, _ = jobs.submit(session, request(seed=7), HOST)
        claims.claim(session, HOST_CLASS, "me")
    broke = Trial(0, won.config, outcome=Outcome.TIMEOUT, message="no answer", own_fault=True)
    broke = dataclasses.replace(broke, provenance=won.provenance, artifact=won.artifact)
    JobRecorder(store, mine.id, "node-3").add_trial(broke, artifact())
    with store.read() as session:
        return quarantine.listing(session)[0].id


def test_nobody_displaces_a_quarantined_winner_that_was_raced_here(store: Store) -> None:
    of = problem()
    with store.begin() as session:
        winners.put(session, best(of, speedup=1.1))
        entities.put_artifact_bytes(session, ELSE.to_bytes(), TRUSTED.id)
    entry = held(store, best(of))
    with store.begin() as session:
        assert winners.exact(session, HOST_CLASS, of) == []
        assert winners.merge(session, foreign(of), ENTERED + timedelta(days=9999), TRUSTED) == "waiting"
        assert quarantine.release(session, entry)
        (stored,) = winners.exact(session, HOST_CLASS, of)
        assert (stored.best.speedup, stored.import_id) == (1.1, None)


def test_a_winner_that_is_quarantined_here_takes_no_other_out_of_service(store: Store) -> None:
    of = problem()
    with store.begin() as session:
        entities.put_artifact_bytes(session, ELSE.to_bytes(), TRUSTED.id)
        assert winners.merge(session, foreign(of, tile=16), ENTERED, TRUSTED) == "in use"
    better = foreign(of, speedup=199.0, tile=48)
    held(store, better)
    with store.begin() as session:
        assert winners.merge(session, better, ENTERED + timedelta(days=9999), TRUSTED) == "known"
        (stored,) = winners.exact(session, HOST_CLASS, of)
        assert stored.best.config == config(16)


def test_a_row_that_is_tuned_alone_stays_a_row_of_its_ladder(store: Store) -> None:
    of = problem()
    own, other = artifact().digest, ELSE.digest
    with store.begin() as session:
        entities.put_artifact_bytes(session, ELSE.to_bytes(), TRUSTED.id)
        told = (LadderKernel(own, 0.0, 1.25), LadderKernel(other, 0.02, 1.22))
        assert winners.put(session, dataclasses.replace(best(of, speedup=1.25), kernels=told))
        won = dataclasses.replace(best(of, speedup=1.5), artifact=other, config=config(32))
        assert winners.put(session, won)
        (stored,) = winners.exact(session, HOST_CLASS, of)
        first, second = stored.best.kernels or ()
        assert first == LadderKernel(other, 0.0, 1.5)
        assert (second.artifact, second.speedup) == (own, 1.25)
        assert second.regret == pytest.approx(0.2)  # 1.5 / 1.25 - 1
        on_another = dataclasses.replace(won.provenance, driver="another")
        assert winners.put(session, dataclasses.replace(won, provenance=on_another))
        (stored,) = winners.exact(session, HOST_CLASS, of)
        assert stored.best.kernels is None


def test_what_nobody_signed_is_no_winner_and_waits(store: Store) -> None:
    of = problem()
    with store.begin() as session:
        # Its kernel is here, as if somebody had tuned another problem with it.
        won = dataclasses.replace(foreign(of), artifact=artifact().digest)
        assert winners.merge(session, won, ENTERED, UNTRUSTED) == "waiting"
        assert winners.merge(session, won, ENTERED, UNTRUSTED) == "known"
        assert winners.exact(session, HOST_CLASS, of) == []
        assert winners.classes(session, HOST_CLASS) == []
        assert winners.listing(session, None, None, 10) == []
        assert imported.waiting_problem(session, HOST_CLASS) == of
        assert imported.waiting_problem(session, OTHER_CLASS) is None
        (waits,) = imported.waits(session, UNTRUSTED.id, 10)
        assert (waits.best, waits.queued) == (won, None)
        assert imported.take_waiting(session, HOST_CLASS, of)
        assert not imported.take_waiting(session, HOST_CLASS, of)
        assert imported.waiting_problem(session, HOST_CLASS) is None
    assert neighbours.first_tries(store, HOST, of) == [won.config]


def test_what_waits_is_tried_though_the_model_rates_it_slower_but_no_such_winner(store: Store) -> None:
    of = GemmProblem(64, 6144, 4096, "bfloat16")
    family = FAMILIES["wgmma_ws"]
    large = family.heuristic_configs(dataclasses.replace(of, m=8192), HOPPER)[0]
    near = dataclasses.replace(best(dataclasses.replace(of, m=128), HOPPER), config=large)
    with store.begin() as session:
        entities.put_artifact(session, artifact())
        winners.put(session, near)
    assert neighbours.first_tries(store, HOPPER, of) == []
    assert neighbours.first_tries(store, HOPPER, near.problem) == []
    with store.begin() as session:
        assert winners.merge(session, dataclasses.replace(near, problem=of), ENTERED, UNTRUSTED) == "waiting"
    assert neighbours.first_tries(store, HOPPER, of) == [large]


def test_winners_of_other_classes_are_tried_by_distance(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "promising", lambda configs, *_: configs)
    with store.begin() as session:
        for tile, m in enumerate((4096, 96, 512), 32):
            found = best(dataclasses.replace(problem(), m=m), HOPPER)
            winners.put(session, dataclasses.replace(found, config=config(tile), ties=()))
    of = dataclasses.replace(problem(), m=64)
    assert neighbours.first_tries(store, HOST, of) == [config(33), config(34), config(32)]
    monkeypatch.setattr(winners, "distance", lambda _: -ProblemRow.log2_m)
    assert neighbours.first_tries(store, HOST, of) == [config(32), config(34), config(33)]


def test_what_claims_most_is_raced_first(store: Store) -> None:
    with store.begin() as session:
        for m, speedup in ((64, 1.2), (65, 3.0), (66, 2.0)):
            winners.merge(session, foreign(problem(m), speedup), ENTERED, UNTRUSTED)
        found = []
        while of := imported.waiting_problem(session, HOST_CLASS):
            imported.take_waiting(session, HOST_CLASS, of)
            found.append(of.m)
        assert found == [65, 66, 64]


def test_nothing_waits_that_claims_less_than_was_raced_here(store: Store) -> None:
    of = problem()
    with store.begin() as session:
        winners.put(session, best(of, speedup=2.0))
        assert winners.merge(session, foreign(of, speedup=1.9), ENTERED, UNTRUSTED) == "known"
        same = dataclasses.replace(foreign(of), config=best(of).config)
        assert winners.merge(session, same, ENTERED, UNTRUSTED) == "known"


def test_a_race_here_ends_the_wait_and_displaces_what_was_imported(store: Store) -> None:
    of = problem()
    with store.begin() as session:
        entities.put_artifact_bytes(session, ELSE.to_bytes(), TRUSTED.id)
        assert winners.merge(session, foreign(of), ENTERED, TRUSTED) == "in use"
        assert winners.merge(session, foreign(of, tile=48), ENTERED, UNTRUSTED) == "waiting"
        assert winners.put(session, best(of, speedup=1.05))  # far below what both imports claim
        (stored,) = winners.exact(session, HOST_CLASS, of)
        assert (stored.best.speedup, stored.import_id) == (1.05, None)
        assert imported.waiting_problem(session, HOST_CLASS) is None


def test_a_trusted_winner_without_its_kernel_waits(store: Store) -> None:
    with store.begin() as session:
        assert winners.merge(session, foreign(problem()), ENTERED, TRUSTED) == "waiting"


def test_a_trusted_winner_whose_kernel_computes_other_problems_waits(store: Store) -> None:
    """Its own computes row-major operands."""
    turned = problem(layout=Layout.TT)
    with store.begin() as session:
        entities.put_artifact_bytes(session, ELSE.to_bytes(), TRUSTED.id)
        assert winners.merge(session, foreign(turned), ENTERED, TRUSTED) == "waiting"
        assert winners.exact(session, HOST_CLASS, turned) == []


def test_jobs_of_this_store_and_trusted_ones_take_no_trials_of_others(store: Store) -> None:
    with store.begin() as session:
        mine, _ = jobs.submit(session, request(), HOST)
        exchange.merge_job(session, JOB, TRUSTED)
    with store.begin() as session:
        lines = [trials.prepared(trial(7), ENTERED)]
        for entering in (TRUSTED, UNTRUSTED):
            assert trials.merge(session, mine.id, lines, entering) == []
        assert trials.merge(session, JOB.id, lines, UNTRUSTED) == []
        assert trials.merge(session, JOB.id, lines, TRUSTED) == [7]
        assert not exchange.merge_job(session, JOB, UNTRUSTED)


def test_a_signed_job_enters_once_the_one_that_nobody_signed_is_deleted(store: Store) -> None:
    """An import that broke off could not bring it back."""
    with store.begin() as session:
        exchange.merge_job(session, JOB, UNTRUSTED)
        trials.merge(session, JOB.id, [trials.prepared(trial(0, median=1e-3), ENTERED)], UNTRUSTED)
        with pytest.raises(StoreError, match=f"'tilewright delete import {UNTRUSTED.id}' and import again"):
            exchange.merge_job(session, JOB, TRUSTED)
        assert trials.count(session, JOB.id) == 1
        imports.remove(session, UNTRUSTED.id)
        assert exchange.merge_job(session, JOB, TRUSTED)
        assert not exchange.merge_job(session, JOB, TRUSTED)
        assert trials.of_job(session, JOB.id) == []
        assert jobs.known(session, JOB.id).import_id == TRUSTED.id


def test_times_that_nobody_signed_are_not_exported_and_teach_no_regret(store: Store) -> None:
    def pairs(entering: Import) -> int:
        with store.begin() as session:
            job = dataclasses.replace(JOB, id=entering.id[:1] * 31 + "b")
            exchange.merge_job(session, job, entering)
            lent = dataclasses.replace(trial(0), config=config(32))
            trials.merge(session, job.id, [trials.prepared(lent, ENTERED)], entering)
            trials.merge(
                session,
                job.id,
                [trials.prepared(dataclasses.replace(trial(1), config=config(16)), ENTERED)],
                entering,
            )
            found = [
                (stored.best.problem, stored.best.config) for stored in winners.for_arch(session, HOST_CLASS)
            ]
            return len(neighbours.pairs(session, HOST_CLASS, found))

    with store.begin() as session:
        winners.put(session, best(request().problem))
        winners.put(session, dataclasses.replace(best(problem(128)), config=config(32)))
    assert pairs(UNTRUSTED) == 0
    assert pairs(TRUSTED) == 1
    with store.read() as session:
        assert [job.import_id for job in exchange.ended_jobs(session, None, None, 10)] == [TRUSTED.id]


def test_an_import_is_taken_out_whole(store: Store) -> None:
    with store.begin() as session:
        winners.put(session, best(problem(), speedup=1.1))
    before, sound = rows(store), best(problem())
    entering = Import("3" * 32, True, TRUSTED.signer, None, ENTERED)
    with store.begin() as session:
        imports.enter(session, entering)
        exchange.merge_job(session, JOB, entering)
        trials.merge(
            session,
            JOB.id,
            [trials.prepared(trial(0), ENTERED), trials.prepared(trial(1), ENTERED)],
            entering,
        )
        entities.put_artifact_bytes(session, ELSE.to_bytes(), entering.id)
        of_job = dataclasses.replace(foreign(problem(65)), job_id=JOB.id)
        assert winners.merge(session, of_job, ENTERED, entering) == "in use"
        assert winners.merge(session, foreign(problem()), ENTERED, entering) == "waiting"
        assert imports.counts(session, entering.id) == ImportCounts(jobs=1, best=1, waiting=1)
        assert imports.remove(session, entering.id) == RecordCounts(jobs=1, trials=2, artifacts=1, best=1)
        (stored,) = winners.exact(session, HOST_CLASS, problem())
        assert stored.best.config == sound.config
        with pytest.raises(StoreError, match="'tilewright imports' lists"):
            imports.remove(session, entering.id)
    left = {name: count for name, count in rows(store).items() if count != before[name]}
    assert left == {"problem": 2, "family_source": 1}  # seen, and no more


def test_a_kernel_that_others_need_stays(store: Store) -> None:
    other = Import("3" * 32, True, f"ed25519:{'3' * 64}", None, ENTERED)
    with store.begin() as session:
        imports.enter(session, other)
        entities.put_artifact_bytes(session, ELSE.to_bytes(), TRUSTED.id)
        winners.merge(session, foreign(problem()), ENTERED, other)
        assert imports.remove(session, TRUSTED.id).artifacts == 0
        assert entities.has_artifact(session, ELSE.digest)
        assert imports.remove(session, other.id).artifacts == 1
        assert not entities.has_artifact(session, ELSE.digest)


def test_a_kernel_that_was_built_here_too_stays(store: Store) -> None:
    with store.begin() as session:
        entities.put_artifact_bytes(session, ELSE.to_bytes(), TRUSTED.id)
        entities.put_artifact(session, ELSE)
        assert imports.remove(session, TRUSTED.id).artifacts == 0
        assert entities.has_artifact(session, ELSE.digest)


def snapshot(digit: str, *kernels: str) -> Snapshot:
    content = json.dumps({"entries": [{"artifact": kernel} for kernel in kernels]}).encode()
    return Snapshot(f"sha256:{digit * 64}", HOST_CLASS, HOST.arch, len(kernels), sets.pack(content), ENTERED)


def test_a_set_that_names_what_is_gone_is_pinned_no_more(store: Store) -> None:
    with store.begin() as session:
        entities.put_artifact_bytes(session, ELSE.to_bytes(), TRUSTED.id)
        winners.merge(session, foreign(problem()), ENTERED, TRUSTED)
        winners.put(session, best(problem(65)))
        for made in (snapshot("1", artifact().digest), snapshot("2", artifact().digest, ELSE.digest)):
            sets.keep(session, made, "anything")
            sets.pin(session, HOST_CLASS, made.digest)
        revision = sets.served(session, HOST_CLASS).revision
        imports.remove(session, TRUSTED.id)
        served = sets.served(session, HOST_CLASS)
        assert (served.pinned, served.revision > revision) == (None, True)
        sets.pin(session, HOST_CLASS, snapshot("1").digest)
        imports.remove(session, UNTRUSTED.id)
        assert sets.served(session, HOST_CLASS).pinned == snapshot("1").digest


def test_a_set_is_pinned_no_more_when_the_kernel_of_a_winner_that_was_replaced_goes(store: Store) -> None:
    with store.begin() as session:
        entities.put_artifact_bytes(session, ELSE.to_bytes(), TRUSTED.id)
        winners.merge(session, foreign(problem()), ENTERED, TRUSTED)
        sets.keep(session, snapshot("1", ELSE.digest), "anything")
        sets.pin(session, HOST_CLASS, snapshot("1").digest)
        winners.put(session, best(problem()))
        assert imports.remove(session, TRUSTED.id).artifacts == 1
        assert sets.served(session, HOST_CLASS).pinned is None


def test_a_set_stays_pinned_whose_kernel_of_a_deleted_import_won_here_too(store: Store) -> None:
    with store.begin() as session:
        entities.put_artifact_bytes(session, ELSE.to_bytes(), TRUSTED.id)
        winners.put(session, dataclasses.replace(best(problem()), artifact=ELSE.digest))
        sets.keep(session, snapshot("1", ELSE.digest), "anything")
        sets.pin(session, HOST_CLASS, snapshot("1").digest)
        assert imports.remove(session, TRUSTED.id).artifacts == 0
        assert sets.served(session, HOST_CLASS).pinned == snapshot("1").digest


@pytest.mark.long
def test_winners_come_while_others_are_pinned_and_taken_out(store: Store) -> None:
    """PostgreSQL would end one of two that wait for rows of each other."""
    with store.begin() as session:
        pinned = snapshot("3", artifact().digest)
        sets.keep(session, pinned, "anything")

    def often(step: Callable[[Session], object]) -> None:
        for _ in range(25):
            with store.begin() as session, contextlib.suppress(StoreError):
                step(session)

    def pin(session: Session) -> None:
        lock_results(session)
        sets.pin(session, HOST_CLASS, pinned.digest)

    with store.begin() as session:
        job, _ = jobs.submit(session, request(), HOST)
        claims.claim(session, HOST_CLASS, "me")
    recorder = JobRecorder(store, job.id)
    steady = Reading(2.0, 2.0, 2.0, None, None, None, None, None, "linux 6")
    slow = dataclasses.replace(steady, median_us=3.0, low_us=3.0, high_us=3.0)
    turns = itertools.cycle([(None, slow), (Cause.DRIFT, steady)])

    def merge(session: Session) -> None:
        lock_results(session)
        winners.merge(session, best(problem(65)), ENTERED, TRUSTED)

    def read(session: Session) -> None:
        lock_results(session)
        cause, now = next(turns)
        watched = Watched(problem(), config(16), artifact().digest, steady, cause)
        drift.keep(session, "one", HOST_CLASS, watched, now)

    def release(session: Session) -> None:
        lock_results(session)
        for entry in quarantine.listing(session):
            quarantine.release(session, entry.id)

    def fail(number: int) -> None:
        wrong = dataclasses.replace(
            trial(number), config=config(16), outcome=Outcome.WRONG_RESULT, timing=None
        )
        recorder.add_trial(dataclasses.replace(wrong, own_fault=True), artifact())
        recorder.quarantine(wrong)

    steps = (
        pin,
        pin,
        lambda session: winners.put(session, best(problem())),
        lambda session: imports.remove_best(session, HOST_CLASS, problem()),
        merge,
        read,
        release,
    )
    with ThreadPoolExecutor(len(steps) + 2) as pool:
        stored = pool.submit(lambda: [recorder.set_best(best(problem()), artifact()) for _ in range(40)])
        failed = pool.submit(lambda: [fail(number) for number in range(40)])
        list(pool.map(often, steps))
        stored.result()
        failed.result()


def test_a_winner_is_taken_out_and_its_problem_untuned(store: Store) -> None:
    of = problem()
    with store.begin() as session:
        winners.put(session, best(of))
        winners.put(session, best(of, OTHER_HOST))
        revision = sets.served(session, HOST_CLASS).revision
        assert imports.remove_best(session, HOST_CLASS, of) == RecordCounts(best=1)
        assert winners.exact(session, HOST_CLASS, of) == []
        assert sets.served(session, HOST_CLASS).revision == revision + 1
        assert len(winners.exact(session, OTHER_CLASS, of)) == 1
        assert imports.remove_best(session, HOST.arch, of) == RecordCounts(best=1)
        for target, unknown in ((HOST_CLASS, of), (HOST_CLASS, problem(9999))):
            with pytest.raises(StoreError, match="'tilewright best' lists"):
                imports.remove_best(session, target, unknown)


def test_a_problem_is_taken_out_with_all_that_is_known_of_it(store: Store) -> None:
    before = rows(store)
    with store.begin() as session:
        job, _ = jobs.submit(session, request(), HOST)
        claims.claim(session, HOST_CLASS, "me")
        misses.note(session, HOST_CLASS, [misses.Report(request().problem, 1, 1.0, True)], 10, "stale")
        misses.ask(session, HOST_CLASS, [request().problem], "state")
    recorder = JobRecorder(store, job.id)
    recorder.add_trial(trial(0), artifact())
    recorder.set_best(best(request().problem), artifact())
    with store.begin() as session:
        with pytest.raises(InUse, match=f"job {job.id} .* is running; cancel it"):
            remove_problem(session, request().problem)
        jobs.finish(session, job.id, JobStatus.SUCCEEDED)
        assert remove_problem(session, request().problem) == RecordCounts(jobs=1, trials=1, best=1)
        with pytest.raises(StoreError, match="has no results here"):
            remove_problem(session, problem(9999))
        assert session.scalar(select(func.count()).select_from(EventRow)) == 0
    left = {name: count for name, count in rows(store).items() if count != before[name]}
    assert left == {"device": 1, "family_source": 1, "served_set": 1}


def test_a_later_quick_race_of_another_store_displaces_no_full_one(store: Store) -> None:
    of = problem()
    was = foreign(of).provenance
    quick = dataclasses.replace(
        foreign(of, tile=48), provenance=dataclasses.replace(was, method=was.method + QUICK_METHOD)
    )
    later = ENTERED + timedelta(days=1)
    with store.begin() as session:
        entities.put_artifact_bytes(session, ELSE.to_bytes(), TRUSTED.id)
        assert winners.merge(session, quick, ENTERED, TRUSTED) == "in use"
        assert winners.merge(session, foreign(of), ENTERED, TRUSTED) == "in use"
        assert winners.merge(session, quick, later, TRUSTED) == "known"
        (stored,) = winners.exact(session, HOST_CLASS, of)
        assert not stored.best.provenance.quick


def test_a_quick_race_leaves_what_waits(store: Store) -> None:
    of = problem()
    won = best(of)
    quick = dataclasses.replace(won.provenance, method=won.provenance.method + QUICK_METHOD)
    with store.begin() as session:
        assert winners.merge(session, foreign(of), ENTERED, UNTRUSTED) == "waiting"
        entities.put_artifact(session, artifact())
        assert winners.put(session, dataclasses.replace(won, provenance=quick))
        assert imported.waiting_problem(session, HOST_CLASS) == of
        assert winners.put(session, won)
        assert imported.waiting_problem(session, HOST_CLASS) is None


def hours_pass(store: Store, hours: float) -> None:
    """All jobs are so much older, and so is what was taken up."""
    ago = timedelta(hours=hours)
    with store.begin() as session:
        for taken in session.scalars(select(ImportedBestRow).where(ImportedBestRow.queued.is_not(None))):
            taken.queued -= ago
        for job in session.scalars(select(JobRow)):
            job.created -= ago
            job.finished = job.finished and job.finished - ago


@pytest.mark.parametrize("joins", [False, True])
@pytest.mark.parametrize("ended", [JobStatus.FAILED, JobStatus.SUCCEEDED, JobStatus.CANCELLED])
def test_what_a_job_left_waiting_is_raced_again_a_day_later(
    store: Store, ended: JobStatus, joins: bool
) -> None:
    """As it failed, others disturbed its race, or somebody cancelled it; also one that began earlier."""
    of, asked = problem(), TuneRequest(problem(), max_trials=16)
    with store.begin() as session:
        assert winners.merge(session, foreign(of), ENTERED, UNTRUSTED) == "waiting"
        if joins:
            jobs.submit(session, asked, HOST, "192.0.2.1")
    hours_pass(store, 1)
    for turn in range(3):
        assert queue_imported(store)
        with store.begin() as session:
            (job, *earlier) = jobs.listing(session)
            assert job.request == asked
            assert len(earlier) == turn
        hours_pass(store, 25)
        assert not queue_imported(store), "it is still being raced"
        with store.begin() as session:
            winners.put(session, best(of, disturbed="another process ran"))
            jobs.finish(session, job.id, ended)
        hours_pass(store, 23)
        assert not queue_imported(store), "not at once"
        hours_pass(store, 2)


def test_what_waits_is_not_raced_beside_a_ladder_with_its_problem(store: Store) -> None:
    of = problem(32)
    with store.begin() as session:
        assert winners.merge(session, foreign(of), ENTERED, UNTRUSTED) == "waiting"
        assert imported.take_waiting(session, HOST_CLASS, of)
        jobs.submit(session, TuneRequest(problem(64), (32, 64), max_trials=20), HOST)
    hours_pass(store, 25)
    with store.read() as session:
        assert imported.waiting_problem(session, HOST_CLASS) is None


@pytest.mark.parametrize("limits", [{"max_extent": 65}, {"max_gemm_bytes": 100_000}])
def test_what_is_over_a_limit_waits_until_it_is_allowed(
    store: Store, limits: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    with store.begin() as session:
        for m, speedup in ((6400, 3.0), (6401, 2.0), (64, 1.5)):
            assert winners.merge(session, foreign(problem(m), speedup), ENTERED, UNTRUSTED) == "waiting"
    refused = set[str]()
    assert queue_imported(store, refused, **limits), "the first that is allowed"
    for _ in range(3):
        assert not queue_imported(store, refused, **limits)
    assert len([one for one in caplog.messages if "is not raced: it is over a limit" in one]) == 2
    assert queue_imported(store)
    assert queue_imported(store)
    assert not queue_imported(store)
    with store.read() as session:
        assert [job.request.problem.m for job in jobs.listing(session)] == [6401, 6400, 64]


def queue_imported(store: Store, refused: set[str] | None = None, **settings: Any) -> bool:
    return retune.queue_imported(store, BENCH, Settings(**settings), set() if refused is None else refused)


def test_a_device_that_an_import_described_goes_with_its_last_job(store: Store) -> None:
    seen, told = (dataclasses.replace(HOST, clock_mhz=mhz) for mhz in (4001, 4002))
    with store.begin() as session:
        entities.see_device(session, seen)
        for number, (entering, spec) in enumerate(((TRUSTED, seen), (TRUSTED, told), (UNTRUSTED, told))):
            job = dataclasses.replace(JOB, id=f"{number}" * 32, device=spec)
            assert exchange.merge_job(session, job, entering)
        imports.remove(session, TRUSTED.id)
        assert [one.spec for one in entities.devices_of(session, HOST_CLASS)] == [seen, told]
        imports.remove(session, UNTRUSTED.id)
        assert [one.spec for one in entities.devices_of(session, HOST_CLASS)] == [seen]
