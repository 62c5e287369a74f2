"""Large bodies without copies: early refusals, late answers, and connections that are kept."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import gc
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest
from sweeps import every

from tilewright import AsyncClient, Client
from tilewright.errors import ServiceError, ServiceUnreachable, TilewrightError
from tilewright.http import transport
from tilewright.http.calls import Call
from tilewright.http.gemm_calls import GemmAnswer, gemm_call
from tilewright.http.raw_socket import RawSocketSender, reaches
from tilewright.http.tensors import from_array, pieces

PRODUCT = b"".join(pieces({"d": from_array("d", np.arange(6, dtype="f4").reshape(2, 3))}))
TOLD = {
    "Tilewright-Ran": "numpy",
    "Tilewright-Kernel-Us": "1.5",
    "Server-Timing": "body;dur=2.5, wait;dur=0.5",
}

LOSES = {"lose": 0.0, "lose late": 0.6}  # after so many seconds
CHUNKED = {"Transfer-Encoding": "chunked"}
LIES: dict[str, tuple[int, dict[str, str], bytes, float]] = {
    "more than memory": (200, {"Content-Length": "99999999999999999"}, b"x", 0.05),
    "more than a size": (200, {"Content-Length": "9" * 30}, b"x", 0.05),
    "more than a product": (200, {"Content-Length": str(2**30)}, bytes(2**16), 0.0),
    "drip": (200, {"Content-Length": "500"}, b"x", 0.05),
    "drip of chunks": (200, CHUNKED, b"1\r\nx\r\n", 0.05),
    "drip of headers": (200, {}, b"", 0.05),
    "endless chunks": (200, CHUNKED, b"10000\r\n" + bytes(2**16) + b"\r\n", 0.0),
    "endless": (200, {}, bytes(2**16), 0.0),
    "endless error": (500, {}, bytes(2**16), 0.0),
    "long error": (500, {"Content-Length": "99999999999999999"}, bytes(2**16), 0.0),
}


class Handler(BaseHTTPRequestHandler):
    """Answers as the server's ``mode`` says; notes the clients' addresses and bodies."""

    protocol_version = "HTTP/1.1"
    server: Any

    def do_POST(self) -> None:
        mode = self.server.mode
        if mode == "early":
            self.close_connection = True
            self._send(413, b'{"type": "x", "status": 413, "title": "Too large", "detail": "less, please"}')
            self.connection.shutdown(socket.SHUT_RD)
            return
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if mode in LOSES and self.client_address[1] in {seen[0] for seen in self.server.seen}:
            time.sleep(LOSES[mode])
            self.close_connection = True
            self.server.lost += 1
            return
        if mode in LIES:
            self.close_connection = True
            self._lie(*LIES[mode])
            return
        self.server.seen.append((self.client_address[1], self.path, self.headers["Authorization"], len(body)))
        if mode == "late":
            time.sleep(0.6)
        if mode == "never":
            self.server.ended.wait(10)
            self.close_connection = True
            return
        if mode == "slow":
            time.sleep(0.2)
        self._send(200, PRODUCT, short=8 if mode == "short" else 0)
        if mode in ("short", "once"):
            self.close_connection = True

    def _lie(self, status: int, headers: dict[str, str], part: bytes, pause_s: float) -> None:
        """Send some headers and the same bytes for ever."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(OSError):
            while not self.server.ended.wait(pause_s):
                self.wfile.write(part)
                self.server.sent += len(part)

    def _send(self, status: int, content: bytes, short: int = 0) -> None:
        self.send_response(status)
        for name, value in {**TOLD, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content[: len(content) - short])

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[Any]:
    running: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running.mode, running.seen, running.ended, running.sent = "ok", [], threading.Event(), 0
    running.lost = 0
    running.daemon_threads = True
    thread = threading.Thread(target=running.serve_forever, args=(0.02,))
    thread.start()
    yield running
    running.ended.set()
    running.shutdown()
    thread.join()
    running.server_close()


@pytest.fixture
def sender(server: Any) -> Iterator[RawSocketSender]:
    made = RawSocketSender(f"http://127.0.0.1:{server.server_port}/at/", 0.4, {"Authorization": "Bearer k"})
    yield made
    made.close()


def call(answer_s: float = 0.0, rows: int = 2) -> Call[GemmAnswer]:
    made = gemm_call({"a": np.ones((rows, 1024), "f4"), "b": np.ones((1024, 3), "f4")}, {"alpha": 2.0})
    return dataclasses.replace(made, answer_s=answer_s)


