"""Connections: how many there are, and how long a peer may take to send a request and to read an answer.

uvicorn bounds neither: half a header, or an answer that is never read, would hold its descriptor for good.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import secrets
import sys
from collections import defaultdict
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from service.errors import Kind
from service.http.access import counted_address
from service.http.errors import MEDIA_TYPE

BACKLOG = 128
PATIENCE_S = 10.0
# NOTE: an idle connection is closed in order before that, and later than the 5 s for which many clients use
# one again: a request that is on its way then is lost.
IDLE_S = 8
_SLOWEST_BYTES = 64 * 1024
_SLOWEST_GEMM_BYTES = 1024 * 1024  # NOTE: a GEMM holds its operands or its result meanwhile, 1 GiB at most
# NOTE: the event loop accepts a whole backlog a turn, and takes three more turns to make and close the first.
_UNMADE = 4 * BACKLOG
_OTHER_FILES = 256  # of the database, the workers and the log
_LEAST = 16
_TOLD = 200  # characters of what h11 says
_FEW = 8  # an eighth of the connections
log = logging.getLogger("tilewright.connections")


def slowest_bytes(path: str) -> int:
    """How many bytes a second a peer must send or read, ``PATIENCE_S`` seconds apart."""
    return _SLOWEST_GEMM_BYTES if path == "/gemm" else _SLOWEST_BYTES


def most_connections(wanted: int) -> int:
    """``wanted``, or as many as this process may open files for; its limit is raised as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = max(soft, min(hard, wanted + _UNMADE + _OTHER_FILES))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    found = min(wanted, max(_LEAST, soft - _UNMADE - _OTHER_FILES))
    if found < wanted:
        log.warning("%d connections instead of %d: a process may open %d files here", found, wanted, soft)
    return found


class Connections:
    """The connections of a service; calling it makes one, as uvicorn makes its protocols.

    If there are too many, the connection that has sent no whole request for the longest time is cut. If
    nearly all are at work, the oldest of the caller with the most connections at work is cut instead, so that
    no caller keeps others out by endless streams. If that caller has only a few, for instance because all
    callers are different, the first rule applies, and it cuts the new one if all others are at work.
    """

    def __init__(self, most: int) -> None:
        self._most, self._few = most, most // _FEW
        self._busy: dict[BoundedConnection, None] = {}  # the oldest first, as in the next one
        self._waiting: dict[BoundedConnection, None] = {}

    def __call__(self, **options: Any) -> BoundedConnection:
        """A new connection."""
        return BoundedConnection(self, **options)

    def note(self, connection: BoundedConnection, busy: bool) -> None:
        """A connection has a whole request in work, or waits for one."""
        if busy:
            self._waiting.pop(connection, None)
            self._busy.setdefault(connection)
            return
        self._busy.pop(connection, None)
        self._waiting.setdefault(connection)
        if len(self._waiting) + len(self._busy) > self._most:
            group = self._largest() if len(self._waiting) <= self._few else []
            next(iter(group if len(group) > self._few else self._waiting)).cut()

    def _largest(self) -> list[BoundedConnection]:
        """The connections at work of the caller who has most of them."""
        by_caller = defaultdict[str, list[BoundedConnection]](list)
        for one in self._busy:
            by_caller[one.caller].append(one)
        return max(by_caller.values(), key=len, default=[])

    def forget(self, connection: BoundedConnection) -> None:
        """A connection ends."""
        self._waiting.pop(connection, None)
        self._busy.pop(connection, None)


class BoundedConnection(H11Protocol):
    """A connection that is cut ``PATIENCE_S`` seconds after it was made or had its last answer unless a
    whole header came, and where its peer reads an answer more slowly than :func:`slowest_bytes`."""

    def __init__(self, connections: Connections, **options: Any) -> None:
        super().__init__(**options)
        self._all = connections
        self._is_cut = False
        self._header_by: asyncio.TimerHandle | None = None
        self._read_by: asyncio.TimerHandle | None = None
        # What the peer has read of this answer, and for how many seconds it kept it waiting.
        self._read_bytes, self._buffered, self._blocked_s, self._paused_at = 0, 0, 0.0, 0.0

    @property
    def caller(self) -> str:
        """Whose request it has in work: the id of a key, else an address."""
        key_id = (self.scope or {}).get("key_id")
        return str(key_id or (counted_address(self.client[0]) if self.client else ""))

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for its first request."""
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        super().connection_lost(exc)
        self._forget()

    def handle_events(self) -> None:
        """Take in what came; called after each answer, too."""
        super().handle_events()
        self._watch()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, which no middleware sees, with a problem document."""
        request_id = secrets.token_hex(8)
        log.info("request %s is not HTTP", request_id)  # NOTE: no reason, in which a header with a key may be
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # it has an answer, or a part of one
            self.cut()
            return
        why = str(sys.exception() or msg)  # NOTE: uvicorn calls this while it handles the error of h11
        detail = f"not an HTTP/1.1 request: {why[:_TOLD]}; send one as RFC 9112 describes it"
        document = Kind.BAD_REQUEST.document(detail, request_id=request_id)
        content = document.model_dump_json(exclude_none=True).encode()
        headers = {"Content-Type": MEDIA_TYPE, "Content-Length": str(len(content)), "Connection": "close"}
        headers["X-Request-ID"] = request_id
        head = h11.Response(status_code=document.status, headers=[*headers.items()], reason=b"Bad Request")
        is_head = bool(self.scope) and self.scope["method"] == "HEAD"
        body = [] if is_head and self.conn.our_state is h11.SEND_RESPONSE else [h11.Data(content)]
        for event in (head, *body, h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._read_bytes, self._blocked_s = 0, 0.0
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        """The buffers are full: the peer has its time to read them."""
        super().pause_writing()
        self._paused_at, self._buffered = self.loop.time(), self.transport.get_write_buffer_size()
        path = self.scope["path"] if self.scope else ""
        allowed_s = PATIENCE_S + (self._read_bytes + self._buffered) / slowest_bytes(path)
        self._read_by = self.loop.call_later(allowed_s - self._blocked_s, self.cut)

    def resume_writing(self) -> None:
        """The peer has read."""
        super().resume_writing()
        self._blocked_s += self.loop.time() - self._paused_at
        self._read_bytes += self._buffered - self.transport.get_write_buffer_size()
        if self._read_by:
            self._read_by.cancel()

    def cut(self) -> None:
        """End it at once, also if the peer has yet to read something."""
        self._forget()
        self.transport.abort()

    def _watch(self) -> None:
        if self._is_cut:
            return
        answering = self.cycle is not None and not self.cycle.response_complete
        self._all.note(self, answering and self.conn.their_state not in (h11.IDLE, h11.SEND_BODY))
        if answering and self._header_by:
            self._header_by.cancel()
            self._header_by = None
        elif not answering and not self._header_by:
            self._header_by = self.loop.call_later(PATIENCE_S, self.cut)

    def _forget(self) -> None:
        self._is_cut = True
        self._all.forget(self)
        for timer in (self._header_by, self._read_by):
            if timer:
                timer.cancel()
