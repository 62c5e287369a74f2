"""Migrations: up, down, equal to the models, refused when newer, safe when several run them."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from databases import Databases, on_both, opened
from sqlalchemy import Connection, Engine, MetaData, Table, insert, inspect, select, text
from sqlalchemy.exc import DBAPIError, OperationalError
from store_samples import HOST, HOST_CLASS, request

from tuner.store import database, entities, jobs, records, sets
from tuner.store.access import keys
from tuner.store.database import VERSION_TABLE, SchemaTooNew, Store, StoreError, alembic_config
from tuner.store.engines import sqlite_engine
from tuner.store.engines.full_disk import remedy
from tuner.store.models import ConfigSetRow, JobRow
from tuner.store.records import utc_now

NOW = utc_now()


@pytest.fixture
def empty(empty_url: str):
    store = Store.open(empty_url)
    yield store
    store.close()


def tables(store: Store) -> set[str]:
    return set(inspect(store.engine).get_table_names())


@on_both
def test_empty_becomes_head_and_stays(empty: Store) -> None:
    assert empty.schema_state() == "empty"
    empty.migrate()
    assert empty.schema_state() == "head"
    assert tables(empty) == {*JobRow.metadata.tables, VERSION_TABLE}
    empty.migrate()
    assert empty.schema_state() == "head"


@on_both
def test_down_and_up_again(store: Store) -> None:
    with store.engine.begin() as connection:
        command.downgrade(alembic_config(connection), "base")
    assert store.schema_state() == "empty"
    assert tables(store) == {VERSION_TABLE}
    store.migrate()
    assert store.schema_state() == "head"


def test_sessions_that_ended_with_all_of_a_key_stay_ended_in_the_release_before(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "_ENDED_EACH", 2)
    hours = {"all": [3, 3, 3], "past": [-1, -1, -1], "some": [3]}
    made = dict[str, str]()
    with store.begin() as session:
        for name, left in hours.items():
            made[name] = keys.create(session, name, frozenset({"read"}))[0].id
            for number, hour in enumerate(left):
                ends = utc_now() + timedelta(hours=hour)
                keys.end_sign_in(session, keys.SignedIn(f"{name}{number}", made[name], ends))
    with store.engine.begin() as connection:
        command.downgrade(alembic_config(connection), "0019_ended_sign_ins")
    store.migrate()
    with store.read() as session:
        closed = {key.name: key.revoked for key in keys.listing(session)}
    assert closed.pop("all") is not None
    assert closed == {"past": None, "some": None}


JOB = {
    "id": "0" * 32,
    "problem_id": 1,
    "device_id": 1,
    "device_class": HOST_CLASS,
    "options": request().options,
    "status": "succeeded",
    "attempt": 1,
    "cancel_requested": False,
    "created": NOW,
}
DEVICE = {
    "id": 1,
    "spec": records.canonical(HOST.to_dict()),
    "device_class": HOST_CLASS,
    "arch": HOST.arch,
    "first_seen": NOW,
    "last_seen": NOW,
}


@pytest.mark.parametrize("release", ["0001", "0002_leases_and_keys", "0003_sets_and_misses"])
def test_keys_of_the_releases_before_still_give_their_jobs(empty: Store, release: str) -> None:
    submission = {"key": "k", "request_digest": "d" * 64, "job_id": JOB["id"]}
    with empty.begin() as session:
        connection = session.connection()
        command.upgrade(alembic_config(connection), release)
        entities.ensure_problem(session, request().problem)
        connection.execute(insert(old(connection, "device")).values(DEVICE))
        connection.execute(insert(old(connection, "job")).values(JOB))
        if release != "0001":
            submission["created"] = NOW
        connection.execute(insert(old(connection, "submission")).values(submission))
    empty.migrate()
    with empty.begin() as session:
        assert keys.once(session, "k", "d" * 64, dict) == {"jobs": [JOB["id"]]}
        assert jobs.known(session, "0" * 32).request == request()


def old(connection: Connection, table: str) -> Table:
    """A table as a release before had it."""
    return Table(table, MetaData(), autoload_with=connection)


@on_both
def test_sets_of_the_release_before_are_in_the_order_in_which_they_were_served(empty: Store) -> None:
    """As far as it is known: one that is served and not the newest was made the latest again."""

    def kept(letter: str, day: int, device_class: str = HOST_CLASS) -> dict[str, object]:
        made = NOW - timedelta(days=100 - day)
        row = {"digest": letter, "device_class": device_class, "arch": "x", "entries": 1, "created": made}
        return row | {"content": b""}

    found = [kept("a", 1), kept("b", 2), kept("c", 3), kept("d", 4, "other"), kept("e", 5, "other")]
    with empty.engine.begin() as connection:
        command.upgrade(alembic_config(connection), "0022_winner_revisions")
        rows, served = (old(connection, name) for name in ("config_set", "served_set"))
        ids = [connection.scalar(insert(rows).values(row).returning(rows.c.id)) for row in found]
        for name, latest, pinned in ((HOST_CLASS, ids[1], ids[0]), ("other", ids[4], None)):
            values = {"device_class": name, "revision": 1, "latest_id": latest, "pinned_id": pinned}
            connection.execute(insert(served).values(values))
    for _ in range(2):
        empty.migrate()
        with empty.begin() as session:
            assert [one.digest for one in sets.listing(session)] == list("bedca")
            for row in session.scalars(select(ConfigSetRow).where(ConfigSetRow.digest != "b")):
                assert (row.made_latest, row.unpinned) == (row.created, None)
        with empty.engine.begin() as connection:
            command.downgrade(alembic_config(connection), "0022_winner_revisions")
            assert len(connection.execute(select(old(connection, "config_set"))).all()) == len(found)


@on_both
def test_head_equals_the_models(store: Store) -> None:
    options = {"version_table": VERSION_TABLE, "compare_type": True, "compare_server_default": True}
    with store.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, JobRow.metadata) == []


@on_both
def test_foreign_and_primary_keys_equal_the_models(store: Store) -> None:
    found = inspect(store.engine)
    for name, table in JobRow.metadata.tables.items():
        foreign = {
            (key["constrained_columns"][0], key["referred_table"], key["name"])
            for key in found.get_foreign_keys(name)
        }
        assert {key[:2] for key in foreign} == {
            (constraint.column_keys[0], constraint.referred_table.name)
            for constraint in table.foreign_key_constraints
        }
        # NOTE: the name of a key that was added with its column is not read back from SQLite.
        named = {constraint.name for constraint in table.foreign_key_constraints}
        assert {key[2] for key in foreign} - {None} <= named
        assert store.engine.dialect.name == "sqlite" or len({key[2] for key in foreign}) == len(named)
        assert found.get_pk_constraint(name)["constrained_columns"] == [c.name for c in table.primary_key]


def test_the_state_is_told_while_another_writes(store: Store) -> None:
    started = time.monotonic()
    with store.begin():
        assert store.schema_state() == "head"
    assert time.monotonic() - started < 5


def test_newer_is_refused_and_left_alone(store: Store) -> None:
    with store.engine.begin() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
    assert store.schema_state() == "newer"
    with pytest.raises(SchemaTooNew, match="upgrade this installation"):
        store.migrate()
    assert store.schema_state() == "newer"


def test_older_is_brought_to_head(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.engine.connect() as connection:
        [head] = ScriptDirectory.from_config(alembic_config(connection)).get_heads()
    later = tmp_path / "later"
    shutil.copytree(database.MIGRATIONS, later)
    (later / "versions" / "r9000_note.py").write_text(
        "import sqlalchemy as sa\nfrom alembic import op\n"
        f"revision, down_revision, branch_labels, depends_on = '9000', {head!r}, None, None\n"
        "def upgrade():\n    op.add_column('job', sa.Column('note', sa.Text()))\n"
    )
    with monkeypatch.context() as patch:
        patch.setattr(database, "MIGRATIONS", later)
        assert store.schema_state() == "older"
        store.migrate()
        assert store.schema_state() == "head"
    assert "note" in {column["name"] for column in inspect(store.engine).get_columns("job")}
    assert store.schema_state() == "newer"


@on_both
def test_a_failing_migration_leaves_nothing(empty: Store) -> None:
    with empty.engine.begin() as connection:
        connection.execute(text("CREATE TABLE event (foreign_thing INTEGER)"))
    with pytest.raises(DBAPIError, match="already exists"):
        empty.migrate()
    assert empty.schema_state() == "empty"
    assert tables(empty) - {VERSION_TABLE} == {"event"}


@pytest.mark.long
def test_many_processes_migrate_at_once(empty_url: str, tmp_path: Path) -> None:
    (tmp_path / "migrations").mkdir()
    (tmp_path / "migrations" / "__init__.py").write_text("raise ImportError('not these')")
    program = "import sys; from tuner.store.database import Store; Store.open(sys.argv[1]).migrate()"
    command_line = [sys.executable, "-W", "error", "-c", program, empty_url]
    children = [
        subprocess.Popen(command_line, cwd=tmp_path, stderr=subprocess.PIPE, env=os.environ) for _ in range(3)
    ]
    reports = [child.communicate(timeout=120)[1].decode() for child in children]
    assert [child.returncode for child in children] == [0] * 3, reports
    store = Store.open(empty_url)
    assert store.schema_state() == "head"
    store.close()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense", "must look like sqlite:///"),
        ("mysql://root@127.0.0.1/db", "'mysql' is not supported"),
        ("postgresql://me@127.0.0.1/db", r"use sqlite:///.* or postgresql\+psycopg://"),
        ("sqlite+aiosqlite:///x.db", "not supported"),
        ("sqlite://", "in memory keeps nothing"),
        ("sqlite:///:memory:", "in memory keeps nothing"),
        ("sqlite:////tmp/\udcff.db", "in UTF-8"),
        ("postgresql+psycopg://me:hunter2@host:port/db", "host:5432"),
        ("postgresql+psycopg://me:hunt@er2@host/db", "%40 for @"),
    ],
)
def test_other_urls_are_refused(url: str, message: str) -> None:
    with pytest.raises(StoreError, match=message) as caught:
        Store.open(url)
    assert "er2" not in str(caught.value)


@pytest.mark.parametrize("given", ["me:hunter2@127.0.0.1:1/db", "127.0.0.1:1/db?user=me&password=hunter2"])
def test_no_server_is_a_clear_error_without_the_password(given: str) -> None:
    with pytest.raises(StoreError, match="cannot open") as caught:
        Store.open(f"postgresql+psycopg://{given}")
    assert "hunter2" not in str(caught.value)


def test_a_file_that_is_no_database_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a database, but long enough to look like one" * 20)
    with pytest.raises(StoreError, match="file is not a database"):
        Store.open(f"sqlite:///{tmp_path}/notes.txt")


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="check that it exists and may be used"):
        Store.open(f"sqlite:///{tmp_path}/file/store.db")


def refused_for_room() -> sqlite3.Error:
    with contextlib.closing(sqlite3.connect(":memory:")) as small:
        small.execute("PRAGMA max_page_count = 2")
        with pytest.raises(sqlite3.Error) as refused:
            small.execute("CREATE TABLE big AS SELECT zeroblob(100000)")
    return refused.value


def test_a_full_disk_is_a_reason_to_make_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused(Exception):
        sqlstate = "53100"

    no_log = sqlite3.OperationalError("disk I/O error")
    no_log.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE
    cut = sqlite3.OperationalError("disk I/O error")
    cut.sqlite_errorcode = sqlite3.SQLITE_IOERR_WRITE
    causes = [
        refused_for_room(),
        no_log,
        cut,
        Refused(),
        OSError(errno.ENOSPC, ""),
        OSError(errno.EDQUOT, ""),
    ]
    for cause in (*causes, *(DBAPIError("", {}, one) for one in causes[:4])):
        assert remedy(cause, "look") == "make space on its disk"
    for cause in (sqlite3.OperationalError("no such table"), OSError(errno.EACCES, ""), OSError("short")):
        assert remedy(cause, "look") == remedy(DBAPIError("", {}, cause), "look") == "look"

    def refuse(_: Engine) -> None:
        raise no_log

    monkeypatch.setattr(sqlite_engine, "log_ahead", refuse)
    with pytest.raises(StoreError, match=r"cannot open .*: disk I/O error; make space on its disk"):
        Store.open(f"sqlite:///{tmp_path}/new.db")


def test_sqlite_is_prepared(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/new/folder/store.db")
    with store.engine.connect() as connection:
        settings = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "foreign_keys", "busy_timeout", "synchronous")
        }
    assert settings == {"journal_mode": "wal", "foreign_keys": 1, "busy_timeout": 30000, "synchronous": 1}
    store.close()


def test_a_wait_for_the_lock_counts_also_where_it_was_in_vain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_engine, "BUSY_SECONDS", 0.3)
    waits: list[float] = []
    first = Store.open(f"sqlite:///{tmp_path}/store.db")
    second = Store.open(f"sqlite:///{tmp_path}/store.db", waits.append)
    with first.begin() as holder:
        holder.connection()
        with pytest.raises(OperationalError, match="locked"), second.begin() as session:
            session.connection()
    (waited,) = waits
    assert 0.2 < waited < 5
    first.close()
    second.close()


def test_a_new_file_is_its_owners_alone(tmp_path: Path) -> None:
    file = tmp_path / "new" / "tilewright.db"
    with contextlib.closing(Store.open(f"sqlite:///{file}")) as store:
        store.migrate()
        kept = [one for one in file.parent.iterdir() if one.name.startswith(file.name)]
        assert len(kept) >= 2, "the file and its log"
        assert {one.stat().st_mode & 0o777 for one in kept} == {0o600}


def test_a_long_migration_of_another_process_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds the lock of SQLite for longer than writers wait for each other."""
    store, told = Store.open(f"sqlite:///{tmp_path}/store.db"), list[str]()
    another = Store.open(f"sqlite:///{tmp_path}/store.db").engine.connect()
    transaction = another.begin()

    def tell(line: str) -> None:
        told.append(line)
        transaction.rollback()

    monkeypatch.setattr(sqlite_engine, "BUSY_SECONDS", 0.05)
    monkeypatch.setattr(database.log, "warning", tell)
    store.migrate()
    assert store.schema_state() == "head"
    assert told == [
        "another process migrates the database or writes to it; this one waits until that has ended"
    ]
    another.close()
    another.engine.dispose()
    store.close()


@on_both
def test_a_look_at_the_schema_leaves_no_statements_behind(databases: Databases) -> None:
    with opened(databases.empty()) as store:
        store.migrate()
        store.schema_state()
        before = len(store.engine._compiled_cache or ())
        for _ in range(5):
            assert store.schema_state() == "head"
        assert len(store.engine._compiled_cache or ()) == before
