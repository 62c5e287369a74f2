"""The child's side of :mod:`tuner.workers.process`: answers requests until the parent closes its end."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import resource
import select
import signal
import threading
import traceback
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from kernels.compiler.cc import remove_folders
from tuner.workers.frames import Channel, ChannelClosed, Frame
from tuner.workers.process import refusal

_PR_SET_PDEATHSIG = 1
_REST_MS = 3000


class Server(Protocol):
    """The operations of a worker process."""

    def greeting(self) -> dict[str, Any]:
        """Plain data for the parent, sent when the process is ready."""

    def handle(self, request: Frame) -> Frame:
        """The reply to one request; a true ``dying`` in its header ends the process."""


@runtime_checkable
class Resting(Protocol):
    """A server with work to do while no request comes."""

    def rest(self) -> None:
        """Called every few seconds while no request comes; an error ends the process."""


def serve(pipes: str, start: Callable[[], Server], *, compiles: bool = False) -> None:
    """Make a server and answer requests one by one until the parent closes its end.

    An error is sent to the parent, and the server goes on unless the error is sticky.

    Args:
        pipes: the ``READ,WRITE`` pair of file descriptors from :class:`tuner.workers.process.WorkerProcess`.
        compiles: the server starts a compiler, which has to end with the parent too.
    """
    read_fd, write_fd = (int(part) for part in pipes.split(","))
    _prepare_process()
    if compiles:
        threading.Thread(target=_end_with_parent, args=(read_fd,), daemon=True).start()
    else:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    channel = Channel(read_fd, write_fd)
    try:
        server = start()
        greeting = Frame({"kind": "ready", **server.greeting()})
    except Exception as error:
        channel.send(Frame(refusal(error)))
        return
    channel.send(greeting)
    _answer_all(channel, server, read_fd)


def _answer_all(channel: Channel, server: Server, read_fd: int) -> None:
    while True:
        if isinstance(server, Resting):
            _rest(server, read_fd)
        try:
            request = channel.receive()
        except ChannelClosed:
            return
        reply = _answer(server, request)
        try:
            channel.send(reply)
        except (TypeError, ValueError) as error:  # not plain data, or too large; nothing was sent yet
            channel.send(Frame(refusal(error)))
        if reply.header.get("dying"):
            os._exit(1)  # NOTE: a lost CUDA context makes destructors fail or hang


def _rest(server: Resting, read_fd: int) -> None:
    """Let the server work until a request comes."""
    poll = select.poll()
    poll.register(read_fd, select.POLLIN)
    while not poll.poll(_REST_MS):
        try:
            server.rest()
        except Exception:
            traceback.print_exc()
            os._exit(1)  # NOTE: see above; a death between calls fails no call


def _answer(server: Server, request: Frame) -> Frame:
    try:
        return server.handle(request)
    except Exception as error:
        return Frame(refusal(error))


def _end_with_parent(read_fd: int) -> None:
    """Once the parent's end is closed, kill this process with its compiler, which no signal would tell."""
    poll = select.poll()
    poll.register(read_fd, 0)  # no requests: only that no process has the other end
    poll.poll()
    remove_folders(os.getpid())
    os.killpg(0, signal.SIGKILL)


def _prepare_process() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    faulthandler.enable()
