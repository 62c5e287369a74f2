"""Logs: a flood of lines is cut short, and says so."""

from __future__ import annotations

import json
import logging
import types
from collections.abc import Iterator

import pytest

from service import logs


@pytest.fixture(autouse=True)
def root_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def lines(text: str) -> list[tuple[str, str]]:
    return [(line["logger"], line["event"]) for line in map(json.loads, text.splitlines())]


def test_a_flood_is_cut_short_and_hides_no_other_logger(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 0.0
    monkeypatch.setattr(logs, "time", types.SimpleNamespace(monotonic=lambda: clock))
    logs.configure("info", "json")
    for _ in range(10_000):
        logging.getLogger("tw.flood").warning("bad request")
    logging.getLogger("tw.calm").info("job done")
    assert lines(capsys.readouterr().err) == [("tw.flood", "bad request")] * 1000 + [("tw.calm", "job done")]
    for _ in range(100):
        clock += 0.1
        for _ in range(1000):
            logging.getLogger("tw.flood").warning("bad request")
    told = lines(capsys.readouterr().err)
    assert 990 < len(told) <= 1000, (
        "100 lines a second for 10 seconds, those that tell of the others among them"
    )
    assert told[0][1] == "9000 lines of this logger were left out: more than 100 a second"
    assert told[1] == ("tw.flood", "bad request")


def test_text_of_others_does_not_steer_the_terminal_of_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "text")
    log = logging.getLogger("tw.requests")
    log.info("request", extra={"path": "/\x1b[2J\x1b]0;title\x07\ninfo fake"})
    try:
        raise ValueError("\x9b1m")
    except ValueError:
        log.exception("request %s failed", "\u202e1")
    told = capsys.readouterr().err
    assert not set("\x1b\x07\x9b\u202e") & set(told)
    assert "[2J" in told
    assert r"ValueError: \x9b1m" in told
    assert not any(line.startswith("info fake") for line in told.splitlines())


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_uvicorn_logs_no_message_in_colours(
    capsys: pytest.CaptureFixture[str], log_format: logs.LogFormat
) -> None:
    logs.configure("info", log_format)
    coloured = {"color_message": "Started server process [\x1b[36m%d\x1b[0m]"}
    logging.getLogger("uvicorn.error").info("Started server process [%d]", 7, extra=coloured)
    told = capsys.readouterr().err
    assert "Started server process [7]" in told
    assert "color_message" not in told


@pytest.mark.parametrize("log_format", ["json", "text"])
@pytest.mark.parametrize("letter", ["x", "\x1b", "\u00e9", "\U0001f600"])
def test_no_line_is_longer_than_its_limit(
    capsys: pytest.CaptureFixture[str], log_format: logs.LogFormat, letter: str
) -> None:
    logs.configure("info", log_format)
    try:
        raise ValueError(f"{letter * 60_000} at the end")
    except ValueError:
        logging.getLogger("tw.long").exception("first %s", letter * 60_000, extra={"path": letter * 60_000})
    told = capsys.readouterr().err
    assert 4_000 < len(told.encode()) <= 16 * 1024 + 1
    assert "first " in told
    assert "at the end" in told
    if log_format == "json":
        assert json.loads(told)["logger"] == "tw.long"
