"""Whether a GPU came back after a kill, by a fake NVML."""

from __future__ import annotations

import dataclasses
import importlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, TypeVar

import host_kernels
import pytest
from host_kernels import PROBLEM, artifact

from tilewright import GemmProblem
from tilewright.errors import DeviceUnavailable
from tilewright.schema.trial import Outcome
from tuner.devices.base import GpuState
from tuner.workers.bench import Bench
from tuner.workers.process import WorkerTimeout
from tuner.workers.recovery import SLACK_BYTES, DeviceSetAside, Recovery, gpu_state, why_held, why_not_back

T = TypeVar("T")
UUID = "00112233-4455-6677-8899-aabbccddeeff"
QUIET = GpuState(held_bytes=2**29, processes=(77,), most_mhz=1980, slowdowns=(), set_mhz=1755)


@pytest.fixture(scope="module", autouse=True)
def _looks_often() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tuner.workers.recovery._POLL_S", 0.05)
        yield


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
        ({"processes": (77, 5)}, "ended processes still hold it (5)"),
        ({"processes": (6,)}, None),
        ({"held_bytes": QUIET.held_bytes + SLACK_BYTES}, None),
        ({"held_bytes": QUIET.held_bytes + 2**30}, "1024 MiB of its memory are in use by no process"),
        ({"held_bytes": 0}, None),
        ({"slowdowns": ("HwThermalSlowdown",)}, "clocks are held down (HwThermalSlowdown)"),
        ({"most_mhz": 1200}, "highest clock is 1200 MHz, it was 1980"),
        ({"most_mhz": None}, None),
        ({"most_mhz": 2100}, None),
        ({"set_mhz": 1200}, "clock is set to 1200 MHz, it was 1755"),
        ({"set_mhz": None}, None),
        ({"set_mhz": 1980}, None),
        ({"processes": (77, 8), "ended": (8,)}, None),
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


OWN = 9
ALONE = GpuState(held_bytes=2**20, processes=(OWN,), most_mhz=1980, slowdowns=(), complete=True)
LEAKED = 2**33


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"processes": (OWN, 7, 8), "ended": (7, 8)}, "ended processes still hold it (7, 8)"),
        ({"processes": (OWN, 7, 8), "ended": (8,), "complete": False}, "ended processes still hold it (8)"),
        ({"held_bytes": LEAKED}, "8192 MiB of its memory are in use by no process"),
        ({"held_bytes": SLACK_BYTES}, None),
        ({"processes": (OWN, 7), "held_bytes": LEAKED}, None),  # which may be that of process 7
        ({"complete": False, "held_bytes": LEAKED}, None),
        ({"processes": (), "held_bytes": LEAKED}, None),
        ({"processes": (7, 8), "ended": (7, 8), "held_bytes": LEAKED}, None),  # ids of another namespace
        ({"slowdowns": ("SwThermalSlowdown",)}, None),
    ],
)
def test_what_ended_processes_hold_of_a_gpu(changes: dict[str, Any], reason: str | None) -> None:
    found = why_held(dataclasses.replace(ALONE, **changes), OWN)
    if reason is None:
        assert found is None
    else:
        assert found is not None
        assert reason in found


def test_the_first_trial_waits_for_memory_of_a_killed_service() -> None:
    """What was there at the start is not what the GPU is compared with later."""
    held = dataclasses.replace(ALONE, held_bytes=LEAKED)
    dying = dataclasses.replace(held, processes=(OWN, 7), ended=(7,))
    states = [dying, dying, held, ALONE]
    recovery = Recovery(lambda: states.pop(0), wait_s=10.0)
    recovery.look(OWN)
    assert (states, recovery.reason) == ([], "")
    states += [dataclasses.replace(held, processes=())]
    recovery._wait_s = 0.0
    with pytest.raises(DeviceSetAside, match="8191 MiB of its memory"):
        recovery.check(OWN)


def test_the_first_trial_does_not_wait_for_those_that_live() -> None:
    gpu = FakeGpu()
    gpu.state = dataclasses.replace(ALONE, processes=(OWN, 7), held_bytes=LEAKED)
    recovery = Recovery(gpu.read, wait_s=10.0)
    recovery.look(OWN)
    assert (gpu.reads, recovery.reason) == (2, "")


