"""Backups: what is restored is what was there, from either database into either, and checks find damage."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import store_samples as samples
from alembic import command
from databases import Databases, migrate, opened
from frozen_release import fill
from full_disk import files_of_at_most
from sqlalchemy import MetaData, insert, text
from typer.testing import CliRunner

from service.cli.main import app
from tuner.store import entities, jobs, sets
from tuner.store.access import keys
from tuner.store.database import Store, StoreError, alembic_config
from tuner.store.engines import postgres_engine
from tuner.store.engines.sqlite_engine import url_of
from tuner.store.upkeep import backup
from tuner.store.upkeep.backup import back_up, restore
from tuner.store.upkeep.check import damages, unreadable, vacuum
from tuner.store.upkeep.sqlite_file import beside

KINDS = ("sqlite", "postgresql")


def populate(url: str) -> None:
    fill(url)
    migrate(url)


def rows(store: Store) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table, as the database's own types."""
    with store.engine.connect() as connection:
        schema = MetaData()
        schema.reflect(connection)
        found = {}
        for name, table in schema.tables.items():
            ordered = connection.execute(table.select().order_by(*table.primary_key.columns))
            found[name] = [tuple(map(plain, row)) for row in ordered]
        return found


def plain(value: Any) -> Any:
    """A value as both databases give it: without a time zone, true and false as numbers."""
    if hasattr(value, "tzinfo"):
        return value.replace(tzinfo=None)
    return bytes(value) if isinstance(value, memoryview) else value


@pytest.fixture
def store(databases: Databases) -> Iterator[Store]:
    with opened(databases.copy(populate)) as made:
        yield made


