"""Sends calls with httpx2. Imported with the first request: that costs several times what a start from the
cache does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import httpx2

from tilewright import forks
from tilewright.errors import ServiceUnreachable
from tilewright.http.calls import MANY_BYTES, ONE_BYTES, Call, Reply, answer, unreachable
from tilewright.http.sets import PUBLISHED

T = TypeVar("T")
_PLAIN = {"Accept-Encoding": "identity"}


def connect(url: str, timeout: float, headers: Mapping[str, str], connect_s: float = 0.0) -> httpx2.Client:
    """A client of httpx2; ``connect_s`` bounds the time to connect where it is not ``timeout`` as well.

    Raises:
        ServiceUnreachable: the URL is not valid.
    """
    # NOTE: making the first client of a process imports, too.
    with forks.importing(), _reaching(url):
        if url.startswith("file:"):
            return httpx2.Client(base_url=url, transport=_Files(url))
        # NOTE: no matter of trust: plain HTTP has no certificate, and reading the authorities takes long.
        verify = not url.startswith("http://")
        each = httpx2.Timeout(timeout, connect=connect_s or timeout)
        return httpx2.Client(base_url=url, timeout=each, headers={**headers, **_PLAIN}, verify=verify)


def connect_async(url: str, timeout: float, headers: Mapping[str, str]) -> httpx2.AsyncClient:
    """The same for coroutines.

    Raises:
        ServiceUnreachable: the URL is not valid.
    """
    with forks.importing(), _reaching(url):
        if url.startswith("file:"):
            return httpx2.AsyncClient(base_url=url, transport=_Files(url))
        return httpx2.AsyncClient(base_url=url, timeout=timeout, headers={**headers, **_PLAIN})


def send(http: httpx2.Client, call: Call[T], **options: Any) -> T:
    """The answer of a call; ``options`` are those of a request of httpx2.

    Raises:
        ServiceUnreachable: the transport failed, or what answered is not tilewright.
        ServiceError: the service refused.
    """
    time.sleep(call.delay_s)
    body = _Body(call)
    with (
        _reaching(http.base_url),
        http.stream(**_request(call, http.timeout), **options) as response,
    ):
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
    body = _Body(call)
    request = _request(call, http.timeout)
    if isinstance(call.content, list):
        request["content"] = _each(call.content)
    with _reaching(http.base_url):
        async with http.stream(**request) as response:
            take = body.taker(response)
            async for piece in response.aiter_bytes():
                take(piece)
    return answer(call, Reply(response.status_code, response.headers, body.content))


class _Files(httpx2.BaseTransport, httpx2.AsyncBaseTransport):
    """Answers from a published tree in a local folder."""

    def __init__(self, url: str) -> None:
        self._folder = unquote(urlsplit(url).path)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        name = request.url.path.removeprefix(self._folder)
        if request.method != "GET" or not PUBLISHED.fullmatch(name):
            refusal = {"status": 404, "title": "Not found", "type": "about:blank"}
            refusal["detail"] = f"a folder answers no {request.method} {name}; use the URL of a service"
            return httpx2.Response(404, json=refusal)
        try:
            return httpx2.Response(200, content=_content(self._folder + name))
        except FileNotFoundError:
            return httpx2.Response(404, content=f"there is no file {name}")
        except OSError as error:
            raise httpx2.ReadError(str(error)) from error

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return await asyncio.to_thread(self.handle_request, request)


def _content(path: str) -> bytes:
    """What a file of a published tree holds; it waits for no pipe that stands in its place.

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
