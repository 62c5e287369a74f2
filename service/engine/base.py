"""``Engine``: what every engine offers to the routes, wherever its devices are."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Protocol

from service.engine.health import DeviceHealth
from service.errors import Kind, Refusal
from tilewright.artifact import Artifact
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.job import JobStatus
from tilewright.schema.problem import GemmProblem
from tuner.store.records import JobRecord
from tuner.workers.gemm import GemmRun
from tuner.workers.shared_memory import Region


class Device(Protocol):
    """A device as requests see it: a :class:`tuner.workers.bench.Bench`, or one of another machine."""

    @property
    def name(self) -> str:
        """As requests name it."""

    @property
    def spec(self) -> DeviceSpec:
        """Its description."""

    @property
    def driver(self) -> str:
        """Name and version of driver or operating system."""

    @property
    def restart_reasons(self) -> dict[str, int]:
        """As :attr:`tuner.workers.bench.Bench.restart_reasons`."""

    def neighbours(self) -> tuple[str, ...]:
        """As :meth:`tuner.workers.bench.Bench.neighbours`."""

    def gemm(
        self,
        artifact: Artifact | None,
        problem: GemmProblem,
        regions: Mapping[str, Region],
        scalars: tuple[float, float],
        wait_s: float,
    ) -> GemmRun:
        """As :meth:`tuner.workers.bench.Bench.gemm`."""


class Queue(Protocol):
    """The queue of one device, as routes see it."""

    @property
    def name(self) -> str:
        """As requests name the device."""

    @property
    def bench(self) -> Device:
        """The device."""

    @property
    def job_id(self) -> str | None:
        """The job being tuned, or None."""

    def health(self) -> DeviceHealth:
        """How the device is now."""

    def release(self) -> bool:
        """As :meth:`Engine.release`."""


class Engine:
    """Runs jobs on devices.

    Attributes:
        queues: by device name, the default device first.
        stopping: the service is shutting down.
    """

    queues: Mapping[str, Queue]

    def __init__(self) -> None:
        self.stopping = threading.Event()

    def bench(self, device: str | None) -> Device:
        """A device by its name, for None the first one.

        Raises:
            Refusal: this service has no such device, or none at all yet.
        """
        queues = self.queues
        if not queues:
            raise Refusal(Kind.NOT_READY, "no device has joined yet; see GET /devices", retry_after=2)
        name = device or next(iter(queues))
        if name not in queues:
            known = ", ".join(queues)
            raise Refusal(Kind.UNSUPPORTED, f"there is no device {name} here; GET /devices lists {known}")
        return queues[name].bench

    def health(self) -> dict[str, DeviceHealth]:
        """How each device is, by name; answers from memory."""
        return {name: queue.health() for name, queue in self.queues.items()}

    def readiness(self) -> dict[str, str]:
        """The parts that this service needs to be ready, each with ``ok`` or what is wrong."""
        return {name: "ok" if one.ok else f"down ({one.reason})" for name, one in self.health().items()}

    def why_waiting(self, job: JobRecord) -> str | None:
        """The reason a job that is queued or tuned here cannot go on; None if there is none."""
        reasons = [one.health().reason for one in self._queues_of(job)]
        return reasons[0] if reasons and all(reasons) else None

    def neighbours(self, job: JobRecord) -> list[str]:
        """Other processes on the devices that tune a job or may take it, in words; empty once it ended."""
        if job.status.final:
            return []
        return [f"{one.name}: {text}" for one in self._queues_of(job) for text in one.bench.neighbours()]

    def _queues_of(self, job: JobRecord) -> list[Queue]:
        fit = [one for one in self.queues.values() if one.bench.spec.device_class.id == job.device_class]
        return fit if job.status is JobStatus.QUEUED else [one for one in fit if one.job_id == job.id]

    def open(self) -> None:
        """Find the devices.

        Raises:
            DeviceUnavailable: what the settings name is not there; the engine is stopped then.
        """

    def start(self) -> None:
        """Start working; calls :meth:`open` first if that was not called."""

    def wake(self) -> None:
        """Notify the engine that there may be a new job."""

    def cancel(self, job_id: str) -> None:
        """Stop a job if it is being tuned here."""

    def release(self, device: str) -> bool:
        """Use a device that is set aside as it is; False if it is not set aside.

        Raises:
            Refusal: there is no such device.
        """
        self.bench(device)
        return self.queues[device].release()

    def suspect(self, device: str, problem: GemmProblem, config: Config, artifact: Artifact) -> None:
        """Have the kernel of a GEMM that failed tried again while the device is idle, and its config
        quarantined if it fails by its own fault."""

    def begin_stop(self) -> None:
        """Stop after the running trials; safe to call from a signal handler."""
        self.stopping.set()

    def stop(self) -> None:
        """Stop; running jobs go back to the queue with their trials."""
        self.begin_stop()
