"""A client against a service that is down, slow or lying, and a cache that many share or nobody can write:
it always answers within its timeout, with the right product, and without an exception."""

from __future__ import annotations

import multiprocessing
import os
import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from set_clients import TUNED, one_of_many, product_is_right
from set_server import SetService, config_set, entry, serving

from kernels.build import build
from kernels.families.host import HOST
from tilewright import Client, forks
from tuner.devices.host import query_host

TIMEOUT_S = 0.5
SLACK_S = 0.5  # NOTE: others may be working on this machine
PROCESSES = 64


@pytest.fixture(scope="module")
def kernel() -> Any:
    device = query_host()
    config = next(iter(HOST.picks(TUNED, device)))
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


FAULTS = ["slow", "drip", "error", "garbage", "nested", "truncated", "lying-set"]


@pytest.mark.parametrize("mode", FAULTS)
def test_a_faulty_service_costs_the_timeout_at_most(service: SetService, tmp_path: Path, mode: str) -> None:
    service.mode = mode
    with started_in_time(service.url, tmp_path) as tw:
        assert tw.stats == {"vendor: no config set yet": 1}
        service.mode = "ok"
        if mode not in ("slow", "drip"):  # those hold on to the request that is under way
            until = time.monotonic() + 10.0
            while tw.lookup(TUNED).kind != "exact" and time.monotonic() < until:
                tw.refresh(1.0)
            product_is_right(tw)
            assert tw.stats["tuned: exact"] == 1


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
    monkeypatch.setattr("tilewright.local.load", lambda artifact: loaded.append(artifact.digest))
    service.mode = "lying-artifact"
    with started_in_time(service.url, tmp_path) as tw:
        assert tw.stats == {"vendor: its kernel is not here": 1}
    assert loaded == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may hand a folder to nobody")
def test_a_home_that_cannot_be_written_to(service: SetService) -> None:
    """Nothing can be created in /proc, whoever asks."""
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


def test_many_processes_share_one_cache(service: SetService, tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tilewright.client", "numpy.testing"])
    answers = context.SimpleQueue()
    arguments = (service.url, str(tmp_path), answers)
    running = [context.Process(target=one_of_many, args=arguments) for _ in range(PROCESSES)]
    for process in running:
        process.start()
    assert [answers.get() for _ in running] == [{"tuned: exact": 1}] * PROCESSES
    for process in running:
        process.join(60)
        assert process.exitcode == 0
    assert list(tmp_path.rglob(".new-*")) == []


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


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_after_start_goes_on_in_both(service: SetService, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    with started_in_time(service.url, tmp_path) as tw:
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
