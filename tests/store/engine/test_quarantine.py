"""Configs that broke a device class: who may not try them, what is not served, and what ends that."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import Request
from store_samples import (
    ENTERED,
    HOST,
    HOST_CLASS,
    OTHER_HOST,
    PROVENANCE,
    TRUSTED,
    artifact,
    assert_waits_for_imports,
    best,
    config,
    problem,
    remove_problem,
    request,
    trial,
)

from service.http.routes.quarantine import delete_entry
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.job import JobStatus
from tilewright.schema.trial import Outcome, Provenance, Trial
from tuner.store import best as winners
from tuner.store import entities, jobs, sets, trials
from tuner.store.access import audit
from tuner.store.database import JobTaken, Store
from tuner.store.faults import quarantine
from tuner.store.models import ImportRow
from tuner.store.queue import claims
from tuner.store.records import utc_now
from tuner.store.trials import JobRecorder

OTHER_DRIVER = dataclasses.replace(PROVENANCE, driver="linux 7")


def broken(number: int = 0, was: Provenance = PROVENANCE, of: Config | None = None) -> Trial:
    return Trial(
        number,
        of or config(16),
        outcome=Outcome.TIMEOUT,
        message="no answer within 20 s",
        provenance=was,
        artifact=artifact().digest,
        own_fault=True,
    )


def started(store: Store, device: DeviceSpec = HOST, seed: int = 0) -> JobRecorder:
    with store.begin() as session:
        job, _ = jobs.submit(session, request(seed=seed), device)
        claims.claim(session, device.device_class.id, "me")
    return JobRecorder(store, job.id, "host of node-3")


def served(store: Store) -> list[str]:
    with store.read() as session:
        exact = winners.exact(session, HOST_CLASS, problem())
        listed = winners.for_arch(session, HOST_CLASS) + winners.listing(session, HOST_CLASS, None, 10)
        in_sets = sum(winners.changed_since(session, HOST_CLASS, -1).values())
        assert len(listed) == 2 * len(exact) == 2 * in_sets
        assert len(winners.nearest(session, HOST_CLASS, problem(128))) == len(exact)
    return [str(one.best.config) for one in exact]


def with_winner(store: Store) -> None:
    with store.begin() as session:
        entities.put_artifact(session, artifact())
        winners.put(session, best(problem()))
    assert served(store)


def test_a_config_that_broke_a_class_is_refused_to_all_on_it(store: Store) -> None:
    recorder = started(store)
    recorder.add_trial(broken(3), artifact())
    other = started(store, seed=1)
    reason = other.why_quarantined(config(16), PROVENANCE)
    assert reason is not None
    assert "timeout in job" in reason
    assert "node-3" in reason
    assert other.why_quarantined(config(17), PROVENANCE) is None
    for name in ("source_digest", "compiler", "driver"):
        changed = dataclasses.replace(PROVENANCE, **{name: "other"})
        assert other.why_quarantined(config(16), changed) is None, name
    elsewhere = dataclasses.replace(PROVENANCE, device_class=OTHER_HOST.device_class.id)
    assert started(store, OTHER_HOST).why_quarantined(config(16), elsewhere) is None
    with store.read() as session:
        [entry] = quarantine.listing(session)
        assert quarantine.counts(session) == {Outcome.TIMEOUT: 1}
    assert (entry.config, entry.trial, entry.device) == (config(16), 3, "host of node-3")
    assert (entry.message, entry.outcome) == ("no answer within 20 s", Outcome.TIMEOUT)
    assert entry.provenance == PROVENANCE


@pytest.mark.parametrize("fault", [None, False])
def test_what_is_not_the_configs_fault_is_not_listed(store: Store, fault: bool | None) -> None:
    recorder = started(store)
    recorder.add_trial(dataclasses.replace(broken(), own_fault=fault), artifact())
    assert recorder.trials()[0].own_fault is fault
    with store.read() as session:
        assert quarantine.listing(session) == []


def test_who_lost_its_job_lists_nothing(store: Store) -> None:
    recorder = started(store)
    with store.begin() as session:
        claims.requeue_interrupted(session, HOST_CLASS, "me")
    for late in (lambda: recorder.add_trial(broken(), artifact()), lambda: recorder.quarantine(broken())):
        with pytest.raises(JobTaken):
            late()
    with store.read() as session:
        assert quarantine.listing(session) == []


def test_a_second_failure_keeps_the_first_evidence(store: Store) -> None:
    for number in (0, 1):
        started(store, seed=number).quarantine(broken(number))
    with store.read() as session:
        [entry] = quarantine.listing(session)
    assert entry.trial == 0


def test_a_release_lets_it_be_tried_and_served_again(store: Store) -> None:
    with_winner(store)
    recorder = started(store)
    recorder.add_trial(broken(), artifact())
    assert served(store) == []
    assert recorder.stored_best(problem()) is None
    with store.begin() as session:
        [entry] = quarantine.listing(session)
        assert entry.winners == 1
        revision = sets.served(session, HOST_CLASS).revision
        assert not quarantine.release(session, entry.id + 1)
        assert quarantine.release(session, entry.id)
        assert sets.served(session, HOST_CLASS).revision > revision
    assert served(store) == [str(config(16))]
    assert recorder.why_quarantined(config(16), PROVENANCE) is None
    with store.read() as session:
        assert quarantine.listing(session) == []


def test_a_release_over_http_waits_for_imports(store: Store) -> None:
    """Both choose which winners are served; PostgreSQL would end one of two that wait for each other."""
    with_winner(store)
    started(store).add_trial(broken(), artifact())
    service: Any = SimpleNamespace(store=store)
    request = Request({"type": "http", "headers": []})
    with store.read() as session:
        (entry,) = quarantine.listing(session)
    assert served(store) == []
    assert_waits_for_imports(store, lambda: delete_entry(entry.id, service, request))
    assert served(store) != []


def test_a_winner_of_another_source_or_config_stays(store: Store) -> None:
    with_winner(store)
    recorder = started(store)
    recorder.quarantine(broken(0, dataclasses.replace(PROVENANCE, source_digest="b" * 64)))
    recorder.quarantine(broken(1, of=config(17)))
    assert served(store) == [str(config(16))]


def test_a_winner_raced_later_under_another_driver_is_served(store: Store) -> None:
    """The driver may have been at fault; a winner that was raced before the kernel broke is not trusted."""
    with_winner(store)
    started(store).quarantine(broken(0, OTHER_DRIVER))
    assert served(store) == []
    with store.begin() as session:
        winners.put(session, best(problem()))
    assert served(store) == [str(config(16))]


def test_a_late_winner_is_not_served(store: Store) -> None:
    """Another device quarantined its config between the race and its commit."""
    recorder = started(store)
    started(store, seed=1).quarantine(broken())
    recorder.set_best(best(request().problem), artifact())
    assert served(store) == []
    with store.begin() as session:
        winners.put(session, dataclasses.replace(best(problem()), config=config(20)))
    assert served(store) == [str(config(20))]


def test_a_pinned_set_that_names_the_kernel_is_unpinned(store: Store) -> None:
    with_winner(store)
    named = f'{{"artifact":"{artifact().digest}"}}'.encode()
    for digest, content in (("1", named), ("2", b"{}")):
        with store.begin() as session:
            packed = sets.pack(content)
            shot = sets.Snapshot(f"sha256:{digest * 64}", HOST_CLASS, HOST.arch, 1, packed, utc_now())
            sets.keep(session, shot, "test")
            sets.pin(session, HOST_CLASS, shot.digest)
        started(store, seed=int(digest)).add_trial(broken(of=config(16 if digest == "1" else 99)), artifact())
        with store.read() as session:
            pinned = sets.served(session, HOST_CLASS).pinned
            noted = [(one.who, one.action, one.data) for one in audit.listing(session)]
        assert (pinned is None) is (digest == "1")
        unpinned = ("service", "unpin config set", {"digest": shot.digest})
        assert (unpinned in noted) is (pinned is None)


def test_an_import_brings_no_entries(store: Store) -> None:
    with store.begin() as session:
        fields = dataclasses.asdict(TRUSTED) | {"staged": None}
        session.add(ImportRow(**{name: fields[name] for name in ImportRow.__table__.columns.keys()}))  # noqa: SIM118
        session.flush()
        job, _ = jobs.submit(session, request(), HOST)
        claims.claim(session, HOST_CLASS, "me")
        jobs.finish(session, job.id, JobStatus.SUCCEEDED)
        trials.add(session, job.id, trial(0))
        trials.merge(session, job.id, [trials.prepared(broken(1), ENTERED)], TRUSTED)
        assert quarantine.listing(session) == []


def test_an_imported_winner_of_a_quarantined_config_is_not_served(store: Store) -> None:
    started(store).quarantine(broken())
    with store.begin() as session:
        entities.put_artifact(session, artifact())
        session.add(
            ImportRow(id=TRUSTED.id, trusted=True, signer=None, key_id=None, staged=None, created=ENTERED)
        )
        session.flush()
        winners.merge(session, best(problem()), utc_now() - timedelta(days=1), TRUSTED)
        assert winners.exact(session, HOST_CLASS, problem()) == []


def test_the_evidence_outlives_its_problems_results(store: Store) -> None:
    recorder = started(store)
    recorder.add_trial(broken(), artifact())
    with store.begin() as session:
        [job] = jobs.listing(session)
        jobs.finish(session, job.id, JobStatus.FAILED)
        remove_problem(session, problem())
        [entry] = quarantine.listing(session)
    assert entry.job_id == job.id
