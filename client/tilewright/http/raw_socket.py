"""Large bodies over plain HTTP without copies: sent from where they lie, received into one buffer.

httpx2 reads 64 KiB at a time and joins them in the end, at several times the cost of the transfer.
"""

from __future__ import annotations

import contextlib
import http.client
import select
import socket
import time
import urllib.request
from collections.abc import Mapping
from typing import Any, TypeVar, cast
from urllib.parse import urlencode, urlsplit

import numpy as np

from tilewright import forks
from tilewright.http.calls import ONE_BYTES, Call, Reply, answer, unreachable

T = TypeVar("T")
_SLOWEST = 2**20  # bytes a second


def reaches(url: str) -> bool:
    """Whether plain HTTP alone reaches a service: no TLS, no proxy of the environment."""
    try:
        parts = urlsplit(url)
    except ValueError:  # not a URL, which httpx2 says better
        return False
    proxied = urllib.request.getproxies().keys() & {"http", "all"}
    bypassed = not proxied or bool(urllib.request.proxy_bypass(parts.hostname or ""))
    return parts.scheme == "http" and bypassed


class RawSocketSender:
    """Sends calls over connections that it keeps; safe to share between threads.

    Args:
        timeout: bounds each step; the wait for the answer may take ``answer_s`` of the call longer. Together
            they also bound the whole exchange, with a second more for each MiB that it moves.
    """

    def __init__(self, url: str, timeout: float, headers: Mapping[str, str]) -> None:
        self._url, self._timeout, self._headers = urlsplit(url), timeout, headers
        self._idle: list[_Connection] = []  # NOTE: append and pop are atomic
        forks.watch(self)

    def after_fork(self) -> None:
        """Close the idle connections in the child: they belong to the parent, where they stay open."""
        self.close()

    def send(self, call: Call[T]) -> T:
        """The answer of a call.

        Raises:
            ServiceUnreachable: the transport failed, or what answered is not tilewright.
            ServiceError: the service refused.
        """
        with contextlib.ExitStack() as broken:
            try:
                connection, reply = self._answered(call, broken)
            # NOTE: a port that is none and lengths that no memory has are a ValueError or a MemoryError.
            except (OSError, http.client.HTTPException, ValueError, MemoryError) as error:
                raise unreachable(self._url.geturl(), error) from error
            if connection.sock:  # else the service wants no further request on it
                broken.pop_all()
                self._idle.append(connection)
        return answer(call, reply)

    def close(self) -> None:
        """Close the connections."""
        while self._idle:
            self._idle.pop().close()

    def _connection(self) -> _Connection:
        while self._idle:
            with contextlib.suppress(IndexError):
                connection = self._idle.pop()
                if not _ended(connection):
                    return connection
                connection.close()
        host, port = self._url.hostname or "", self._url.port or 80
        return _Connection(host, port, timeout=self._timeout)

    def _answered(self, call: Call[Any], broken: contextlib.ExitStack) -> tuple[_Connection, Reply]:
        """The answer and its connection; ``broken`` closes all connections that were tried."""
        until = time.monotonic() + self._timeout
        while True:
            connection = self._connection()
            kept = connection.sock is not None
            broken.callback(connection.close)
            try:
                return connection, self._exchange(connection, call)
            except ConnectionError:
                # NOTE: the service closes idle connections, also while a request is on its way. What takes
                # each of them long to lose is sent again no later than the timeout.
                if not (kept and call.repeatable and time.monotonic() < until):
                    raise

    def _exchange(self, connection: _Connection, call: Call[Any]) -> Reply:
        until = time.monotonic() + self._timeout + call.answer_s + call.sent_bytes / _SLOWEST
        path = self._url.path.rstrip("/") + call.path
        target = f"{path}?{urlencode(call.params)}" if call.params else path
        if connection.sock is None:
            connection.connect()
        sock = connection.sock
        sock.until, sock.step_s = until, self._timeout
        # NOTE: a service that refuses early closes while we send; its answer says more than the broken pipe.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.request(call.method, target, call.content, {**self._headers, **call.headers})
        sock.step_s = self._timeout + call.answer_s
        response = connection.getresponse()
        sock.step_s = self._timeout
        headers = {name.lower(): value for name, value in response.getheaders()}
        most = call.answer_bytes if response.status == http.client.OK else ONE_BYTES
        length = response.length or 0
        if length > most:
            raise ValueError(f"an answer of {length} bytes, at most {most} are expected")
        sock.until += length / _SLOWEST
        return Reply(response.status, headers, _content(response, most))


class _Socket(socket.socket):
    """A socket that bounds each step and all steps together; the timeout of a plain socket starts anew with
    each byte.

    Attributes:
        until: when the exchange must be over, by ``time.monotonic()``.
        step_s: how long one step may take.
    """

    until = step_s = 0.0

    def sendall(self, *arguments: Any) -> None:
        self._bound()
        super().sendall(*arguments)

    def recv_into(self, *arguments: Any) -> int:
        self._bound()
        return super().recv_into(*arguments)

    def _bound(self) -> None:
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError("it takes too long as a whole")
        self.settimeout(min(self.step_s, left))


class _Connection(http.client.HTTPConnection):
    """A connection over such a socket."""

    sock: _Socket

    def connect(self) -> None:
        super().connect()
        self.sock = _Socket(fileno=self.sock.detach())


def _ended(connection: _Connection) -> bool:
    """Whether an idle connection has something to read: its end."""
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


def _content(response: http.client.HTTPResponse, most: int) -> bytes:
    if response.status != http.client.OK or response.length is None:
        found = response.read(most + 1)
        if len(found) > most:
            raise ValueError(f"an answer of more than {most} bytes")
        if response.length:
            raise http.client.IncompleteRead(found, response.length)
        return found
    buffer = np.empty(response.length, np.uint8).data
    left = buffer
    while left:
        count = response.readinto(left)
        if not count:
            raise http.client.IncompleteRead(b"", len(left))
        left = left[count:]
    return cast(bytes, buffer)  # NOTE: it is as good as bytes for the parsers of tensors
