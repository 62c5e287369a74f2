"""Dataclasses of the vocabulary to JSON columns and back, in one visible place."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from typing import Any, TypeVar

from tilewright.policy import Policy
from tilewright.problem import GemmProblem
from tilewright.trial import Timing
from tuner.job import TuneRequest

S = TypeVar("S")
T = TypeVar("T")


def canonical(data: dict[str, Any]) -> str:
    """The one JSON text of plain data."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest(data: dict[str, Any]) -> str:
    """SHA-256 in hex of plain data."""
    return hashlib.sha256(canonical(data).encode()).hexdigest()


def request_digest(request: TuneRequest, device_class: str) -> str:
    """The digest of everything that makes two requests the same work."""
    return digest({"problem": request.problem.to_dict(), "device_class": device_class, **options(request)})


def options(request: TuneRequest) -> dict[str, Any]:
    """A request without its problem."""
    data = {field.name: getattr(request, field.name) for field in dataclasses.fields(request)}
    del data["problem"]
    return data | {"families": list(request.families)}


def request(problem: GemmProblem, data: dict[str, Any]) -> TuneRequest:
    """The inverse of :func:`options`."""
    policy = Policy(data.get("policy", Policy.STAGED))
    return TuneRequest(problem, **(data | {"families": tuple(data["families"]), "policy": policy}))


def timing(data: dict[str, Any]) -> Timing:
    """The inverse of ``dataclasses.asdict``."""
    return Timing(**(data | {"samples_us": tuple(data["samples_us"])}))


def maybe(convert: Callable[[S], T], value: S | None) -> T | None:
    """``convert(value)``, None for None."""
    return None if value is None else convert(value)


def text(message: str) -> str:
    """``message`` with what no database keeps (NUL, lone surrogates) escaped: compilers print anything."""
    return message.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")
