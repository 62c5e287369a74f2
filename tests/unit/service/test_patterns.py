"""Patterns in words: what text must be and an example, wherever a pattern is broken."""

from __future__ import annotations

import io
import re

import pytest
from typer.testing import CliRunner

from service.cli.main import app
from tilewright import Client, GemmProblem
from tilewright.errors import InvalidProblem
from tilewright.schema.codec import PATTERNS, in_words


@pytest.mark.parametrize("pattern", PATTERNS)
def test_an_example_matches_its_pattern(pattern: str) -> None:
    words, example = PATTERNS[pattern]
    assert re.fullmatch(pattern, example)
    assert in_words(f"^{pattern}$") == in_words(pattern) == f"must be {words}, such as {example}"


def test_a_pattern_without_words_is_shown() -> None:
    assert in_words("^a+$") == "must match ^a+$"


def test_what_a_client_refuses_is_told_in_words() -> None:
    told = "^device: must be host or cuda:NUMBER, in a fleet after NODE/, such as node1/cuda:0$"
    with Client("http://127.0.0.1:1") as client, pytest.raises(InvalidProblem, match=told):
        client.tune(GemmProblem(8, 8, 8), device="the second one")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("tune 8 8 8 --dtype foo", "for '--dtype': 'foo' is not one of 'float16', "),
        ("jobs ls --status foo", "for '--status': 'foo' is not one of 'queued', "),
        ("tune 0 8 8", "for M: M must be 1 or more, got 0"),
        ("tune 0..8 8 8", "for M: M must be 1 or more, got 0"),
        ("tune 8..2 8 8", "for M: a range of M must go up, got 8..2; write 1..8192"),
    ],
)
def test_what_the_command_line_refuses_is_told_in_our_words(words: str, told: str) -> None:
    result = CliRunner().invoke(app, words.split())
    shown = " ".join(result.stderr.replace("│", " ").split())
    assert (result.exit_code, f"Invalid value {told}" in shown) == (2, True), shown


def test_a_rule_of_ours_is_told_without_words_of_pydantic() -> None:
    told = "^since: give a date and time with its zone, such as 2026-01-31T12:00:00Z$"
    with Client("http://127.0.0.1:1") as client, pytest.raises(InvalidProblem, match=told):
        client.export(io.BytesIO(), since="yesterday")


def test_a_wrong_setting_is_told_in_words() -> None:
    result = CliRunner().invoke(app, ["devices"], env={"TILEWRIGHT_LOG_LEVEL": "loud"})
    told = "error: setting log_level: must be debug, info, warning or error, such as info\n"
    assert (result.exit_code, result.stderr) == (2, told)
