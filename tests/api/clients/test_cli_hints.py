"""The command line says what there is and what to do next: defaults, lists, ids, interrupts, logs."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from api_server import TUNED, Server, environment
from click.testing import Result
from sqlalchemy.exc import OperationalError
from typer.testing import CliRunner

from service.cli.main import app
from tilewright import Client, GemmProblem, __version__, wire
from tilewright.errors import ServiceError
from tilewright.http.arguments import Miss
from tuner.store.database import Store
from tuner.store.engines import sqlite_engine
from tuner.store.upkeep import check

Run = Callable[..., Result]
EXTENTS = [str(TUNED.m), str(TUNED.n), str(TUNED.k)]


@pytest.fixture
def run(server: Server, tmp_path: Path) -> Run:
    settings = environment(tmp_path, url=server.url)
    return lambda *arguments: CliRunner().invoke(app, arguments, env=settings)


@pytest.fixture(scope="module")
def recorded(client: Client, tuned: wire.JobView) -> None:
    """Two of everything that is listed."""
    client.report_misses(tuned.device_class, [Miss(GemmProblem(m, 7, 5, "float32", "nn"), 1) for m in (3, 5)])
    for m in (14, 15):
        client.tune(GemmProblem(m, 32, 32, "float32", "nn"), max_trials=1)
        assert client.current_set(tuned.device_class)


def data(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def plain(text: str) -> str:
    """What a framed usage error says, on one line."""
    return " ".join(text.replace("│", " ").split())


def test_types_default_to_those_that_the_device_computes(run: Run) -> None:
    job = data(run("tune", "34", "32", "32", "--max-trials", "1", "--json"))
    assert (job["problem"]["dtype"], job["problem"]["layout"]) == ("float32", "nn")
    assert data(run("best", "34", "32", "32", "--json"))["job_id"] == job["id"]
    assert data(run("gemm", "34", "32", "32", "--json"))["problem"]["dtype"] == "float32"


def test_a_refused_problem_says_first_what_would_do(client: Client) -> None:
    with pytest.raises(ServiceError, match=r"use dtype float32 or float64; no kernel computes") as refused:
        client.tune(GemmProblem(512, 512, 512))
    assert len(str(refused.value)) < 200
    with pytest.raises(ServiceError, match=r"use family host, or name none; no kernel computes"):
        client.tune(GemmProblem(512, 512, 512, "float32", "nn"), families=["simt"])


def test_a_missing_result_says_what_was_tuned_there(run: Run, tuned: wire.JobView) -> None:
    assert tuned.problem == TUNED
    result = run("best", *EXTENTS, "--dtype", "float64")
    assert result.exit_code == 1
    assert f"Tuned there: {TUNED}." in result.stderr


def test_a_missing_result_says_which_command_makes_it(run: Run) -> None:
    asked = ["9", "8", "7", "--dtype", "float64", "--layout", "tt", "--batch", "2", "--has-bias"]
    for verb in ("best", "explain"):
        result = run(verb, *asked)
        assert result.exit_code == 1
        assert result.stderr.splitlines()[-1] == f"tune it with: tilewright tune {' '.join(asked)}"


def test_an_empty_list_says_where_there_are_winners(run: Run, client: Client, tuned: wire.JobView) -> None:
    arch = client.devices()[0].arch
    assert tuned.best is not None
    assert client.config_list(arch="sm_90").archs == [arch]
    assert client.config_list(arch=arch).archs == []
    result = run("best", "--arch", "sm_90", "--json")
    assert data(result) == []
    assert f"no winner on sm_90; there are winners on {arch}" in result.stderr


def test_an_id_may_be_given_by_its_first_characters(run: Run, client: Client, tuned: wire.JobView) -> None:
    job_id = tuned.id
    assert [job.id for job in client.jobs(prefix=job_id[:20]).items] == [job_id]
    assert client.jobs(prefix="f" * 20).items == []
    assert data(run("jobs", "show", job_id[:20], "--json"))["id"] == job_id
    assert data(run("jobs", "watch", job_id[:20], "--json"))["id"] == job_id
    client.tune(GemmProblem(35, 32, 32, "float32", "nn"), max_trials=1)
    for start, told in (
        (job_id[:2], "more than one job starts"),
        ("f" * 20, "no job starts"),
        ("zz", "no job starts"),
        ("z" * 32, "no job starts"),
        ("f" * 33, "no job starts"),
    ):
        result = run("jobs", "show", start)
        assert result.exit_code == 2
        assert told in plain(result.stderr)
        assert "tilewright jobs ls" in plain(result.stderr)


def test_trials_are_listed(run: Run, tuned: wire.JobView) -> None:
    whole = data(run("trials", tuned.id[:20], "--json"))
    assert [trial["number"] for trial in whole["items"]] == list(range(len(whole["items"])))
    shown = run("trials", tuned.id, "--limit", "1")
    assert "ok" in shown.stdout
    assert "host(" in shown.stdout
    assert shown.stderr == "the list ends at its limit of 1: --limit shows up to 1000\n"


def test_jobs_that_cannot_be_read_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    newer = wire.JobList(items=[], unreadable=[wire.UnreadableJob(id="f" * 32, detail="of release 9")])
    monkeypatch.setattr(Client, "jobs", lambda *_, **__: newer)
    told = CliRunner().invoke(app, ["jobs", "ls"]).stderr
    assert told == f"job {'f' * 32} cannot be read: of release 9\n"


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("verb", ["jobs ls", "sets ls", "misses", "audit"])
def test_a_list_that_its_limit_cuts_says_so(run: Run, verb: str) -> None:
    told = "the list ends at its limit of 1: --limit shows up to 1000\n"
    for more in ([], ["--json"]):
        cut = run(*verb.split(), *more, "--limit", "1")
        assert (cut.stderr, cut.output) == (told, cut.stdout + told), "below the list"
        assert run(*verb.split(), *more, "--limit", "999").stderr == ""


LONG = {
    "jobs": wire.JobList(items=[], next="2"),
    "trials": wire.TrialList(items=[], next="2"),
    "config_sets": wire.SetList(items=[], next="2"),
    "audit": wire.AuditList(items=[], next="2"),
    "quarantine": wire.QuarantineList(items=[], next="2"),
    "imports": wire.ImportList(items=[], next="2"),
}


@pytest.mark.parametrize(
    "words",
    [
        *("jobs ls --limit 1000", "sets ls --limit 1000", "audit --limit 1000", "misses --limit 1000"),
        *(f"trials {'a' * 32}", "quarantine ls", "imports"),
    ],
)
def test_the_longest_list_does_not_ask_for_more(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    for name, found in LONG.items():
        monkeypatch.setattr(Client, name, lambda *_, found=found, **__: found)
    miss = wire.MissView.model_construct(
        problem=TUNED, device_class="x", reason="missing", count=1, time_us=1.0, measured=True, stake_s=1.0
    )
    monkeypatch.setattr(Client, "misses", lambda *_, limit: [miss] * min(limit, 1200))
    result = CliRunner().invoke(app, words.split(), env={"TILEWRIGHT_URL": "http://localhost:9"})
    told = "the list ends after 1000, the most that is listed\n"
    assert (result.exit_code, result.stderr, result.output) == (0, told, result.stdout + told)


@pytest.mark.parametrize(("there", "says"), [(20, ""), (21, "the list ends at its limit of 20")])
def test_misses_that_all_fit_are_the_whole_list(
    monkeypatch: pytest.MonkeyPatch, there: int, says: str
) -> None:
    miss = wire.MissView.model_construct(problem=TUNED)
    monkeypatch.setattr(Client, "misses", lambda *_, limit: [miss] * min(limit, there))
    result = CliRunner().invoke(app, ["misses", "--json"])
    assert (len(data(result)), result.stderr.partition(":")[0].strip()) == (20, says)


@pytest.mark.usefixtures("recorded")
def test_the_audit_log_here_says_that_its_limit_cuts_it(server: Server) -> None:
    asked = ["audit", "--database-url", f"sqlite:///{server.folder}/tilewright.db", "--limit"]
    assert "the list ends at its limit of 1:" in CliRunner().invoke(app, [*asked, "1"]).stderr
    assert CliRunner().invoke(app, [*asked, "999"]).stderr == ""


def test_a_tuned_shape_tuned_again_says_so(run: Run, client: Client) -> None:
    first = client.tune(GemmProblem(37, 32, 32, "float32", "nn"), max_trials=1)
    result = run(
        "tune", "37", "32", "32", "--dtype", "float32", "--layout", "nn", "--max-trials", "1", "--json"
    )
    assert data(result)["best"]["job_id"] == data(result)["id"]
    assert "tuned before: " in result.stderr
    assert f"job {first.id}" in result.stderr


def test_help_is_of_what_a_user_gives(run: Run) -> None:
    for verb in ("tune", "explain", "gemm"):
        assert "{M} {N} {K}" in run(verb, "--help").stdout
    told = plain(run("tune", "--help").stdout)
    assert "0 for never" in told
    assert "gain_per_s" not in told, "a name of the code"
    assert "float16 on a GPU" not in plain(run("jobs", "cancel", "--help").stdout), "it chooses jobs"


@pytest.mark.parametrize("status", ["succeeded", "failed", "cancelled"])
def test_jobs_that_have_ended_cannot_be_cancelled_by_status(run: Run, status: str) -> None:
    result = run("jobs", "cancel", "--status", status)
    told = f"a job that is {status} has ended; use --status queued or running"
    assert (result.exit_code, told in plain(result.stderr)) == (2, True)


def test_the_version_is_told(run: Run) -> None:
    assert run("--version").stdout == f"tilewright {__version__}\n"


def interrupted(server: Server, folder: Path, *arguments: str) -> str:
    """What a command tells that follows a job, and ends by Ctrl-C."""
    # NOTE: what a shell starts in the background ignores SIGINT, and so do its children.
    under = ["env", "--default-signal=INT", sys.executable]
    command = [*under, "-m", "service.cli.main", *arguments]
    settings = environment(folder, url=server.url) | {"FORCE_COLOR": "1"}  # draw the bar at once
    with subprocess.Popen(command, env=settings, stderr=subprocess.PIPE, text=True) as watching:
        assert watching.stderr is not None
        told = ""
        while "GFLOP/s" not in told:  # until events arrive
            told += (more := watching.stderr.read(1))
            assert more, told
        watching.send_signal(signal.SIGINT)
        told += watching.stderr.read()
        assert watching.wait(20) == 130
    assert "Traceback" not in told
    return told


def goes_on(told: str, job_id: str, client: Client) -> None:
    assert f"job {job_id} goes on" in told
    assert f"'tilewright jobs watch {job_id}' follows it" in told
    assert f"'tilewright jobs cancel {job_id}' stops it" in told
    assert not client.job(job_id).status.final


@pytest.mark.long
def test_an_interrupted_watch_says_that_the_job_goes_on(
    server: Server, long_job: wire.JobView, client: Client, tmp_path: Path
) -> None:
    goes_on(interrupted(server, tmp_path, "jobs", "watch", long_job.id), long_job.id, client)


@pytest.mark.long
def test_an_interrupted_tune_says_that_the_job_goes_on(
    server: Server, client: Client, tmp_path: Path
) -> None:
    extents = ["76", "64", "64", "--dtype", "float64", "--layout", "nn", "--max-trials", "5000"]
    told = interrupted(server, tmp_path, "tune", *extents)
    [job_id] = set(re.findall(r"job ([0-9a-f]{32}) goes on", told))
    try:
        goes_on(told, job_id, client)
    finally:
        client.cancel(job_id)
        client.wait(job_id)


def test_listing_keys_makes_no_database(tmp_path: Path) -> None:
    file = tmp_path / "none.db"
    url = f"sqlite:///{file}"
    for verb in (["ls"], ["revoke", "ab"]):
        result = CliRunner().invoke(app, ["keys", *verb, "--database-url", url])
        assert result.exit_code == 1
        assert "'tilewright serve' makes it" in result.stderr
        assert not file.exists()
    made = data(CliRunner().invoke(app, ["keys", "create", "me", "--json", "--database-url", url]))
    revoke = ["keys", "revoke", made["id"][:6], "--json", "--database-url", url]
    assert data(CliRunner().invoke(app, revoke))["active"] is False


def test_a_restore_says_that_keys_may_be_back(tmp_path: Path) -> None:
    backup = str(tmp_path / "backup.db")
    old, new, bare = (["--database-url", f"sqlite:///{tmp_path}/{name}.db"] for name in "abc")
    made = data(CliRunner().invoke(app, ["keys", "create", "me", "--json", *old]))
    CliRunner().invoke(app, ["backup", backup, *old])
    assert CliRunner().invoke(app, ["keys", "revoke", made["id"], *old]).exit_code == 0
    told = CliRunner().invoke(app, ["restore", backup, *new])
    assert told.exit_code == 0
    assert "keys that are valid in the backup: 1;" in told.stderr
    assert "revoke again what was revoked since" in told.stderr
    Path(backup).unlink()
    CliRunner().invoke(app, ["backup", backup, *old])
    assert CliRunner().invoke(app, ["restore", backup, *bare]).stderr == ""


def test_a_restore_of_a_damaged_key_ends_well(tmp_path: Path) -> None:
    backup, old, new = tmp_path / "backup.db", f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db"
    CliRunner().invoke(app, ["keys", "create", "me", "--days", "9", "--database-url", old])
    CliRunner().invoke(app, ["backup", str(backup), "--database-url", old])
    with closing(sqlite3.connect(backup)) as damaged:
        damaged.execute("UPDATE api_key SET created = 'x'")
        damaged.commit()
    told = CliRunner().invoke(app, ["restore", str(backup), "--database-url", new])
    assert told.exit_code == 0
    assert "keys that are valid in the backup: 1;" in told.stderr


def test_an_empty_id_names_nothing(run: Run, tuned: wire.JobView, tmp_path: Path) -> None:
    """A variable of a script that was not set would revoke or delete the only one there is."""
    assert tuned.best is not None
    url = ["--database-url", f"sqlite:///{tmp_path / 'keys.db'}"]
    data(CliRunner().invoke(app, ["keys", "create", "me", "--json", *url]))
    refused = [CliRunner().invoke(app, ["keys", "revoke", "", *url]), run("jobs", "show", "")]
    assert [result.exit_code for result in refused] == [2, 2]
    assert "an empty id names no key; 'tilewright keys ls' lists them" in plain(refused[0].stderr)
    assert "an empty id names no job; 'tilewright jobs ls' lists them" in plain(refused[1].stderr)


def test_a_key_has_a_name_and_the_first_says_that_requests_need_one_now(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'keys.db'}"
    nameless = CliRunner().invoke(app, ["keys", "create", " ", "--database-url", url])
    assert (nameless.exit_code, "give a name" in nameless.stderr) == (2, True)
    first, second = (
        CliRunner().invoke(app, ["keys", "create", name, "--database-url", url]) for name in ("me", "you")
    )
    assert "refuses requests without a key; the command line sends TILEWRIGHT_KEY" in first.stderr
    assert "of you: read; it is not shown again" in second.stderr
    assert "requests without a key" not in second.stderr


@pytest.mark.parametrize("name", ["x" * 101, "two\nlines", "\x1b[2J", "a\u2028b"])
def test_the_name_of_a_key_fits_on_a_line_of_a_list(tmp_path: Path, name: str) -> None:
    url = ["--database-url", f"sqlite:///{tmp_path / 'keys.db'}"]
    told = "a name must have at most 100 characters, without line breaks and control characters"
    for verb in (["keys", "create", name], ["trust", "add", "ed25519:x", "--name", name]):
        result = CliRunner().invoke(app, [*verb, *url])
        assert (result.exit_code, told in plain(result.stderr)) == (2, True)
    longest = "Zoë " * 25
    assert data(CliRunner().invoke(app, ["keys", "create", longest, "--json", *url]))["name"] == longest


@pytest.mark.parametrize("verb", ["export", "export --format optuna", "report"])
def test_a_file_that_cannot_be_written_is_named_as_it_was_given(run: Run, verb: str) -> None:
    result = run(*verb.split(), "nowhere/file")
    told = "error: nowhere/file: No such file or directory; use a file or folder that you may use\n"
    assert (result.exit_code, result.stderr) == (1, told)


@pytest.mark.parametrize("kind", ["ndjson", "optuna"])
def test_an_export_asks_for_nothing_that_it_could_not_write(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    (tmp_path / "locked").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.access", lambda place, _: place.name != "locked")  # for root may do anything
    result = run("export", "--format", kind, "locked/file")
    told = "error: locked/file: Permission denied; use a file or folder that you may use\n"
    assert (result.exit_code, result.stderr) == (1, told)


class FullDisk(io.BytesIO):
    def write(self, _: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_the_full_disk_of_an_export_to_optuna_is_named(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/full")
    monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: FullDisk())
    result = run("export", "--format", "optuna", str(tmp_path / "new.db"))
    told = "error: /full: No space left on device; make space on its disk\n"
    assert (result.exit_code, result.stderr) == (1, told)


@pytest.mark.parametrize(
    ("verb", "told"),
    [
        (("keys", "create", "me", "--days", "99999999"), "36500"),
        (("keys", "create", "me"), "another writer holds it; try again"),
    ],
)
def test_what_goes_wrong_on_this_machine_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: tuple[str, ...], told: str
) -> None:
    url = f"sqlite:///{tmp_path / 'locked.db'}"
    monkeypatch.setattr(sqlite_engine, "BUSY_SECONDS", 0.1)
    with closing(Store.open(url)) as store:
        store.migrate()
        with store.begin() as session:
            session.connection()  # which holds the lock of SQLite
            result = CliRunner().invoke(app, [*verb, "--database-url", url])
    assert result.exit_code in (1, 2)
    assert isinstance(result.exception, SystemExit), "no traceback"
    assert told in plain(result.stderr)


def test_a_full_disk_of_the_database_is_no_reason_for_a_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise OperationalError("INSERT", {}, error)

    monkeypatch.setattr("tuner.store.access.keys.create", refuse)
    url = f"sqlite:///{tmp_path / 'full.db'}"
    result = CliRunner().invoke(app, ["keys", "create", "me", "--database-url", url])
    told = "error: the database cannot be used: its disk is full; make space on its disk\n"
    assert (result.exit_code, result.stderr) == (1, told)


def test_a_writer_that_keeps_a_vacuum_from_its_work_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'locked.db'}"
    with closing(Store.open(url)) as store:
        store.migrate()
        monkeypatch.setattr(Store, "migrate", lambda _store: None)  # which found no writer yet
        monkeypatch.setattr(check, "BUSY_SECONDS", 0.1)
        with store.begin() as session:
            session.connection()  # which holds the lock of SQLite
            result = CliRunner().invoke(app, ["db", "vacuum", "--database-url", url])
    assert (result.exit_code, isinstance(result.exception, SystemExit)) == (1, True), "no traceback"
    assert "the database cannot be used: database is locked; try again" in plain(result.stderr)


def test_a_service_without_a_device_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fleet that no node has joined."""
    monkeypatch.setattr(Client, "devices", lambda _client: [])
    for verb in (["tune", "8", "8", "8"], ["best"], ["explain", "8", "8", "8"], ["sets", "rollback"]):
        result = CliRunner().invoke(app, verb)
        assert result.exit_code == 1
        assert "has no device yet; wait until" in result.stderr


