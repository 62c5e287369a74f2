"""Frames on pipes: a JSON header and binary payloads, each with its length before it.

Layout: magic, header length (u32), number of payloads (u32), one u64 length a payload, the header
as UTF-8 JSON, the payloads. Little-endian.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import select
import struct
import time
from typing import Any

from tilewright.errors import TilewrightError

MAGIC = b"TWF1"
MAX_HEADER_BYTES = 16 * 2**20
MAX_PAYLOADS = 256
MAX_PAYLOAD_BYTES = 16 * 2**30
_PREFIX = struct.Struct("<4sII")
_PIPE_BYTES = 2**20
_CHUNK = 2**20


class FrameError(TilewrightError):
    """A frame could not be sent or received."""


class DamagedFrame(FrameError):
    """The data received is not a frame, or exceeds a size limit; the stream is unusable."""


class ChannelClosed(FrameError):
    """The other end was closed."""


class ChannelTimeout(FrameError):
    """The deadline passed; the stream may be in the middle of a frame and is unusable."""


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    """One message: plain JSON data and binary payloads."""

    header: dict[str, Any]
    payloads: tuple[bytes, ...] = ()


class Channel:
    """Sends and receives frames on a pair of pipe ends, which it owns.

    Deadlines are values of ``time.monotonic()``; None means no limit.
    """

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        for fd in (read_fd, write_fd):
            os.set_blocking(fd, False)
        _enlarge(write_fd)

    def send(self, frame: Frame, deadline: float | None = None) -> None:
        """Write one frame.

        Raises:
            ValueError: the frame is larger than the limits.
            ChannelClosed: the other end was closed.
            ChannelTimeout: the other end did not read it in time.
        """
        self._write(_prologue(frame), deadline)
        for payload in frame.payloads:
            self._write(payload, deadline)

    def receive(self, deadline: float | None = None) -> Frame:
        """Read one frame.

        Raises:
            DamagedFrame: the data received is not a frame.
            ChannelClosed: the other end was closed.
            ChannelTimeout: no complete frame arrived in time.
        """
        magic, header_bytes, count = _PREFIX.unpack(self._read(_PREFIX.size, deadline))
        _check_prefix(magic, header_bytes, count)
        sizes = struct.unpack(f"<{count}Q", self._read(8 * count, deadline))
        if sum(sizes) > MAX_PAYLOAD_BYTES:
            raise DamagedFrame(f"payloads of {sum(sizes)} bytes, at most {MAX_PAYLOAD_BYTES} are allowed")
        header = _parse_header(self._read(header_bytes, deadline))
        return Frame(header, tuple(self._read(size, deadline) for size in sizes))

    def close(self) -> None:
        """Close both pipe ends; the other side reads the end of its stream."""
        os.close(self._read_fd)
        os.close(self._write_fd)

    def _write(self, data: bytes, deadline: float | None) -> None:
        view = memoryview(data)
        while view:
            _wait(self._write_fd, select.POLLOUT, deadline)
            try:
                view = view[os.write(self._write_fd, view[:_CHUNK]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError as error:
                raise ChannelClosed("the other end stopped reading") from error

    def _read(self, size: int, deadline: float | None) -> bytes:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            _wait(self._read_fd, select.POLLIN, deadline)
            count = os.readv(self._read_fd, [view])
            if count == 0:
                raise ChannelClosed("the other end closed the stream")
            view = view[count:]
        return bytes(data)


def _wait(fd: int, event: int, deadline: float | None) -> None:
    poll = select.poll()
    poll.register(fd, event)
    left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
    if not poll.poll(left):
        raise ChannelTimeout("the other end did not answer in time")


def _prologue(frame: Frame) -> bytes:
    header = json.dumps(frame.header, separators=(",", ":")).encode()
    sizes = [len(payload) for payload in frame.payloads]
    if len(header) > MAX_HEADER_BYTES or len(sizes) > MAX_PAYLOADS or sum(sizes) > MAX_PAYLOAD_BYTES:
        raise ValueError(
            f"a frame of {len(header)} header bytes and {len(sizes)} payloads of {sum(sizes)} bytes is above"
            f" the limits of {MAX_HEADER_BYTES}, {MAX_PAYLOADS} and {MAX_PAYLOAD_BYTES}; send less at once"
        )
    return _PREFIX.pack(MAGIC, len(header), len(sizes)) + struct.pack(f"<{len(sizes)}Q", *sizes) + header


def _check_prefix(magic: bytes, header_bytes: int, count: int) -> None:
    if magic != MAGIC:
        raise DamagedFrame(f"a frame starts with {MAGIC!r}, got {magic!r}")
    if header_bytes > MAX_HEADER_BYTES:
        raise DamagedFrame(f"a header of {header_bytes} bytes, at most {MAX_HEADER_BYTES} are allowed")
    if count > MAX_PAYLOADS:
        raise DamagedFrame(f"{count} payloads, at most {MAX_PAYLOADS} are allowed")


def _parse_header(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except ValueError as error:
        raise DamagedFrame(f"the header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise DamagedFrame(f"the header must be a JSON object, got {type(header).__name__}")
    return header


def _enlarge(fd: int) -> None:
    try:
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    except PermissionError:
        return  # NOTE: above the user's pipe quota; the default size is only slower
