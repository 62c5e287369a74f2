"""A client against a service that is down, slow or lying, and a cache that many share or nobody can write:
it always answers within its timeout, with the right product, and without an exception."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forked_server import context
from set_clients import TUNED, one_of_many, product_is_right
from set_server import SetService, config_set, entry, serving

from kernels.compiler.build import build
from kernels.host.family import HOST
from tilewright import Client, forks
from tilewright.errors import ServiceUnreachable
from tilewright.http.fetch import Fetcher
from tilewright.matmul import loaded
from tilewright.trust import ServiceKey
from tuner.devices.host import query_host

TIMEOUT_S = 0.5
SLACK_S = 1.5  # NOTE: others may be working on this machine
PROCESSES = 64
SKEW_S = 300.0
REQUEST_S = 1.0


@pytest.fixture(scope="module")
def kernel() -> Any:
    device = query_host()
    config = next(iter(HOST.heuristic_configs(TUNED, device)))
    return build(HOST, config, TUNED, device)


@pytest.fixture
def service(kernel: Any) -> Iterator[SetService]:
    with serving(SetService(config_set([entry(TUNED, kernel)]), [kernel])) as running:
        yield running


def started_in_time(url: str, folder: Path) -> Client:
    tw = Client(url, cache_dir=folder, start_timeout=TIMEOUT_S)
    begun = time.monotonic()
    tw.start()
    product_is_right(tw)
    assert time.monotonic() - begun < TIMEOUT_S + SLACK_S
    return tw


def recovers(tw: Client) -> None:
    until = time.monotonic() + 10.0
    while tw.lookup(TUNED).kind != "exact" and time.monotonic() < until:
        tw.refresh(1.0)
    product_is_right(tw)
    assert tw.stats["tuned: exact"] == 1


FAULTS = ["slow", "drip", "drip-head", "error", "garbage", "nested", "truncated", "lying-set"]


@pytest.mark.parametrize("mode", FAULTS)
def test_a_faulty_service_costs_the_timeout_at_most(
    service: SetService, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilewright.client.Fetcher", functools.partial(Fetcher, seconds=REQUEST_S))
    service.mode = mode
    with started_in_time(service.url, tmp_path) as tw:
        assert tw.stats == {"vendor: no config set yet": 1}
        service.mode = "ok"
        recovers(tw)


@pytest.mark.parametrize("mode", FAULTS)
def test_a_service_that_turns_faulty_takes_nothing_away(
    service: SetService, tmp_path: Path, mode: str
) -> None:
    Client(service.url, cache_dir=tmp_path).start().close()
    service.mode = mode
    with started_in_time(service.url, tmp_path) as tw:
        begun = time.monotonic()
        tw.refresh(TIMEOUT_S)
        assert time.monotonic() - begun < TIMEOUT_S + SLACK_S
        product_is_right(tw)
        assert tw.stats == {"tuned: exact": 2}


NO_DIGESTS = {
    "traversal": "../victim",
    "absolute": "{victim}",
    "null": "a\0b",
    "short": "ab12",
    "upper case": "AB" * 32,
    "line end": "ab" * 32 + "\n",
}


@pytest.mark.parametrize("name", NO_DIGESTS)
def test_a_set_whose_kernels_are_named_like_files_is_refused_until_the_service_is_honest(
    service: SetService, tmp_path: Path, name: str
) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"of somebody else")
    lie = {"artifact": NO_DIGESTS[name].format(victim=victim)}
    honest, service.content = service.content, config_set([entry(TUNED, service.artifacts[0]) | lie])
    tw = Client(service.url, cache_dir=tmp_path / "cache", start_timeout=60.0)
    begun = time.monotonic()
    with tw.start():
        assert time.monotonic() - begun < 30.0  # the look failed, and was not waited for in vain
        product_is_right(tw)
        assert tw.stats == {"vendor: no config set yet": 1}
        service.content = honest
        recovers(tw)
    assert victim.read_bytes() == b"of somebody else"


def ends_in_time(url: str) -> None:
    begun = time.monotonic()
    with pytest.raises(ServiceUnreachable):
        Fetcher(url, {}, ServiceKey(url, Path("unused")), seconds=REQUEST_S).current_set("any")
    assert time.monotonic() - begun < REQUEST_S + SLACK_S


@pytest.mark.parametrize("mode", ["slow", "drip", "drip-head"])
def test_a_request_ends_in_time_and_so_does_its_thread(service: SetService, mode: str) -> None:
    service.mode = mode
    ends_in_time(service.url)
    until = time.monotonic() + 5.0
    while any(thread.name == "tilewright-request" for thread in threading.enumerate()):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_handshake_that_nobody_answers_ends_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ends_in_time(f"https://127.0.0.1:{silent.getsockname()[1]}")


def test_a_name_that_is_looked_up_for_long_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()

    def slow(*_: object, **__: object) -> list[Any]:
        asked.set()
        time.sleep(3 * REQUEST_S)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    ends_in_time("http://tuning.example")
    assert asked.is_set()


def test_nobody_listens(tmp_path: Path) -> None:
    with started_in_time("http://127.0.0.1:9", tmp_path) as tw:
        for _ in range(8):
            begun = time.monotonic()
            assert not tw.refresh(0.3)
            assert time.monotonic() - begun < 0.3 + SLACK_S


def test_a_tampered_kernel_never_reaches_the_loader(
    service: SetService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    monkeypatch.setattr("tilewright.matmul.loaded.load", lambda artifact: loaded.append(artifact.digest))
    service.mode = "lying-artifact"
    with started_in_time(service.url, tmp_path) as tw:
        assert tw.stats == {"vendor: its kernel is not here": 1}
    assert loaded == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may hand a folder to nobody")
def test_a_home_that_cannot_be_written_to(service: SetService) -> None:
    """Nothing can be created in /proc, not even by root."""
    with started_in_time(service.url, Path("/proc/tilewright")) as tw:
        assert tw.stats == {"tuned: exact": 1}


def test_a_full_disk(service: SetService, tmp_path: Path) -> None:
    """Files of more than 1 KiB fail to be written as they do on a full disk; so does memory that the linker
    reads as a file, hence the vendor library runs until that works again."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    try:
        tw = started_in_time(service.url, tmp_path)
        tw.close()  # which waits until what has arrived was written, or not
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert sum(tw.stats.values()) == 1
    tw.matmul.forget()
    product_is_right(tw)
    assert tw.stats["tuned: exact"] == 1
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size > 1024] == []


