"""``Builder``: compiles configs ahead of the device, in processes that may crash."""

from __future__ import annotations

import collections
import dataclasses
import queue
import statistics
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from kernels.base.spec import CompileError
from kernels.compiler.build import CACHE_BYTES
from tilewright.artifact import Artifact
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import Outcome
from tuner.workers.process import WorkerDied, WorkerProcess, WorkerTimeout, python, was_killed

_CACHE_HIT_S = 0.1  # an artifact from the cache takes less, a compilation more
_MEMORY_BYTES = 2 * 2**30  # NOTE: ten times what a compilation of the largest kernels takes


@dataclasses.dataclass(frozen=True, slots=True)
class Compiled:
    """The result of a compilation.

    Attributes:
        artifact: the artifact; None unless the outcome is ``ok``.
        outcome: ``ok``, ``compile_error``, ``timeout``, or ``invalid`` for a kernel that spills registers.
        message: the reason of a failure.
        seconds: wall-clock seconds, without the wait in the queue.
    """

    artifact: Artifact | None
    outcome: Outcome
    message: str = ""
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class CompileLimit:
    """The time limit of a compilation in seconds, derived from earlier compilations.

    Attributes:
        first: limit while fewer than ten compilations are known.
        least, most: bounds of the limit after that.
        factor: the limit is so many times their 90th percentile.
    """

    first: float = 30.0
    least: float = 10.0
    most: float = 120.0
    factor: float = 8.0

    def after(self, seconds: Sequence[float]) -> float:
        """The limit after compilations that took ``seconds``."""
        if len(seconds) < 10:
            return self.first
        return min(self.most, max(self.least, self.factor * statistics.quantiles(seconds, n=10)[-1]))


@dataclasses.dataclass(frozen=True, slots=True)
class _Job:
    request: dict[str, Any]
    future: Future[Compiled]


class Builder:
    """A first-in first-out queue in front of compile processes.

    A crash of the compiler or a need for more than ``memory_bytes`` of memory gives ``compile_error``, a hang
    ``timeout``, for its own config only. The future raises a missing compiler, a programming error, and a
    :meth:`close` in the middle.

    Attributes:
        processes: how many configs compile at once.
    """

    def __init__(
        self,
        processes: int,
        cache_folder: Path,
        limit: CompileLimit | None = None,
        cache_bytes: int = CACHE_BYTES,
        memory_bytes: int = _MEMORY_BYTES,
    ) -> None:
        self.processes = processes
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._limit = limit or CompileLimit()
        self._seconds: collections.deque[float] = collections.deque(maxlen=200)
        self._closed = False
        self._lock = threading.Lock()  # nothing is queued once the builder is closed
        self._processes = [compile_process(cache_folder, cache_bytes, memory_bytes) for _ in range(processes)]
        self._threads = [
            threading.Thread(target=self._work, args=(process,), name="compile", daemon=True)
            for process in self._processes
        ]
        for thread in self._threads:
            thread.start()

    def submit(
        self, family_name: str, config: Config, problem: GemmProblem, device: DeviceSpec
    ) -> Future[Compiled]:
        """Queue a valid config; a future that is cancelled before it starts is skipped."""
        job = _Job(compile_request(family_name, config, problem, device), Future())
        with self._lock:
            if self._closed:
                raise RuntimeError("the builder was closed")
            self._queue.put(job)
        return job.future

    def close(self) -> None:
        """Cancel queued compilations, kill running ones, and wait for the processes to end."""
        with self._lock:
            self._closed = True
        self._drain()
        for _ in self._threads:
            self._queue.put(None)
        for process in self._processes:
            process.close()
        for thread in self._threads:
            thread.join()

    def _drain(self) -> None:
        while True:
            try:
                job = self._queue.get_nowait()
            except queue.Empty:
                return
            if job:
                job.future.cancel()

    def _work(self, process: WorkerProcess) -> None:
        while job := self._queue.get():
            if not job.future.set_running_or_notify_cancel():
                continue
            try:
                job.future.set_result(self._compile(process, job.request))
            except BaseException as error:
                # NOTE: a thread that ended would leave the jobs behind this one waiting for ever.
                job.future.set_exception(error)

    def _compile(self, process: WorkerProcess, request: dict[str, Any]) -> Compiled:
        compiled = self.compile(process, request, self._limit.after(list(self._seconds)))
        if compiled.seconds > _CACHE_HIT_S:
            self._seconds.append(compiled.seconds)
        return compiled

    def compile(self, process: WorkerProcess, request: dict[str, Any], limit_s: float) -> Compiled:
        """As :func:`compile_in`; for subclasses that compile elsewhere."""
        return compile_in(process, request, limit_s)


def compile_request(
    family_name: str, config: Config, problem: GemmProblem, device: DeviceSpec
) -> dict[str, Any]:
    """What :func:`compile_in` takes, as plain data."""
    return {
        "family": family_name,
        "config": config.to_dict(),
        "problem": problem.to_dict(),
        "device": device.to_dict(),
    }


def compile_process(cache_folder: Path, cache_bytes: int, memory_bytes: int = _MEMORY_BYTES) -> WorkerProcess:
    """A process that compiles, with a cache of built artifacts; it starts with its first call."""
    cache = ("--cache", str(cache_folder), "--cache-bytes", str(cache_bytes))
    memory = ("--memory-bytes", str(memory_bytes))
    return WorkerProcess(python("-m", "tuner.workers.compile_worker", *cache, *memory))


def compile_in(process: WorkerProcess, request: dict[str, Any], limit_s: float, tries: int = 2) -> Compiled:
    """What a process makes of a :func:`compile_request` within ``limit_s`` seconds, else it is killed. If
    others kill it, the request compiles again, ``tries`` times in all.

    Raises:
        DeviceUnavailable: the compiler is not installed.
        WorkerNotStarted: the process does not start.
        RuntimeError: a programming error, or the process was closed.
    """
    process.greeting()  # its start is not a part of the compilation
    start = time.perf_counter()
    try:
        reply = process.call(request, timeout_s=limit_s)
    except (CompileError, WorkerDied, WorkerTimeout) as error:
        if tries > 1 and was_killed(error):
            return compile_in(process, request, limit_s, tries - 1)
        return _failed(error, time.perf_counter() - start)
    return _judged(Artifact.from_bytes(reply.payloads[0]), time.perf_counter() - start)


def _failed(error: CompileError | WorkerDied | WorkerTimeout, seconds: float) -> Compiled:
    if isinstance(error, WorkerTimeout):
        return Compiled(None, Outcome.TIMEOUT, f"the compiler gave {error}", seconds)
    reason = f"the compiler crashed: {error}" if isinstance(error, WorkerDied) else str(error)
    return Compiled(None, Outcome.COMPILE_ERROR, reason, seconds)


def _judged(artifact: Artifact, seconds: float) -> Compiled:
    spilled = artifact.resources.spill_bytes
    if spilled:
        reason = (
            f"spills {spilled} bytes a thread to local memory with {artifact.resources.registers} registers"
        )
        return Compiled(None, Outcome.INVALID, reason, seconds)
    return Compiled(artifact, Outcome.OK, "", seconds)
