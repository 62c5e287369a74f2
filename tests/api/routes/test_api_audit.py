"""Who changed what: each change once, by its caller, for admins, in pages and on the command line."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_server import Server, admin_key, environment, finish, opened_database, start
from signers import signer
from typer.testing import CliRunner

from service.cli.main import app
from tilewright import Client, GemmProblem
from tilewright.errors import ServiceError
from tuner.store.access import keys

FIRST, SECOND = (GemmProblem(m, 32, 32, "float64", "nn") for m in (64, 65))
OTHER_KEY = signer(3).public_key


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    running = start(tmp_path, retune_stale=False)
    yield running
    finish(running)


def changes(client: Client) -> list[tuple[str, str, str]]:
    """Who did what to what, the oldest first."""
    return [(entry.who, entry.action, entry.target) for entry in client.audit(limit=1000).items][::-1]


def cli(server: Server, *arguments: str, **settings: Any) -> Any:
    done = CliRunner().invoke(app, [*arguments, "--json"], env=environment(server.folder, **settings))
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_each_change_of_a_caller_is_noted_once(server: Server) -> None:
    admin = admin_key(server)
    with opened_database(server) as store, store.begin() as session:
        record, mine = keys.create(session, "mine", frozenset({"tune"}))
    with (
        Client(server.url, timeout=60.0, key=admin) as boss,
        Client(server.url, timeout=60.0, key=mine) as me,
    ):
        who = f"key {record.id}"
        first = me.tune(FIRST, max_trials=2)
        assert first.best is not None
        job = me.tune(SECOND, max_trials=5000, wait=False)
        assert me.tune(SECOND, max_trials=5000, wait=False).id == job.id  # joined: nothing changed
        me.cancel(job.id)
        me.cancel(job.id)
        me.cancel(first.id)
        assert me.cancel_jobs(mine=True).jobs == 0
        expected = [
            (who, "create job", first.id),
            (who, "create job", job.id),
            (who, "cancel job", job.id),
        ]
        assert changes(boss) == expected
        while not boss.job(job.id).status.final:
            time.sleep(0.05)

        digest = boss.current_set(first.device_class).config_set.digest  # type: ignore[union-attr]
        boss.pin(first.device_class, digest)
        boss.unpin(first.device_class)
        boss.unpin(first.device_class)
        boss.delete_best(FIRST, device_class=first.device_class)
        boss.delete_problem(SECOND)
        with pytest.raises(ServiceError):
            boss.delete_best(FIRST, device_class=first.device_class)
        others = changes(boss)[len(expected) :]
        assert len({who for who, *_ in others}) == 1
        assert [one[1:] for one in others] == [
            ("pin config set", first.device_class),
            ("unpin config set", first.device_class),
            ("delete best", f"{FIRST} on {first.device_class}"),
            ("delete problem", str(SECOND)),
        ]
        assert boss.audit(limit=1).items[0].data["jobs"] == 1

        page = boss.audit(limit=3)
        rest = boss.audit(limit=1000, cursor=page.next)
        assert [*page.items, *rest.items] == boss.audit(limit=1000).items
        assert rest.next is None
        with pytest.raises(ServiceError, match="scope admin"):
            me.audit()


def test_jobs_cancelled_together_have_an_entry_each(server: Server) -> None:
    with Client(server.url, timeout=60.0) as client:
        ids = [client.tune(one, max_trials=5000, wait=False).id for one in (FIRST, SECOND)]
        assert client.cancel_jobs(mine=True).jobs == 2
        cancelled = {one for one in changes(client) if one[1] == "cancel job"}
        assert cancelled == {("address 127.0.0.1", "cancel job", job_id) for job_id in ids}


def test_a_job_that_is_taken_over_is_noted_with_whose_it_was(server: Server) -> None:
    admin = admin_key(server)
    with opened_database(server) as store, store.begin() as session:
        (low, first), (high, second) = (
            keys.create(session, name, frozenset({"tune"})) for name in ("low", "high")
        )
        keys.set_quota(session, high.id, None, 5)
    with (
        Client(server.url, timeout=60.0, key=admin) as boss,
        Client(server.url, timeout=60.0, key=first) as one,
        Client(server.url, timeout=60.0, key=second) as other,
    ):
        boss.tune(FIRST, max_trials=5000, wait=False)
        job = one.tune(SECOND, max_trials=5000, wait=False)
        for _ in range(2):
            assert other.tune(SECOND, max_trials=5000, wait=False).id == job.id
        entries = [(entry.who, entry.action, entry.data) for entry in boss.audit().items[:2]]
        assert entries == [
            (f"key {high.id}", "take over job", {"former": f"key {low.id}"}),
            (f"key {low.id}", "create job", {"problem": str(SECOND)}),
        ]
        assert (one.cancel_jobs(mine=True).jobs, other.cancel_jobs(mine=True).jobs) == (0, 1)
        boss.cancel_jobs(m=FIRST.m)


def test_the_command_line_is_noted_by_its_user(server: Server, tmp_path: Path) -> None:
    made = cli(server, "keys", "create", "me", "--scope", "admin")
    cli(server, "keys", "set", made["id"], "--priority", "3")
    cli(server, "keys", "revoke", made["id"])
    cli(server, "keys", "revoke", made["id"])
    cli(server, "trust", "add", OTHER_KEY, "--name", "them")
    cli(server, "trust", "remove", OTHER_KEY)
    (tmp_path / "nothing.ndjson").write_bytes(b"")
    cli(server, "import", str(tmp_path / "nothing.ndjson"))
    entries = cli(server, "audit")[::-1]
    assert all(entry["who"].startswith("user ") for entry in entries)
    assert [(entry["action"], entry["target"]) for entry in entries[:5]] == [
        ("create key", made["id"]),
        ("set key", made["id"]),
        ("revoke key", made["id"]),
        ("trust key", OTHER_KEY),
        ("distrust key", OTHER_KEY),
    ]
    assert entries[0]["data"] == {"name": "me", "scopes": ["admin"]}
    assert [entry["action"] for entry in entries[5:]] == ["import"]
    secret = made["key"].rpartition("_")[2]
    assert secret not in json.dumps(entries)

    admin = cli(server, "keys", "create", "boss", "--scope", "admin")["key"]
    by_service = cli(server, "audit", "--limit", "2", url=server.url, key=admin)
    assert [entry["action"] for entry in by_service] == ["create key", "import"]
    shown = CliRunner().invoke(app, ["audit"], env=environment(server.folder))
    assert shown.exit_code == 0
    assert "trust key" in shown.stdout
