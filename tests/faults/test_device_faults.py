"""Kernels that crash, hang or lie on the host device: each costs its own trial and nothing else."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from collections.abc import Iterator

import host_kernels
import numpy as np
import pytest
from deadlines import ends_in_time
from host_kernels import PROBLEM, artifact

from tilewright.artifact import Artifact
from tilewright.errors import DeviceUnavailable, InvalidProblem, LaunchError, TilewrightError
from tilewright.launch.host import host_arch
from tilewright.schema.codec import decode, encode
from tilewright.schema.trial import Outcome, TrialResult
from tuner.measure.race import RaceRules
from tuner.workers.bench import Bench, DeviceBusy, RaceCancelled, list_devices
from tuner.workers.child import Child
from tuner.workers.device_worker import KernelCache
from tuner.workers.frames import Frame
from tuner.workers.process import WorkerDied, WorkerProcess, WorkerTimeout
from tuner.workers.shared_memory import Pages


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    made = Bench("host")
    yield made
    made.close()


def assert_good(bench: Bench) -> None:
    """A right kernel passes, on a process that is there within three seconds."""
    start = time.monotonic()
    assert close(*product(bench))
    assert time.monotonic() - start < 3.0
    result = bench.trial(artifact(bench.spec.arch), PROBLEM, None, timeout_s=30)
    assert result.outcome is Outcome.OK, result.message
    assert result.timing is not None
    assert result.timing.median_us > 0
    assert result.check_s > 0
    assert result.measure_s > 0


def test_whether_a_kernel_repeats_bit_by_bit_is_measured(bench: Bench) -> None:
    found = {
        after: bench.trial(artifact(bench.spec.arch, after=after), PROBLEM, None, timeout_s=30)
        for after in ("", host_kernels.UNORDERED, host_kernels.OFF_BY_ONE)
    }
    ordered, unordered, wrong = found.values()
    assert (ordered.outcome, ordered.repeatable) == (Outcome.OK, True)
    assert (unordered.outcome, unordered.repeatable) == (Outcome.OK, False)
    assert (wrong.outcome, wrong.repeatable) == (Outcome.WRONG_RESULT, None)


def close(result: object, expected: object) -> bool:
    return bool(np.allclose(result, expected, rtol=1e-4, atol=1e-4))


def operands() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(1)
    return tuple(random.standard_normal(shape).astype("f4") for shape in (PROBLEM.a_shape, PROBLEM.b_shape))  # type: ignore[return-value]


def gemm(bench: Bench, kernel: Artifact | None, alpha: float = 1.0, wait_s: float = 10.0) -> np.ndarray:
    """D as ``kernel`` computes it from :func:`operands`."""
    a, b = operands()
    with Pages() as pages, Pages() as out:
        for operand in (a, b):
            pages.append(operand.tobytes())
        where = {"a": pages.region.part(0, a.nbytes), "b": pages.region.part(a.nbytes, b.nbytes)}
        where["d"] = out.resize(4 * PROBLEM.m * PROBLEM.n)
        run = bench.gemm(kernel, PROBLEM, where, (alpha, 0.0), wait_s)
        assert run.micros > 0
        return np.frombuffer(out.read(0, where["d"].size), np.float32).reshape(PROBLEM.m, PROBLEM.n)


def product(bench: Bench, before: str = "", wait_s: float = 10.0) -> tuple[object, object]:
    a, b = operands()
    return gemm(bench, artifact(bench.spec.arch, before), wait_s=wait_s), a @ b


def test_a_right_kernel(bench: Bench) -> None:
    assert_good(bench)
    assert bench.spec.kind == "host"
    assert bench.driver


@pytest.mark.parametrize(
    ("statement", "cause"),
    [
        (host_kernels.SEGFAULT, "SIGSEGV"),
        (host_kernels.ABORT, "SIGABRT"),
        (host_kernels.EXIT, "exit code 3"),
    ],
)
@pytest.mark.parametrize("after", [False, True])
def test_a_crash_costs_one_trial(bench: Bench, statement: str, cause: str, after: bool) -> None:
    before = bench.restarts
    broken = artifact(bench.spec.arch, *(("", statement) if after else (statement, "")))
    result = bench.trial(broken, PROBLEM, None, timeout_s=30)
    assert result.outcome is Outcome.LAUNCH_ERROR
    assert cause in result.message
    assert result.timing is None
    by_kernel = cause.startswith("SIG")
    assert result.own_fault is by_kernel
    assert_good(bench)
    assert bench.restarts == before + 1 + by_kernel  # which ran again in a new process
    assert bench.restart_reasons["died"] >= 1


def test_a_hang_costs_one_trial(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It hangs once more in a new process, whose start is no part of either time."""
    exchange, took = WorkerProcess._exchange, list[float]()

    def timed(process: WorkerProcess, child: Child, request: Frame | None, timeout_s: float) -> Frame:
        start = time.monotonic()
        try:
            return exchange(process, child, request, timeout_s)
        except WorkerTimeout:
            took.append(time.monotonic() - start)
            raise

    def hang() -> list[float]:
        took.clear()
        before = bench.restart_reasons.get("timeout", 0)
        result = bench.trial(artifact(bench.spec.arch, host_kernels.HANG), PROBLEM, None, timeout_s=1.0)
        assert result.outcome is Outcome.TIMEOUT
        assert "no answer within 1 s" in result.message
        assert result.own_fault is True
        assert_good(bench)
        assert bench.restart_reasons["timeout"] == before + len(took) == before + 2
        return took

    monkeypatch.setattr(WorkerProcess, "_exchange", timed)
    ends_in_time(1.0, hang)


