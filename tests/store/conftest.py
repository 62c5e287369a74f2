"""Every test that takes ``store`` runs on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres_server import Server, find_binaries, running
from sqlalchemy import text

from tuner.store.database import Store


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("no PostgreSQL here: install the package 'postgresql'")
    with running(binaries) as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database with nothing in it."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    server: Server = request.getfixturevalue("postgres")
    name = f"t{secrets.token_hex(8)}"
    admin = Store.open(server.url("postgres"))
    with admin.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    admin.close()
    return server.url(name)


@pytest.fixture
def url(empty_url: str) -> str:
    """A database with the schema of this release."""
    store = Store.open(empty_url)
    store.migrate()
    store.close()
    return empty_url


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = Store.open(url)
    yield opened
    opened.close()