def test_a_gpu_that_ended_processes_keep_is_set_aside_until_it_is_free_or_released() -> None:
    gpu = FakeGpu()
    gpu.state = kept = dataclasses.replace(ALONE, processes=(OWN, 7), ended=(7,))
    recovery = Recovery(gpu.read, wait_s=0.6)
    started = time.monotonic()
    with pytest.raises(DeviceSetAside, match="ended processes still hold it"):
        recovery.look(OWN)
    assert time.monotonic() - started >= 0.6
    assert "still hold it (7)" in recovery.reason
    gpu.state = ALONE
    recovery.look(OWN)
    assert recovery.reason == ""
    gpu.state = kept
    with pytest.raises(DeviceSetAside):
        recovery.look(OWN)
    recovery.release()
    recovery.look(OWN)
    assert recovery.reason == ""


def test_the_first_trial_goes_on_without_nvml() -> None:
    gpu = FakeGpu()
    gpu.broken = "no NVML here"
    recovery = Recovery(gpu.read)
    recovery.look(OWN)
    assert recovery.reason == ""


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
    """The part of ``pynvml`` that is used, of one GPU or MIG instance; what it does not tell is None."""

    NVML_CLOCK_SM = 1
    nvmlMemory_v2 = 2

    class NVMLError(Exception):
        """As NVML's."""

    def __init__(self, name: str = f"GPU-{UUID}") -> None:
        self.name = name
        self.computing: dict[int, int | None] = {11: 600, 12: 100}
        self.drawing: dict[int, int | None] | None = {13: 50}
        self.reserved: int | None = 200
        self.node: int | None = None
        self.reasons: int | None = 0x1 | 0x4 | 0x40  # idle, power cap, HwThermalSlowdown
        self.clocks: tuple[int, int] | None = (1980, 1755)

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetHandleByUUID(self, name: str) -> str:
        if name != self.name:
            raise self.NVMLError("not found")
        return name

    def nvmlDeviceGetComputeRunningProcesses(self, _handle: str) -> list[Any]:
        return _listed(self.computing)

    def nvmlDeviceGetGraphicsRunningProcesses(self, _handle: str) -> list[Any]:
        return _listed(self._told(self.drawing))

    def nvmlDeviceGetMemoryInfo(self, _handle: str, version: int = 1) -> Any:
        if version == 1:
            return SimpleNamespace(used=1000)
        return SimpleNamespace(total=5000, free=4000, reserved=self._told(self.reserved))

    def nvmlDeviceGetNumaNodeId(self, _handle: str) -> int:
        return self._told(self.node)

    def nvmlDeviceGetCurrentClocksEventReasons(self, _handle: str) -> int:
        return self._told(self.reasons)

    def nvmlDeviceGetMaxClockInfo(self, _handle: str, clock: int) -> int:
        assert clock == self.NVML_CLOCK_SM
        return self._told(self.clocks)[0]

    def nvmlDeviceGetApplicationsClock(self, _handle: str, clock: int) -> int:
        assert clock == self.NVML_CLOCK_SM
        return self._told(self.clocks)[1]

    def _told(self, value: T | None) -> T:
        if value is None:
            raise self.NVMLError("not supported")
        return value


def _listed(memory: dict[int, int | None]) -> list[Any]:
    return [SimpleNamespace(pid=pid, usedGpuMemory=held) for pid, held in memory.items()]


