"""Every test that takes ``store`` runs on SQLite and, as a long one, on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from databases import Databases, migrate, opened
from postgres_server import Server, find_binaries, running

from tuner.store.database import Store


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("no PostgreSQL here: install the package 'postgresql'")
    with running(binaries) as server:
        yield server


@pytest.fixture(scope="session")
def sqlite_databases(tmp_path_factory: pytest.TempPathFactory) -> Databases:
    return Databases(tmp_path_factory.mktemp("databases"), None)


@pytest.fixture(scope="session")
def postgresql_databases(tmp_path_factory: pytest.TempPathFactory, postgres: Server) -> Databases:
    return Databases(tmp_path_factory.mktemp("databases"), postgres)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.long)])
def databases(request: pytest.FixtureRequest) -> Databases:
    made: Databases = request.getfixturevalue(f"{request.param}_databases")
    return made


@pytest.fixture
def empty_url(databases: Databases) -> str:
    """A database with nothing in it."""
    return databases.empty()


@pytest.fixture
def url(databases: Databases) -> str:
    """A database with the schema of this release."""
    return databases.copy(migrate)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with opened(url) as one:
        yield one
