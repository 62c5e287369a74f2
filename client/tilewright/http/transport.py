"""Sends calls with httpx2. Imported with the first request: that costs several times what a start from the
cache does."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import stat
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, TypeVar

import httpx2

from tilewright import forks
from tilewright.errors import ServiceUnreachable
from tilewright.http.calls import MANY_BYTES, MOST_SECONDS, ONE_BYTES, Call, Reply, answer, unreachable
from tilewright.http.sets import PUBLISHED

T = TypeVar("T")
Follower = Callable[[str, dict[str, Any]], None]
_PLAIN = {"Accept-Encoding": "identity"}
# NOTE: services keep an idle connection longer, those of earlier releases for 5 s.
_LIMITS = httpx2.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=3.0)
_SLOWEST = 2**16  # bytes a second
_until = ContextVar("until", default=math.inf)  # when the exchange of this thread or task must be over
_LOST = (httpx2.NetworkError, httpx2.RemoteProtocolError)


def connect(url: str, timeout: float, headers: Mapping[str, str], connect_s: float = 0.0) -> httpx2.Client:
    """A client of httpx2; ``connect_s`` bounds the time to connect where it is not ``timeout`` as well.

    Raises:
        ServiceUnreachable: the URL is not valid, or a proxy or certificates that the environment names.
    """
    # NOTE: making the first client of a process imports, too.
    with forks.importing(), _configured(url):
        if url.startswith("file:"):
            return httpx2.Client(base_url=url, transport=_Files(url))
        each = httpx2.Timeout(timeout, connect=connect_s or timeout)
        return httpx2.Client(
            base_url=url, timeout=each, headers={**headers, **_PLAIN}, verify=_verify(url), limits=_LIMITS
        )


def connect_async(url: str, timeout: float, headers: Mapping[str, str]) -> httpx2.AsyncClient:
    """The same for coroutines.

    Raises:
        ServiceUnreachable: as :func:`connect`.
    """
    with forks.importing(), _configured(url):
        if url.startswith("file:"):
            return httpx2.AsyncClient(base_url=url, transport=_Files(url))
        return httpx2.AsyncClient(
            base_url=url, timeout=timeout, headers={**headers, **_PLAIN}, verify=_verify(url), limits=_LIMITS
        )


class LoopConnections:
    """The client of httpx2 of each event loop: a connection works in the loop that opened it alone.

    Args:
        make: makes one.
    """

    def __init__(self, make: Callable[[], httpx2.AsyncClient]) -> None:
        self._make = make
        self._of: dict[asyncio.AbstractEventLoop, httpx2.AsyncClient] = {}

    def here(self) -> httpx2.AsyncClient:
        """The client of the running loop; clients of loops that ended are dropped."""
        loop = asyncio.get_running_loop()
        found = self._of.get(loop)
        if found is None:
            for ended in [one for one in list(self._of) if one.is_closed()]:
                self._of.pop(ended, None)
            found = self._of[loop] = self._make()
        return found

    async def close(self) -> None:
        """Close the client of the running loop."""
        found = self._of.get(asyncio.get_running_loop())
        if found:
            await found.aclose()


def _verify(url: str) -> bool:
    # NOTE: no matter of trust: plain HTTP has no certificate, and reading the authorities takes long.
    return not url.startswith("http://")


@contextlib.contextmanager
def _configured(url: str) -> Iterator[None]:
    """A context that reads proxies and certificates from the environment, which may be wrong."""
    try:
        with _reaching(url):
            yield
    except (ValueError, ImportError, OSError) as error:
        raise ServiceUnreachable(
            f"no way to {url} ({type(error).__name__}: {error}); check HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and"
            " SSL_CERT_FILE, or name the host in NO_PROXY"
        ) from error


def send(http: httpx2.Client, call: Call[T], follow: Follower | None = None) -> T:
    """The answer of a call, whose connection ``follow`` learns of as the extension ``trace`` of httpx2.

    A repeatable call that is lost on a reused connection is sent again, because the service may have closed
    the connection just then. No call is sent again after the timeout of a step, however many connections were
    kept. If the call has no sink, the timeout also bounds the whole exchange, with a second more for each 64
    KiB.

    Raises:
        ServiceUnreachable: the transport failed, or what answered is not tilewright.
        ServiceError: the service refused.
    """
    time.sleep(call.delay_s)
    body, until = _Body(call), _repeated_until(http.timeout)
    with _reaching(http.base_url):
        while True:
            way = _Way(call, http.timeout, follow)
            request = http.build_request(**_request(call, http.timeout), extensions={"trace": way.follow})
            try:
                response = http.send(request, stream=True)
                break
            except _LOST:
                if not (way.is_kept and call.repeatable and time.monotonic() < until):
                    raise
        with contextlib.closing(response):
            take = body.taker(response)
            for piece in response.iter_bytes():
                take(piece)
    return answer(call, Reply(response.status_code, response.headers, body.content))


async def send_async(http: httpx2.AsyncClient, call: Call[T]) -> T:
    """The same for coroutines.

    Raises:
        ServiceUnreachable: the transport failed, or what answered is not tilewright.
        ServiceError: the service refused.
    """
    await asyncio.sleep(call.delay_s)
    body, until = _Body(call), _repeated_until(http.timeout)
    with _reaching(http.base_url):
        while True:
            way, given = _Way(call, http.timeout), _request(call, http.timeout)
            if isinstance(call.content, list):
                given["content"] = _each(call.content)
            request = http.build_request(**given, extensions={"trace": way.follow_async})
            try:
                response = await http.send(request, stream=True)
                break
            except _LOST:
                if not (way.is_kept and call.repeatable and time.monotonic() < until):
                    raise
        async with contextlib.aclosing(response):
            take = body.taker(response)
            async for piece in response.aiter_bytes():
                take(piece)
    return answer(call, Reply(response.status_code, response.headers, body.content))


class _Way:
    """Records whether a request went over a reused connection (files have none), and bounds the exchange."""

    def __init__(self, call: Call[Any], timeout: httpx2.Timeout, follow: Follower | None = None) -> None:
        self._is_opened, self._is_sent, self._follow = False, False, follow
        self._seconds = math.inf
        if call.sink is None and timeout.read is not None:
            self._seconds = timeout.read + call.answer_s + call.sent_bytes / _SLOWEST

    @property
    def is_kept(self) -> bool:
        """Whether the request was sent over a reused connection."""
        return self._is_sent and not self._is_opened

    def follow(self, event: str, info: dict[str, Any]) -> None:
        """Learn of an event of httpx2."""
        self._is_opened |= event.endswith(".connect_tcp.started")
        if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            _bound(info["return_value"])
        if event.endswith(".send_request_headers.started"):
            self._is_sent = True
            _until.set(time.monotonic() + self._seconds)
        if self._follow:
            self._follow(event, info)

    async def follow_async(self, event: str, info: dict[str, Any]) -> None:
        """The same for coroutines."""
        self.follow(event, info)


def _bound(stream: Any) -> None:
    """Limit the reads of a connection to the time of the exchange; the timeout of httpx2 starts anew with
    each byte."""
    read, there = type(stream).read, weakref.ref(stream)  # NOTE: in a cycle it would outlive its connection

    def bounded(most: int, timeout: float | None = None) -> Any:
        left = _until.get() - time.monotonic()
        if left <= 0:
            raise httpx2.ReadTimeout("it takes too long as a whole")
        return read(there(), most, min(left, MOST_SECONDS if timeout is None else timeout))

    stream.read = bounded


class _Files(httpx2.BaseTransport, httpx2.AsyncBaseTransport):
    """Answers from a published tree in a local folder."""

    def __init__(self, url: str) -> None:
        self._folder = httpx2.URL(url).path

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        name = request.url.path.removeprefix(self._folder)
        if request.method != "GET" or not PUBLISHED.fullmatch(name):
            refusal = {"status": 404, "title": "Not found", "type": "about:blank"}
            refusal["detail"] = f"a folder answers no {request.method} {name}; use the URL of a service"
            return httpx2.Response(404, json=refusal)
        try:
            return httpx2.Response(200, content=_content(self._folder + name))
        except FileNotFoundError:
            return httpx2.Response(404, content=f"there is no file {self._folder + name}; check the URL")
        except OSError as error:
            raise httpx2.ReadError(str(error)) from error

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return await asyncio.to_thread(self.handle_request, request)


def _content(path: str) -> bytes:
    """The content of a file of a published tree; does not wait if a pipe stands in its place.

    Raises:
        OSError: it cannot be read, or is no file of a published tree.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path} is no file; use 'tilewright publish' again")
        return file.read(MANY_BYTES + 1)  # a longer one is refused with every other long answer


