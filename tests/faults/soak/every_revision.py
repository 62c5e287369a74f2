"""Every revision of the schema, up and down, on a database with 100,000 trials.

    PYTHONPATH=.:client:tests/support:tests/support/servers python tests/faults/soak/every_revision.py \\
        --out benchmarks/results/migrations.json

Fills a database with the frozen one of the release of 2026-11-23 and copies its jobs that have trials, with
their events. Each trial of a copy stands there many times, each time with another config, so that each is
translated anew. Then each revision runs by itself: up to the latest, down to the first, up to the latest
again. Tables that stay keep their rows at each, and the trials are at the end what they were when the latest
revision came first. On SQLite, and on PostgreSQL if it is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import frozen_release
from alembic import command
from alembic.script import ScriptDirectory
from postgres_server import find_binaries, running
from sqlalchemy import Connection, MetaData, Table, func, insert, select, text

from benchmarks.common.results import machine_facts, now, write_json
from tilewright.schema.config import Config
from tuner.store.database import VERSION_TABLE, Store, alembic_config

TRIALS = 100_000
REPEATED = 125  # times each trial of a job stands in a copy of it
VARIED = ("stages", "split_k", "kc")  # a knob of each family of that time, whose value every revision keeps
LOST_DOWN = {"0004_repeatable_and_answers": {"submission"}}  # what a downgrade empties, as it says
METHOD = (
    "each revision in a transaction of its own, its commit included: from that of the frozen database to the"
    " latest, to the first and to the latest again; the most seconds of those runs"
)
Seconds = dict[str, float]


def multiply(connection: Connection, trials: int, repeated: int = REPEATED) -> None:
    """Copy jobs that have trials, with their events, until there are so many trials."""
    job, trial, event = _table(connection, "job"), _table(connection, "trial"), _table(connection, "event")
    of_trials = _by_job(connection, trial)
    of_events = _by_job(connection, event)
    jobs = {row["id"]: row for row in _rows(connection, job) if row["id"] in of_trials}
    left = trials - sum(map(len, of_trials.values()))
    for number, old in zip(itertools.count(1), itertools.cycle(jobs)):
        if left <= 0:
            break
        new = f"{number:08x}{old[8:]}"
        rows = list(itertools.islice(_repeated(of_trials[old], new, repeated), left))
        connection.execute(insert(job), jobs[old] | {"id": new, "active_key": None, "status": "succeeded"})
        connection.execute(insert(trial), rows)
        events = [_without(row, "id") | {"job_id": new} for row in of_events.get(old, ())]
        if events:
            connection.execute(insert(event), events)
        left -= len(rows)


def _repeated(rows: list[dict[str, Any]], job_id: str, repeated: int) -> Iterator[dict[str, Any]]:
    for number, (times, row) in enumerate(itertools.product(range(repeated), rows)):
        config = Config.from_dict(row["config"])
        varied = next(name for name in VARIED if name in config)
        other = Config.of(config.family, dict(config.knobs) | {varied: int(config[varied]) + 1000 * times})
        found = {"job_id": job_id, "number": number, "config": other.to_dict(), "config_digest": other.digest}
        yield row | found


def _table(connection: Connection, name: str) -> Table:
    return Table(name, MetaData(), autoload_with=connection)


def _rows(connection: Connection, table: Table) -> list[dict[str, Any]]:
    found = connection.execute(select(table).order_by(*table.primary_key.columns))
    return [dict(row._mapping) for row in found]


def _by_job(connection: Connection, table: Table) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in _rows(connection, table):
        found.setdefault(row["job_id"], []).append(row)
    return found


def _without(row: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != name}


class Revisions:
    """Runs one revision after the other, and keeps what each took."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.up: Seconds = {}
        self.down: Seconds = {}
        self._counts = self._counted()
        with store.engine.connect() as connection:
            every = ScriptDirectory.from_config(alembic_config(connection))
            latest_first = every.walk_revisions()  # codespell:ignore walk
            self.names = [script.revision for script in latest_first][::-1]
            query = text(f"SELECT version_num FROM {VERSION_TABLE}")
            self._at = self.names.index(connection.execute(query).scalar_one())

    def to(self, revision: str) -> None:
        """Go there, one revision after the other."""
        wanted = self.names.index(revision)
        while self._at != wanted:
            up = wanted > self._at
            left = self.names[self._at]
            self._at += 1 if up else -1
            ran = self.names[self._at] if up else left
            run, into = (command.upgrade, self.up) if up else (command.downgrade, self.down)
            started = time.monotonic()
            with self._store.engine.begin() as connection:
                run(alembic_config(connection), self.names[self._at])
            took = time.monotonic() - started
            into[ran] = round(max(took, into.get(ran, 0.0)), 3)
            self._check(set() if up else LOST_DOWN.get(ran, set()), f"{ran} {'up' if up else 'down'}")

    def _check(self, lost: set[str], ran: str) -> None:
        after = self._counted()
        for name, count in self._counts.items():
            assert name not in after or name in lost or after[name] >= count, f"{ran}: {name}"
        self._counts = after

    def _counted(self) -> dict[str, int]:
        with self._store.engine.connect() as connection:
            schema = MetaData()
            schema.reflect(connection)
            counts = {name: select(func.count()).select_from(one) for name, one in schema.tables.items()}
            del counts[VERSION_TABLE]
            return {name: connection.execute(query).scalar_one() for name, query in counts.items()}


def digest_of_trials(store: Store) -> str:
    """A digest of what each trial is of and how it ended."""
    found = hashlib.sha256()
    with store.engine.connect() as connection:
        trial = _table(connection, "trial").c
        columns = (trial.job_id, trial.number, trial.family, trial.outcome, trial.median_us, trial.origin)
        for row in connection.execute(select(*columns).order_by(trial.job_id, trial.number)):
            found.update(repr(tuple(row)).encode())
    return found.hexdigest()


def run_all(url: str, trials: int = TRIALS) -> dict[str, Any]:
    """Fill an empty database and run every revision there, up and down; gives the most seconds of each."""
    started = time.monotonic()
    frozen_release.fill(url)
    with contextlib.closing(Store.open(url)) as store:
        with store.engine.begin() as connection:
            multiply(connection, trials)
        filled_s = time.monotonic() - started
        revisions = Revisions(store)
        first, latest = revisions.names[0], revisions.names[-1]
        revisions.to(latest)
        assert store.schema_state() == "head"
        before, counts = digest_of_trials(store), revisions._counts
        revisions.to(first)
        revisions.to(latest)
        assert digest_of_trials(store) == before
        assert revisions.up.keys() == set(revisions.names[1:]) == revisions.down.keys()
        return {
            "rows": {name: count for name, count in counts.items() if count},
            "fill_s": round(filled_s, 1),
            "up_s": dict(sorted(revisions.up.items())),
            "down_s": dict(sorted(revisions.down.items(), reverse=True)),
        }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    found: dict[str, Any] = {
        "date": now(),
        "command": f"python tests/faults/soak/every_revision.py --trials {arguments.trials}",
        "machine": machine_facts(),
        "method": METHOD,
    }
    with tempfile.TemporaryDirectory() as folder:
        found["SQLite"] = run_all(f"sqlite:///{folder}/rows.db", arguments.trials)
    if binaries := find_binaries():
        with running(binaries) as server:
            found["PostgreSQL"] = run_all(server.url("postgres"), arguments.trials)
    print(json.dumps(found, indent=1))  # noqa: T201
    if arguments.out:
        write_json(arguments.out, found)


if __name__ == "__main__":
    main()
