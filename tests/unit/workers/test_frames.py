"""Frames on pipes: what goes in comes out, and nothing damaged is taken for a frame."""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from tuner.workers import frames
from tuner.workers.frames import Channel, ChannelClosed, ChannelTimeout, DamagedFrame, Frame


class Pipes:
    """A channel that reads what the test writes raw, and one that talks to itself."""

    def __init__(self) -> None:
        read_fd, self.raw_write_fd = os.pipe()
        self.unread_fd, write_fd = os.pipe()
        self.channel = Channel(read_fd, write_fd)
        self.loop = Channel(*os.pipe())


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    made = Pipes()
    yield made
    made.channel.close()
    made.loop.close()
    for fd in (made.raw_write_fd, made.unread_fd):
        if fd >= 0:
            os.close(fd)


def soon() -> float:
    return time.monotonic() + 5.0


@pytest.mark.parametrize("payloads", [(), (b"",), (b"abc", b"", b"\0" * 1000)])
def test_round_trip(pipes: Pipes, payloads: tuple[bytes, ...]) -> None:
    sent = Frame({"op": "trial", "text": "µs", "number": 1.5, "none": None}, payloads)
    pipes.loop.send(sent, soon())
    assert pipes.loop.receive(soon()) == sent


def test_payload_larger_than_the_pipe(pipes: Pipes) -> None:
    payload = os.urandom(5 * 2**20)
    writer = threading.Thread(target=pipes.loop.send, args=(Frame({}, (payload, b"end")), soon()))
    writer.start()
    received = pipes.loop.receive(soon())
    writer.join()
    assert received.payloads == (payload, b"end")


def test_layout_is_pinned(pipes: Pipes) -> None:
    pipes.channel.send(Frame({"a": 1}, (b"xy",)))
    # magic, 7 header bytes, 1 payload, of 2 bytes, header, payload
    assert os.read(pipes.unread_fd, 100) == (
        b"TWF1" + b"\x07\0\0\0" + b"\x01\0\0\0" + b"\x02\0\0\0\0\0\0\0" + b'{"a":1}' + b"xy"
    )


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"Segmentation fault\n", "starts with b'TWF1', got b'Segm'"),
        (struct.pack("<4sII", b"TWF1", 2**31, 0), "header of 2147483648 bytes"),
        (struct.pack("<4sII", b"TWF1", 2, 257), "257 payloads"),
        (struct.pack("<4sIIQ", b"TWF1", 2, 1, 2**63), "payloads of 9223372036854775808 bytes"),
        (struct.pack("<4sII", b"TWF1", 3, 0) + b"{]}", "not JSON"),
        (struct.pack("<4sII", b"TWF1", 2, 0) + b"\xff\xff", "not JSON"),
        (struct.pack("<4sII", b"TWF1", 2, 0) + b"[]", "must be a JSON object, got list"),
    ],
)
def test_damage_is_named(pipes: Pipes, raw: bytes, message: str) -> None:
    os.write(pipes.raw_write_fd, raw)
    with pytest.raises(DamagedFrame) as caught:
        pipes.channel.receive(soon())
    assert message in str(caught.value)


@pytest.mark.parametrize("raw", [b"", b"TWF1\x07\0", struct.pack("<4sII", b"TWF1", 7, 0) + b'{"a"'])
def test_end_of_stream(pipes: Pipes, raw: bytes) -> None:
    os.write(pipes.raw_write_fd, raw)
    os.close(pipes.raw_write_fd)
    pipes.raw_write_fd = -1
    with pytest.raises(ChannelClosed):
        pipes.channel.receive(soon())


@pytest.mark.parametrize("raw", [b"", struct.pack("<4sII", b"TWF1", 7, 0)])
def test_receive_keeps_its_deadline(pipes: Pipes, raw: bytes) -> None:
    os.write(pipes.raw_write_fd, raw)
    start = time.monotonic()
    with pytest.raises(ChannelTimeout):
        pipes.channel.receive(start + 0.1)
    assert 0.09 <= time.monotonic() - start < 2.0


def test_send_keeps_its_deadline(pipes: Pipes) -> None:
    start = time.monotonic()
    with pytest.raises(ChannelTimeout):
        pipes.channel.send(Frame({}, (bytes(4 * 2**20),)), start + 0.1)
    assert 0.09 <= time.monotonic() - start < 2.0


def test_send_to_nobody(pipes: Pipes) -> None:
    os.close(pipes.unread_fd)
    pipes.unread_fd = -1
    with pytest.raises(ChannelClosed):
        pipes.channel.send(Frame({}))


def test_send_refuses_what_receive_would(pipes: Pipes) -> None:
    with pytest.raises(ValueError, match="257 payloads"):
        pipes.channel.send(Frame({}, (b"",) * 257))
    with pytest.raises(ValueError, match="send less at once"):
        pipes.channel.send(Frame({"text": "x" * frames.MAX_HEADER_BYTES}))