def test_one_connection_serves_one_call_after_the_other(server: Any, sender: RawSocketSender) -> None:
    answers = [sender.send(call()) for _ in range(3)]
    assert all((answer.d == np.arange(6.0).reshape(2, 3)).all() for answer in answers)
    assert answers[0].timing == {"body": 2.5, "wait": 0.5}
    assert (answers[0].ran, answers[0].kernel_us, answers[0].match) == ("numpy", 1.5, "")
    assert len({seen[0] for seen in server.seen}) == 1
    size = sum(map(len, call().content or ()))
    assert server.seen[0][1:] == ("/at/gemm?alpha=2.0", "Bearer k", size)


def test_large_bodies_carry_the_user_of_a_url(server: Any) -> None:
    with Client(f"http://me:secret@127.0.0.1:{server.server_port}") as client:
        client._send(call())
    assert server.seen[0][2] == "Basic bWU6c2VjcmV0"


def test_a_connection_that_ended_meanwhile_is_replaced(server: Any, sender: RawSocketSender) -> None:
    server.mode = "once"
    for _ in range(3):
        sender.send(call())
        time.sleep(0.05)
    assert len({seen[0] for seen in server.seen}) == 3


Send = Callable[[Call[Any]], Any]


@pytest.fixture(params=["raw", "httpx2", "httpx2 of coroutines"])
def send(request: pytest.FixtureRequest, server: Any, sender: RawSocketSender) -> Iterator[Send]:
    url = f"http://127.0.0.1:{server.server_port}"
    if request.param == "raw":
        yield sender.send
    elif request.param == "httpx2":
        with Client(url) as client:
            yield lambda one: transport.send(client._http.get(), one)
    else:
        coroutines = AsyncClient(url)
        with asyncio.Runner() as runner:
            yield lambda one: runner.run(coroutines._send(one))
            runner.run(coroutines.close())


def test_a_request_is_sent_again_if_its_connection_was_closed_just_then(server: Any, send: Send) -> None:
    send(call())
    server.mode = "lose"
    assert send(call()).ran == "numpy"
    assert server.lost == 1
    keyed = dataclasses.replace(call(), path="/tune", headers=call().headers | {"Idempotency-Key": "one"})
    assert send(keyed).ran == "numpy"
    assert server.lost == 2


def test_what_would_be_done_twice_is_not_sent_again(server: Any, send: Send) -> None:
    send(call())
    server.mode = "lose"
    with pytest.raises(ServiceUnreachable, match="no answer from http"):
        send(dataclasses.replace(call(), path="/tune"))
    assert (server.lost, len(server.seen)) == (1, 1)


def test_a_request_that_a_new_connection_lost_is_not_sent_again(server: Any, send: Send) -> None:
    server.mode = "never"
    server.ended.set()
    with pytest.raises(ServiceUnreachable, match="no answer from http"):
        send(call())
    assert len(server.seen) == 1


@pytest.mark.parametrize("way", ["raw", "httpx2", "httpx2 of coroutines"])
def test_a_request_that_each_kept_connection_loses_late_ends_in_time(server: Any, way: str) -> None:
    url, kept = f"http://127.0.0.1:{server.server_port}", 4

    def threads(send: Send) -> None:
        server.mode = "slow"
        with concurrent.futures.ThreadPoolExecutor(kept) as pool:
            list(pool.map(send, [call()] * kept))
        server.mode = "lose late"
        send(call())

    async def coroutines() -> None:
        async with AsyncClient(url, timeout=1.0) as client:
            server.mode = "slow"
            await asyncio.gather(*(client._send(call()) for _ in range(kept)))
            server.mode = "lose late"
            await client._send(call())

    raw = RawSocketSender(url, 1.0, {})
    with contextlib.closing(raw), Client(url, timeout=1.0) as client:
        ways = {
            "raw": lambda: threads(raw.send),
            "httpx2": lambda: threads(lambda one: transport.send(client._http.get(), one)),
            "httpx2 of coroutines": lambda: asyncio.run(coroutines()),
        }
        with pytest.raises(ServiceUnreachable, match="no answer from http"):
            ways[way]()
    assert server.lost <= 2


def test_a_refusal_before_the_body_has_gone_is_read(server: Any, sender: RawSocketSender) -> None:
    server.mode = "early"
    with pytest.raises(ServiceError, match="less, please"):
        sender.send(call(rows=4096))
    server.mode = "ok"
    assert sender.send(call()).ran == "numpy"


def test_an_answer_may_take_longer_than_other_steps(server: Any, sender: RawSocketSender) -> None:
    server.mode = "late"
    assert sender.send(call(answer_s=5.0)).ran == "numpy"
    with pytest.raises(ServiceUnreachable, match="tilewright serve"):
        sender.send(call())