class _Body:
    """Receives the body of an answer: a 200 goes to the sink of its call, everything else is collected."""

    def __init__(self, call: Call[Any]) -> None:
        self._sink, self._left = call.sink, call.answer_bytes
        self._pieces: list[bytes] = []

    @property
    def content(self) -> bytes:
        return b"".join(self._pieces)

    def taker(self, response: httpx2.Response) -> Callable[[bytes], object]:
        # NOTE: a piece of a compressed answer can be a thousand times as large as what arrived.
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise ServiceUnreachable("the service compresses its answers, unasked; check the URL")
        if response.status_code >= 400:
            self._left = ONE_BYTES
        return self._sink if self._sink and response.status_code == 200 else self._collect

    def _collect(self, piece: bytes) -> None:
        self._pieces.append(piece)
        _until.set(_until.get() + len(piece) / _SLOWEST)
        self._left -= len(piece)
        if self._left < 0:
            raise ServiceUnreachable("the service sends too much; check the URL")


def _repeated_until(timeout: httpx2.Timeout) -> float:
    """When a call that begins now is no longer sent again, by ``time.monotonic()``."""
    return time.monotonic() + (math.inf if timeout.read is None else timeout.read)


def _request(call: Call[Any], timeout: httpx2.Timeout) -> dict[str, Any]:
    seconds = timeout.as_dict()
    if timeout.read is not None:
        seconds["read"] = timeout.read + call.answer_s
    return {
        "method": call.method,
        "url": call.path,
        "params": call.params,
        "content": call.content,
        "headers": call.headers,
        "timeout": httpx2.Timeout(**seconds),
    }


async def _each(parts: list[memoryview]) -> AsyncIterator[memoryview]:
    for part in parts:
        yield part


@contextlib.contextmanager
def _reaching(url: object) -> Iterator[None]:
    try:
        yield
    except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as error:
        raise unreachable(url, error) from error
