"""Commits are told from no commits, whoever makes them; where the database cannot tell it says so."""

from __future__ import annotations

import subprocess
import sys

from store_samples import HOST_CLASS

from tuner.store import sets
from tuner.store.changes import Changes
from tuner.store.database import Store


def commit(store: Store) -> None:
    with store.begin() as session:
        sets.changed(session, HOST_CLASS)


def test_the_stamp_changes_with_commits_and_only_then(store: Store) -> None:
    changes = Changes(store)
    try:
        before = changes.stamp()
        if store.engine.dialect.name != "sqlite":
            assert before is None
            return
        with store.read() as session:
            sets.served(session, HOST_CLASS)
        assert changes.stamp() == before
        stamps = {before}
        for _ in range(5):
            commit(store)
            stamps.add(changes.stamp())
            assert changes.stamp() in stamps
        assert len(stamps) == 6
    finally:
        changes.close()


def test_commits_of_another_process_change_it_and_rollbacks_do_not(store: Store, url: str) -> None:
    changes = Changes(store)
    try:
        before = changes.stamp()
        try:
            with store.begin() as session:
                sets.changed(session, HOST_CLASS)
                raise KeyError
        except KeyError:
            assert changes.stamp() == before
        program = f"""
from tuner.store import sets
from tuner.store.database import Store
store = Store.open({url!r})
with store.begin() as session:
    sets.changed(session, "there")
store.close()
"""
        subprocess.run([sys.executable, "-c", program], check=True)
        assert (changes.stamp() == before) is (store.engine.dialect.name != "sqlite")
    finally:
        changes.close()
