"""Dependencies of the handlers."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any, get_args
from weakref import WeakKeyDictionary

from fastapi import Depends, Header, Path, Request
from fastapi.dependencies.utils import get_flat_params
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from service.engine.base import Engine
from service.engine.database_health import DatabaseHealth
from service.engine.event_feed import EventFeed
from service.engine.retune import StaleResults
from service.engine.upkeep import Upkeep
from service.errors import Kind, Refusal
from service.gemm.estimates import Estimates
from service.gemm.memory import GemmMemory
from service.gemm.run import GemmRunner
from service.http.access import Admitted, counted_address
from service.http.conditional import InFlight
from service.metrics import Metrics
from service.results.answer_cache import AnswerCache
from service.results.quality import ResultQuality
from service.results.served import ServedSets
from service.settings import Settings
from service.signing import Signer
from service.web.now import JobWatch
from service.web.shared_work import SharedWork
from tilewright.http.tensors import MEDIA_TYPE
from tilewright.schema.device import DeviceSpec
from tuner.store.access import audit
from tuner.store.database import Store
from tuner.workers.shared_memory import Pages

RAW = "application/octet-stream"


@dataclasses.dataclass(frozen=True, slots=True)
class Imports:
    """Imports that are at work.

    Attributes:
        places: how many may be received, wait or be at work.
        turn: one of them is at work.
    """

    places: asyncio.Semaphore
    turn: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)


@dataclasses.dataclass(frozen=True, slots=True)
class MissJobs:
    """Requests for jobs for misses.

    Attributes:
        turn: one of them is in work.
        able: the families that compute the problems of misses, by device and by the texts of the problems.
    """

    turn: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)
    able: defaultdict[DeviceSpec, dict[str, frozenset[str]]] = dataclasses.field(
        default_factory=lambda: defaultdict(dict)
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Everything a request works with.

    Attributes:
        store: the database, for requests, which do not wait for long.
        health: what the database was able to at the last look.
        upkeep: prunes the database.
        gemms: runs GEMM requests.
        gemm_slots: how many GEMMs may be at work.
        gemm_memory: where the bodies and results of GEMM requests lie.
        imports: those at work.
        set_turns: one of those who waited for a config set is being answered, in each event loop.
        events: of jobs that are followed.
        quality: what stored results are worth today.
        served: what device classes are served.
        estimates: of the times of GEMMs on a device class, as its winners stand.
        answer_cache: of ``GET /best-config``, which are given again while nothing changed.
        metrics: what ``GET /metrics`` tells.
        in_flight: idempotency keys of requests in work.
        stale: notes stale results that are served.
        signer: vouches for what is handed out.
        watch: how jobs come along, for the page.
        shared: what takes long to make, for the page and for reports.
        miss_jobs: requests for jobs for misses.
    """

    settings: Settings
    store: Store
    health: DatabaseHealth
    upkeep: Upkeep
    engine: Engine
    gemms: GemmRunner
    gemm_slots: asyncio.Semaphore
    gemm_memory: GemmMemory
    imports: Imports
    set_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = dataclasses.field(
        default_factory=WeakKeyDictionary
    )
    events: EventFeed
    quality: ResultQuality
    served: ServedSets
    estimates: Callable[[str], Estimates]
    answer_cache: AnswerCache
    stale: StaleResults
    metrics: Metrics
    in_flight: InFlight = dataclasses.field(default_factory=InFlight)
    signer: Signer
    watch: JobWatch
    shared: SharedWork
    miss_jobs: MissJobs = dataclasses.field(default_factory=MissJobs)


# NOTE: a coroutine, because FastAPI sends plain functions through a thread, 0.1 ms a request.
async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def caller(request: Request) -> str:
    """The caller of a request: the id of its key, else its address."""
    return request.scope.get("key_id") or (counted_address(request.client.host) if request.client else "")


def who(request: Request) -> str:
    """The caller as the audit log names it."""
    key_id = request.scope.get("key_id")
    return audit.who_is(caller(request), by_key=bool(key_id))


ServiceDep = Annotated[Service, Depends(_service)]


