"""The verbs for config sets, misses, and results in and out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from api_server import Server, environment, finish, start
from click.testing import Result
from typer.testing import CliRunner

from service.cli.main import app
from tilewright import Client, GemmProblem
from tilewright.http.arguments import Miss

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


def test_results_leave_and_come_back(run: Run, asked: Client, tmp_path: Path) -> None:
    tuned_set(asked, 24)
    file, t4 = str(tmp_path / "out.ndjson"), str(tmp_path / "out.json")
    assert data(run("export", file, "--json"))["bytes"] == Path(file).stat().st_size > 0
    answer = data(run("import", file, "--json"))
    assert answer["added"] == {"jobs": 0, "trials": 0, "artifacts": 0, "best": 0}
    assert answer["known"]["trials"] > 0
    assert "known already" in run("import", file).stdout
    assert "bytes" in run("export", t4, "--format", "t4").stdout
    assert json.loads(Path(t4).read_text())["results"]
    assert data(run("import", t4, "--format", "t4", "--json"))["added"]["trials"] == 0
    wrong = run("import", t4)
    assert wrong.exit_code == 1
    assert "line 1" in wrong.stderr
    assert run("import", str(tmp_path / "nothing")).exit_code == 2
