"""The child's side of :mod:`tuner.workers.process`: answer frames until the parent is gone."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import resource
import select
import signal
import traceback
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from tuner.workers.frames import Channel, ChannelClosed, Frame
from tuner.workers.process import refusal

_PR_SET_PDEATHSIG = 1
_REST_MS = 3000


class Server(Protocol):
    """What a worker process does."""

    def greeting(self) -> dict[str, Any]:
        """Plain data that the parent gets when the process is ready."""

    def handle(self, request: Frame) -> Frame:
        """Answer one request; a true ``dying`` in the reply's header ends the process after it."""


@runtime_checkable
class Resting(Protocol):
    """A server that has something to do while nothing is asked of it."""

    def rest(self) -> None:
        """Called every few seconds meanwhile; an error ends the process."""


def serve(pipes: str, start: Callable[[], Server]) -> None:
    """Make a server and answer requests one by one until the parent closes its end.

    ``pipes`` is the ``READ,WRITE`` pair of file descriptors that
    :class:`tuner.workers.process.WorkerProcess` passes.
    An error is answered and, unless it is sticky, survived: see :mod:`tuner.workers.process`.
    """
    _prepare_process()
    read_fd, write_fd = (int(part) for part in pipes.split(","))
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
    """Until a request comes."""
    poll = select.poll()
    poll.register(read_fd, select.POLLIN)
    while not poll.poll(_REST_MS):
        try:
            server.rest()
        except Exception:
            traceback.print_exc()
            os._exit(1)  # NOTE: see above; a death between calls costs none


def _answer(server: Server, request: Frame) -> Frame:
    try:
        return server.handle(request)
    except Exception as error:
        return Frame(refusal(error))


def _prepare_process() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    faulthandler.enable()