def pid_of(bench: Bench) -> int:
    assert_good(bench)
    pid = bench._process.pid
    assert pid is not None
    return pid


def struck(bench: Bench, sign: int) -> TrialResult:
    """The result of a kernel that hangs until its process gets a signal."""
    timer = threading.Timer(0.3, os.kill, (pid_of(bench), sign))
    timer.start()
    try:
        return bench.trial(artifact(bench.spec.arch, host_kernels.HANG), PROBLEM, None, timeout_s=30)
    finally:
        timer.join()


def test_what_the_machine_does_is_not_the_configs_fault(bench: Bench) -> None:
    """A stopped process looks like a hang; the OOM killer sends SIGKILL, a full /dev/shm SIGBUS."""
    os.kill(pid_of(bench), signal.SIGSTOP)
    stopped = bench.trial(artifact(bench.spec.arch), PROBLEM, None, timeout_s=3.0)
    assert (stopped.outcome, stopped.own_fault) == (Outcome.TIMEOUT, False)
    for sign in (signal.SIGKILL, signal.SIGBUS):
        result = struck(bench, sign)
        assert (result.outcome, result.own_fault) == (Outcome.LAUNCH_ERROR, False)
        assert signal.Signals(sign).name in result.message
    assert_good(bench)


@pytest.mark.parametrize("statement", [host_kernels.OFF_BY_ONE, host_kernels.OUT_OF_BOUNDS])
def test_a_lie_is_a_wrong_result(bench: Bench, statement: str) -> None:
    before = bench.restarts
    result = bench.trial(artifact(bench.spec.arch, "", statement), PROBLEM, None, timeout_s=30)
    assert result.outcome is Outcome.WRONG_RESULT
    assert result.message
    assert result.timing is None
    assert result.own_fault is True
    assert bench.restarts == before


def test_what_a_kernel_prints_is_not_a_frame(bench: Bench) -> None:
    result = bench.trial(artifact(bench.spec.arch, host_kernels.PRINT), PROBLEM, None, timeout_s=30)
    assert result.outcome is Outcome.OK, result.message


def test_a_binary_that_cannot_be_loaded(bench: Bench) -> None:
    before = bench.restarts
    damaged = dataclasses.replace(artifact(bench.spec.arch), binary=b"\x7fELF, but not really")
    nameless = artifact(bench.spec.arch, entry="not_there")
    for broken in (damaged, nameless):
        result = bench.trial(broken, PROBLEM, None, timeout_s=30)
        assert result.outcome is Outcome.LAUNCH_ERROR
        assert result.message
    assert bench.restarts == before


def test_a_kernel_for_another_problem_is_refused(bench: Bench) -> None:
    other = dataclasses.replace(PROBLEM, has_bias=True)
    result = bench.trial(artifact(bench.spec.arch), other, None, timeout_s=30)
    assert result.outcome is Outcome.LAUNCH_ERROR
    assert "the artifact serves" in result.message


def test_a_crash_in_a_race_is_raised(bench: Bench) -> None:
    good, broken = artifact(bench.spec.arch), artifact(bench.spec.arch, host_kernels.SEGFAULT)
    with pytest.raises(WorkerDied, match="SIGSEGV"):
        bench.race([good, broken], PROBLEM, RaceRules(3, 1), 30)
    hung = artifact(bench.spec.arch, host_kernels.HANG)
    with pytest.raises(WorkerTimeout):
        bench.race([good, hung], PROBLEM, RaceRules(3, 1), 1.0)
    samples = bench.race([good, good], PROBLEM, RaceRules(3, 1), 60)
    assert decode(type(samples), encode(samples)) == samples


def test_numpy_gives_no_tile_hint(bench: Bench) -> None:
    assert bench.vendor_tile_hints(PROBLEM, timeout_s=60) == []


def test_a_race_without_the_vendor(bench: Bench) -> None:
    slow, fast = artifact(bench.spec.arch, "usleep(2000);"), artifact(bench.spec.arch)
    samples = bench.race([slow, fast], PROBLEM, RaceRules(3, 1, vendor=False), 60)
    assert samples.candidates == (slow.digest, fast.digest)
    assert [len(row) for row in samples.samples_us] == [3, 3]
    assert min(samples.samples_us[0]) > max(samples.samples_us[1])
    assert (samples.vendor_name, samples.vendor_detail) == ("", {})