async def check_plain(request: Request) -> None:
    """Dependency of every route: the query gives nothing twice, and numbers are written as everywhere else.

    Raises:
        RequestValidationError: FastAPI would take the last of several values, and numbers as Python reads
            them, such as ``4_8``, ``+70`` and those with blanks around them.
    """
    given = request.query_params.multi_items()
    times = Counter(name for name, _ in given)
    repeated = [(name, f"is given {n} times; give it once") for name, n in times.items() if n > 1]
    broken = [_broken("query", *one) for one in repeated]
    odd = [name for name, text in (*given, *request.path_params.items()) if _is_odd_number(text)]
    if odd:
        numbers = _numbers(request.scope["route"])
        places = [
            ("path" if name in request.path_params else "query", name) for name in odd if name in numbers
        ]
        broken += [_broken(*place, _ODD_NUMBER) for place in places]
    if broken:
        raise RequestValidationError(broken)


_ODD = re.compile(r"[^0-9A-Za-z.+-]|^\+")
_ODD_NUMBER = "write the number in digits, such as 16 or 0.5, without blanks, '_' or a '+' before it"


def _broken(place: str, name: str, rule: str) -> dict[str, Any]:
    return {"type": "value_error", "loc": (place, name), "msg": rule}


def _is_odd_number(text: str) -> bool:
    if not _ODD.search(text):
        return False
    try:
        float(text)
    except ValueError:
        return False
    return True


def _numbers(route: APIRoute) -> set[str]:
    """The names of the numbers in the path and the query of a route."""
    return {one.alias for one in get_flat_params(route.dependant) if _is_number(one.field_info.annotation)}


def _is_number(kind: Any) -> bool:
    return kind in (int, float) or any(map(_is_number, get_args(kind)))


def _admitted(request: Request) -> Admitted:
    found: Admitted = request.scope["admitted"]
    return found


AdmittedDep = Annotated[Admitted, Depends(_admitted)]
GivenKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        pattern="^[!-~]+$",
        description="Makes repeating the request safe for 24 hours, the last 10,000 of each caller",
    ),
]


def _idempotency_key(request: Request, service: ServiceDep, given: GivenKey = None) -> Iterator[str | None]:
    if given is None:
        yield None
        return
    # NOTE: different callers never meet under one idempotency key; an IPv6 address has colons.
    key = f"{caller(request).replace(':', '-')}:{given}"
    with service.in_flight.claim(key):
        yield key


IdempotencyKey = Annotated[str | None, Depends(_idempotency_key, scope="function")]


@dataclasses.dataclass(frozen=True, slots=True)
class GemmBytes:
    """The bytes of a GEMM request: what came, in how many seconds, and room for what goes back."""

    media_type: str
    body: Pages
    body_s: float
    result: Pages


async def _gemm_slot(service: ServiceDep) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(service.settings.gemm_wait_s):
            await service.gemm_slots.acquire()
    except TimeoutError as error:
        service.metrics.gemm_refusals.labels("too-many").inc()
        limit = service.settings.max_gemms
        detail = f"{limit} GEMMs are at work (max_gemms); try again in a second"
        raise Refusal(Kind.TOO_MANY_GEMMS, detail, retry_after=1) from error
    try:
        yield
    finally:
        service.gemm_slots.release()


# NOTE: given back before the answer is sent: a caller that does not read it keeps nobody waiting.
GemmSlot = Annotated[None, Depends(_gemm_slot, scope="function")]


async def _gemm_bytes(request: Request, service: ServiceDep) -> AsyncIterator[GemmBytes]:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in (MEDIA_TYPE, RAW):
        detail = f"sent as {media_type or 'no Content-Type'}; send 'Content-Type: {MEDIA_TYPE}' or '{RAW}'"
        raise Refusal(Kind.MEDIA_TYPE, detail)
    started = time.perf_counter()
    declared = request.headers.get("content-length", "")
    size = int(declared) if declared.isdecimal() else 0
    with service.gemm_memory.request(caller(request), size) as (body, result):
        async for chunk in request.stream():
            body.append(chunk)
        yield GemmBytes(media_type, body, time.perf_counter() - started, result)


GemmBody = Annotated[GemmBytes, Depends(_gemm_bytes)]
IfNoneMatch = Annotated[str | None, Header()]
AcceptEncoding = Annotated[str | None, Header()]
IfMatch = Annotated[
    str | None, Header(description="ETag of GET /config-sets/current: change it only while that is served")
]
JobId = Annotated[str, Path(pattern="^[0-9a-f]{32}$", description="As in the answer of POST /tune")]
Digest = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="SHA-256 of the artifact in hex")]
SetDigest = Annotated[str, Path(pattern="^sha256:[0-9a-f]{64}$", description="As in digest of a config set")]
