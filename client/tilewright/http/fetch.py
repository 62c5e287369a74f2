"""Requests with a time limit: each has a connection of its own that another thread can close."""

from __future__ import annotations

import contextlib
import hashlib
import queue
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tilewright import forks
from tilewright.artifact import bundle
from tilewright.errors import ArtifactError, ServiceError, ServiceUnreachable
from tilewright.http.calls import KERNEL_BYTES, Call, Sender
from tilewright.http.endpoints import Endpoints
from tilewright.http.result_endpoints import bundle_calls
from tilewright.http.sets import kernel_path
from tilewright.lazy import LazyModule
from tilewright.trust import ServiceKey

if TYPE_CHECKING:
    import httpx2

    from tilewright.http import transport
else:
    transport = LazyModule("tilewright.http.transport")

T = TypeVar("T")
_CONNECT_S = 5.0
_AT_ONCE, _FILES = 8, 16  # connections to a published tree, and kernels that each fetches one after the other


class CancellableConnection:
    """The connection of one request. One thread follows it, another one may cancel it."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._cancelled = False

    def follow(self, event: str, info: dict[str, Any]) -> None:
        """Note a new connection; httpx2 takes this method as the extension ``trace`` of a request."""
        if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            self._socket = info["return_value"].get_extra_info("socket")
            self._end()

    def cancel(self) -> None:
        """Close the connection, or the next one if there is none yet; a reading thread sees its end."""
        self._cancelled = True
        self._end()

    def _end(self) -> None:
        # NOTE: both callers first write what they know, so the second of them sees both.
        if self._cancelled and self._socket is not None:
            with contextlib.suppress(OSError):
                # NOTE: past the method of a TLS socket, which would take its state away from the reader.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


class _Connections:
    """The connections of one fetch, of several threads, which end together."""

    def __init__(self) -> None:
        self._all, self.cancelled = list[CancellableConnection](), False

    def new(self) -> CancellableConnection:
        """A new connection; after :meth:`cancel` it opens nothing."""
        connection = CancellableConnection()
        self._all.append(connection)
        if self.cancelled:
            connection.cancel()
        return connection

    def cancel(self) -> None:
        """Close all of them, also those that a thread opens later."""
        self.cancelled = True
        for connection in list(self._all):
            connection.cancel()


class Fetcher(Endpoints, Sender):
    """The endpoints, each call over a connection of its own, so that a forked child never shares one.

    Args:
        url: of the service.
        headers: sent along, for instance the API key.
        service_key: whose signatures count.
        seconds: bound of one request as a whole, from looking up the name to the last byte of the answer.
    """

    def __init__(
        self, url: str, headers: Mapping[str, str], service_key: ServiceKey, seconds: float = 30.0
    ) -> None:
        self.url, self._headers, self._seconds = url, headers, seconds
        self.service_key = service_key

    def bundle(self, digest: str, want: Sequence[str], everything: bool) -> dict[str, bytes]:
        """Artifacts of a set by digest, those that arrived whole and match their digest.

        Args:
            want: their digests.
            everything: whether ``want`` is all artifacts of the set, so that one request fetches them.

        Raises:
            ServiceUnreachable, ServiceError: a request failed.
        """
        if self.published is None:  # the set lay in the cache
            Sender._run(self, lambda: Endpoints.config_set(self, digest))
        if self.published:
            return self._files(want)
        found: dict[str, bytes] = {}
        for call in bundle_calls(digest, None if everything else want):
            with contextlib.suppress(ArtifactError):  # it ended early: what came before that stands
                for name, data in bundle.frames(self._send(call)):
                    if hashlib.sha256(data).hexdigest() == name:
                        found[name] = bytes(data)
        return {name: found[name] for name in want if name in found}

    def _files(self, want: Sequence[str]) -> dict[str, bytes]:
        """The artifacts of a published tree that exist, arrived whole and match their digest.

        Raises:
            ServiceUnreachable: none arrived.
            TilewrightError: an answer must not be accepted; no further request is made.
        """
        connections = _Connections()
        try:
            return self._fetched(want, connections)
        finally:
            connections.cancel()

    def _fetched(self, want: Sequence[str], connections: _Connections) -> dict[str, bytes]:
        parts, arrived = queue.SimpleQueue[Sequence[str]](), queue.SimpleQueue[list[bytes] | Exception]()
        for first in range(0, len(want), _FILES):
            parts.put(want[first : first + _FILES])
        count = parts.qsize()

        def fetch() -> None:
            with contextlib.suppress(queue.Empty):
                while not connections.cancelled and (part := parts.get_nowait()):
                    try:
                        arrived.put(self._part(part, connections.new()))
                    except Exception as error:  # told to the thread that waits
                        arrived.put(error)

        # NOTE: no pool of concurrent.futures: the process would wait for its threads before it ends.
        for _ in range(min(_AT_ONCE, count)):
            forks.start_thread(fetch, "tilewright-files")
        found, failures = list[bytes](), list[ServiceUnreachable]()
        for _ in range(count):
            part = arrived.get()
            if isinstance(part, ServiceUnreachable):  # what the others brought stands
                failures.append(part)
            elif isinstance(part, Exception):
                raise part
            else:
                found += part
        if failures and not found:
            raise failures[0]
        by_name = {hashlib.sha256(data).hexdigest(): data for data in found}
        return {name: by_name[name] for name in want if name in by_name}

    def _part(self, want: Sequence[str], connection: CancellableConnection) -> list[bytes]:
        def read(http: httpx2.Client, follow: transport.Follower) -> list[bytes]:
            found = []
            for name in want:
                call = Call("GET", kernel_path(name), lambda reply: reply.content, answer_bytes=KERNEL_BYTES)
                with contextlib.suppress(ServiceError):  # the others are worth having
                    found.append(transport.send(http, call, follow))
            return found

        return self._bounded(read, connection)

    def _send(self, call: Call[T]) -> T:
        def send(http: httpx2.Client, follow: transport.Follower) -> T:
            return transport.send(http, call, follow)

        return self._bounded(send, CancellableConnection())

    def _bounded(self, exchange: Callable[..., T], connection: CancellableConnection) -> T:
        # NOTE: the timeouts of httpx2 are for one step each; a service that drips would meet all of them, and
        # looking up a name has none. So the request has a thread of its own, which may be left behind.
        outcome = queue.SimpleQueue[tuple[T | None, Exception | None]]()

        def request() -> None:
            try:
                outcome.put((self._connected(exchange, connection), None))
            except Exception as error:  # raised where the answer is waited for
                outcome.put((None, error))

        forks.start_thread(request, "tilewright-request")
        try:
            answer, failure = outcome.get(timeout=self._seconds)
        except queue.Empty:
            connection.cancel()
            raise ServiceUnreachable(
                f"{self.url} took more than {self._seconds:g} s to answer; try again"
            ) from None
        if failure is None:
            return cast(T, answer)
        try:
            raise failure
        finally:
            del failure  # NOTE: its traceback would keep it, and the answer with it, in a cycle

    def _connected(self, exchange: Callable[..., T], connection: CancellableConnection) -> T:
        connect_s = min(_CONNECT_S, self._seconds)
        with transport.connect(self.url, self._seconds, self._headers, connect_s) as http:
            return exchange(http, connection.follow)
