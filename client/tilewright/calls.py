"""Sans-IO client: one function per endpoint gives a :class:`Call`; whoever sends it is free to choose how."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tilewright import wire
from tilewright.artifact import Artifact
from tilewright.errors import InvalidProblem, ServiceError, ServiceUnreachable

if TYPE_CHECKING:
    from pydantic import BaseModel

    from tilewright.tensors import Tensor

# A GEMM waits for a busy device (``gemm_wait_s`` of the service, 10 s unless set), and may run for 30 s.
GEMM_S = 60.0
_MOST_HEAD = 2**16 + 8
_WIDEST = 8  # bytes of an element
T = TypeVar("T")
M = TypeVar("M", bound="BaseModel")


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
    """What came back; header names are lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request, and how its answer is read.

    Attributes:
        content: the body, or its parts.
        answer_s: how much longer than other steps the wait for the answer may take.
        answer_bytes: most bytes that the answer may have; 0 where that is not known.
    """

    method: str
    path: str
    parse: Callable[[Reply], T]
    params: dict[str, str] = dataclasses.field(default_factory=dict)
    content: bytes | list[memoryview] | None = None
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    answer_s: float = 0.0
    answer_bytes: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class GemmAnswer:
    """A GEMM that ran on the service.

    Attributes:
        d: the result, a NumPy array that may be written to.
        ran: the config of the kernel, or the name of the vendor library.
        kernel_us: microseconds of the kernel alone.
        match: how the kernel was found: ``exact``, ``nearest`` or ``vendor`` with what is known of it.
        timing: where the milliseconds at the service went, by name.
    """

    d: Any
    ran: str
    kernel_us: float
    match: str
    timing: dict[str, float]


def answer(call: Call[T], reply: Reply) -> T:
    """The parsed answer of a call.

    Raises:
        ServiceError: the service answered with a problem document.
        ServiceUnreachable: what answered is not tilewright.
    """
    if reply.status >= 400:
        raise ServiceError(reply.status, _problem(reply))
    try:
        return call.parse(reply)
    except (InvalidProblem, KeyError, ValueError) as error:
        raise ServiceUnreachable(
            f"{call.method} {call.path}: the answer is not one of tilewright's ({error}); check the URL"
        ) from error


def tune(body: wire.TuneBody, idempotency_key: str | None = None) -> Call[wire.JobView]:
    """``POST /tune``."""
    headers = {"Content-Type": "application/json"}
    if idempotency_key is not None:
        headers["Idempotency-Key"] = idempotency_key
    content = body.model_dump_json(exclude_none=True).encode()
    return Call("POST", "/tune", model_of(wire.JobView), content=content, headers=headers)


def job(job_id: str) -> Call[wire.JobView]:
    """``GET /jobs/{id}``."""
    return Call("GET", f"/jobs/{job_id}", model_of(wire.JobView))


def cancel(job_id: str) -> Call[wire.JobView]:
    """``DELETE /jobs/{id}``."""
    return Call("DELETE", f"/jobs/{job_id}", model_of(wire.JobView))


def jobs(status: wire.JobStatus | None, page: wire.PageQuery) -> Call[wire.JobList]:
    """``GET /jobs``."""
    params = params_of(page) | ({"status": status.value} if status else {})
    return Call("GET", "/jobs", model_of(wire.JobList), params)


def trials(job_id: str, page: wire.PageQuery) -> Call[wire.TrialList]:
    """``GET /jobs/{id}/trials``."""
    return Call("GET", f"/jobs/{job_id}/trials", model_of(wire.TrialList), params_of(page))


def events(job_id: str, last_id: str) -> Call[None]:
    """``GET /jobs/{id}/events``, whose body is a stream of events after ``last_id``."""
    headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last_id} if last_id else {})
    return Call("GET", f"/jobs/{job_id}/events", lambda _: None, headers=headers)


def best_config(query: wire.BestQuery) -> Call[wire.BestConfigView]:
    """``GET /best-config`` for one problem."""
    return Call("GET", "/best-config", model_of(wire.BestConfigView), params_of(query))


def best_configs(query: wire.BestQuery) -> Call[wire.BestConfigList]:
    """``GET /best-config`` without a problem: a page of the list."""
    return Call("GET", "/best-config", model_of(wire.BestConfigList), params_of(query))


def lookups(body: wire.LookupBody) -> Call[wire.LookupAnswer]:
    """``POST /best-config/lookup``."""
    headers = {"Content-Type": "application/json"}
    content = body.model_dump_json(exclude_defaults=True).encode()
    return Call("POST", "/best-config/lookup", model_of(wire.LookupAnswer), content=content, headers=headers)


def artifact(digest: str) -> Call[Artifact]:
    """``GET /artifacts/{digest}``, checked against the digest."""
    return Call("GET", f"/artifacts/{digest}", lambda reply: Artifact.from_bytes(reply.content, digest))


def gemm(operands: Mapping[str, Tensor], query: wire.GemmQuery) -> Call[GemmAnswer]:
    """``POST /gemm``."""
    from tilewright.tensors import MEDIA_TYPE, pieces

    content = pieces(operands)
    headers = {"Content-Type": MEDIA_TYPE, "Accept": MEDIA_TYPE}
    headers["Content-Length"] = str(sum(map(len, content)))
    most = _MOST_HEAD + _most_bytes(operands, query)
    return Call("POST", "/gemm", _gemm_answer, params_of(query), content, headers, GEMM_S, most)


def told(headers: Mapping[str, str]) -> tuple[str, dict[str, float]]:
    """What the headers tell of a GEMM that ran: ``match`` and ``timing`` of its :class:`GemmAnswer`."""
    parts = (part.strip().partition(";dur=") for part in headers.get("server-timing", "").split(","))
    return headers.get("tilewright-match", ""), {name: float(value) for name, _, value in parts if value}


def families() -> Call[wire.FamilyList]:
    """``GET /families``."""
    return Call("GET", "/families", model_of(wire.FamilyList))


def devices() -> Call[wire.DeviceList]:
    """``GET /devices``."""
    return Call("GET", "/devices", model_of(wire.DeviceList))


def ready() -> Call[wire.Health]:
    """``GET /health/ready``."""
    return Call("GET", "/health/ready", model_of(wire.Health))


def model_of(model: type[M]) -> Callable[[Reply], M]:
    """Reads a JSON body."""
    return lambda reply: model.model_validate_json(reply.content)


def params_of(query: BaseModel) -> dict[str, str]:
    """A query string's parameters."""
    values = query.model_dump(mode="json", exclude_none=True, exclude_unset=True).items()
    return {name: json.dumps(value) if isinstance(value, bool) else str(value) for name, value in values}


def _most_bytes(operands: Mapping[str, Tensor], query: wire.GemmQuery) -> int:
    """Most bytes that the result of these operands may have; 0 for those that the service refuses."""
    shapes = [operands[name].shape if name in operands else () for name in ("a", "b")]
    if min(map(len, shapes)) < 2:
        return 0
    (*lead, a_rows, a_columns), (*_, b_rows, b_columns) = shapes
    m = a_columns if query.layout.a_transposed else a_rows
    n = b_rows if query.layout.b_transposed else b_columns
    return math.prod(lead) * m * n * _WIDEST


def _gemm_answer(reply: Reply) -> GemmAnswer:
    from tilewright.tensors import to_array, unpack

    d, headers = to_array(unpack(reply.content)["d"]), reply.headers
    if not d.flags.writeable:  # httpx2 gives bytes
        d = d.copy()
    return GemmAnswer(d, headers["tilewright-ran"], float(headers["tilewright-kernel-us"]), *told(headers))


def _problem(reply: Reply) -> dict[str, Any]:
    try:
        return wire.ProblemDocument.model_validate_json(reply.content).model_dump(exclude_none=True)
    except ValueError:
        return {"title": "unexpected answer", "detail": reply.content[:200].decode("utf-8", "replace")}
