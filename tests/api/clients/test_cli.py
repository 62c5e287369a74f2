"""The command line against the running service: data, exit codes, messages."""

from __future__ import annotations

import dataclasses
import json
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from api_server import TUNED, Server, environment
from click.testing import Result
from typer.testing import CliRunner

from service.cli.main import app
from service.cli.output import to_run
from tilewright import wire
from tilewright.schema.job import SearchOptions

Run = Callable[..., Result]
SHAPE = [str(TUNED.m), str(TUNED.n), str(TUNED.k), "--dtype", "float32", "--layout", "nn"]


@pytest.fixture
def run(server: Server, tmp_path: Path) -> Run:
    settings = environment(tmp_path, url=server.url)

    def invoke(*arguments: str, **more: object) -> Result:
        return CliRunner().invoke(app, arguments, env=settings | {k: str(v) for k, v in more.items()})

    return invoke


def data(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_tune_prints_the_job_on_stdout_and_progress_on_stderr(run: Run) -> None:
    shape = ["33", "32", "32", "--dtype", "float32", "--layout", "nn"]
    result = run("tune", *shape, "--max-trials", "2", "--json")
    job = data(result)
    assert job["status"] == "succeeded"
    assert job["id"] in result.stderr
    assert "2/2" in result.stderr
    shown = run("tune", *shape, "--max-trials", "1")
    assert "speed-up" in shown.stdout
    assert "99% confidence" in shown.stdout


SEARCH = {
    "max_trials": 1, "max_seconds": 20.0, "seed": 7, "sampler": "tpe", "min_gain_per_s": 0.25,
    "level": "quick",
}  # fmt: skip
MORE = {
    "batch": 2, "out_dtype": "float64", "acc_dtype": "float64", "activation": "relu", "has_bias": True,
    "has_c": True,
}  # fmt: skip


def options_of(fields: dict[str, Any]) -> Iterator[str]:
    for name, value in fields.items():
        yield f"--{name.replace('_', '-')}"
        if value is not True:
            yield str(value)


def test_tune_takes_every_field_of_a_request(run: Run) -> None:
    shape = {"m": 16, "n": 24, "k": 32, "dtype": "float64", "layout": "tt"}
    types = ("--dtype", "float64", "--layout", "tt")
    told = ("--family", "host", "--device", "host", *options_of(SEARCH | MORE))
    job = data(run("tune", "16", "24", "32", *types, *told, "--json"))
    assert job["problem"] == shape | MORE
    asked = {field.name: job[field.name] for field in dataclasses.fields(SearchOptions)}
    assert asked == SEARCH | {"families": ["host"]}
    listed = data(run("best", *options_of(MORE), "--json"))
    assert [item["problem"] for item in listed] == [shape | MORE]
    assert data(run("best", "16", "24", "32", *types, *options_of(MORE), "--json"))


def test_options_have_the_ranges_of_their_records(run: Run) -> None:
    for option, value in {"--max-trials": "10001", "--min-gain-per-s": "2", "--batch": "0"}.items():
        assert run("tune", *SHAPE, option, value).exit_code == 2
    assert run("best", *SHAPE, "--max-regret", "-1").exit_code == 2
    refused = run("misses", "--max-trials", "3")
    assert (refused.exit_code, "--tune" in refused.stderr) == (2, True)
    help_text = run("tune", "--help", COLUMNS=200).stdout
    assert "40 by default" in help_text
    assert "Kernel families to search" in help_text


def test_best_shows_one_or_all(run: Run, tuned: wire.JobView) -> None:
    assert tuned.best is not None
    one = data(run("best", *SHAPE, "--json"))
    assert one["artifact"]["digest"] == tuned.best.artifact.digest
    shown = run("best", *SHAPE).stdout
    assert tuned.best.artifact.digest in shown
    assert f"\nrun        {to_run(tuned.best)}\n" in shown
    listed = data(run("best", "--arch", tuned.best.arch, "--json"))
    assert tuned.best.job_id in [item["job_id"] for item in listed]
    # A small problem on a CPU: in TFLOP/s three decimals of it would say nothing.
    assert f"{1e3 * tuned.best.tflops:.1f} GFLOP/s" in shown
    assert data(run("best", "64", "48", "32", "--dtype", "float32", "--layout", "nn", "--nearest", "--json"))


def test_winners_are_listed_in_lines_of_a_terminal(run: Run, tuned: wire.JobView) -> None:
    assert tuned.best is not None
    header, *rows = run("best").stdout.splitlines()
    assert header.split() == ["problem", "family", "us", "TFLOP/s", "over", "vendor", "made"]
    (row,) = (row for row in rows if row.startswith(f"{TUNED}  "))
    ratio = "disturbed" if tuned.best.verdict == "disturbed" else f"{tuned.best.speedup.value:.3f}"
    assert f"{tuned.best.tflops:.4f} {ratio}" in " ".join(row.split())
    assert max(len(line) for line in (header, row)) - row.index("host") <= 53  # 80 with the problem before it
    of_all = run("best", "--arch", tuned.best.arch).stdout
    assert f"{tuned.best.created:%Y-%m-%d}  {tuned.best.device_class}\n" in of_all


def test_a_missing_result_exits_with_one_and_says_what_to_do(run: Run) -> None:
    result = run("best", "7", "7", "7", "--dtype", "float32")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "/tune" in result.stderr


def test_gemm_is_checked(run: Run) -> None:
    report = data(run("gemm", "30", "20", "10", "--dtype", "float64", "--layout", "tt", "--json"))
    assert report["verdict"] == "right"
    assert 0 <= report["error_ratio"] <= 1
    shown = run("gemm", *SHAPE).stdout
    assert " GFLOP/s, by " in shown
    assert "of what rounding allows: right" in shown


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (MemoryError("unable to allocate 74.5 GiB"), ": unable to allocate 74.5 GiB"),
        (MemoryError("\x1b[2J"), r": \x1b[2J"),
        (MemoryError(), ""),
    ],
)
def test_too_little_memory_is_told_in_a_line(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: MemoryError, told: str
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr("service.cli.gemm._draw", fails)
    result = run("gemm", *SHAPE)
    whole = f"error: this machine has too little memory{told}\n"
    assert (result.exit_code, result.stderr) == (1, whole)


def test_jobs_are_listed_shown_and_cancelled(run: Run, tuned: wire.JobView) -> None:
    listed = data(run("jobs", "ls", "--status", "succeeded", "--limit", "1000", "--json"))
    assert tuned.id in [job["id"] for job in listed["items"]]
    assert tuned.id in run("jobs", "ls", "--limit", "1000").stdout
    assert data(run("jobs", "show", tuned.id, "--json"))["best"]["config"]["family"] == "host"
    assert data(run("jobs", "cancel", tuned.id, "--json"))["status"] == "succeeded"
    assert run("jobs", "show", "0" * 32).exit_code == 1


def test_families_and_devices(run: Run) -> None:
    assert "host" in [family["name"] for family in data(run("families", "--json"))]
    assert "legal values" in run("families").stdout
    assert data(run("devices", "--json"))[0]["name"] == "host"
    assert "idle" in run("devices").stdout or "tuning" in run("devices").stdout


def test_doctor_says_what_is_missing_and_how_to_get_it(run: Run) -> None:
    report = data(run("doctor", "--json"))
    assert report["usable"] is True
    findings = {finding["name"]: finding for finding in report["findings"]}
    assert findings["c compiler"]["ok"]
    assert all(finding["found"] and finding["remedy"] for finding in findings.values())
    broken = run("doctor", TILEWRIGHT_DATABASE_URL="mysql://x/y")
    assert broken.exit_code == 1
    assert "sqlite:///" in broken.stdout


Serve = Callable[..., tuple[int, str]]


@pytest.fixture
def serve(run: Run, monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Exit code and stderr of a service, in this process, that must not come up."""
    monkeypatch.setattr("service.logs.configure", lambda *_: None)

    def ended(*arguments: str) -> tuple[int, str]:
        result = run("serve", *arguments)
        assert isinstance(result.exception, SystemExit)
        assert result.stdout == ""
        return result.exit_code, result.stderr

    return ended


def test_db_upgrade_makes_a_database_and_a_newer_one_is_refused(
    run: Run, serve: Serve, tmp_path: Path
) -> None:
    file = tmp_path / "other.db"
    url = f"sqlite:///{file}"
    assert data(run("db", "upgrade", "--database-url", url, "--json"))["before"] == "empty"
    assert data(run("db", "upgrade", "--database-url", url, "--json"))["before"] == "head"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("UPDATE tilewright_schema SET version_num = 'from-the-future'")
        connection.commit()
    refused = run("db", "upgrade", "--database-url", url)
    assert refused.exit_code == 1
    assert "newer release" in refused.stderr
    code, told = serve("--database-url", url)
    assert code == 1
    assert "newer release" in told


def test_a_database_that_is_named_is_used_before_a_service_of_the_environment(
    run: Run, tmp_path: Path
) -> None:
    named = ("--database-url", f"sqlite:///{tmp_path / 'other.db'}")
    assert data(run("keys", "create", "me", "--json", *named))["name"] == "me"
    for settings in ({"TILEWRIGHT_URL": "http://127.0.0.1:1"}, {"TILEWRIGHT_KEY": "tw_none"}):
        (entry,) = data(run("audit", "--json", *named, **settings))
        assert entry["action"] == "create key"
    for verb in (("audit",), ("delete", "import", "0" * 32), ("import", __file__)):
        both = run(*verb, "--url", "http://127.0.0.1:1", *named, COLUMNS=200)
        assert (both.exit_code, "use one of them" in both.stderr) == (2, True)


def test_serve_says_that_another_holds_the_database(
    run: Run, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "held.db"
    data(run("db", "upgrade", "--database-url", f"sqlite:///{file}", "--json"))
    monkeypatch.setattr("tuner.store.engines.sqlite_engine.BUSY_SECONDS", 0.1)
    with closing(sqlite3.connect(file, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        code, told = serve("--database-url", f"sqlite:///{file}", "--port", "0")
    assert (code, "another writer holds it; start the service again" in told) == (1, True)


def test_a_name_that_is_no_text_is_printed(run: Run, tmp_path: Path) -> None:
    for verb in ("export", "report"):
        shown = data(run(verb, str(tmp_path / "n\udcff"), "--json"))
        assert shown["file"] == str(tmp_path / r"n\udcff")


def test_an_address_that_is_not_of_this_machine_asks_for_another_host(serve: Serve) -> None:
    for host in ("192.0.2.1", "nowhere.invalid"):
        code, told = serve("--host", host, "--allow-remote", "--port", "0")
        assert (code, told.endswith("; choose another --host\n")) == (1, True)


def test_serve_refuses_the_network_unless_told(serve: Serve) -> None:
    code, told = serve("--host", "0.0.0.0")
    assert code == 2
    assert "--allow-remote" in told
    assert "keys create" in told


def test_serve_refuses_a_taken_port(serve: Serve) -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, told = serve("--port", str(taken.getsockname()[1]))
    assert code == 1
    assert "--port" in told


def test_serve_refuses_a_device_that_is_not_there(serve: Serve) -> None:
    code, told = serve("--device", "cuda:99")
    assert code == 1
    assert "cuda:99" in told
    assert "tilewright doctor" in told


def test_wrong_usage_exits_with_two(run: Run) -> None:
    assert run("tune", "1", "2").exit_code == 2
    assert run("tune", "1", "2", "3", "--dtype", "int5").exit_code == 2
    assert run("tune", "0", "2", "3").exit_code == 2
    assert run("tune", "8..4", "2", "3").exit_code == 2
    assert run("best", "1", "2").exit_code == 2
    assert run("best", "0", "2", "3").exit_code == 2
    assert run("nonsense").exit_code == 2
    wrong = run("devices", TILEWRIGHT_PORT="eighty")
    assert wrong.exit_code == 2
    (line,) = wrong.stderr.splitlines()
    assert line.startswith("error: setting port: ")


def test_no_service_exits_with_one(run: Run) -> None:
    result = run("devices", "--url", "http://127.0.0.1:9")
    assert result.exit_code == 1
    assert "tilewright serve" in result.stderr
