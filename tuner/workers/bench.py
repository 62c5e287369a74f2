"""``Bench``: a device as the tuner and the service see it, behind a supervised process."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from kernels.base.tile_hint import TileHint
from tilewright.artifact import Artifact
from tilewright.errors import DeviceUnavailable, TilewrightError
from tilewright.schema.codec import decode
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import Outcome, Timing
from tuner.measure.race import RaceSamples
from tuner.measure.timing import FEWEST_SAMPLES
from tuner.workers.frames import Frame
from tuner.workers.gemm import GemmRun
from tuner.workers.process import WorkerBusy, WorkerDied, WorkerProcess, WorkerTimeout, python
from tuner.workers.shared_memory import Region

_COUNT_CUDA = "from tilewright.launch.driver import device_count; print(device_count())"
_GEMM_TIMEOUT_S = 30.0
_RACE_STARTS = 10
_KILLED = "SIGKILL"
_SLOWEST_FLOPS = 1e9  # per second: bounds how long a GEMM request may run


class DeviceBusy(TilewrightError):
    """The device was measuring for others until the wait ended; try again later."""


@dataclasses.dataclass(frozen=True, slots=True)
class TrialResult:
    """How a trial on the device ended; see :class:`tilewright.schema.trial.Trial` for the fields."""

    outcome: Outcome
    message: str = ""
    timing: Timing | None = None
    check_s: float = 0.0
    measure_s: float = 0.0
    repeatable: bool | None = None


class Bench:
    """One device; every method may be called from any thread and waits its turn.

    A crash or a hang of the device's process costs the call that caused it; the next call starts a
    fresh process. A programming error in the process is a ``RuntimeError`` here.

    Attributes:
        name: ``host`` or ``cuda:0`` and so on.
        spec: what the device is.
        driver: name and version of driver or operating system.
    """

    def __init__(self, device_name: str) -> None:
        """Start the device's process.

        Raises:
            DeviceUnavailable: there is no such device here, or its libraries are missing.
            WorkerDied, WorkerTimeout: the process did not start.
        """
        self.name = device_name
        self._process = WorkerProcess(python("-m", "tuner.workers.device_worker", "--device", device_name))
        hello = self._process.greeting()
        self.spec = DeviceSpec.from_dict(hello["spec"])
        self.driver = str(hello["driver"])

    @property
    def restarts(self) -> int:
        """How often the device's process had to be started again."""
        return self._process.restarts

    @property
    def restart_reasons(self) -> dict[str, int]:
        """The same by reason, see :class:`tuner.workers.process.WorkerProcess`."""
        return self._process.restart_reasons

    def trial(
        self,
        artifact: Artifact,
        problem: GemmProblem,
        incumbent_us: float | None,
        timeout_s: float,
        fewest_samples: int = FEWEST_SAMPLES,
    ) -> TrialResult:
        """Check an artifact, then measure it; stop early where ``incumbent_us`` is clearly faster.

        ``fewest_samples`` are taken of any other. A crash is ``launch_error`` and a hang beyond
        ``timeout_s`` seconds is ``timeout``.
        """
        header = {"op": "trial", "problem": problem.to_dict(), "incumbent_us": incumbent_us}
        header |= {"fewest_samples": fewest_samples}
        try:
            reply = self._process.call(header, [artifact.to_bytes()], timeout_s=timeout_s)
        except WorkerTimeout as error:
            return TrialResult(Outcome.TIMEOUT, str(error))
        except WorkerDied as error:
            return TrialResult(Outcome.LAUNCH_ERROR, str(error))
        return _trial_result(reply)

    def vendor_tile_hints(self, problem: GemmProblem, timeout_s: float) -> list[TileHint]:
        """The vendor library's tile hints, possibly none (:func:`tuner.measure.vendor.vendor_tile_hints`).

        Raises:
            DeviceUnavailable: the library is missing.
            WorkerDied, WorkerTimeout, LaunchError: it broke the device's process.
        """
        header = {"op": "tile_hints", "problem": problem.to_dict()}
        reply = self._process.call(header, timeout_s=timeout_s)
        return [TileHint.from_dict(hint) for hint in reply.header["tile_hints"]]

    def race(
        self,
        artifacts: Sequence[Artifact],
        problem: GemmProblem,
        rounds: int,
        seed: int,
        timeout_s: float,
        *,
        vendor: bool = True,
    ) -> RaceSamples:
        """Run artifacts interleaved, by default with the vendor library as the last candidate.

        The race gives others their turn about every second; a request that takes one costs a new warm-up,
        one that breaks the process a new race, and so does a kill from outside, which no kernel can cause.

        Raises:
            WorkerDied, WorkerTimeout, LaunchError: a candidate broke the device's process.
        """
        header = {"op": "race", "problem": problem.to_dict(), "rounds": rounds, "seed": seed}
        header |= {"vendor": vendor}
        payloads = [artifact.to_bytes() for artifact in artifacts]
        for _ in range(_RACE_STARTS):
            try:
                samples = self._race_once(header, payloads, timeout_s)
            except WorkerDied as error:
                if error.cause != _KILLED:
                    raise
            else:
                if samples:
                    return samples
        reason = (
            f"the device's process was killed during a race, or by requests in between, {_RACE_STARTS} times"
        )
        raise WorkerDied(f"{reason}; tune again", _KILLED)

    def _race_once(
        self, header: dict[str, Any], payloads: Sequence[bytes], timeout_s: float
    ) -> RaceSamples | None:
        """A whole race, None where its process ended between two slices."""
        reply = self._process.call({**header, "resume": False}, payloads, timeout_s=timeout_s)
        while reply.header["state"] == "open":
            reply = self._process.call({"op": "race", "resume": True}, timeout_s=timeout_s)
        return RaceSamples.from_dict(reply.header["samples"]) if reply.header["state"] == "done" else None

    def gemm(
        self,
        artifact: Artifact | None,
        problem: GemmProblem,
        regions: Mapping[str, Region],
        scalars: tuple[float, float],
        wait_s: float,
    ) -> GemmRun:
        """Run one GEMM with an artifact, or with the vendor library for None: from the bytes of ``a``, ``b``,
        ``c`` and ``bias`` into those of ``d``; ``scalars`` are alpha and beta.

        Raises:
            DeviceBusy: the device was not free within ``wait_s`` seconds.
            WorkerDied, WorkerTimeout, LaunchError: the kernel failed; the device is usable again.
        """
        header = {"op": "gemm", "problem": problem.to_dict(), "alpha": scalars[0], "beta": scalars[1]}
        header["regions"] = {name: dataclasses.asdict(region) for name, region in regions.items()}
        payloads = [artifact.to_bytes()] if artifact else []
        timeout_s = _GEMM_TIMEOUT_S + problem.flops / _SLOWEST_FLOPS
        try:
            reply = self._process.call(header, payloads, timeout_s=timeout_s, wait_s=wait_s)
        except WorkerBusy as error:
            raise DeviceBusy(f"{self.name} was not free within {wait_s:g} s; try again later") from error
        return GemmRun(**reply.header["run"])

    def close(self) -> None:
        """End the device's process."""
        self._process.close()


def list_devices() -> list[str]:
    """Names of the devices here, GPUs first; ``host`` is always there.

    The driver is asked by a short-lived process, so that the caller's never initialises CUDA.

    Raises:
        DeviceUnavailable: there is a driver, but it fails.
    """
    asked = subprocess.run(python("-c", _COUNT_CUDA), capture_output=True, text=True, timeout=60, check=False)
    if asked.returncode:
        raise DeviceUnavailable(f"the NVIDIA driver cannot count its devices:\n{asked.stderr}")
    return [f"cuda:{index}" for index in range(int(asked.stdout))] + ["host"]


def _trial_result(reply: Frame) -> TrialResult:
    header = reply.header
    return TrialResult(
        Outcome(header["outcome"]),
        header["message"],
        None if header["timing"] is None else decode(Timing, header["timing"]),
        header["check_s"],
        header["measure_s"],
        header["repeatable"],
    )
