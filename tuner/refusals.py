"""Errors that cross a process boundary: expected ones by name, programming errors as tracebacks."""

from __future__ import annotations

import traceback
from typing import Any

from kernels.build import CompileError
from tilewright.errors import (
    ArtifactError,
    DeviceUnavailable,
    InvalidProblem,
    LaunchError,
    PreconditionFailed,
    TilewrightError,
)

_PLAIN: dict[str, type[TilewrightError]] = {
    error.__name__: error for error in (ArtifactError, CompileError, DeviceUnavailable, InvalidProblem)
}
_LAUNCH: dict[str, type[LaunchError]] = {error.__name__: error for error in (LaunchError, PreconditionFailed)}


def refusal(error: BaseException) -> dict[str, Any]:
    """The reply header that tells of ``error``; ``dying`` where the process must not go on."""
    name = type(error).__name__
    if isinstance(error, LaunchError) and name in _LAUNCH:
        detail = {"code": error.code, "sticky": error.sticky}
        return {
            "kind": "refused",
            "error": name,
            "message": str(error),
            "launch": detail,
            "dying": error.sticky,
        }
    if name in _PLAIN:
        return {"kind": "refused", "error": name, "message": str(error)}
    return {"kind": "error", "traceback": "".join(traceback.format_exception(error))}


def raise_refusal(header: dict[str, Any]) -> None:
    """Raise again what :func:`refusal` told of; nothing on a good reply.

    Raises:
        TilewrightError: the expected error, in its own class.
        RuntimeError: a programming error in the other process, with its traceback.
    """
    if header["kind"] == "error":
        raise RuntimeError(f"a worker process failed:\n{header['traceback']}")
    if header["kind"] == "refused":
        launch = _LAUNCH.get(header["error"])
        if launch:
            raise launch(header["message"], **header["launch"])
        raise _PLAIN[header["error"]](header["message"])
