"""Logs on stderr: one JSON object a line, or text for a terminal; with the id of the request at hand."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog
from structlog.types import Processor

LogFormat = Literal["auto", "json", "text"]


def configure(level: str, log_format: LogFormat) -> None:
    """Send every logger of this process to stderr; ``auto`` is text on a terminal and JSON elsewhere."""
    as_text = log_format == "text" or (log_format == "auto" and sys.stderr.isatty())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter(as_text))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def _formatter(as_text: bool) -> structlog.stdlib.ProcessorFormatter:
    always: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    # NOTE: without pretty exceptions, which print the values of local variables: a key could be among them.
    console = structlog.dev.ConsoleRenderer(
        colors=False, exception_formatter=structlog.dev.plain_traceback, pad_event_to=0
    )
    renderers: list[Processor] = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=always,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            *([console] if as_text else renderers),
        ],
    )