def test_a_migration_is_one_line_of_the_log(server: Server) -> None:
    lines = server.log().splitlines()
    assert [line for line in lines if "alembic" in line] == []
    assert len([line for line in lines if "the database was empty" in line]) == 1


def test_a_filter_that_names_nothing_says_what_there_is(
    run: Run, tuned: wire.JobView, tmp_path: Path
) -> None:
    file = tmp_path / "results"
    file.write_text("of last week")
    told = f"there is no device class nope; there are {tuned.device_class}"
    for verb in (("sets", "ls"), ("misses",)):
        result = run(*verb, "--device-class", "nope")
        assert (result.exit_code, result.stderr) == (0, f"{told}\n")
        assert not run(*verb, "--device-class", tuned.device_class).stderr, verb
    reasons = {"--family": "no family nope; there are wgmma_ws, wgmma", "--device-class": told}
    for option, reason in reasons.items():
        for kind in ("ndjson", "t4", "optuna"):
            result = run("export", str(file), "--format", kind, option, "nope")
            assert (result.exit_code, reason in plain(result.stderr)) == (2, True)
            assert f"Invalid value for {option}" in result.stderr
    result = run("report", str(file), "--device-class", "nope")
    assert (result.exit_code, result.stderr.count("no device class nope; use one of these")) == (1, 1)
    assert file.read_text() == "of last week"
    for verb in ("export", "report"):
        assert not run(verb, str(file), "--device-class", tuned.device_class).stderr
    assert not run("export", str(file), "--family", "host").stderr


def test_trials_without_a_winner_or_a_device_can_be_exported(
    run: Run, tuned: wire.JobView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of an import that is not trusted."""
    none: Any = wire.BestConfigList(items=[]), wire.SetList(items=[]), []
    for name, found in zip(("config_list", "config_sets", "devices"), none, strict=True):
        monkeypatch.setattr(Client, name, lambda *_, found=found, **__: found)
    file = str(tmp_path / "results")
    assert data(run("export", file, "--device-class", tuned.device_class, "--json"))["bytes"] > 0
    result = run("export", file, "--device-class", "nope")
    assert (result.exit_code, "nope; there are none yet" in plain(result.stderr)) == (2, True)
