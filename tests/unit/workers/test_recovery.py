"""Whether a GPU came back after a kill, by a fake NVML."""

from __future__ import annotations

import dataclasses
import importlib
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import host_kernels
import pytest
from host_kernels import PROBLEM, artifact

from tilewright.errors import DeviceUnavailable
from tilewright.schema.trial import Outcome
from tuner.devices.base import GpuState
from tuner.workers.bench import Bench
from tuner.workers.recovery import SLACK_BYTES, DeviceSetAside, Recovery, gpu_state, why_not_back

QUIET = GpuState(held_bytes=2**29, processes=(77,), most_mhz=1980, slowdowns=())


class FakeGpu:
    """A GPU whose state a test sets; ``broken`` is what NVML says instead."""

    def __init__(self) -> None:
        self.state, self.broken, self.reads = QUIET, "", 0

    def set(self, **changes: Any) -> None:
        self.state = dataclasses.replace(QUIET, **changes)

    def read(self) -> GpuState:
        self.reads += 1
        if self.broken:
            raise DeviceUnavailable(self.broken)
        return self.state


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"processes": (77, 5)}, "process 5 still holds it"),
        ({"processes": (6,)}, None),
        ({"held_bytes": QUIET.held_bytes + SLACK_BYTES}, None),
        ({"held_bytes": QUIET.held_bytes + 2**30}, "1024 MiB of its memory are in use by no process"),
        ({"held_bytes": 0}, None),
        ({"slowdowns": ("HwThermalSlowdown",)}, "clocks are held down (HwThermalSlowdown)"),
        ({"most_mhz": 1200}, "highest clock is 1200 MHz, it was 1980"),
        ({"most_mhz": None}, None),
        ({"most_mhz": 2100}, None),
    ],
)
def test_what_keeps_a_gpu_from_being_back(changes: dict[str, Any], reason: str | None) -> None:
    found = why_not_back(QUIET, dataclasses.replace(QUIET, **changes), pid=5)
    if reason is None:
        assert found is None
    else:
        assert found is not None
        assert reason in found


def test_what_slowed_the_gpu_before_does_not_count() -> None:
    warm = dataclasses.replace(QUIET, slowdowns=("SwThermalSlowdown",))
    assert why_not_back(warm, warm, pid=5) is None


def test_a_gpu_has_some_seconds_to_come_back() -> None:
    gpu = FakeGpu()
    recovery = Recovery(gpu.read, wait_s=10.0)
    gpu.set(processes=(5,))
    seen: list[int] = []

    def read() -> GpuState:
        seen.append(1)
        if len(seen) == 2:
            gpu.set()
        return gpu.state

    recovery._read = read
    recovery.check(5)
    assert recovery.reason == ""
    assert len(seen) == 2


def test_a_gpu_that_does_not_is_set_aside_until_it_does_or_is_released() -> None:
    gpu = FakeGpu()
    recovery = Recovery(gpu.read, wait_s=0.6)
    gpu.set(held_bytes=2**33)
    started = time.monotonic()
    with pytest.raises(DeviceSetAside, match="MiB of its memory"):
        recovery.check(5)
    assert time.monotonic() - started >= 0.6
    assert "MiB of its memory" in recovery.reason
    started = time.monotonic()
    with pytest.raises(DeviceSetAside):  # looked at once now
        recovery.check(5)
    assert time.monotonic() - started < 0.5
    gpu.set()
    recovery.check(5)
    assert recovery.reason == ""
    gpu.set(held_bytes=2**33)
    with pytest.raises(DeviceSetAside):
        recovery.check(6)
    recovery.release()
    recovery.check(6)
    assert recovery.reason == ""
    recovery.check(7)  # by what it was when it was released
    gpu.set(held_bytes=2**34)
    with pytest.raises(DeviceSetAside):
        recovery.check(8)


def test_a_driver_that_does_not_answer_sets_the_gpu_aside() -> None:
    gpu = FakeGpu()
    recovery = Recovery(gpu.read, wait_s=0.0)
    gpu.broken = "NVML did not answer"
    with pytest.raises(DeviceSetAside, match="NVML did not answer"):
        recovery.check(5)
    recovery.release()
    recovery.check(5)


def test_a_machine_without_nvml_sets_nothing_aside() -> None:
    gpu = FakeGpu()
    gpu.broken = "no NVML here"
    recovery = Recovery(gpu.read)
    recovery.check(5)
    assert recovery.reason == ""


