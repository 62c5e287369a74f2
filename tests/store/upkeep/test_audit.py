"""The audit log: an entry stands if and only if its change does, and goes when its days are over."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import store_samples as samples
from large_export import job_line, trial_lines
from sqlalchemy import select

from service.results import importing
from service.results.uploads import BadLine
from tilewright.schema.entries import AuditRecord
from tilewright.schema.job import JobStatus
from tilewright.wire import Format
from tuner.store import imports, jobs
from tuner.store.access import audit
from tuner.store.access.audit import Action
from tuner.store.database import Store
from tuner.store.models import AuditRow, EventRow
from tuner.store.queue import claims
from tuner.store.records import utc_now
from tuner.store.upkeep import retention, staging
from tuner.store.upkeep.backup import back_up, restore
from tuner.store.upkeep.retention import Kind, prune

JOB = "b" * 32
ALL = 40


def log(store: Store) -> list[AuditRecord]:
    with store.read() as session:
        return audit.listing(session, 1000)


def told(store: Store) -> list[tuple[str, str, str]]:
    return [(entry.who, entry.action, entry.target) for entry in log(store)]


def write(store: Store, count: int) -> list[int]:
    with store.begin() as session:
        return [audit.note(session, "user me", Action.TRUST, number) for number in range(count)]


def test_an_entry_stands_if_and_only_if_its_transaction_does(store: Store) -> None:
    def change() -> None:
        with store.begin() as session:
            job, _ = jobs.submit(session, samples.request(), samples.HOST)
            audit.note(session, "key 1", Action.CREATE_JOB, job.id, problem="p")
            raise KeyError("the change is taken back")

    with pytest.raises(KeyError):
        change()
    assert log(store) == []
    with store.begin() as session:
        audit.note(session, "key 1", Action.CREATE_JOB, "a job", problem="p", count=3)
    (entry,) = log(store)
    assert (entry.who, entry.action, entry.target) == ("key 1", "create job", "a job")
    assert entry.data == {"problem": "p", "count": 3}
    assert abs(utc_now() - entry.created) < timedelta(minutes=1)


def test_what_no_database_keeps_is_escaped(store: Store) -> None:
    with store.begin() as session:
        audit.note(session, "user \udcff", Action.TRUST, "a\0b", name="\0 \udcff", count=1)
    assert told(store) == [("user \\udcff", "trust key", "a\\x00b")]
    assert log(store)[0].data == {"name": "\\x00 \\udcff", "count": 1}


def test_pages_give_each_entry_once_and_no_id_comes_again(store: Store) -> None:
    ids = write(store, 5)
    assert ids == sorted(set(ids))
    with store.read() as session:
        first = audit.listing(session, 2)
        second = audit.listing(session, 2, first[-1].id)
        third = audit.listing(session, 2, second[-1].id)
    assert [entry.id for page in (first, second, third) for entry in page] == ids[::-1]
    with store.begin() as session:
        session.execute(AuditRow.__table__.delete())  # type: ignore[attr-defined]
    assert write(store, 1)[0] > ids[-1]


def merge(store: Store, *lines: bytes) -> str | None:
    return importing.merge(store, io.BytesIO(b"".join(lines)), Format.NDJSON, None, "key 7").import_id


def test_an_import_is_noted_when_it_shows(store: Store) -> None:
    import_id = merge(store, job_line(JOB), *trial_lines(JOB, ALL))
    (entry,) = log(store)
    assert (entry.who, entry.action, entry.target) == ("key 7", "import", import_id)
    assert entry.data == {"signer": None, "trusted": False, "jobs": 1, "trials": ALL}


def test_an_import_that_breaks_off_is_not_noted(store: Store) -> None:
    with pytest.raises(BadLine):
        merge(store, job_line(JOB), *trial_lines(JOB, ALL), b'{"kind":"?"}\n')
    assert log(store) == []


def test_an_import_that_is_taken_back_is_no_delete(store: Store) -> None:
    with store.begin() as session:
        going = staging.begin(session, samples.UNTRUSTED)
    staging.settle(store, going.id)
    assert log(store) == []
    with store.read() as session:
        assert imports.listing(session) == []


@pytest.fixture
def pruned(store: Store) -> Iterator[Store]:
    """A job with three old events, and five entries of which three are old."""
    with store.begin() as session:
        job, _ = jobs.submit(session, samples.request(), samples.HOST)
        claims.claim(session, samples.HOST_CLASS, "me")
        jobs.finish(session, job.id, JobStatus.SUCCEEDED)
    old = write(store, 3)
    write(store, 2)
    with store.begin() as session:
        rows = [*session.scalars(select(AuditRow).where(AuditRow.id.in_(old)))]
        for row in [*rows, *session.scalars(select(EventRow))]:
            row.created -= timedelta(days=100)
    return store


def test_a_prune_has_one_entry_with_all_that_went(pruned: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_STEP_S", -1.0)  # a row a step
    days = {Kind.EVENTS: 30.0, Kind.AUDIT: 30.0}
    assert prune(pruned, days, dry_run=True) == {Kind.EVENTS: 3, Kind.AUDIT: 3}
    assert len(log(pruned)) == 5
    prune(pruned, days, who="user me")
    entry, *others = log(pruned)
    assert (entry.who, entry.action, entry.data) == ("user me", "prune", {"events": 3, "audit": 3})
    assert len(others) == 2
    prune(pruned, days)
    assert len(log(pruned)) == 3


def test_a_prune_that_is_stopped_has_told_what_went(pruned: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    stopping, step = threading.Event(), retention._Events.remove

    def once(*arguments: object) -> int:
        stopping.set()
        return step(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(retention._Events, "remove", once)
    removed = prune(pruned, {Kind.EVENTS: 30.0}, stopping=stopping)
    assert removed[Kind.EVENTS] > 0
    assert (log(pruned)[0].who, log(pruned)[0].data) == ("service", {"events": removed[Kind.EVENTS]})


def test_a_restore_is_noted_behind_what_was_restored(store: Store, tmp_path: Path) -> None:
    write(store, 1)
    back_up(store, tmp_path / "b.db")
    url = f"sqlite:///{tmp_path}/new.db"
    restore(tmp_path / "b.db", url, "user me")
    with_entry = Store.open(url)
    try:
        assert told(with_entry) == [("user me", "restore", ""), ("user me", "trust key", "0")]
        assert log(with_entry)[0].data == {"file": "b.db"}
    finally:
        with_entry.close()
