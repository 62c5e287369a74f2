"""Races in a process of their own, while the next search is prepared; one at a time has the device."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

from benchmarks.suite.race import RaceResult
from kernels.base.tile_hint import TileHint
from tilewright.artifact import Artifact
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import TrialResult
from tuner.measure.race import RaceRules, RaceSamples
from tuner.workers.bench import Bench
from tuner.workers.process import WorkerProcess, python

_LEAST_TIMEOUT_S = 300.0
_LAUNCHES = 2000  # more than a race makes
_SLOWEST_FLOPS = {"cuda": 5e12, "host": 1e9}  # per second: bounds how long a race may take


class Racer:
    """Races shapes; other users of the device take turns by the lock ``turn``.

    Attributes:
        spec, driver, libraries: what races, and with which libraries.
        turn: a lock that the user of the device holds.
    """

    def __init__(self, device_name: str) -> None:
        """Start the process.

        Raises:
            DeviceUnavailable: there is no such device here.
        """
        self._process = WorkerProcess(python("-m", "benchmarks.suite.worker", "--device", device_name))
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="race")
        hello = self._process.greeting()
        self.spec = DeviceSpec.from_dict(hello["spec"])
        self.driver = str(hello["driver"])
        self.libraries: dict[str, str] = hello["libraries"]
        self.turn = threading.Lock()

    def start(self, problem: GemmProblem, artifact: Artifact, rounds: int, seed: int) -> Future[RaceResult]:
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

    def _race(self, problem: GemmProblem, artifact: Artifact, rounds: int, seed: int) -> RaceResult:
        header = {"op": "suite", "problem": problem.to_dict(), "rounds": rounds, "seed": seed}
        timeout_s = _LEAST_TIMEOUT_S + _LAUNCHES * problem.flops / _SLOWEST_FLOPS[self.spec.kind]
        reply = self._process.call(header, [artifact.to_bytes()], timeout_s=timeout_s)
        return RaceResult(**reply.header["raced"])


class SharedBench(Bench):
    """A bench that waits for its turn at the device before whatever runs there."""

    def __init__(self, device_name: str, turn: threading.Lock) -> None:
        super().__init__(device_name)
        self._turn = turn

    def trial(self, *arguments: Any, **options: Any) -> TrialResult:
        """As :meth:`Bench.trial`."""
        with self._turn:
            return super().trial(*arguments, **options)

    def vendor_tile_hints(self, problem: GemmProblem, timeout_s: float) -> list[TileHint]:
        """As :meth:`Bench.vendor_tile_hints`."""
        with self._turn:
            return super().vendor_tile_hints(problem, timeout_s)

    def race(
        self, artifacts: Sequence[Artifact], problem: GemmProblem, rules: RaceRules, timeout_s: float
    ) -> RaceSamples:
        """As :meth:`Bench.race`."""
        with self._turn:
            return super().race(artifacts, problem, rules, timeout_s)
