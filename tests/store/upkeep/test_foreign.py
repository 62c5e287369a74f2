"""Databases of other applications are refused and left as they are."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

import psycopg
import pytest
from databases import Databases, on_both, opened
from frozen_release import fill
from sqlalchemy import make_url
from typer.testing import CliRunner

from service.cli.main import app
from tuner.store.database import StoreError

KEY = "ed25519:" + "A" * 43 + "="
VERBS = [
    ("keys", "ls"),
    ("keys", "create", "me"),
    ("keys", "revoke", "1"),
    ("trust", "ls"),
    ("trust", "add", KEY),
    ("audit",),
    ("db", "check"),
    ("db", "upgrade"),
    ("db", "vacuum"),
    ("db", "prune"),
    ("backup", "backup.db"),
    ("serve", "--port", "0"),
]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TILEWRIGHT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr("service.logs.configure", lambda *_: None)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_every_verb_refuses_a_file_of_others(verb: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "foreign.db"
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE mine (x)")
    before = file.read_bytes()
    result = CliRunner().invoke(app, [*verb, "--database-url", f"sqlite:///{file}"])
    assert result.exit_code == 1
    assert "is not empty and no database of tilewright" in result.stderr
    assert file.read_bytes() == before, "in its journal mode too"
    assert {path.name for path in tmp_path.iterdir()} <= {"foreign.db", "signing.key"}


def test_a_server_s_database_of_others_is_refused(postgresql_databases: Databases) -> None:
    url = postgresql_databases.empty()
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain) as connection:
        connection.execute("CREATE TABLE mine (x int)")
    with pytest.raises(StoreError, match="is not empty and no database of tilewright"), opened(url):
        pass


@on_both
@pytest.mark.parametrize("state", ["empty", "older"])
def test_verbs_that_list_leave_the_schema_to_others(databases: Databases, state: str) -> None:
    url = databases.copy(fill) if state == "older" else databases.empty()
    with opened(url):
        pass  # which makes an empty file
    for verb in (("keys", "ls"), ("trust", "ls"), ("audit",), ("db", "prune"), ("db", "vacuum")):
        result = CliRunner().invoke(app, [*verb, "--database-url", url])
        assert result.exit_code == 1
        assert f"the schema of the database is {state}; run 'tilewright db upgrade' first" in result.stderr
    with opened(url) as left:
        assert left.schema_state() == state
    result = CliRunner().invoke(app, ["keys", "create", "me", "--database-url", url])
    assert result.exit_code == 0, result.output
    with opened(url) as made:
        assert made.schema_state() == "head"


def test_a_verb_does_not_advise_to_upgrade_a_newer_schema(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/newer.db"
    assert CliRunner().invoke(app, ["db", "upgrade", "--database-url", url]).exit_code == 0
    with contextlib.closing(sqlite3.connect(tmp_path / "newer.db")) as connection:
        connection.execute("UPDATE tilewright_schema SET version_num = 'r9999'")
        connection.commit()
    result = CliRunner().invoke(app, ["keys", "ls", "--database-url", url])
    assert result.exit_code == 1
    assert "a newer release of tilewright migrated this database" in result.stderr
