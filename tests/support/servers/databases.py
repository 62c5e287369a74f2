"""Databases for tests: empty ones, and copies of one that was prepared once."""

from __future__ import annotations

import secrets
import shutil
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, suppress
from pathlib import Path

import psycopg
import pytest
from postgres_server import Server

from tuner.store.database import Store

Prepare = Callable[[str], None]
# For a short test of what differs between the two; PostgreSQL is the long form of all others.
on_both = pytest.mark.parametrize("databases", ["sqlite", "postgresql"], indirect=True)
_KEPT = 20  # databases of a PostgreSQL server; an older one, whose test is over, makes room


class Databases:
    """SQLite files in a folder, or the databases of a PostgreSQL server."""

    def __init__(self, folder: Path, server: Server | None) -> None:
        self._folder = folder
        self._server = server
        self._prepared: dict[Prepare, str] = {}
        self._created: deque[str] = deque()

    def empty(self) -> str:
        """The URL of a new database with nothing in it."""
        name = _new_name()
        if self._server is not None:
            self._create(self._server, name, "template1")
        return self._url(name)

    def copy(self, prepare: Prepare) -> str:
        """The URL of a new copy of what ``prepare`` makes, once, of an empty database."""
        if prepare not in self._prepared:
            original = self.empty()
            prepare(original)
            self._prepared[prepare] = original.rpartition("/")[2]
        source, name = self._prepared[prepare], _new_name()
        if self._server is not None:
            self._create(self._server, name, source)
        else:
            shutil.copyfile(self._folder / source, self._folder / name)
        return self._url(name)

    def _create(self, server: Server, name: str, template: str) -> None:
        self._created.append(name)
        old = self._created.popleft() if len(self._created) > _KEPT else None
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            # NOTE: since release 15 pages go through the log by default, which takes twice as long here.
            copied = "STRATEGY file_copy" if connection.info.server_version >= 150000 else ""
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template} {copied}".encode())
            if old and old not in self._prepared.values():
                with suppress(psycopg.errors.ObjectInUse):
                    connection.execute(f"DROP DATABASE {old}".encode())

    def _url(self, name: str) -> str:
        return self._server.url(name) if self._server else f"sqlite:///{self._folder / name}"


def _new_name() -> str:
    return f"t{secrets.token_hex(8)}"


def opened(url: str) -> AbstractContextManager[Store]:
    """The store at a URL, closed at the end."""
    return closing(Store.open(url))


def migrate(url: str) -> None:
    """Give an empty database the schema of this release."""
    with opened(url) as store:
        store.migrate()
