"""Logs on stderr: one JSON object a line, or text for a terminal; with the id of the request at hand."""

from __future__ import annotations

import logging
import sys
import time
from collections import defaultdict
from typing import Literal, TextIO

import structlog
from structlog.types import EventDict, Processor

from tilewright.errors import printable

LogFormat = Literal["auto", "json", "text"]
_BURST = 1000
_LINES_PER_S = 100.0
_MOST_BYTES = 16 * 1024  # of a line
_CUT = " [...] "


def configure(level: str, log_format: LogFormat) -> None:
    """Send every logger of this process to stderr; ``auto`` is text on a terminal and JSON elsewhere."""
    as_text = log_format == "text" or (log_format == "auto" and sys.stderr.isatty())
    handler = _BoundedHandler(sys.stderr)
    handler.setFormatter(_formatter(as_text))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # NOTE: it tells each step of a migration, which this service reports in a line of its own.
    logging.getLogger("alembic").setLevel(logging.WARNING)


class _BoundedHandler(logging.StreamHandler[TextIO]):
    """Writes at most ``_LINES_PER_S`` lines of each logger, ``_BURST`` of them at once, so that no flood of
    requests fills the disk; the next line says how many were left out. No line has more than ``_MOST_BYTES``:
    see ``_formatter``."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._allowed: dict[str, tuple[float, float]] = defaultdict(lambda: (_BURST, time.monotonic()))
        self._left_out: dict[str, int] = defaultdict(int)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, unless its logger wrote too many."""
        name, now = record.name, time.monotonic()
        allowed, at = self._allowed[name]
        allowed = min(_BURST, allowed + (now - at) * _LINES_PER_S)
        left_out = self._left_out[name]
        lines = 2 if left_out else 1
        if allowed < lines:
            self._left_out[name] += 1
            return
        self._allowed[name] = allowed - lines, now
        if left_out:
            self._left_out[name] = 0
            message = f"{left_out} lines of this logger were left out: more than {_LINES_PER_S:g} a second"
            super().emit(logging.LogRecord(name, logging.WARNING, __file__, 0, message, None, None))
        super().emit(record)


def _without_colors(_logger: object, _method: str, event: EventDict) -> EventDict:
    """The event without the copy of its message in colours that uvicorn adds for terminals."""
    event.pop("color_message", None)
    return event


def _json(logger: object, method: str, event: EventDict) -> str:
    """An event as JSON of at most ``_MOST_BYTES``: the longest members lose their middle."""
    render = structlog.processors.JSONRenderer()
    while len(text := str(render(logger, method, event))) > _MOST_BYTES:
        name = max(event, key=lambda one: len(str(event[one])))
        value = str(event[name])
        event[name] = f"{value[: len(value) // 4]}{_CUT}{value[-(len(value) // 4) :]}"
    return text


def _text(_logger: object, _method: str, line: object) -> str:
    """A line without control characters, of at most ``_MOST_BYTES``: a longer one loses its middle."""
    data = printable(line).encode()
    if len(data) > _MOST_BYTES:
        half = (_MOST_BYTES - len(_CUT)) // 2
        return f"{data[:half].decode(errors='ignore')}{_CUT}{data[-half:].decode(errors='ignore')}"
    return data.decode()


def _formatter(as_text: bool) -> structlog.stdlib.ProcessorFormatter:
    always: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        _without_colors,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    # NOTE: without pretty exceptions, which print the values of local variables: a key could be among them.
    console = structlog.dev.ConsoleRenderer(
        colors=False, exception_formatter=structlog.dev.plain_traceback, pad_event_to=0
    )
    renderers: list[Processor] = [structlog.processors.format_exc_info, _json]
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=always,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            *([console, _text] if as_text else renderers),
        ],
    )