@pytest.mark.parametrize(
    ("databases", "into"),
    [
        ("sqlite", "postgresql"),
        ("postgresql", "sqlite"),
        *(pytest.param(kind, kind, marks=pytest.mark.long) for kind in KINDS),
    ],
    indirect=["databases"],
)
def test_a_backup_restores_into_either_database(
    store: Store, into: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    file, before = tmp_path / "backup.db", rows(store)
    assert min(len(before[name]) for name in ("job", "trial", "artifact", "best_config", "event")) > 0
    assert back_up(store, file) == file.stat().st_size
    assert [path.name for path in tmp_path.iterdir()] == ["backup.db"]
    url = request.getfixturevalue(f"{into}_databases").empty()
    restore(file, url, "user me")
    with opened(url) as restored:
        assert restored.schema_state() == "head"
        found = rows(restored)
        (entry,) = found["audit"]
        assert entry[1:4] == ("user me", "restore", "")
        then, now = before.pop("served_set"), found.pop("served_set")
        assert [(row[0], *row[2:]) for row in now] == [(row[0], *row[2:]) for row in then]
        assert all(new[1] > old[1] for new, old in zip(now, then, strict=True)), "clients take it for newer"
        assert found == before | {"audit": [entry]}
        assert damages(restored) == []
        with restored.begin() as session:  # ids count on behind those that were restored
            job, _ = jobs.submit(session, samples.request(m=7), samples.HOST)
            keys.create(session, "new", frozenset({"read"}))
        with restored.read() as session:
            (event,) = jobs.events_after(session, job.id)
        assert event.id > max(row[0] for row in before["event"])
    assert [path.name for path in tmp_path.iterdir()] == ["backup.db"]


def test_a_backup_is_one_moment_of_a_database_that_is_written_to(store: Store, tmp_path: Path) -> None:
    """Each transaction below adds a job with its event; no backup has one without the other."""
    stop = threading.Event()

    def write() -> None:
        m = 1
        while not stop.is_set():
            with store.begin() as session:
                jobs.submit(session, samples.request(m=m), samples.HOST)
            m += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(3):
            back_up(store, tmp_path / f"{number}.db")
    finally:
        stop.set()
        writer.join()
    counts = []
    for number in range(3):
        with contextlib.closing(sqlite3.connect(tmp_path / f"{number}.db")) as connection:
            ask = "SELECT (SELECT count(*) FROM job WHERE status = 'queued'), (SELECT count(*) FROM job WHERE"
            ask += " status = 'queued' AND id NOT IN (SELECT job_id FROM event))"
            counts.append(connection.execute(ask).fetchone())
    assert [without for _, without in counts] == [counts[0][1]] * 3
    assert [jobs_ for jobs_, _ in counts] == sorted(jobs_ for jobs_, _ in counts)


def test_a_backup_of_an_older_release_is_migrated_when_it_is_restored(
    sqlite_databases: Databases, tmp_path: Path
) -> None:
    with opened(sqlite_databases.copy(fill)) as old:
        assert old.schema_state() == "older"
        back_up(old, tmp_path / "old.db")
        assert old.schema_state() == "older"
    restore(tmp_path / "old.db", f"sqlite:///{tmp_path}/new.db")
    with opened(f"sqlite:///{tmp_path}/new.db") as restored:
        assert restored.schema_state() == "head"


def test_a_backup_may_be_written_to_a_slow_disk(
    postgresql_databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL waits for the disk between two pages of rows, and while the file is closed."""

    def slowly(table: Any) -> Any:
        if table.name in ("problem", "miss"):  # one of the first tables and one of the last
            time.sleep(0.6)
        return insert(table)

    monkeypatch.setitem(postgres_engine.ALIVE, "tcp_user_timeout", 300)
    monkeypatch.setattr(backup, "insert", slowly)
    with opened(postgresql_databases.copy(populate)) as store:
        assert back_up(store, tmp_path / "backup.db")


def test_a_backup_does_not_replace_its_own_database(sqlite_databases: Databases, tmp_path: Path) -> None:
    """A service that has it open would go on with a file that no longer has a name."""
    url, other = sqlite_databases.copy(populate), tmp_path / "link.db"
    file = Path(url.removeprefix("sqlite:///"))
    other.symlink_to(file)
    with opened(url) as store:
        jobs_before = rows(store)["job"]
        for own in (file, other, Path(f"{file}-wal")):
            with pytest.raises(StoreError, match="is of the database itself"):
                back_up(store, own)
        assert rows(store)["job"] == jobs_before


@pytest.mark.parametrize("database_too", [True, False])
def test_a_backup_does_not_lie_beside_the_log_of_another_database(
    store: Store, sqlite_databases: Databases, tmp_path: Path, database_too: bool
) -> None:
    """SQLite would apply the log of a database that was killed to the backup."""
    file, link = tmp_path / "old.db", tmp_path / "link.db"
    link.symlink_to(file)
    with opened(sqlite_databases.copy(migrate)) as used, used.begin() as session:
        jobs.submit(session, samples.request(), samples.HOST)
        session.flush()
        lost = Path(str(used.engine.url.database))
        shutil.copyfile(lost, file)
        session.commit()
        shutil.copyfile(f"{lost}-wal", f"{file}-wal")
    if not database_too:
        file.unlink()
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.exists()}
    for name in (file, link):
        with pytest.raises(StoreError, match=r"old.db-wal belongs to it; use another file"):
            back_up(store, name)
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.exists()} == before


def test_a_backup_does_not_replace_a_database_in_use(
    store: Store, sqlite_databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor one that is opened while the backup is written."""
    copy_rows = "_copy_sqlite" if store.engine.dialect.name == "sqlite" else "_copy_to_sqlite"
    url = sqlite_databases.copy(migrate)
    file = Path(url.removeprefix("sqlite:///"))
    with opened(url) as idle:
        assert vacuum(idle)
        assert Path(f"{file}-wal").stat().st_size == 0
        with pytest.raises(StoreError, match="is a database in use"):
            back_up(store, file)
    copied = getattr(backup, copy_rows)

    def slowly(*given: Any) -> None:
        copied(*given)
        started.enter_context(opened(url))

    monkeypatch.setattr(backup, copy_rows, slowly)
    with contextlib.ExitStack() as started, pytest.raises(StoreError, match="is a database in use"):
        back_up(store, file)


def test_a_backup_needs_a_schema(databases: Databases, tmp_path: Path) -> None:
    with opened(databases.empty()) as empty, pytest.raises(StoreError, match="has nothing to back up"):
        back_up(empty, tmp_path / "backup.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a?b", "a%20b"])
def test_backups_go_into_folders_of_any_name(store: Store, tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    back_up(store, folder / "backup.db")
    restore(folder / "backup.db", url_of(folder / "new.db"))
    with opened(url_of(folder / "new.db")) as restored:
        assert rows(restored)["job"] == rows(store)["job"]
    assert sorted(path.name for path in folder.iterdir()) == ["backup.db", "new.db"]
    with pytest.raises(StoreError, match="use %3F"):
        restore(folder / "backup.db", f"sqlite:///{tmp_path}/cut?b.db")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_database_that_is_not_empty_stays_as_it_is(store: Store, tmp_path: Path) -> None:
    back_up(store, tmp_path / "backup.db")
    before = rows(store)
    with pytest.raises(StoreError, match="is not empty; restore into a new"):
        restore(tmp_path / "backup.db", store.engine.url.render_as_string(hide_password=False))
    assert rows(store) == before


def test_a_database_in_use_is_no_backup(sqlite_databases: Databases, tmp_path: Path) -> None:
    """What was committed last is in its log alone."""
    used, new, link = sqlite_databases.copy(populate), tmp_path / "new.db", tmp_path / "link.db"
    with opened(used) as store:
        with store.begin() as session:
            jobs.submit(session, samples.request(), samples.HOST)
        file = Path(str(store.engine.url.database))
        link.symlink_to(file)
        for name in (file, link):
            with pytest.raises(StoreError, match=r"-wal; make a backup with 'tilewright backup'"):
                restore(name, f"sqlite:///{new}")
    assert not new.exists()


def test_a_service_that_starts_during_a_restore_keeps_its_database(
    sqlite_databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, url = tmp_path / "backup.db", f"sqlite:///{tmp_path}/new.db"
    with opened(sqlite_databases.copy(populate)) as store:
        back_up(store, file)
    check = backup._check

    def slow(*given: Any) -> None:
        check(*given)
        migrate(url)

    monkeypatch.setattr(backup, "_check", slow)
    with pytest.raises(StoreError, match="is not empty"):
        restore(file, url)
    with opened(url) as started, started.read() as session:
        assert jobs.listing(session) == []


def test_a_file_with_tables_of_others_is_not_replaced(sqlite_databases: Databases, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    with contextlib.closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE mine (x)")
    with opened(sqlite_databases.copy(populate)) as store:
        back_up(store, tmp_path / "backup.db")
    with pytest.raises(StoreError, match="is not empty and no database of tilewright"):
        restore(tmp_path / "backup.db", f"sqlite:///{other}")
    with contextlib.closing(sqlite3.connect(other)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("mine",)]


def test_backups_and_restored_databases_are_the_owners_alone(
    databases: Databases, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """They hold digests of keys. A link to where the database shall be stays."""
    file, new, link = tmp_path / "backup.db", tmp_path_factory.mktemp("disk") / "new.db", tmp_path / "link.db"
    link.symlink_to(new)
    with opened(databases.copy(populate)) as store:
        back_up(store, file)
    restore(file, f"sqlite:///{link}")
    assert [oct(path.stat().st_mode & 0o777) for path in (file, new)] == [oct(0o600)] * 2
    assert link.is_symlink()


def test_a_backup_that_cannot_be_written_names_its_file(
    sqlite_databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with opened(sqlite_databases.copy(populate)) as store:
        with pytest.raises(FileNotFoundError) as caught:
            back_up(store, Path("nowhere/backup.db"))
        assert caught.value.filename == "nowhere/backup.db"
        monkeypatch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space left") as caught:
            back_up(store, Path("backup.db"))
    assert caught.value.filename == "backup.db"
    assert list(tmp_path.glob("*backup*")) == []


def test_a_backup_replaces_regular_files_alone(
    sqlite_databases: Databases, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """For root a device such as /dev/null may be replaced, which breaks the machine."""
    pipe, link, leads_to = tmp_path / "pipe", tmp_path / "link", tmp_path_factory.mktemp("other") / "real.db"
    os.mkfifo(pipe)
    link.symlink_to(leads_to)
    with opened(sqlite_databases.copy(populate)) as store:
        with pytest.raises(StoreError, match="pipe is no regular file"):
            back_up(store, pipe)
        assert back_up(store, link) == leads_to.stat().st_size
    assert (pipe.is_fifo(), link.is_symlink()) == (True, True)


def test_a_disk_too_small_for_a_backup_is_told(sqlite_databases: Databases, tmp_path: Path) -> None:
    file, target = tmp_path / "backup.db", tmp_path / "new.db"
    with opened(sqlite_databases.copy(populate)) as store:
        with (
            files_of_at_most(16_384),
            pytest.raises(StoreError, match=r"backup.db cannot be written: .*space"),
        ):
            back_up(store, file)
        assert list(tmp_path.iterdir()) == []
        back_up(store, file)
    for size, error, told in ((16_384, StoreError, "new.db cannot be written"), (65_536, OSError, "new.db")):
        with files_of_at_most(size), pytest.raises(error, match=told):
            restore(file, f"sqlite:///{target}")


def full(_: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("damage", ["nonsense", "empty", "cut", "flipped", "page", "table", "schema"])
def test_a_damaged_backup_leaves_the_database_empty(
    sqlite_databases: Databases, tmp_path: Path, damage: str
) -> None:
    file, url = tmp_path / "backup.db", f"sqlite:///{tmp_path}/new.db"
    with opened(sqlite_databases.copy(populate)) as store:
        back_up(store, file)
    if damage == "nonsense":
        file.write_bytes(b"not a database" * 500)
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "cut":
        file.write_bytes(file.read_bytes()[:-8192])
    elif damage == "page":
        content = file.read_bytes()
        file.write_bytes(content[:12288] + b"\xff" * 60 + content[12348:])
    elif damage == "schema":  # SQLite quotes it, which is no UTF-8
        file.write_bytes(file.read_bytes().replace(b"CREATE TABLE audit", b"CREATE TAB\xe4E audit"))
    elif damage == "table":
        with contextlib.closing(sqlite3.connect(file)) as connection:
            connection.execute("DROP TABLE audit")
    else:
        with contextlib.closing(sqlite3.connect(file)) as connection:
            connection.execute("UPDATE artifact SET data = zeroblob(100)")
            connection.commit()
    with pytest.raises(StoreError, match=r"is no backup|is damaged"):
        restore(file, url)
    with opened(url) as untouched:
        assert untouched.schema_state() == "empty"


def test_a_restore_that_breaks_off_leaves_the_database_empty(
    sqlite_databases: Databases, postgresql_databases: Databases, tmp_path: Path
) -> None:
    """SQLite keeps texts of any length."""
    file, url = tmp_path / "backup.db", postgresql_databases.empty()
    with opened(sqlite_databases.copy(populate)) as store:
        with store.begin() as session:
            session.execute(text("UPDATE device SET arch = :long"), {"long": "x" * 200})
        back_up(store, file)
    for _ in range(2):
        with pytest.raises(StoreError, match=r"(?s)too long .* it is still empty"):
            restore(file, url)
    with opened(url) as untouched:
        assert untouched.schema_state() == "empty"


def test_the_check_names_each_damage(store: Store) -> None:
    assert damages(store) == []
    assert unreadable(store) == []
    with store.begin() as session:
        session.execute(text("UPDATE config_set SET digest = 'sha256:' || substr(digest, 8, 63) || 'x'"))
        session.execute(text("UPDATE job SET status = 'paused' WHERE id = (SELECT min(id) FROM job)"))
        session.execute(text("UPDATE trial SET outcome = 'melted' WHERE number = 0"))
    assert all("config set" in line and "is damaged" in line for line in damages(store))
    assert len(damages(store)) > 0
    assert any(line.startswith("this release cannot read job") for line in unreadable(store))
    assert any(line.startswith("this release cannot read trial 0 of job") for line in unreadable(store))


@pytest.mark.parametrize(("module", "name"), [(entities, "get_artifact"), (sets, "packed"), (jobs, "get")])
def test_the_check_passes_over_what_is_deleted_meanwhile(
    store: Store, monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    looked_up = getattr(module, name)

    def deleting(session: Any, *arguments: Any) -> Any:
        with store.begin() as other:
            for table in ("served_set", "config_set", "best_config", "imported_best", "artifact", "event"):
                other.execute(text(f"DELETE FROM {table}"))
            for table in ("trial", "ladder_row", "trial_slot", "job"):
                other.execute(text(f"DELETE FROM {table}"))
        return looked_up(session, *arguments)

    monkeypatch.setattr(module, name, deleting)
    assert damages(store) == []
    assert unreadable(store) == []


def test_the_check_asks_for_an_upgrade_of_another_schema(databases: Databases) -> None:
    with opened(databases.copy(migrate)) as store:
        with store.engine.begin() as connection:
            command.downgrade(alembic_config(connection), "-1")
        with pytest.raises(StoreError, match="is older; run 'tilewright db upgrade' first"):
            damages(store)


@contextlib.contextmanager
def told_by_postgresql(store: Store) -> Iterator[list[str]]:
    """What the server warns of, which its log has too."""
    told: list[str] = []
    with store.engine.connect() as connection:  # the only one of the pool
        driver: Any = connection.connection.driver_connection
        if store.engine.dialect.name == "postgresql":
            driver.add_notice_handler(lambda notice: told.append(notice.message_primary))
    yield told


def test_vacuum_gives_room_back(databases: Databases) -> None:
    with opened(databases.copy(migrate)) as store:
        with store.begin() as session:
            for number in range(300):
                jobs.submit(session, samples.request(m=number + 1), samples.HOST)
            session.execute(text("UPDATE job SET error = :long"), {"long": secrets.token_hex(5_000)})
        with store.begin() as session:
            session.execute(text("DELETE FROM event"))
            session.execute(text("DELETE FROM job"))
        with told_by_postgresql(store) as warnings:
            before, after = vacuum(store)
        assert after < before - 1_000_000
        assert warnings == []
        with store.begin() as session:
            assert jobs.counts(session) == {}


def run_beside(file: Path, statement: str) -> None:
    """Run a statement on a new file that another connection holds."""
    with beside(file) as copy, contextlib.closing(sqlite3.connect(copy)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        with contextlib.closing(sqlite3.connect(copy, timeout=0)) as connection:
            connection.execute(statement)


def test_the_code_of_an_error_says_why_a_file_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "made.db"
    with pytest.raises(StoreError, match="is locked; try again once no other process writes to it"):
        run_beside(file, "CREATE TABLE made (id)")
    with pytest.raises(sqlite3.OperationalError, match="syntax error"):
        run_beside(file, "no statement")
    assert list(tmp_path.iterdir()) == []


def test_a_vacuum_says_that_postgresql_keeps_the_room(databases: Databases) -> None:
    url = databases.copy(migrate)
    result = CliRunner().invoke(app, ["db", "vacuum", "--database-url", url, "--json"])
    assert result.exit_code == 0
    assert ("use its VACUUM FULL" in result.stderr) == url.startswith("postgresql")
