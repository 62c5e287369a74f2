"""A proxy between processes of this machine and a port, which can cut one of them off: as in a network that
drops its packets nothing passes and nothing ends, and what was sent meanwhile arrives once it is mended."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

_PIECE = 2**16


class CutProxy:
    """Listens on a free port of loopback.

    Attributes:
        port: where it listens.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._gates: dict[int, threading.Event] = {}  # by the port of the other end
        self._cut: int | None = None
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Listen no more; connections end with their ends."""
        self.mend()
        self._listener.close()

    def cut(self, pid: int) -> None:
        """Let nothing pass to or from a process until :meth:`mend`."""
        with self._lock:
            self._cut = pid
            for port in _ports_of(pid) & self._gates.keys():
                self._gates[port].clear()

    def mend(self) -> None:
        """Let everything pass."""
        with self._lock:
            self._cut = None
            for gate in self._gates.values():
                gate.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, (_, port) = self._listener.accept()
                gate = threading.Event()
                with self._lock:
                    self._gates[port] = gate
                    if self._cut is None or port not in _ports_of(self._cut):
                        gate.set()
                threading.Thread(target=self._connect, args=(near, gate), daemon=True).start()

    def _connect(self, near: socket.socket, gate: threading.Event) -> None:
        gate.wait()
        try:
            far = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            near.close()
            return
        for source, target in ((near, far), (far, near)):
            threading.Thread(target=_pump, args=(source, target, gate), daemon=True).start()


def _pump(source: socket.socket, target: socket.socket, gate: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(_PIECE):
            gate.wait()
            target.sendall(piece)
    gate.wait()
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
    source.close()


def _ports_of(pid: int) -> set[int]:
    """The local ports of a process's TCP sockets; none where it ended."""
    inodes = set(_inodes(pid))
    lines = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return {int(fields[1].rpartition(":")[2], 16) for fields in lines if fields[9] in inodes}


def _inodes(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                name = os.readlink(descriptor)
                if name.startswith("socket:["):
                    yield name[len("socket:[") : -1]
