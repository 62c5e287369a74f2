"""A GEMM whose kernel breaks the device: the kernel is tried again by itself, and its config quarantined."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import host_kernels
import pytest
from store_samples import config

from service.engine import canary as canaries
from service.engine.canary import Canary
from service.engine.engine import LocalEngine
from service.errors import Kind, Refusal
from service.gemm import choice
from service.gemm.run import GemmRunner
from service.metrics import Metrics
from service.settings import Settings
from tilewright.errors import LaunchError, TilewrightError
from tilewright.wire import GemmQuery
from tuner.store.database import Store
from tuner.store.faults import quarantine
from tuner.workers.process import WorkerDied, WorkerTimeout
from tuner.workers.recovery import DeviceSetAside


@pytest.fixture
def engine(store: Store, tmp_path: Path) -> Iterator[LocalEngine]:
    made = LocalEngine(store, Settings(devices=("host",), cache_dir=tmp_path, lock_dir=tmp_path))
    made.open()
    yield made
    made.stop()


def canary(engine: LocalEngine) -> Canary:
    return engine.queues["host"]._canary


def listed(store: Store) -> list[str]:
    with store.read() as session:
        return [entry.message for entry in quarantine.listing(session)]


def failing(engine: LocalEngine, error: Exception, monkeypatch: pytest.MonkeyPatch, kernel: Any) -> Refusal:
    """The refusal of a GEMM that was to run with a kernel and failed."""

    def gemm(*_: Any) -> None:
        raise error

    bench = engine.queues["host"].bench
    monkeypatch.setattr(bench, "gemm", gemm)
    chosen = choice.Chosen("exact", config(16), kernel)
    monkeypatch.setattr(choice, "choose", lambda *_: chosen)
    nothing: Any = None
    runner = GemmRunner(Settings(), engine, nothing, Metrics())
    with pytest.raises(Refusal) as refused:
        runner._run(bench, host_kernels.PROBLEM, {}, GemmQuery())
    assert refused.value.kind is Kind.DEVICE_FAILED
    return refused.value


def test_a_kernel_that_breaks_its_trial_too_is_quarantined(
    store: Store, engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = host_kernels.artifact(engine.queues["host"].bench.spec.arch, after=host_kernels.SEGFAULT)
    failing(engine, WorkerDied("the process ended with SIGSEGV", "SIGSEGV"), monkeypatch, broken)
    assert listed(store) == [], "the request does not wait for that"
    assert canary(engine).step()
    (message,) = listed(store)
    assert "SIGSEGV" in message
    failing(engine, WorkerDied("the process ended with SIGSEGV", "SIGSEGV"), monkeypatch, broken)
    assert not canary(engine).step(), "it was tried"


def test_a_device_that_the_failure_sets_aside_tries_it_once_it_is_back(
    store: Store, engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = engine.queues["host"].bench
    broken = host_kernels.artifact(bench.spec.arch, after=host_kernels.SEGFAULT)
    failing(engine, WorkerDied("the process ended with SIGSEGV", "SIGSEGV"), monkeypatch, broken)

    def trial(*_: Any) -> None:
        raise DeviceSetAside("it did not come back")

    with monkeypatch.context() as patch:
        patch.setattr(bench, "trial", trial)
        with pytest.raises(DeviceSetAside):
            canary(engine).step()
    assert canary(engine).step()
    assert len(listed(store)) == 1


@pytest.mark.parametrize("error", [WorkerTimeout("no answer"), LaunchError("illegal", code=700, sticky=True)])
def test_a_kernel_that_runs_by_itself_is_not(
    store: Store, engine: LocalEngine, monkeypatch: pytest.MonkeyPatch, error: TilewrightError
) -> None:
    right = host_kernels.artifact(engine.queues["host"].bench.spec.arch)
    failing(engine, error, monkeypatch, right)
    assert canary(engine).step()
    assert listed(store) == []


@pytest.mark.parametrize(
    "error",
    [
        *(
            WorkerDied(f"the process ended with {cause}", cause)
            for cause in ("SIGKILL", "SIGBUS", "exit code 1")
        ),
        LaunchError("out of memory on the device"),
    ],
    ids=str,
)
def test_what_no_kernel_can_do_accuses_none(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch, error: TilewrightError
) -> None:
    failing(engine, error, monkeypatch, host_kernels.artifact(engine.queues["host"].bench.spec.arch))
    assert not canary(engine).step()


def test_no_trial_that_does_not_fit_into_memory(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canaries, "why_too_large", lambda *_: "too large")
    right = host_kernels.artifact(engine.queues["host"].bench.spec.arch)
    failing(engine, WorkerTimeout("no answer"), monkeypatch, right)
    assert not canary(engine).step()


def test_the_vendor_library_is_not_suspected(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalEngine, "suspect", None)
    failing(engine, WorkerTimeout("no answer"), monkeypatch, None)