@pytest.mark.parametrize("mode", ["never", "short"])
def test_what_does_not_answer_is_told(server: Any, sender: RawSocketSender, mode: str) -> None:
    server.mode = mode
    with pytest.raises(ServiceUnreachable, match="no answer from http"):
        sender.send(call())


@pytest.mark.parametrize("mode", LIES)
def test_a_service_that_lies_or_drips_costs_little_time_and_memory(
    server: Any, sender: RawSocketSender, mode: str
) -> None:
    server.mode = mode
    begun = time.monotonic()
    with pytest.raises(ServiceUnreachable, match="no answer from http"):
        sender.send(call(answer_s=0.3))
    assert time.monotonic() - begun < 3.0  # it may take 0.7
    assert server.sent < 2**24
    server.mode = "ok"
    assert sender.send(call()).ran == "numpy"


@pytest.mark.parametrize(
    ("is_kept", "mode"),
    every(4, itertools.product([False, True], [mode for mode in LIES if mode.startswith("drip")])),
)
def test_a_service_that_drips_holds_no_call_over_httpx2(server: Any, mode: str, is_kept: bool) -> None:
    """Each byte comes within the timeout of a step."""
    url = f"http://127.0.0.1:{server.server_port}"

    async def coroutines() -> None:
        async with AsyncClient(url, timeout=0.4) as client:
            if is_kept:
                await client._send(call())
            server.mode = mode
            await client._send(call(answer_s=0.3))

    def threads() -> None:
        with Client(url, timeout=0.4) as client:
            if is_kept:
                transport.send(client._http.get(), call())
            server.mode = mode
            transport.send(client._http.get(), call(answer_s=0.3))

    for way in (threads, lambda: asyncio.run(coroutines())):
        server.mode, begun = "ok", time.monotonic()
        with pytest.raises(ServiceUnreachable, match="no answer from http"):
            way()
        assert time.monotonic() - begun < 3.0  # it may take 0.7


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999", "http://127.0.0.1:x", "http://a..b"])
def test_an_address_that_is_none_is_told(url: str) -> None:
    with pytest.raises(ServiceUnreachable, match="check the URL"):
        RawSocketSender(url, 1.0, {}).send(call())


def test_a_result_may_be_as_large_as_its_operands_say() -> None:
    tall, wide = np.ones((5000, 3, 1), "f2"), np.ones((5000, 1, 70), "f2")
    for operands in (
        gemm_call({"a": tall, "b": wide}, {}),
        gemm_call({"a": wide, "b": tall}, {"transpose_a": True, "transpose_b": True}),
    ):
        assert 5000 * 3 * 70 * 8 < operands.answer_bytes < 5000 * 3 * 70 * 8 + 2**17
    assert gemm_call({"a": np.ones(3), "b": np.ones(3)}, {}).answer_bytes < 2**17


def forked(ask: Callable[[], Any]) -> int:
    """The process of a child that asks and ends: with 0 where the answer is its own."""
    child = os.fork()
    if child == 0:
        status = 1
        with contextlib.suppress(BaseException):
            status = 0 if ask().ran == "numpy" else 2
        os._exit(status)
    return child


def ended_well(child: int) -> bool:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_forked_child_has_connections_of_its_own(server: Any, sender: RawSocketSender) -> None:
    """Both ask at once: over one connection, one would read the other's answer, or half of it."""
    sender.send(call())
    server.mode = "slow"
    child = forked(lambda: sender.send(call(answer_s=9.0)))
    for _ in range(2):
        assert sender.send(call(answer_s=9.0)).ran == "numpy"
    assert ended_well(child)
    ports = [seen[0] for seen in server.seen]
    assert sorted(map(ports.count, set(ports))) == [1, 3]  # the parent's goes on


def test_connections_of_httpx2_are_not_shared_with_a_child_either(server: Any) -> None:
    url = f"http://127.0.0.1:{server.server_port}"
    with Client(url, key="k") as client:

        def ask() -> Any:
            return transport.send(client._http.get(), call())

        ask()
        assert ended_well(forked(ask))
        ask()
    ports = [seen[0] for seen in server.seen]
    assert ports[0] == ports[2] != ports[1]


def test_a_child_s_event_loop_has_connections_of_its_own(server: Any) -> None:
    async def ask() -> Any:
        return await client._send(call())

    async def run() -> None:
        await ask()
        assert ended_well(forked(lambda: asyncio.run(ask())))
        await ask()
        await client.close()

    client = AsyncClient(f"http://127.0.0.1:{server.server_port}")
    asyncio.run(run())
    ports = [seen[0] for seen in server.seen]
    assert ports[0] == ports[2] != ports[1]


