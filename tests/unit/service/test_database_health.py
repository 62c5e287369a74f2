"""The look at the database goes on after every error, and tells of it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from service.engine import database_health
from service.engine.database_health import DatabaseHealth, Outage, outage
from tuner.store.database import Store


@pytest.fixture
def health(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DatabaseHealth]:
    monkeypatch.setattr(database_health, "_LOOK_S", 0.01)
    store = Store.open(f"sqlite:///{tmp_path / 'tilewright.db'}")
    store.migrate()
    made = DatabaseHealth(store)
    made.start()
    yield made
    made.stop()
    store.close()


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("owner", "method", "error"),
    [
        (os, "statvfs", FileNotFoundError("the disk was taken away")),
        (Store, "schema_state", KeyError("head")),
    ],
)
def test_a_look_that_fails_is_told_and_followed_by_others(
    health: DatabaseHealth,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    owner: object,
    method: str,
    error: Exception,
) -> None:
    def broken(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(owner, method, broken)
        wait_for(lambda: health.state == f"{Outage.DOWN} ({type(error).__name__})")
    wait_for(lambda: health.state == "ok")
    unknown = [one for one in caplog.messages if "a look at the database failed" in one]
    assert len(unknown) == isinstance(error, KeyError)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_was_removed_or_replaced_is_neither_written_nor_made_anew(
    health: DatabaseHealth, tmp_path: Path, replaced: bool
) -> None:
    store, file, away = health._store, tmp_path / "tilewright.db", tmp_path / "away.db"
    wait_for(lambda: health.state == "ok")
    with store.read() as first, store.read() as second:  # connections that are open when it goes
        assert [one.scalar(text("SELECT 1")) for one in (first, second)] == [1, 1]
    file.rename(away)
    if replaced:
        shutil.copy(away, file)
    for begin in (store.begin, store.read, store.begin):
        with pytest.raises(OperationalError) as refused, begin() as session:
            session.execute(text("SELECT 1"))
        assert outage(refused.value) is Outage.MOVED
    wait_for(lambda: health.state == Outage.MOVED)
    assert file.exists() is replaced
    away.rename(file)
    wait_for(lambda: health.state == "ok")
