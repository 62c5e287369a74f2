"""The verbs for config sets, misses, and results in and out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from api_server import Server, admin_key, environment, finish, opened_database, start
from click.testing import Result
from signers import signer
from store_samples import ENTERED, HOST_CLASS, TRUSTED, UNTRUSTED, artifact, best, problem
from typer.testing import CliRunner

from service.cli.main import app
from tilewright import Client, GemmProblem, wire
from tilewright.errors import ServiceError
from tilewright.http.arguments import Miss
from tilewright.launch import local_device
from tilewright.schema.codec import gathered
from tuner.store import best as winners
from tuner.store import entities, imports, sets
from tuner.store.database import Store
from tuner.store.sets import Snapshot

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = start(tmp_path_factory.mktemp("cli-sets"))
    yield running
    finish(running)


@pytest.fixture(scope="module")
def asked(own: Server) -> Iterator[Client]:
    with Client(own.url, timeout=60.0) as client:
        yield client


@pytest.fixture
def run(own: Server, tmp_path: Path) -> Run:
    settings = environment(tmp_path, url=own.url)
    return lambda *arguments: CliRunner().invoke(app, arguments, env=settings)


def data(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def tuned_set(client: Client, m: int) -> str:
    """Tune one more shape; the digest of the set with it."""
    client.tune(GemmProblem(m, 24, 24, "float32", "nn"), max_trials=1)
    answer = client.current_set(client.devices()[0].device_class)
    assert answer is not None
    return answer.config_set.digest


def test_sets_are_listed_compared_pinned_and_rolled_back(run: Run, asked: Client) -> None:
    first, second, third = (tuned_set(asked, m) for m in (17, 18, 19))
    listed = data(run("sets", "ls", "--json"))["items"]
    assert [item["digest"] for item in listed] == [third, second, first]
    assert [item["serving"] for item in listed] == ["latest", None, None]
    assert third in run("sets", "ls").stdout

    assert [change["problem"]["m"] for change in data(run("diff", first, "--json"))["added"]] == [18, 19]
    shown = run("diff", third, first).stdout
    assert shown.count("\n-") == 2
    assert "1 unchanged" in shown

    assert data(run("sets", "rollback", "--json"))["digest"] == second
    assert data(run("sets", "rollback", "--json"))["digest"] == first
    beyond = run("sets", "rollback")
    assert beyond.exit_code == 1
    assert "no snapshot before" in beyond.stderr

    assert data(run("sets", "pin", second[7:19], "--json"))["serving"] == "pinned"
    assert "pinned" in run("sets", "pin", second).stdout
    assert data(run("sets", "unpin", "--json"))["pinned"] is None
    assert "latest winners" in run("sets", "unpin").stdout
    assert data(run("sets", "ls", "--limit", "1", "--json"))["items"][0]["serving"] == "latest"


def test_a_rollback_goes_to_what_was_served_before_a_set_that_came_back(
    run: Run, asked: Client, own: Server
) -> None:
    """The winners were A, then B, then A again, as when a config is quarantined and released."""
    before, again, between = (tuned_set(asked, m) for m in (25, 26, 27))
    with opened_database(own) as store, store.begin() as session:
        record, packed = sets.get(session, again), sets.packed(session, again)
        assert record
        assert packed
        served = sets.served(session, record.device_class)
        entered = Snapshot(**gathered(Snapshot, record, packed=packed))
        sets.keep(session, entered, served.made_from or "")
    listed = data(run("sets", "ls", "--json"))["items"]
    assert [item["digest"] for item in listed[:3]] == [again, between, before]
    assert data(run("sets", "rollback", "--json"))["digest"] == between
    assert data(run("sets", "rollback", "--json"))["digest"] == before
    run("sets", "unpin")


def test_a_rollback_passes_over_what_may_not_be_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    told, made = dict.fromkeys("bc", "kernel k is quarantined"), datetime(2026, 1, 2, tzinfo=UTC)
    kept = [
        wire.SetInfo(digest=one, device_class="x", arch="x", created_at=made, entries=1) for one in "abcd"
    ]
    kept[0].serving = "latest"

    def pin(_: Client, device_class: str, digest: str) -> wire.SetInfo:
        if digest in told:
            raise ServiceError(404, {"title": "Not Found", "detail": told[digest]})
        return next(one for one in kept if (one.device_class, one.digest) == (device_class, digest))

    monkeypatch.setattr(Client, "config_sets", lambda *_, **__: wire.SetList(items=kept))
    monkeypatch.setattr(Client, "pin", pin)
    words = ("sets", "rollback", "--device-class", "x", "--json")
    passed = "passed over b: kernel k is quarantined\npassed over c: kernel k is quarantined\n"
    result = CliRunner().invoke(app, words)
    assert (data(result)["digest"], result.stderr) == ("d", passed)
    told["d"] = "kernel k was deleted"
    beyond = CliRunner().invoke(app, words)
    assert (beyond.exit_code, beyond.stdout) == (1, "")
    assert beyond.stderr == (
        f"{passed}passed over d: kernel k was deleted\n"
        "error: x has no snapshot before the one that is served that may be pinned\n"
    )


def test_an_unknown_or_ambiguous_digest_is_wrong_usage(run: Run, asked: Client) -> None:
    tuned_set(asked, 20)
    tuned_set(asked, 21)
    for start_of_digest in ("sha256:xyz", ""):
        result = run("sets", "pin", start_of_digest)
        assert result.exit_code == 2
        assert "tilewright sets ls" in result.stderr.replace("\n", " ").replace("│ ", "")


def test_misses_are_listed_and_tuned(run: Run, asked: Client) -> None:
    place = asked.devices()[0].device_class
    problem = GemmProblem(23, 24, 24, "float32", "nn")
    asked.report_misses(place, [Miss(problem, 1000, 50.0)])
    (miss,) = data(run("misses", "--json"))
    assert (miss["count"], miss["stake_s"]) == (1000, pytest.approx(0.05))
    assert str(problem) in run("misses").stdout
    started = run("misses", "--tune", "5")
    (job,) = [word for word in started.stderr.split() if len(word) == 32]
    assert asked.job(job).problem == problem
    # Its hundred trials are cut short: the winner of any job closes the miss.
    asked.cancel(job)
    asked.tune(problem, max_trials=1)
    assert data(run("misses", "--json")) == []


def test_keys_are_trusted_and_not(run: Run, asked: Client, own: Server) -> None:
    key, database = signer(1).public_key, ("--database-url", f"sqlite:///{own.folder}/tilewright.db")
    assert data(run("trust", "ls", *database, "--json")) == []
    assert "is trusted" in run("trust", "add", key, "--name", "ci", *database).stdout
    data(run("trust", "add", key, "--name", "the other lab", *database, "--json"))
    (listed,) = data(run("trust", "ls", *database, "--json"))
    assert (listed["key"], listed["name"]) == (key, "the other lab")
    assert [(one.key, one.name) for one in asked.trust().trusted] == [(key, "the other lab")]
    assert key in run("trust", "ls", *database).stdout
    assert "not trusted any more" in run("trust", "remove", key, *database).stdout
    again = run("trust", "remove", key, *database)
    assert (again.exit_code, "'tilewright trust ls'" in again.stderr) == (1, True)
    for wrong in ("nonsense", key.upper()):
        assert "as 'tilewright trust show' prints it" in run("trust", "add", wrong, *database).stderr
    assert "'tilewright serve' makes it" in run("trust", "show").stderr


def test_results_leave_and_come_back(run: Run, asked: Client, own: Server, tmp_path: Path) -> None:
    here = partial(invoke, environment(own.folder))  # on the database itself, as no service is named
    tuned_set(asked, 24)
    file, t4 = str(tmp_path / "out.ndjson"), str(tmp_path / "out.json")
    assert data(run("export", file, "--json"))["bytes"] == Path(file).stat().st_size > 0
    refused = run("import", file)
    assert (refused.exit_code, "needs a key with scope admin" in refused.stderr) == (1, True)
    answer = data(here("import", file, "--json"))
    assert answer["added"] == {"jobs": 0, "trials": 0, "artifacts": 0, "best": 0}
    assert answer["known"]["trials"] > 0
    assert answer["trusted"], "what this service signed itself comes back whole"
    assert "known already" in here("import", file).stdout
    assert "bytes" in run("export", t4, "--format", "t4").stdout
    assert data(run("export", file, "--since", "2999-01-01T00:00:00Z", "--json"))["bytes"] == 0
    assert json.loads(Path(t4).read_text())["results"]
    assert data(here("import", t4, "--format", "t4", "--json"))["added"]["trials"] == 0
    wrong = here("import", t4)
    assert wrong.exit_code == 1
    assert "this is a T4 file" in wrong.stderr
    assert "--format t4" in wrong.stderr
    assert run("import", str(tmp_path / "nothing")).exit_code == 2


def test_a_file_that_cannot_be_written_is_named(run: Run, own: Server, tmp_path: Path) -> None:
    database = ("--database-url", f"sqlite:///{own.folder}/tilewright.db")
    for words in (["export"], ["report"], ["backup", *database]):
        missing = run(*words, str(tmp_path / "none" / "out"))
        assert missing.exit_code == 1
        assert missing.stderr.startswith(f"error: {tmp_path / 'none'}")
        assert "No such file or directory" in missing.stderr
        assert run(*words, str(tmp_path)).exit_code == 2


def invoke(env: dict[str, str], *words: str) -> Result:
    return CliRunner().invoke(app, words, env=env)


@pytest.mark.long
def test_results_are_deleted(tmp_path: Path) -> None:
    """On the database itself, and by a service for a key."""
    with closing(Store.open(f"sqlite:///{tmp_path / 'tilewright.db'}")) as store:
        store.migrate()
        with store.begin() as session:
            for entering in (TRUSTED, UNTRUSTED):
                imports.enter(session, entering)
            entities.put_artifact(session, artifact())
            winners.merge(session, best(problem()), ENTERED, TRUSTED)
            winners.merge(session, best(problem(65)), ENTERED, UNTRUSTED)
    server = start(tmp_path, retune_stale=False)
    try:
        keyed = environment(tmp_path, url=server.url, key=admin_key(server))
        here, there = (partial(invoke, env) for env in (environment(tmp_path), keyed))
        refused = invoke(environment(tmp_path, url=server.url), "imports")
        assert (refused.exit_code, "TILEWRIGHT_KEY" in refused.stderr) == (1, True)
        listed = data(there("imports", "--json"))["items"]
        assert [(one["id"], one["trusted"], one["best"], one["waiting"]) for one in listed] == [
            (UNTRUSTED.id, False, 0, 1),
            (TRUSTED.id, True, 1, 0),
        ]
        assert TRUSTED.signer in there("imports").stdout
        shape, types = ("64", "64", "64", "--layout", "nn"), ("--dtype", "float32", "--layout", "nn")
        unknown = there("delete", "best", *shape, "--on", "sm_90", "--dtype", "float32")
        assert (unknown.exit_code, "has no winner on sm_90" in unknown.stderr) == (1, True)
        assert data(there("delete", "best", *shape, "--on", HOST_CLASS, "--json"))["best"] == 1
        assert here("delete", "best", *shape, "--on", HOST_CLASS).exit_code == 1
        assert "jobs      0 deleted" in here("delete", "import", TRUSTED.id[:4]).stdout
        gone = there("delete", "import", TRUSTED.id)
        assert (gone.exit_code, "'tilewright imports' lists" in gone.stderr) == (1, True)
        assert here("delete", "problem", "65", "64", "64", *types).exit_code == 0
        assert there("delete", "import", "9").exit_code == 2, "none begins so"
        assert data(there("imports", "--json"))["items"][0]["waiting"] == 0
        assert there("delete", "import", UNTRUSTED.id[:1]).exit_code == 0
        assert there("delete", "problem", "9", "9", "9").exit_code == 1
    finally:
        finish(server)


def test_a_problem_is_deleted_as_the_services_device_computes_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a machine whose own device is of another kind."""
    deleted: list[GemmProblem] = []
    monkeypatch.setattr("tilewright.launch.driver.device_count", lambda: 1)
    monkeypatch.setattr(Client, "delete_problem", lambda _, one: deleted.append(one) or wire.Counts())
    assert run("delete", "problem", "64", "64", "64").exit_code == 0
    monkeypatch.setattr(Client, "devices", lambda _: [])
    assert run("delete", "problem", "64", "64", "64").exit_code == 1
    assert run("delete", "problem", "64", "64", "64", "--dtype", "int8", "--layout", "nt").exit_code == 0
    assert list(map(str, deleted)) == ["64x64x64 float32 nn", "64x64x64 int8 nt"]


def test_what_is_served_is_published_and_starts_a_client(run: Run, asked: Client, tmp_path: Path) -> None:
    digest, folder = tuned_set(asked, 16), tmp_path / "published"
    device_class = asked.devices()[0].device_class
    first = data(run("publish", str(folder), "--json"))
    assert first["served"] == {device_class: digest}
    assert first["sets"] == 1
    assert digest in run("publish", str(folder)).stdout
    assert data(run("publish", str(folder), "--json"))["bytes"] == 0
    with Client(folder.as_uri(), cache_dir=tmp_path / "cache", start_timeout=30.0) as tw:
        found = tw.start(local_device.HOST).lookup(
            GemmProblem(16, 24, 24, "float32", "nn"), local_device.HOST
        )
        assert found.entry is not None
        assert tw.service_key.known == asked.service_key.known
