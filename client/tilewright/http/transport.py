"""Sends calls with httpx2. Imported with the first request: that costs several times what a start from the
cache does."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, TypeVar

import httpx2

from tilewright import forks
from tilewright.errors import ServiceUnreachable
from tilewright.http.calls import Call, Reply, answer, unreachable

T = TypeVar("T")


def connect(url: str, timeout: float, headers: Mapping[str, str], connect_s: float = 0.0) -> httpx2.Client:
    """A client of httpx2; ``connect_s`` bounds the time to connect where it is not ``timeout`` as well.

    Raises:
        ServiceUnreachable: the URL is not valid.
    """
    # NOTE: making the first client of a process imports, too.
    with forks.importing(), _reaching(url):
        # NOTE: no matter of trust: plain HTTP has no certificate, and reading the authorities takes long.
        verify = not url.startswith("http://")
        each = httpx2.Timeout(timeout, connect=connect_s or timeout)
        return httpx2.Client(base_url=url, timeout=each, headers=dict(headers), verify=verify)


def connect_async(url: str, timeout: float, headers: Mapping[str, str]) -> httpx2.AsyncClient:
    """The same for coroutines.

    Raises:
        ServiceUnreachable: the URL is not valid.
    """
    with forks.importing(), _reaching(url):
        return httpx2.AsyncClient(base_url=url, timeout=timeout, headers=dict(headers))


def send(http: httpx2.Client, call: Call[T], most_bytes: float = math.inf, **options: Any) -> T:
    """The answer of a call, of at most so many bytes; ``options`` are those of a request of httpx2.

    Raises:
        ServiceUnreachable: the transport failed, or what answered is not tilewright.
        ServiceError: the service refused.
    """
    time.sleep(call.delay_s)
    body = _Body(call, most_bytes)
    with (
        _reaching(http.base_url),
        http.stream(**_request(call, http.timeout), **options) as response,
    ):
        take = body.taker(response.status_code)
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
    body = _Body(call, math.inf)
    request = _request(call, http.timeout)
    if isinstance(call.content, list):
        request["content"] = _each(call.content)
    with _reaching(http.base_url):
        async with http.stream(**request) as response:
            take = body.taker(response.status_code)
            async for piece in response.aiter_bytes():
                take(piece)
    return answer(call, Reply(response.status_code, response.headers, body.content))


class _Body:
    """Receives the body of an answer: a 200 goes to the sink of its call, everything else is collected."""

    def __init__(self, call: Call[Any], most_bytes: float) -> None:
        self._sink, self._left = call.sink, most_bytes
        self._pieces: list[bytes] = []

    @property
    def content(self) -> bytes:
        return b"".join(self._pieces)

    def taker(self, status: int) -> Callable[[bytes], object]:
        return self._sink if self._sink and status == 200 else self._collect

    def _collect(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._left -= len(piece)
        if self._left < 0:
            raise ServiceUnreachable("the service sends too much; check the URL")


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
