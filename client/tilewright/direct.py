"""Large bodies over plain HTTP without copies: out as they lie, in to one buffer.

httpx2 reads 64 KiB at a time and joins them in the end, at several times the cost of the transfer.
"""

from __future__ import annotations

import contextlib
import http.client
import select
import urllib.request
from collections.abc import Mapping
from typing import Any, TypeVar, cast
from urllib.parse import urlencode, urlsplit

from tilewright import calls, transport

T = TypeVar("T")


def reaches(url: str) -> bool:
    """Whether plain HTTP alone reaches a service: no TLS, no user in the URL, no proxy of the environment."""
    parts = urlsplit(url)
    proxied = urllib.request.getproxies().keys() & {"http", "all"}
    direct = not proxied or bool(urllib.request.proxy_bypass(parts.hostname or ""))
    return parts.scheme == "http" and parts.username is None and direct


class Direct:
    """Sends calls over connections that it keeps; safe to share between threads."""

    def __init__(self, url: str, timeout: float, headers: Mapping[str, str]) -> None:
        """``timeout`` bounds each step; ``answer_s`` of a call comes on top for its answer."""
        self._url, self._timeout, self._headers = urlsplit(url), timeout, headers
        self._idle: list[http.client.HTTPConnection] = []  # NOTE: append and pop are atomic

    def send(self, call: calls.Call[T]) -> T:
        """The answer of a call.

        Raises:
            ServiceUnreachable: the transport failed, or what answered is not tilewright.
            ServiceError: the service refused.
        """
        with contextlib.ExitStack() as broken:
            connection = self._connection()
            broken.callback(connection.close)
            try:
                reply = self._exchange(connection, call)
            except (OSError, http.client.HTTPException) as error:
                raise transport.unreachable(self._url.geturl(), error) from error
            if connection.sock:  # else the service wants no further request on it
                broken.pop_all()
                self._idle.append(connection)
        return calls.answer(call, reply)

    def close(self) -> None:
        """Close the connections."""
        while self._idle:
            self._idle.pop().close()

    def _connection(self) -> http.client.HTTPConnection:
        while self._idle:
            with contextlib.suppress(IndexError):
                connection = self._idle.pop()
                if not _ended(connection):
                    return connection
                connection.close()
        host, port = self._url.hostname or "", self._url.port or 80
        return http.client.HTTPConnection(host, port, timeout=self._timeout)

    def _exchange(self, connection: http.client.HTTPConnection, call: calls.Call[Any]) -> calls.Reply:
        path = self._url.path.rstrip("/") + call.path
        target = f"{path}?{urlencode(call.params)}" if call.params else path
        if connection.sock is None:
            connection.connect()
        # NOTE: whoever refuses early closes while we send; its answer says more than the broken pipe.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.request(call.method, target, call.content, {**self._headers, **call.headers})
        connection.sock.settimeout(self._timeout + call.answer_s)
        answer = connection.getresponse()
        if connection.sock:
            connection.sock.settimeout(self._timeout)
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return calls.Reply(answer.status, headers, _content(answer))


def _ended(connection: http.client.HTTPConnection) -> bool:
    """Whether an idle connection has something to read: its end."""
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


def _content(answer: http.client.HTTPResponse) -> bytes:
    if answer.status != http.client.OK or answer.length is None:
        return answer.read()
    import numpy as np

    buffer = np.empty(answer.length, np.uint8).data
    left = buffer
    while left:
        count = answer.readinto(left)
        if not count:
            raise http.client.IncompleteRead(b"", len(left))
        left = left[count:]
    return cast(bytes, buffer)  # NOTE: it is as good as bytes for the parsers of tensors
