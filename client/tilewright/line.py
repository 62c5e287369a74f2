"""The connection under a request, to be cut by whoever no longer waits for the answer."""

from __future__ import annotations

import contextlib
import socket
from typing import Any


class Line:
    """The connection of one request. One thread follows it, another one may cut it."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._is_cut = False

    def follow(self, event: str, info: dict[str, Any]) -> None:
        """Learn of a new connection: what httpx2 takes as the extension ``trace`` of a request."""
        if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            self._socket = info["return_value"].get_extra_info("socket")
            self._end()

    def cut(self) -> None:
        """End the connection, or the next one where there is none yet; whoever reads from it sees its end."""
        self._is_cut = True
        self._end()

    def _end(self) -> None:
        # NOTE: both callers first write what they know: whichever comes second sees both.
        if self._is_cut and self._socket is not None:
            with contextlib.suppress(OSError):
                # NOTE: past the method of a TLS socket, which would take its state away from the reader.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
