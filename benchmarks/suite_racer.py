"""Races in a process of their own, while the next search is prepared; one at a time has the device."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

from benchmarks.suite_race import Heat
from kernels.outline import Outline
from tilewright.artifact import Artifact
from tilewright.device import DeviceSpec
from tilewright.problem import GemmProblem
from tuner.bench import Bench, TrialResult
from tuner.process import WorkerProcess, python
from tuner.race import RaceSamples

_LEAST_TIMEOUT_S = 300.0
_LAUNCHES = 2000  # more than a race makes
_SLOWEST_FLOPS = {"cuda": 5e12, "host": 1e9}  # per second: bounds how long a race may take


class Racer:
    """Races shapes; whoever else uses the device takes its turn with ``turn``.

    Attributes:
        spec, driver, libraries: what races, and with which libraries.
        turn: held by whoever uses the device.
    """

    def __init__(self, device_name: str) -> None:
        """Start the process.

        Raises:
            DeviceUnavailable: there is no such device here.
        """
        self._process = WorkerProcess(python("-m", "benchmarks.suite_worker", "--device", device_name))
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="race")
        hello = self._process.greeting()
        self.spec = DeviceSpec.from_dict(hello["spec"])
        self.driver = str(hello["driver"])
        self.libraries: dict[str, str] = hello["libraries"]
        self.turn = threading.Lock()

    def start(self, problem: GemmProblem, artifact: Artifact, rounds: int, seed: int) -> Future[Heat]:
        """Take the device as soon as it is free, and race; the future ends with the race.

        On the host the call returns after the race: whatever ran beside it would share its cores.
        """
        self.turn.acquire()
        future = self._threads.submit(self._race, problem, artifact, rounds, seed)
        future.add_done_callback(lambda _: self.turn.release())
        if self.spec.kind == "host":
            future.exception()
        return future

    def close(self) -> None:
        """End the process, a race with it."""
        self._process.close()
        self._threads.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _race(self, problem: GemmProblem, artifact: Artifact, rounds: int, seed: int) -> Heat:
        header = {"op": "suite", "problem": problem.to_dict(), "rounds": rounds, "seed": seed}
        timeout_s = _LEAST_TIMEOUT_S + _LAUNCHES * problem.flops / _SLOWEST_FLOPS[self.spec.kind]
        reply = self._process.call(header, [artifact.to_bytes()], timeout_s=timeout_s)
        return Heat(**reply.header["heat"])


class SharedBench(Bench):
    """A bench that waits for its turn at the device before whatever runs there."""

    def __init__(self, device_name: str, turn: threading.Lock) -> None:
        super().__init__(device_name)
        self._turn = turn

    def trial(
        self, artifact: Artifact, problem: GemmProblem, incumbent_us: float | None, timeout_s: float
    ) -> TrialResult:
        """As :meth:`Bench.trial`."""
        with self._turn:
            return super().trial(artifact, problem, incumbent_us, timeout_s)

    def vendor_outlines(self, problem: GemmProblem, timeout_s: float) -> list[Outline]:
        """As :meth:`Bench.vendor_outlines`."""
        with self._turn:
            return super().vendor_outlines(problem, timeout_s)

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
        """As :meth:`Bench.race`."""
        with self._turn:
            return super().race(artifacts, problem, rounds, seed, timeout_s, vendor=vendor)