def all_answer(service: SetService, folder: Path, skews_s: list[float]) -> None:
    """As many processes as there are clocks, which are off by so much, share a cache."""
    answers = context().SimpleQueue()
    arguments = (service.url, str(folder), answers)
    running = [context().Process(target=one_of_many, args=(*arguments, skew_s)) for skew_s in skews_s]
    for process in running:
        process.start()
    for process in running:
        process.join(120)
        assert process.exitcode == 0
    assert [answers.get() for _ in running] == [{"tuned: exact": 2}] * len(running)
    assert list(folder.rglob(".new-*")) == []


@pytest.mark.long
def test_many_processes_share_one_cache(service: SetService, tmp_path: Path) -> None:
    all_answer(service, tmp_path, [(-SKEW_S, 0.0, SKEW_S)[number % 3] for number in range(PROCESSES)])


@pytest.mark.parametrize("skew_s", [-SKEW_S, SKEW_S])
def test_a_clock_that_is_off_changes_nothing(service: SetService, tmp_path: Path, skew_s: float) -> None:
    """Neither with an empty cache, nor with one that another clock has dated."""
    for one in (skew_s, 0.0, -skew_s):
        all_answer(service, tmp_path, [one])
    assert service.asked.count(f"GET /config-sets/{service.digest}/bundle") == 1


