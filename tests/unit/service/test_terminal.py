"""What the command line prints of others: it does not steer the terminal, and brackets stay brackets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from service.cli import jobs, main, output
from tilewright import wire
from tilewright.errors import ServiceError, TilewrightError

HOSTILE = "a[/b] [red]x \x1b[2J\x1b]0;title\x07 \u202etxt\x9b1m"
SHOWN = r"a[/b] [red]x \x1b[2J\x1b]0;title\x07 \u202etxt\x9b1m"


def test_a_table_shows_what_it_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(("name", "count"), [(HOSTILE, 3)])
    assert SHOWN in capsys.readouterr().out


def test_json_does_not_steer_the_terminal_and_means_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    told = {"name": f"{HOSTILE}\x7f\u2028\U000e0001 ü"}
    output.print_json(told)
    printed = capsys.readouterr().out
    assert all(one.isprintable() or one == "\n" for one in printed)
    assert "ü" in printed
    assert json.loads(printed) == told


def test_a_tab_or_a_new_line_in_a_cell_keeps_its_row_and_the_next_column(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output.print_table(("name", "count"), [("a\tb\nc", 3)])
    assert capsys.readouterr().out == "name   count\na b c  3\n"


def test_each_reason_that_a_followed_job_waits_for_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    def wait(_job_id: str, _on_progress: Any, on_waiting: Any) -> None:
        for reason in (HOSTILE, "x" * 200, None):
            on_waiting(reason)

    client: Any = SimpleNamespace(wait=wait)
    status = wire.JobStatus.QUEUED
    job: Any = SimpleNamespace(
        id="ab", device_class="gpu", neighbours=[], stored=None, status=status, max_trials=8
    )
    jobs._follow(client, job)
    printed = capsys.readouterr()
    lines = ["job ab on gpu", f"it waits: {SHOWN}", f"it waits: {'x' * 200}", "it waits no longer"]
    assert (printed.err.splitlines()[:4], printed.out) == (lines, "")


TABLE = (("id", "state", "note"), [("f" * 32, "", "x" * 60), ("0" * 32, "running", "")])


def test_a_table_in_a_pipe_has_one_whole_line_a_row_without_trailing_blanks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    long = "x" * 2000
    output.print_table(("id", "state", "note"), [("f" * 32, "", long), ("0" * 32, "", "")])
    head, first, second = capsys.readouterr().out.splitlines()
    assert head == "id" + " " * 32 + "state  note"
    assert (first.split(), second) == (["f" * 32, long], "0" * 32)


def test_a_table_on_a_narrow_terminal_has_its_last_columns_below_each_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    output.print_table(*TABLE)
    assert capsys.readouterr().out.splitlines() == [
        "id                                state",
        "    note",
        "f" * 32,
        "    " + "x" * 60,
        "0" * 32 + "  running",
    ]


@pytest.mark.parametrize(
    ("widths", "room", "lines"),
    [
        # 10 + 2 + 20 + 2 + 6 = 40
        ((10, 20, 6), 40, [[0, 1, 2]]),
        ((10, 20, 6), 39, [[0, 1], [2]]),
        # a line below the first begins with 4 blanks: 4 + 20 + 2 + 6 = 32
        ((30, 20, 6), 32, [[0], [1, 2]]),
        ((30, 20, 6), 31, [[0], [1], [2]]),
        ((32, 9, 7, 4), 20, [[0], [1], [2, 3]]),
        ((32,), 20, [[0]]),
    ],
)
def test_a_line_of_a_row_has_as_many_columns_as_have_room(
    widths: tuple[int, ...], room: int, lines: list[list[int]]
) -> None:
    assert output._columns_of_lines(widths, room) == lines


def test_lines_and_indents_of_a_message_stay(capsys: pytest.CaptureFixture[str]) -> None:
    output.echo(f"first\n\t{HOSTILE}\r")
    assert capsys.readouterr().out == f"first\n\t{SHOWN}\\r\n"


def test_an_error_of_a_service_is_shown_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def lying(*_: object) -> None:
        raise TilewrightError(HOSTILE)

    monkeypatch.setattr("service.cli.results.connect", lying)
    answer = CliRunner().invoke(main.app, ["families"])
    assert (answer.exit_code, answer.stderr) == (1, f"error: {SHOWN}\n")


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"m": "$(reboot)", "n": 8, "k": 7, "dtype": "x;y"}, "'$(reboot)' 8 7 --dtype 'x;y'"),
        ({"m": 9, "n": 8, "k": 7, "x;y": True, "batch": "2\nreboot"}, "9 8 7 '--x;y' --batch '2\nreboot'"),
        ({"m": 9}, ""),
    ],
)
def test_a_command_that_a_service_proposes_is_one_command(
    monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], told: str
) -> None:
    def lying(*_: object) -> None:
        raise ServiceError(404, {"title": "no result", "tune": asked})

    monkeypatch.setattr("service.cli.results.connect", lying)
    answer = CliRunner().invoke(main.app, ["families"])
    advice = f"tune it with: tilewright tune {told}\n" if told else ""
    assert (answer.exit_code, answer.stderr) == (1, f"error: 404 no result\n{advice}")


@pytest.mark.long
def test_a_full_disk_under_stdout_is_told_in_a_line(tmp_path: Path) -> None:
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    made = ["keys", "create", "me", "--database-url", f"sqlite:///{tmp_path / 'tilewright.db'}"]
    for arguments in (["--version"], made):
        command = [sys.executable, "-m", "service.cli.main", *arguments]
        with open("/dev/full", "wb") as full:
            ended = subprocess.run(command, env=buffered, stdout=full, stderr=subprocess.PIPE, text=True)
        assert (ended.returncode, ended.stderr) == (1, "error: No space left on device\n")


def test_a_table_on_a_closed_stdout_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    output.print_table(*TABLE)


INTERRUPTED = """
import sys
meanwhile = sys.argv.pop(1)
class Interrupt:
    def find_spec(name, path, target=None):
        if name == meanwhile: raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt)
from service.cli.main import run
run()
"""


@pytest.mark.parametrize(
    "while_imports", ["typer", "service.settings", "typer._adapters", "service.cli.jobs"]
)
def test_ctrl_c_at_the_start_is_silent(while_imports: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED, while_imports, "jobs", "ls"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")