def test_gemm_fails_alone(bench: Bench) -> None:
    with pytest.raises(WorkerDied, match="SIGABRT"):
        product(bench, host_kernels.ABORT)
    assert close(*product(bench))


def test_gemm_says_what_is_wrong_with_a_request(bench: Bench) -> None:
    before = bench.restarts
    size = 4 * PROBLEM.m * PROBLEM.n
    with Pages() as pages:
        whole = pages.resize(3 * size)
        beyond = dataclasses.replace(whole, offset=whole.size)
        for regions in ({}, dict.fromkeys("abd", whole), dict.fromkeys("abd", beyond.part(0, size))):
            with pytest.raises((InvalidProblem, LaunchError)):
                bench.gemm(artifact(bench.spec.arch), PROBLEM, regions, (1.0, 0.0), wait_s=10)
    assert bench.restarts == before


def test_gemm_by_the_vendor(bench: Bench) -> None:
    assert close(gemm(bench, None, alpha=2.0), 2.0 * gemm(bench, artifact(bench.spec.arch)))


def test_gemms_come_between_the_slices_of_a_race(bench: Bench) -> None:
    """A race of some seconds holds up a GEMM by one slice, and ends with all of its rounds."""
    slow = artifact(bench.spec.arch, "usleep(100);")
    samples = []
    race = threading.Thread(
        target=lambda: samples.append(bench.race([slow], PROBLEM, RaceRules(50, 1), 60.0))
    )
    race.start()
    gemms = 0
    while race.is_alive():
        start = time.monotonic()
        assert close(*product(bench, wait_s=10))
        gemms += 1
        assert time.monotonic() - start < 6.0
        time.sleep(0.25)
    race.join()
    assert gemms > 1
    assert [len(row) for row in samples[0].samples_us] == [50, 50]


class SetAtTheSecondLook(threading.Event):
    looks = 0

    def is_set(self) -> bool:
        self.looks += 1
        return self.looks > 1


def test_a_cancelled_race_ends_between_two_slices(bench: Bench) -> None:
    slow, start = artifact(bench.spec.arch, "usleep(100);"), time.monotonic()
    with pytest.raises(RaceCancelled):
        bench.race([slow], PROBLEM, RaceRules(500, 1), 60.0, SetAtTheSecondLook())
    assert time.monotonic() - start < 5.0
    assert bench._call({"op": "race", "resume": True}, timeout_s=5.0).header["state"] == "lost"
    assert_good(bench)


def test_a_race_starts_again_after_a_gemm_that_broke_the_process(bench: Bench) -> None:
    samples = []
    good = artifact(bench.spec.arch)
    race = threading.Thread(
        target=lambda: samples.append(bench.race([good], PROBLEM, RaceRules(10, 1), 60.0))
    )
    race.start()
    while not bench._process._call_lock._taken:
        time.sleep(0.001)
    with pytest.raises(WorkerDied):
        product(bench, host_kernels.SEGFAULT)
    race.join()
    assert [len(row) for row in samples[0].samples_us] == [10, 10]


def test_gemm_waits_for_one_trial_at_most(bench: Bench) -> None:
    hung = artifact(bench.spec.arch, host_kernels.HANG)
    trial = threading.Thread(target=bench.trial, args=(hung, PROBLEM, None, 0.8))
    trial.start()
    while not bench._process._call_lock._taken:
        time.sleep(0.001)
    with pytest.raises(DeviceBusy, match="host was not free within"):
        product(bench, wait_s=0.05)
    assert close(*product(bench, wait_s=10))
    trial.join()


def test_kernels_are_kept_by_content_and_the_oldest_are_closed() -> None:
    cache = KernelCache()
    first, second = (artifact(host_arch(), before).to_bytes() for before in ("", host_kernels.SLOW))
    older = cache.get(first)
    newer = cache.get(second)
    assert cache.get(first) is older
    cache.trim(1)
    assert (older.closed, newer.closed) == (False, True)  # type: ignore[attr-defined]
    cache.trim(0)
    assert older.closed  # type: ignore[attr-defined]


def test_the_host_is_always_a_device() -> None:
    assert list_devices()[-1] == "host"


def test_a_driver_that_does_not_answer_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.workers.bench._COUNT_CUDA", "import time; time.sleep(60)")
    monkeypatch.setattr("tuner.workers.bench._COUNT_TIMEOUT_S", 0.2)
    with pytest.raises(DeviceUnavailable, match=r"within 0\.2 s, run nvidia-smi"):
        list_devices()


@pytest.mark.parametrize("name", ["cpu", "cuda", "cuda:x", "host:1", "cuda:4096"])
def test_a_device_that_is_not_there(name: str) -> None:
    with pytest.raises(TilewrightError) as caught:
        Bench(name)
    assert isinstance(caught.value, DeviceUnavailable)
