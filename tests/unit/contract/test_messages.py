"""Every error that is made on purpose says the rule with the allowed values, or what to do."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest
from messages import OURS, Message, read_messages

ROOT = Path(__file__).parents[3]
FOLDERS = ("client", "kernels", "tuner", "service")  # each imports those before it alone

# A message passes if it has a rule with its values, a command, route or setting to use, or an order.
_VAGUE = "valid|right|correct|legal|sound|known|supported|possible|fine"
_VALUE = r"(?:\{\}|\d|'|one of|such as|at most|at least|multiples? of)"
_RULE = (
    rf"\bmust (?:not |both )?(?!be (?:{_VAGUE})\b)\w+ \S"  # "must be at most {}", "must lie in a segment"
    rf"|\b(?:needs?|allows?|takes|is for)\b[^;:.]*{_VALUE}"
    r"|\b(?:one of|such as|at most|at least) \S"
)
_USE = (
    r"'tilewright [a-z]|\b(GET|POST|DELETE) /|TILEWRIGHT_[A-Z]|--[a-z]|\b(pip|apt-get) install\b|log says why"
)
_ORDERS = (
    "POST|allow|apply|ask|bind|cancel|check|chmod|choose|close|compile|copy|convert|export|fetch|give|go|import"
    "|install|keep|leave|load|look|make|move|pass|put|record|remove|repeat|reset|restart|restore|run|scale"
    "|search|see|send|set|split|start|stop|store|try|tune|update|upgrade|use|wait|write"
)
_HINT = re.compile(rf"{_RULE}|{_USE}|(?:^|[;:,.] |\bor )(?:{_ORDERS})\b")

# Errors that no user reads by themselves, with the reason.
CLASSES = {
    "FrameError": "the class of the next three",
    "DamagedFrame": "between processes of one service; ends a worker, which is told as WorkerDied",
    "ChannelClosed": "as DamagedFrame",
    "ChannelTimeout": "as DamagedFrame",
    "Busy": "caught: the kernel runs without a CTA order",
    "CompileError": "the outcome of one trial; carries the compiler's own log",
    "WorkerDied": "the outcome of one trial, or told as device-failed, whose title says what to do",
    "WorkerTimeout": "as WorkerDied",
    "RaceCancelled": "caught: the job is cancelled",
    "JobTaken": "ends the work on a job that another service has",
}
# Messages whose words are not written where the error is made, or that are no user's, with the reason.
PLACES = {
    "client/tilewright/errors.py::ServiceError.__init__": "a service's document; its Refusals are read",
    "client/tilewright/http/calls.py::checked": "the rules of a request's fields",
    "client/tilewright/launch/driver.py::check": "the CUDA driver's own words for its status",
    "client/tilewright/matmul/cached_launch.py::TunedPlan._bind": "a reason in stats",
    "service/cli/doctor.py::_gpus": "doctor prints a remedy beside each finding",
    "service/cli/doctor.py::_installed": "as _gpus",
    "service/errors.py::Refusal.__init__": "its callers' messages are read",
    "service/results/uploads.py::record": "the rules of the fields of a record",
    "service/server/middleware.py::_Body._refused": "one of two details, one of which an attribute holds",
    "tuner/devices/cuda.py::_launch_errors": "the CUDA runtime's own words",
    "tuner/measure/vendor.py::vendor_choices": "caught: a race goes on without the library's default",
    "tuner/workers/bench.py::Bench.gemm": "a reason of recovery.py, where it is read",
    "tuner/workers/process.py::WorkerProcess._start": "the worker's own error, read where it is made",
    "tuner/workers/process.py::WorkerProcess._started": "as WorkerDied",
    "tuner/workers/process.py::WorkerRefused.__init__": "as WorkerProcess._start",
    "tuner/workers/recovery.py::Recovery._wait": "a reason of the functions below it, each with what to do",
}


@functools.cache
def messages() -> list[Message]:
    return read_messages(ROOT, FOLDERS, {"TilewrightError", "Refusal"})


def is_read(one: Message) -> bool:
    return one.error not in CLASSES and one.where not in PLACES


def helps(text: str) -> bool:
    """Whether a message says what to do, or holds an error of ours that does."""
    held = OURS.search(text)
    return bool(_HINT.search(text)) or (held is not None and not CLASSES.keys() & set(held[1].split("|")))


def test_every_message_says_the_rule_or_what_to_do() -> None:
    found = {
        f"{one.place} {text}" for one in messages() if is_read(one) for text in one.texts if not helps(text)
    }
    assert found == set()


def test_every_message_is_read() -> None:
    """One without words is made of values alone: it must stand among the exclusions."""
    assert [one.place for one in messages() if is_read(one) and not one.texts] == []
    assert len(messages()) > 440
    assert sum(map(is_read, messages())) > 400


def test_every_exclusion_is_needed() -> None:
    lacking = [one for one in messages() if not one.texts or not all(map(helps, one.texts))]
    assert set(PLACES) - {one.where for one in lacking if one.error not in CLASSES} == set()
    held = {
        name
        for one in lacking
        for text in one.texts
        for found in OURS.findall(text)
        for name in found.split("|")
    }
    assert set(CLASSES) - {one.error for one in lacking} - held == set()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("not a launch plan: {}", False),
        ("out of memory on the device", False),
        ("there is no job {}", False),
        ("the layout must be valid", False),
        ("gelu needs another type", False),
        ("this service allows less", False),
        ("relu is for real numbers", False),
        ("out of memory on the device; use a smaller problem", True),
        ("m must be an integer in 1 .. {}, got {}", True),
        ("{} needs {} bytes, this service allows {}", True),
        ("there is no job {}; 'tilewright jobs ls' lists those there are", True),
        ("line 3: {StoreError|InvalidProblem}", True),
        ("the process ended: {ChannelClosed}", False),
    ],
)
def test_the_rule_tells_help_from_none(text: str, says: bool) -> None:
    assert helps(text) is says


WRITTEN = """
class TilewrightError(Exception): ...
class Wrong(TilewrightError):
    def __init__(self, name):
        super().__init__(f"{name} is wrong")
PLAIN = "a constant"
def _reason(flag):
    if flag:
        return "one reason"
    return f"{flag} is another"
def raised(value, error):
    text = "in a variable" if value else PLAIN
    raise TilewrightError(text)
def returned(value):
    return TilewrightError(f"{value}: {_reason(value)}"[:80])
def passed(reason):
    raise TilewrightError(reason)
def caller():
    passed("from a caller")
    try:
        raise Wrong("x")
    except TilewrightError as error:
        raise TilewrightError(f"line: {error}") from error
    except ValueError as error:
        raise TilewrightError(str(error)) from error
"""


def test_messages_are_read_through_variables_functions_and_callers(tmp_path: Path) -> None:
    (tmp_path / "client").mkdir()
    (tmp_path / "client" / "code.py").write_text(WRITTEN)
    found = read_messages(tmp_path, ["client"], {"TilewrightError"})
    assert {one.where.partition("::")[2]: one.texts for one in found if "caller" not in one.where} == {
        "Wrong.__init__": ("{} is wrong",),
        "raised": ("in a variable", "a constant"),
        "returned": ("{}: {} is another", "{}: one reason"),
        "passed": ("from a caller",),
    }
    assert [one.texts for one in found if "caller" in one.where] == [("line: {TilewrightError}",), ("{}",)]