def _in_child(tw: Client, url: str, answers: Any) -> None:
    product_is_right(tw)
    answers.put((tw.refresh(20.0), dict(tw.stats), url))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_waits_for_an_import_and_the_child_may_import() -> None:
    begun, done = threading.Event(), threading.Event()

    def slow_import() -> None:
        with forks.importing():
            begun.set()
            time.sleep(0.3)
            done.set()

    def next_import() -> None:
        with forks.importing():
            pass

    threading.Thread(target=slow_import).start()
    assert begun.wait(10)
    child = os.fork()
    if child == 0:
        thread = threading.Thread(target=next_import, daemon=True)
        thread.start()
        thread.join(10)
        os._exit(0 if done.is_set() and not thread.is_alive() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


LOGGED_IMPORT = """
import os, sys, threading, time
from tilewright import forks
assert "logging" not in sys.modules
begun = threading.Event()
def slow_import():
    with forks.importing():
        import logging
        begun.set()
        time.sleep(0.3)
        logging.getLogger("httpx2")
threading.Thread(target=slow_import).start()
begun.wait()
child = os.fork()
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
"""


def test_a_fork_waits_for_an_import_that_asks_for_a_logger() -> None:
    """The hooks of logging, imported later than the client, held its lock while the fork waited."""
    subprocess.run([sys.executable, "-W", "ignore", "-c", LOGGED_IMPORT], check=True, timeout=30)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_runs_new_products_though_another_thread_was_at_one(
    service: SetService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading, goes_on = threading.Event(), threading.Event()
    load = loaded.load

    def slow_load(*arguments: Any) -> Any:
        loading.set()
        if threading.current_thread() is not threading.main_thread():
            assert goes_on.wait(30)
        return load(*arguments)

    monkeypatch.setattr(loaded, "load", slow_load)
    with Client(service.url, cache_dir=tmp_path, start_timeout=20.0).start() as tw:
        thread = threading.Thread(target=product_is_right, args=(tw,))
        thread.start()
        assert loading.wait(30)
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(10)
            with contextlib.suppress(BaseException):
                product_is_right(tw)
                os._exit(0)
            os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        goes_on.set()
        thread.join()
        assert code == 0


def _ends_slowly() -> None:
    """Make the end of this thread take 0.3 s in C, as a preempted one of OpenSSL does under its lock."""
    libc, key = ctypes.CDLL(None), ctypes.c_uint()
    assert libc.pthread_key_create(ctypes.byref(key), libc.usleep) == 0
    assert libc.pthread_setspecific(key, ctypes.c_void_p(300_000)) == 0


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="the system does not list threads")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_waits_until_threads_with_nothing_left_to_run_are_gone() -> None:
    begun, ended = threading.Event(), threading.Event()

    def work() -> None:
        _ends_slowly()
        ended.set()

    waiting = forks.start_thread(lambda: begun.wait(10), "waits")
    ending = forks.start_thread(work, "ends")
    assert ended.wait(10)
    while ending.is_alive():
        time.sleep(0.001)
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert not os.path.exists(f"/proc/self/task/{ending.native_id}")
    assert waiting.is_alive()  # a thread that goes on is not waited for
    begun.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _learns_in_child(tw: Client) -> bool:
    """Whether products that already ran before the fork run tuned some time, though nobody refreshes."""
    until = time.monotonic() + 10.0
    while tw.stats["tuned: exact"] == 0 and time.monotonic() < until:
        product_is_right(tw)
        time.sleep(0.02)
    return tw.stats["tuned: exact"] > 0


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("before", ["nothing was tuned", "nobody answered"])
def test_a_forked_child_looks_for_newer_sets(service: SetService, tmp_path: Path, before: str) -> None:
    tuned, service.content = service.content, config_set([])
    service.mode = "ok" if before == "nothing was tuned" else "error"
    with Client(service.url, cache_dir=tmp_path, start_timeout=20.0, refresh_s=0.1).start() as tw:
        product_is_right(tw)
        assert tw.refresh(20.0) == (service.mode == "ok")
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                os._exit(0 if _learns_in_child(tw) else 1)
            os._exit(2)
        tw.close()
        time.sleep(0.3)
        service.content, service.mode = tuned, "ok"
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_after_start_goes_on_in_both(service: SetService, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    with Client(service.url, cache_dir=tmp_path, start_timeout=20.0).start() as tw:
        product_is_right(tw)
        answers = context.SimpleQueue()
        children = [context.Process(target=_in_child, args=(tw, service.url, answers)) for _ in range(3)]
        for child in children:
            child.start()
        for child in children:
            child.join(60)
            assert child.exitcode == 0
        assert [answers.get() for _ in children] == [(True, {"tuned: exact": 2}, service.url)] * 3
        assert tw.refresh(20.0)
        product_is_right(tw)