def test_event_loops_have_connections_of_their_own(server: Any) -> None:
    client = AsyncClient(f"http://127.0.0.1:{server.server_port}")

    async def ask(also: bool = False) -> Any:
        answer = await client._send(call())
        if also:
            await asyncio.to_thread(lambda: asyncio.run(ask()))
            await client._send(call())
        await client.close()
        return answer

    for also in (False, True, False):
        assert asyncio.run(ask(also)).ran == "numpy"
    ports = [seen[0] for seen in server.seen]
    assert len(ports) == 5
    assert ports[1] == ports[3]
    assert len(set(ports)) == 4


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_loop_that_ended_without_a_close_leaves_nothing_to_the_next(server: Any) -> None:
    client = AsyncClient(f"http://127.0.0.1:{server.server_port}")

    async def ask(close: bool) -> int:
        await client._send(call())
        if close:
            await client.close()
        return len(client._http.get()._of)

    assert [asyncio.run(ask(close=number == 2)) for number in range(3)] == [1, 1, 1]
    gc.collect()


@pytest.mark.parametrize("used", [False, True])
def test_a_closed_client_sends_nothing(server: Any, used: bool) -> None:
    url, seen = f"http://127.0.0.1:{server.server_port}", int(used)

    async def ask() -> None:
        async with AsyncClient(url) as client:
            if used:
                await client._send(call())
        for ask_again in (client.devices, lambda: client.gemm(np.eye(2), np.eye(2))):
            with pytest.raises(TilewrightError, match=f"client of {url} is closed; use a new one"):
                await ask_again()

    with Client(url) as client:
        if used:
            client._send(call())
    for ask_again in (client.devices, lambda: client.gemm(np.eye(2), np.eye(2))):
        with pytest.raises(TilewrightError, match=f"client of {url} is closed; use a new one"):
            ask_again()
    asyncio.run(ask())
    assert len(server.seen) == 2 * seen


def test_a_call_says_that_its_client_was_closed_meanwhile(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it waited before it was sent, as that of a job that is followed."""
    url = f"http://127.0.0.1:{server.server_port}"
    late = Call("GET", "/devices", lambda reply: reply, delay_s=0.01)
    client = Client(url)
    monkeypatch.setattr(transport.time, "sleep", lambda _seconds: client.close())
    with pytest.raises(TilewrightError, match="is closed; use a new one"):
        client._send(late)

    async def ask() -> None:
        client = AsyncClient(url)
        monkeypatch.setattr(transport.asyncio, "sleep", lambda _seconds: client.close())
        await client._send(late)

    with pytest.raises(TilewrightError, match="is closed; use a new one"):
        asyncio.run(ask())


def test_every_result_may_be_written_to(server: Any, sender: RawSocketSender) -> None:
    async def ask() -> Any:
        async with AsyncClient(f"http://127.0.0.1:{server.server_port}") as client:
            return (await client._send(call())).d

    with Client(f"http://127.0.0.1:{server.server_port}") as client:
        for d in (sender.send(call()).d, transport.send(client._http.get(), call()).d, asyncio.run(ask())):
            d += 1
            assert (d == np.arange(1.0, 7.0).reshape(2, 3)).all()


def test_a_gemm_waits_longer_than_the_service_does() -> None:
    """10 s for the device, 30 s for the kernel, by the service's own settings."""
    assert gemm_call({"a": np.eye(2), "b": np.eye(2)}, {}).answer_s > 40


PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ALL_PROXY", "socks5://127.0.0.1:1080"),  # needs a package that is not installed
        ("ALL_PROXY", "socks://127.0.0.1:1080"),  # as desktops set it
        ("SSL_CERT_FILE", "/nowhere/ca.pem"),
    ],
)
def test_an_environment_that_leads_nowhere_is_told(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in PROXIES:
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(name, value)
    asks = (
        lambda: Client("https://a.example").ready(),
        lambda: asyncio.run(AsyncClient("https://a.example").ready()),
    )
    for ask in asks:
        with pytest.raises(ServiceUnreachable, match=f"no way to https://a.example .*{name}"):
            ask()


def test_what_lies_between_is_left_to_httpx2(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
    assert reaches("http://gpu:8080")
    assert not reaches("https://gpu")
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    assert not reaches("http://gpu:8080")
    monkeypatch.setenv("no_proxy", "gpu")
    assert reaches("http://gpu:8080")
