"""A device whose process does not start: no kernel is blamed. What others do between the slices of a race."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import host_kernels
import pytest
from host_kernels import PROBLEM, artifact
from toy_family import TOY
from tune_lab import Lab

from kernels.registry import FAMILIES
from tilewright.errors import DeviceUnavailable
from tilewright.schema.codec import encode
from tilewright.schema.trial import Outcome
from tuner.measure.race import Race, RaceRules
from tuner.workers.bench import Bench, RaceCancelled
from tuner.workers.device_worker import DeviceServer
from tuner.workers.frames import Frame
from tuner.workers.process import WorkerProcess, python

DIES = python("-c", "import os; os.abort()")
BROKEN = {
    "SIGABRT": DIES,
    "exit code 1": python("-c", "raise SystemExit(1)"),
    "no answer within": python("-c", "import time; time.sleep(60)"),
}


class Recovery:
    """Looks at the device after a death: it fails, or the next process will."""

    reason = ""

    def __init__(self) -> None:
        self.fails, self.process = False, list[str]()

    def check(self, _pid: int) -> None:
        if self.fails:
            raise DeviceUnavailable("NVML is missing")
        self.process[:] = DIES


@pytest.fixture(scope="module")
def started() -> Iterator[Bench]:
    made = Bench("host")
    yield made
    made.close()


@pytest.fixture
def bench(started: Bench, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Bench]:
    """A device whose process is the one that the test names, else that of the host."""
    command = getattr(request, "param", started._process._argv)
    with WorkerProcess(command, started._check_back) as process:
        monkeypatch.setattr(started, "_process", process)
        yield started


@pytest.mark.parametrize(("bench", "reason"), [(BROKEN[one], one) for one in BROKEN], indirect=["bench"])
def test_no_kernel_is_to_blame_for_a_process_that_does_not_start(
    bench: Bench, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if bench._process._argv == BROKEN["no answer within"]:
        monkeypatch.setattr("tuner.workers.process._START_TIMEOUT_S", 0.1)
    kernel = artifact(bench.spec.arch)
    with pytest.raises(DeviceUnavailable, match=f"host does not start: .*{reason}"):
        bench.trial(kernel, PROBLEM, None, 30)
    with pytest.raises(DeviceUnavailable, match=f"host does not start: .*{reason}"):
        bench.race([kernel], PROBLEM, RaceRules(3, 1), 30)


@pytest.mark.parametrize("bench", [DIES], indirect=True)
def test_a_job_records_no_trial_of_a_device_that_does_not_start(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FAMILIES, "toy", TOY)
    lab = Lab()
    monkeypatch.setattr(lab.bench, "trial", bench.trial)
    with pytest.raises(DeviceUnavailable, match="host does not start"):
        lab.tune()
    assert lab.recorder.kept == []


@pytest.mark.parametrize("fails", [True, False], ids=["the look at the device", "the new process"])
def test_a_crash_is_kept_if_the_device_does_not_start_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    recovery = Recovery()
    recovery.fails, recovery.process = fails, bench._process._argv
    monkeypatch.setattr(bench, "_recovery", recovery)
    result = bench.trial(artifact(bench.spec.arch, host_kernels.SEGFAULT), PROBLEM, None, 30)
    assert (result.outcome, result.own_fault) == (Outcome.LAUNCH_ERROR, False)
    assert "SIGSEGV" in result.message


def test_any_request_between_two_slices_of_a_race_costs_a_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    warm_ups = list[Race]()
    monkeypatch.setattr(Race, "warm_up", lambda race: warm_ups.append(race))
    monkeypatch.setattr("tuner.workers.device_worker._SLICE_S", 0.0)
    server = DeviceServer("host")
    header = {"op": "race", "problem": PROBLEM.to_dict(), "rules": encode(RaceRules(9, 1, vendor=False))}
    server.handle(Frame({**header, "resume": False}, (artifact(server._device.spec.arch).to_bytes(),)))
    for other, expected in ((False, 1), (False, 1), (True, 2), (False, 2)):
        if other:
            server.handle(Frame({"op": "conditions"}))
        assert server.handle(Frame({"op": "race", "resume": True})).header["state"] == "open"
        assert len(warm_ups) == expected


def test_a_race_of_a_job_that_was_cancelled_before_does_not_start(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, cancelled = list[object](), threading.Event()
    cancelled.set()
    monkeypatch.setattr(bench, "_call", lambda *given, **_: calls.append(given))
    with pytest.raises(RaceCancelled):
        bench.race([artifact(bench.spec.arch)], PROBLEM, RaceRules(3, 1), 30, cancelled)
    assert calls == []


def test_the_device_keeps_no_race_that_was_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.workers.device_worker._SLICE_S", 0.0)
    server = DeviceServer("host")
    header = {"op": "race", "problem": PROBLEM.to_dict(), "rules": encode(RaceRules(9, 1, vendor=False))}
    kernel = artifact(server._device.spec.arch).to_bytes()
    assert server.handle(Frame({**header, "resume": False}, (kernel,))).header["state"] == "open"
    server.handle(Frame({"op": "end_race"}))
    assert server.handle(Frame({"op": "race", "resume": True})).header["state"] == "lost"