class Reader:
    """The module that reads the state, with a fake NVML, a folder for ``/proc``, and the ids that live."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, proc: Path) -> None:
        self.nvml, self.proc, self.living = FakeNvml(), proc, {11, 12, 13}
        monkeypatch.setitem(sys.modules, "pynvml", self.nvml)
        for name in ("nvml", "gpu_state"):
            monkeypatch.delitem(sys.modules, f"tuner.devices.{name}", raising=False)
        nvml = importlib.import_module("tuner.devices.nvml")
        monkeypatch.setitem(sys.modules, "tuner.devices.nvml", nvml)
        self.module = importlib.import_module("tuner.devices.gpu_state")
        monkeypatch.setitem(sys.modules, "tuner.devices.gpu_state", self.module)
        monkeypatch.setattr(self.module, "_PROC", proc)
        monkeypatch.setattr(os, "kill", self._kill)
        self.namespace(self.module._FIRST_NAMESPACE)

    def namespace(self, name: str) -> None:
        link = self.proc / "self" / "ns" / "pid"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(name)

    def thread(self, pid: int, thread: int, state: str = "S", flags: int = 0, pending: int = 0) -> None:
        folder = self.proc / str(pid) / "task" / str(thread)
        folder.mkdir(parents=True)
        (folder / "stat").write_text(f"{thread} (a) b) {state} 1 1 1 0 -1 {flags} 0 0\n")
        (folder / "status").write_text(f"Name:\ta\nSigPnd:\t{pending:016x}\nShdPnd:\t{0:016x}\n")

    def read(self) -> GpuState:
        state: GpuState = self.module.read(UUID)
        return state

    def _kill(self, pid: int, number: int) -> None:
        assert number == 0
        if pid not in self.living:
            raise ProcessLookupError
        raise PermissionError


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Reader:
    return Reader(monkeypatch, tmp_path)


def test_the_state_is_what_nvml_says(reader: Reader) -> None:
    assert reader.read() == GpuState(
        held_bytes=50,  # 5000 - 4000 - 200 reserved - 600 - 100 - 50
        processes=(11, 12, 13),
        most_mhz=1980,
        slowdowns=("HwThermalSlowdown",),
        set_mhz=1755,
        ended=(),
        complete=True,
    )


def test_the_state_of_a_mig_instance_is_what_nvml_says(reader: Reader) -> None:
    reader.nvml.name = f"MIG-{UUID}"
    reader.nvml.clocks = reader.nvml.reasons = reader.nvml.drawing = reader.nvml.reserved = None
    assert reader.read() == GpuState(300, (11, 12), None, ())  # 1000 - 600 - 100


@pytest.mark.parametrize(
    ("attribute", "value"),
    [("computing", {11: None}), ("drawing", None), ("reserved", None), ("node", 1)],
)
def test_the_list_is_not_complete_where_nvml_does_not_tell(
    reader: Reader, attribute: str, value: object
) -> None:
    setattr(reader.nvml, attribute, value)
    assert not reader.read().complete


def test_the_list_is_not_complete_in_a_container(reader: Reader) -> None:
    reader.namespace("pid:[4026532567]")
    assert not reader.read().complete


@pytest.mark.parametrize(
    ("threads", "ended"),
    [
        ([{}], False),
        ([{"state": "D"}], False),
        ([{"state": "Z"}], True),
        ([{"state": "D", "flags": 0x40004C}], True),  # it exits, in the driver
        ([{"state": "D", "pending": 1 << 8}], True),  # it was killed, and waits for the driver
        ([{"state": "D", "pending": 1 << 14}], False),  # SIGTERM
        ([{"state": "Z"}, {}], False),  # its first thread ended by itself
        ([{"state": "Z"}, {"state": "D", "flags": 0x4}], True),
        ([], False),  # hidden
    ],
)
def test_a_process_ended_where_all_its_threads_go(
    reader: Reader, threads: list[dict[str, Any]], ended: bool
) -> None:
    for place, thread in enumerate(threads):
        reader.thread(11, 11 + place, **thread)
    assert reader.read().ended == ((11,) if ended else ())


def test_a_process_without_an_id_ended(reader: Reader) -> None:
    reader.living.remove(12)
    assert reader.read().ended == (12,)


def test_killed_processes_are_told_from_living_ones(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the true ``/proc``: one is not reaped yet."""
    monkeypatch.undo()
    with subprocess.Popen(["sleep", "60"]) as child:
        assert not reader.module._ended(child.pid)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert reader.module._ended(child.pid)
    assert reader.module._ended(child.pid)
    assert not reader.module._ended(os.getpid())
    assert not reader.module._ended(1)
    assert not reader.module._ended(2**32 - 1)


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


@pytest.mark.parametrize(("kind", "least", "most"), [("cuda", 40, 60), ("host", 1000, 1200)])
def test_a_gemm_that_hangs_holds_a_gpu_for_a_minute(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, kind: str, least: float, most: float
) -> None:
    asked: list[float] = []

    def call(*_: object, timeout_s: float, **__: object) -> NoReturn:
        asked.append(timeout_s)
        raise WorkerTimeout("hangs")

    monkeypatch.setattr(bench, "spec", dataclasses.replace(bench.spec, kind=kind))
    monkeypatch.setattr(bench._process, "call", call)
    with pytest.raises(WorkerTimeout):
        bench.gemm(None, GemmProblem(8192, 8192, 8192, "float32"), {}, (1.0, 0.0), 1.0)
    assert least < asked[0] < most


def test_no_gemm_runs_on_a_device_that_ended_processes_keep(bench: Bench, gpu: FakeGpu) -> None:
    own = bench._process.pid
    assert own is not None
    gpu.set(processes=(own, 77), ended=(77,))
    for _ in range(2):
        with pytest.raises(DeviceSetAside, match=r"still hold it \(77\)"):
            bench.look()
        assert "(77)" in bench.set_aside
        with pytest.raises(DeviceSetAside, match=r"still hold it \(77\)"):
            bench.gemm(None, PROBLEM, {}, (1.0, 0.0), 1.0)
    bench.release()
    bench.look()
    assert (bench.set_aside, bench._process.pid) == ("", own)
    assert bench.trial(artifact(bench.spec.arch), PROBLEM, None, 30).outcome is Outcome.OK
