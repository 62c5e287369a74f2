"""The exceptions of the contract and the client; messages say what to do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class TilewrightError(Exception):
    """Root of every error that tilewright raises on purpose."""


class InvalidProblem(TilewrightError):
    """A GEMM problem, config or tensor breaks a rule; the message names the rule."""


class ArtifactError(TilewrightError):
    """An artifact is damaged: its digest, its plan or its binary is wrong."""


class TrustError(TilewrightError):
    """No trusted key signed the data; the message says what to do."""


class LaunchError(TilewrightError):
    """The driver refused a load or a launch.

    Attributes:
        code: driver status (``CUresult``); None if no driver call failed.
        sticky: whether the CUDA context is lost and the process must exit.
    """

    def __init__(self, message: str, *, code: int | None = None, sticky: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.sticky = sticky


class PreconditionFailed(LaunchError):
    """The operands or the device do not meet the preconditions of the launch plan."""


class DeviceUnavailable(TilewrightError):
    """There is no usable device, driver or vendor library; the message says how to get one."""


class ServiceUnreachable(TilewrightError):
    """The service did not answer within the timeout, or the answer is not from tilewright."""


class ServiceError(TilewrightError):
    """The service answered with an RFC 9457 problem document.

    Attributes:
        status: HTTP status code.
        problem: the whole problem document.
    """

    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        title = problem.get("title", "error")
        detail = problem.get("detail", "")
        super().__init__(f"{status} {title}: {detail}" if detail else f"{status} {title}")
        self.status = status
        self.problem = problem


def printable(text: object) -> str:
    """A text from outside, with characters that control a terminal escaped."""
    return "".join(
        one if one.isprintable() or one in "\n\t" else one.encode("unicode_escape").decode()
        for one in str(text)
    )


@contextlib.contextmanager
def naming(file: Path, beside: Path) -> Iterator[None]:
    """In the block, put the name of a file into system errors that name none, or that name a temporary file
    in its place, whose path begins with ``beside``."""
    try:
        yield
    except OSError as error:
        if error.errno is None or not str(error.filename or beside).startswith(str(beside)):
            raise
        raise OSError(error.errno, error.strerror, str(file)) from error
