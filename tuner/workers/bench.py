"""``Bench``: a device behind a supervised process, for the tuner and the service."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import platform
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kernels.base.tile_hint import TileHint
from tilewright.artifact import Artifact
from tilewright.errors import DeviceUnavailable, LaunchError, TilewrightError
from tilewright.schema.codec import decode, encode
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import DType, GemmProblem
from tilewright.schema.trial import Outcome, TrialResult
from tuner.devices.base import Conditions
from tuner.measure.interference import LIMITS
from tuner.measure.race import RaceRules, RaceSamples
from tuner.measure.timing import FEWEST_SAMPLES, slowest_s
from tuner.workers.frames import Frame
from tuner.workers.gemm import GemmRun
from tuner.workers.process import (
    KILLED,
    WorkerBusy,
    WorkerDied,
    WorkerError,
    WorkerNotStarted,
    WorkerProcess,
    WorkerTimeout,
    python,
    was_killed,
)
from tuner.workers.recovery import DeviceNotStarted, DeviceSetAside, Recovery, gpu_state
from tuner.workers.shared_memory import Region

_COUNT_CUDA = "from tilewright.launch.driver import device_count; print(device_count())"
_COUNT_TIMEOUT_S = 60.0
_GEMM_TIMEOUT_S = 30.0
_RACE_STARTS = 10
_LOOK_AGAIN_S = 10.0
_REHEARSAL_TIMEOUT_S = 120.0
# The signals with which a kernel can kill its process; SIGBUS is left out: a full disk or /dev/shm causes it.
_CRASHES = ("SIGSEGV", "SIGILL", "SIGFPE", "SIGABRT")


def may_be_by_kernel(error: Exception) -> bool:
    """Whether a kernel can have caused an error of a call: a hang, a crash of the device's process, or a lost
    CUDA context. An exit or another signal is not caused by a kernel, nor is a device without memory.
    """
    if isinstance(error, WorkerDied):
        return error.cause in _CRASHES
    return isinstance(error, WorkerTimeout) or (isinstance(error, LaunchError) and error.sticky)


class DeviceBusy(TilewrightError):
    """The device was in use until the wait ended; try again later."""


class RaceCancelled(WorkerError):
    """The caller cancelled a race; it ended between two slices."""


class Bench:
    """One device. Every method may be called from any thread; calls run one at a time, in the order of
    asking.

    A crash or a hang of the device's process fails the call that caused it; the next call starts a new
    process. Any call raises :class:`tuner.workers.recovery.DeviceAway` if that does not start, or the device
    is set aside. A programming error in the process is a ``RuntimeError`` here.

    Attributes:
        name: ``host`` or ``cuda:0`` and so on.
        spec: description of the device.
        driver: name and version of driver or operating system.
        identity: tells the device from all others of this machine, of the same name too: a GPU's UUID.
        used: when a GEMM was last asked for, on the monotonic clock.
    """

    def __init__(self, device_name: str, recovery: Recovery | None = None) -> None:
        """Start the device's process. ``recovery`` watches a device other than a GPU.

        Raises:
            DeviceUnavailable: the machine has no such device, its libraries are missing, or the process does
                not start.
        """
        self.name = device_name
        command = python("-m", "tuner.workers.device_worker", "--device", device_name)
        self._recovery, self.used = recovery, 0.0
        self._alone_at = -math.inf
        self._process = WorkerProcess(command, self._check_back)
        with self._needed():
            hello = self._process.greeting()
        self.spec = DeviceSpec.from_dict(hello["spec"])
        self.driver = str(hello["driver"])
        self.identity = str(hello["identity"])
        self._neighbours = _neighbours(self.spec, self.identity)
        if self.spec.kind == "cuda":
            self._recovery = Recovery(functools.partial(gpu_state, self.identity))

    def neighbours(self) -> tuple[str, ...]:
        """The other processes that hold memory of the GPU now, in words; empty if there is none or none is
        known, as on a host. Asks NVML, not the device's process."""
        return self._neighbours.told(self._process.pid) if self._neighbours else ()

    def interference(self) -> tuple[str, ...]:
        """How much other processes use the GPU now, in words; empty if they use at most what leaves a race
        undisturbed, or there are none, as on a host. To be called between operations; it may take a second.
        """
        pid = self._process.pid
        share = self._neighbours.share(pid) if self._neighbours and pid is not None else None
        if share is not None:
            return self._too_much(share)
        return () if self._was_alone else self._interference_while_idle()

    def _interference_after(self, rules: RaceRules) -> tuple[str, ...]:
        """How much other processes use the GPU after a race, in words, where their use during it could not be
        counted; empty if they use at most what leaves a race undisturbed. Two kinds of race are not looked
        after: one without the vendor library, as the final follows it, and one of a quick job soon after a
        look that found no such use, as its problem is tuned again anyway."""
        if not rules.vendor or (rules.quick and self._was_alone):
            return ()
        return self._interference_while_idle()

    @property
    def _was_alone(self) -> bool:
        return time.monotonic() - self._alone_at < _LOOK_AGAIN_S

    def _interference_while_idle(self) -> tuple[str, ...]:
        share = self._neighbours.share_while_idle(LIMITS["gpu"].most) if self._neighbours else 0.0
        if share is None:
            return ("how much other processes use the GPU is unknown",) if self.neighbours() else ()
        reasons = self._too_much(share)
        if not reasons:
            self._alone_at = time.monotonic()
        return reasons

    def _too_much(self, share: float) -> tuple[str, ...]:
        limit = LIMITS["gpu"]
        return (limit.text.format(share),) if share > limit.most else ()

    def _hidden(self) -> bool:
        """Whether NVML does not report the use of other processes by itself, so that a race cannot count
        it."""
        pid = self._process.pid
        return bool(self._neighbours) and pid is not None and self._neighbours.share(pid) is None

    def _check_back(self, pid: int) -> None:
        if self._recovery:
            self._recovery.check(pid)

    @property
    def set_aside(self) -> str:
        """Why the device is set aside: a GPU that did not come back from a kill; empty if it is not."""
        return self._recovery.reason if self._recovery else ""

    def look(self) -> None:
        """Check, before the first trial, that no ended process still holds memory of the GPU. Call it again
        while the device is set aside for that.

        Raises:
            DeviceSetAside: they still do after some seconds.
            DeviceUnavailable: the process does not start.
        """
        self.come_back()
        if self._recovery and (pid := self._process.pid):
            self._recovery.look(pid)

    def come_back(self) -> None:
        """Start the process of a device that was set aside.

        Raises:
            DeviceSetAside: the device is not back yet.
            DeviceUnavailable: the process does not start.
        """
        with self._needed():
            self._process.greeting()

    def release(self) -> None:
        """Use a device that is set aside as it is."""
        if self._recovery:
            self._recovery.release()

    @property
    def known_as(self) -> str:
        """The device in words that tell it from those of all machines."""
        return f"{self.name} of {platform.node()} ({self.identity})"

    @property
    def restarts(self) -> int:
        """The number of restarts of the device's process."""
        return self._process.restarts

    @property
    def restart_reasons(self) -> dict[str, int]:
        """The number of restarts by reason, see :class:`tuner.workers.process.WorkerProcess`."""
        return self._process.restart_reasons

    def trial(
        self,
        artifact: Artifact,
        problem: GemmProblem,
        incumbent_us: float | None,
        timeout_s: float,
        fewest_samples: int = FEWEST_SAMPLES,
    ) -> TrialResult:
        """The result of checking an artifact and measuring it, which stops early if it is clearly slow.

        Args:
            incumbent_us: time to compare with; slower artifacts are pruned.
            timeout_s: seconds after which the result is ``timeout``. A crash gives ``launch_error``. Either
                runs a second time, in a new process, which tells whether it is the config's ``own_fault``.
            fewest_samples: samples of an artifact that is not pruned, at least.

        Raises:
            DeviceUnavailable: a library is missing.
        """
        header = {"op": "trial", "problem": problem.to_dict(), "incumbent_us": incumbent_us}
        header |= {"fewest_samples": fewest_samples}
        result = self._try(header, artifact, timeout_s)
        if not result.own_fault or result.outcome is Outcome.WRONG_RESULT:
            return result
        # NOTE: the process was that of earlier trials as well, which may have damaged it, and a machine that
        # stands still looks like a hang: only what happens again in a new process is the config's doing.
        try:
            again = self._try(header, artifact, timeout_s)
        except DeviceUnavailable:  # which its machine may be to blame for
            return dataclasses.replace(result, own_fault=False)
        return dataclasses.replace(result, own_fault=bool(again.own_fault))

    def _try(self, header: dict[str, Any], artifact: Artifact, timeout_s: float) -> TrialResult:
        """The result of one run; ``own_fault`` of a crash or a hang says that a kernel can have caused it."""
        try:
            reply = self._call(header, [artifact.to_bytes()], timeout_s=timeout_s)
        except (WorkerTimeout, WorkerDied) as error:
            outcome = Outcome.TIMEOUT if isinstance(error, WorkerTimeout) else Outcome.LAUNCH_ERROR
            return TrialResult(outcome=outcome, message=str(error), own_fault=may_be_by_kernel(error))
        return decode(TrialResult, reply.header["result"])

    def vendor_tile_hints(self, problem: GemmProblem, timeout_s: float) -> list[TileHint]:
        """The vendor library's tile hints, possibly none (:func:`tuner.measure.vendor.vendor_tile_hints`).

        Raises:
            DeviceUnavailable: the library is missing.
            WorkerDied, WorkerTimeout, LaunchError: the library broke the device's process.
        """
        header = {"op": "tile_hints", "problem": problem.to_dict()}
        reply = self._call(header, timeout_s=timeout_s)
        return [decode(TileHint, hint) for hint in reply.header["tile_hints"]]

    def race(
        self,
        artifacts: Sequence[Artifact],
        problem: GemmProblem,
        rules: RaceRules,
        timeout_s: float,
        cancelled: threading.Event | None = None,
    ) -> RaceSamples:
        """The samples of a race of artifacts, with the vendor library as the last candidate if it takes part.

        The race yields the device about every second. Each request in between costs a new warm-up. A request
        that breaks the process, or a kill from outside, which no kernel can cause, costs a new race.

        Raises:
            WorkerDied, WorkerTimeout, LaunchError: a candidate broke the device's process.
            DeviceUnavailable: a library is missing.
            RaceCancelled: ``cancelled`` was set, which is looked at between two slices.
        """
        header = {"op": "race", "problem": problem.to_dict(), "rules": encode(rules)}
        payloads, hidden = [artifact.to_bytes() for artifact in artifacts], self._hidden()
        for _ in range(_RACE_STARTS):
            if cancelled and cancelled.is_set():
                raise RaceCancelled("the job was cancelled before a race")
            try:
                samples = self._race_once(header, payloads, timeout_s, cancelled)
            except WorkerDied as error:
                if not was_killed(error):
                    raise
            else:
                if samples:
                    after = self._interference_after(rules) if hidden or self._hidden() else ()
                    return dataclasses.replace(samples, interference=samples.interference + after)
        reason = (
            f"the device's process was killed during a race, or by requests in between, {_RACE_STARTS} times"
        )
        raise WorkerDied(f"{reason}; tune again", KILLED)

    def _race_once(
        self,
        header: dict[str, Any],
        payloads: Sequence[bytes],
        timeout_s: float,
        cancelled: threading.Event | None,
    ) -> RaceSamples | None:
        """A whole race; None if its process ended between two slices."""
        reply = self._call({**header, "resume": False}, payloads, timeout_s=timeout_s)
        while reply.header["state"] == "open":
            if cancelled and cancelled.is_set():
                if self._process.pid:
                    with contextlib.suppress(TilewrightError):  # a process that ended has no race
                        self._call({"op": "end_race"}, timeout_s=timeout_s)
                raise RaceCancelled("the job was cancelled during a race")
            reply = self._call({"op": "race", "resume": True}, timeout_s=timeout_s)
        return decode(RaceSamples, reply.header["samples"]) if reply.header["state"] == "done" else None

    def rehearse(self, dtype: DType) -> None:
        """Have the device's process load and compile what the first trial of a type needs, which takes 5 to
        14 s on an H200.

        Raises:
            DeviceUnavailable: a library is missing.
            WorkerDied, WorkerTimeout, LaunchError: the device failed.
        """
        self._call({"op": "rehearse", "dtype": dtype.value}, timeout_s=_REHEARSAL_TIMEOUT_S)

    def conditions(self) -> Conditions:
        """Highest clock, power limit and temperature of the device now.

        Raises:
            WorkerDied, WorkerTimeout: the device failed.
        """
        reply = self._call({"op": "conditions"}, timeout_s=_GEMM_TIMEOUT_S)
        return decode(Conditions, reply.header["conditions"])

    def gemm(
        self,
        artifact: Artifact | None,
        problem: GemmProblem,
        regions: Mapping[str, Region],
        scalars: tuple[float, float],
        wait_s: float,
    ) -> GemmRun:
        """Run one GEMM with an artifact, or with the vendor library if it is None.

        Reads the bytes of ``a``, ``b``, ``c`` and ``bias`` and writes those of ``d``; ``scalars`` are alpha
        and beta.

        Raises:
            DeviceBusy: the device was not free within ``wait_s`` seconds.
            DeviceSetAside: the device is set aside.
            WorkerDied, WorkerTimeout, LaunchError: the kernel failed; the device remains usable.
        """
        if self.set_aside and self._process.pid:  # a start of the process looks by itself
            raise DeviceSetAside(self.set_aside)
        header = {"op": "gemm", "problem": problem.to_dict(), "alpha": scalars[0], "beta": scalars[1]}
        header["regions"] = {name: encode(region) for name, region in regions.items()}
        payloads = [artifact.to_bytes()] if artifact else []
        timeout_s = _GEMM_TIMEOUT_S + slowest_s(problem, self.spec)
        self.used = time.monotonic()
        try:
            reply = self._call(header, payloads, timeout_s=timeout_s, wait_s=wait_s)
        except WorkerBusy as error:
            raise DeviceBusy(f"{self.name} was not free within {wait_s:g} s; try again later") from error
        return decode(GemmRun, reply.header["run"])

    def close(self) -> None:
        """End the device's process."""
        self._process.close()

    def _call(
        self,
        header: dict[str, Any],
        payloads: Sequence[bytes] = (),
        *,
        timeout_s: float,
        wait_s: float | None = None,
    ) -> Frame:
        with self._needed():
            return self._process.call(header, payloads, timeout_s=timeout_s, wait_s=wait_s)

    @contextlib.contextmanager
    def _needed(self) -> Iterator[None]:
        """A process that does not start is the device's fault, not that of the kernel it was started for."""
        try:
            yield
        except WorkerNotStarted as error:
            reason = f"the process of {self.name} does not start: {error}"
            raise DeviceNotStarted(f"{reason}; 'tilewright doctor' there says what is missing") from error


def _neighbours(spec: DeviceSpec, identity: str) -> Any:
    """NVML's view of a GPU; None where it has none."""
    if spec.kind != "cuda":
        return None
    from tuner.devices.nvml import GpuNeighbours

    return GpuNeighbours.of(identity)


def list_devices() -> list[str]:
    """Names of the devices of this machine, GPUs first; ``host`` is always one.

    A short-lived process asks the driver, so that the calling process never initialises CUDA.

    Raises:
        DeviceUnavailable: the driver is installed but fails.
    """
    command, limit_s = python("-c", _COUNT_CUDA), _COUNT_TIMEOUT_S
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise DeviceUnavailable(
            f"the NVIDIA driver did not count its devices within {limit_s:g} s, run nvidia-smi"
        ) from error
    if asked.returncode:
        said = asked.stderr.strip().rpartition("\n")[2]
        raise DeviceUnavailable(f"the NVIDIA driver cannot count its devices, run nvidia-smi: {said}")
    return [f"cuda:{index}" for index in range(int(asked.stdout))] + ["host"]