def test_a_machine_without_nvml_says_so() -> None:
    with pytest.raises(DeviceUnavailable, match="run nvidia-smi"):
        gpu_state("0" * 32)


class FakeNvml:
    """The part of ``pynvml`` that is used, of one GPU or MIG instance."""

    NVML_CLOCK_SM = 1

    class NVMLError(Exception):
        """As NVML's."""

    def __init__(self, name: str, knows_clocks: bool) -> None:
        self.name, self.knows_clocks = name, knows_clocks

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetHandleByUUID(self, name: str) -> str:
        if name != self.name:
            raise self.NVMLError("not found")
        return name

    def nvmlDeviceGetComputeRunningProcesses(self, _handle: str) -> list[Any]:
        return [SimpleNamespace(pid=11, usedGpuMemory=600), SimpleNamespace(pid=12, usedGpuMemory=None)]

    def nvmlDeviceGetMemoryInfo(self, _handle: str) -> Any:
        return SimpleNamespace(used=1000)

    def nvmlDeviceGetCurrentClocksEventReasons(self, _handle: str) -> int:
        if not self.knows_clocks:
            raise self.NVMLError("not supported")
        return 0x1 | 0x4 | 0x40  # idle, power cap, HwThermalSlowdown

    def nvmlDeviceGetMaxClockInfo(self, _handle: str, clock: int) -> int:
        if not self.knows_clocks:
            raise self.NVMLError("not supported")
        assert clock == self.NVML_CLOCK_SM
        return 1980


@pytest.mark.parametrize(("kind", "knows_clocks"), [("GPU", True), ("MIG", False)])
def test_the_state_is_what_nvml_says(monkeypatch: pytest.MonkeyPatch, kind: str, knows_clocks: bool) -> None:
    name = f"{kind}-00112233-4455-6677-8899-aabbccddeeff"
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(name, knows_clocks))
    monkeypatch.delitem(sys.modules, "tuner.devices.gpu_state", raising=False)
    module = importlib.import_module("tuner.devices.gpu_state")
    monkeypatch.setitem(sys.modules, "tuner.devices.gpu_state", module)
    state = module.read("00112233445566778899aabbccddeeff")
    assert (state.held_bytes, state.processes) == (400, (11, 12))
    assert state.most_mhz == (1980 if knows_clocks else None)
    assert state.slowdowns == (("HwThermalSlowdown",) if knows_clocks else ())


@pytest.fixture
def gpu() -> FakeGpu:
    return FakeGpu()


@pytest.fixture
def bench(gpu: FakeGpu) -> Iterator[Bench]:
    made = Bench("host", Recovery(gpu.read, wait_s=0.0))
    yield made
    made.close()


def test_no_trial_runs_on_a_device_that_is_not_back(bench: Bench, gpu: FakeGpu) -> None:
    right, crash = artifact(bench.spec.arch), artifact(bench.spec.arch, host_kernels.SEGFAULT)
    assert bench.trial(crash, PROBLEM, None, 30).own_fault is True
    assert gpu.reads == 2  # at the start, and before it ran again
    gpu.set(held_bytes=2**33)
    for call in (lambda: bench.trial(right, PROBLEM, None, 30), bench.come_back):
        with pytest.raises(DeviceSetAside, match="7680 MiB"):
            call()
    assert "7680 MiB" in bench.set_aside
    assert bench._process.pid is None
    gpu.set()
    bench.come_back()
    assert bench.set_aside == ""
    assert bench.trial(right, PROBLEM, None, 30).outcome is Outcome.OK


def test_who_takes_the_device_away_costs_its_trial_and_is_not_blamed(bench: Bench, gpu: FakeGpu) -> None:
    """The device could be at fault as well; the trial is kept, so that its job goes on without it."""
    gpu.set(processes=(77,), slowdowns=("HwSlowdown",))
    hung = bench.trial(artifact(bench.spec.arch, host_kernels.HANG), PROBLEM, None, timeout_s=1.0)
    assert (hung.outcome, hung.own_fault) == (Outcome.TIMEOUT, False)
    assert bench.set_aside
    bench.release()
    assert bench.trial(artifact(bench.spec.arch), PROBLEM, None, 30).outcome is Outcome.OK
