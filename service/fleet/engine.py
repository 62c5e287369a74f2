"""``RayEngine``: the devices of a Ray cluster, as the routes see them."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import threading
from collections.abc import Mapping
from typing import Any, NoReturn

from service.engine.base import Device, Engine
from service.engine.health import DeviceHealth, Trouble
from service.errors import Kind, Refusal
from service.settings import Settings
from tilewright.errors import DeviceUnavailable, TilewrightError
from tilewright.schema.codec import decode
from tilewright.schema.device import DeviceSpec
from tuner.workers.process import WorkerError, WorkerProcess, python

# What an actor takes from the service; the environment of its node gives the rest.
_SHARED = {
    "database_url",
    "lease_s",
    "quiet_wait_s",
    "stop_s",
    "retune_stale",
    "help_jobs",
    "canary_hours",
    "log_level",
}
_SHARED |= {"max_queue", "max_trials", "max_extent", "max_gemm_bytes"}
_LOOK_S = 0.5
_SOON_S = 0.1  # the same while a node joins
_CALL_S = 20.0
log = logging.getLogger("tilewright.fleet")


@dataclasses.dataclass(frozen=True, slots=True)
class RemoteDevice:
    """A device of another process, perhaps of another machine."""

    name: str
    spec: DeviceSpec
    driver: str
    restart_reasons: dict[str, int]
    others: tuple[str, ...] = ()

    def neighbours(self) -> tuple[str, ...]:
        """As :meth:`tuner.workers.bench.Bench.neighbours`, at the last look."""
        return self.others

    def gemm(self, *_: Any) -> NoReturn:
        """Refuse: operands lie in memory of the service's machine.

        Raises:
            Refusal: always, with the node to go to.
        """
        raise Refusal(
            Kind.UNSUPPORTED,
            f"{self.name} is on a node of the fleet, which only tunes; use the client there with the config "
            "set, or a service with --engine local",
        )


@dataclasses.dataclass(frozen=True, slots=True)
class RemoteQueue:
    """The queue of a device, as it was at the last look."""

    name: str
    bench: RemoteDevice
    last: DeviceHealth

    @property
    def job_id(self) -> str | None:
        """The job being tuned, or None."""
        return self.last.job_id

    def health(self) -> DeviceHealth:
        """How the device was."""
        return self.last

    def release(self) -> bool:
        """Whether the device was set aside; :meth:`RayEngine.release` tells it."""
        return self.last.trouble is Trouble.SET_ASIDE


class RayEngine(Engine):
    """Watches the devices of a Ray cluster, each an actor that claims jobs from the database by itself.

    Any number of services may watch the same cluster and database: they share the actors, and a job goes on
    while one of them is away.

    Attributes:
        queues: nodes come and go, and so do their devices.
    """

    queues: Mapping[str, RemoteQueue]

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._settings = settings
        self.queues = {}
        self._refused: tuple[str, ...] = ()
        self._compilers: frozenset[str] = frozenset()
        self._trouble = ""
        self._joining = True
        self._cancel: set[str] = set()
        self._release: set[str] = set()
        digest = hashlib.sha256(settings.database_url.encode()).hexdigest()[:12]
        address = ("--address", settings.ray_address, "--namespace", f"tilewright-{digest}")
        self._watcher = WorkerProcess(python("-m", "service.fleet.watcher", *address))
        self._thread = threading.Thread(target=self._run, name="fleet", daemon=True)

    def open(self) -> None:
        """Join the cluster.

        Raises:
            DeviceUnavailable: in a sentence what is wrong with Ray, its address or this machine.
        """
        if self._settings.devices:
            raise DeviceUnavailable(
                "--device is for --engine local; a node gives what 'ray start --num-gpus' and --num-cpus say"
            )
        try:
            self._watcher.greeting()
        except WorkerError as error:
            self._watcher.close()
            raise DeviceUnavailable(
                f"what listens at {self._settings.ray_address} does not answer as a Ray head; give its "
                "--ray-address, as 'ray status' knows it"
            ) from error
        except TilewrightError:
            self._watcher.close()
            raise

    def start(self) -> None:
        """Watch the cluster."""
        self.open()
        self._thread.start()

    def bench(self, device: str | None) -> Device:
        """As :meth:`Engine.bench`; says which nodes were refused where no device has joined."""
        if not self.queues:
            why = "; ".join([self._trouble, *self._refused]).strip("; ") or "nodes are being looked at"
            raise Refusal(Kind.NOT_READY, f"no device has joined yet ({why}); try again", retry_after=2)
        return super().bench(device)

    def readiness(self) -> dict[str, str]:
        """The cluster as a whole: a service is ready without some of its nodes."""
        return {"ray": f"down ({self._trouble})" if self._trouble else "ok"}

    def cancel(self, job_id: str) -> None:
        """Have a device told at the next look; without this its next lease tells it."""
        self._cancel.add(job_id)

    def release(self, device: str) -> bool:
        """Have a device told at the next look."""
        found = super().release(device)
        if found:
            self._release.add(device)
        return found

    def stop(self) -> None:
        """Watch no more. The devices go on for other services, and stop by themselves where there is none."""
        self.begin_stop()
        self._watcher.close()
        if self._thread.is_alive():
            self._thread.join(_CALL_S)

    def _run(self) -> None:
        while not self.stopping.wait(_SOON_S if self._joining else _LOOK_S):
            try:
                self._look()
            except Exception as error:
                # NOTE: the boundary of the thread: the cluster is looked at again after any error.
                if self.stopping.is_set():
                    return
                self._trouble = str(error) or type(error).__name__
                is_bug = not isinstance(error, TilewrightError)
                log.warning("the fleet cannot be seen: %s", self._trouble, exc_info=is_bug)
                lost = DeviceHealth(False, None, None, f"not seen: {self._trouble}")
                self.queues = {name: dataclasses.replace(one, last=lost) for name, one in self.queues.items()}

    def _look(self) -> None:
        cancel, release = self._cancel.copy(), self._release.copy()
        given = self._settings.model_dump(mode="json", include=_SHARED)
        header = {"op": "look", "cancel": sorted(cancel), "release": sorted(release), "settings": given}
        news = self._watcher.call(header, timeout_s=_CALL_S).header
        self._cancel.difference_update(cancel)  # not before: what was not told is told at the next look
        self._release.difference_update(release)
        found = {one["name"]: _queue(one) for one in news["devices"] if one["state"]}
        refused = (
            *news["refused"],
            *(f"{d['name']}: {d['reason']}" for d in news["devices"] if not d["state"]),
        )
        for reason in set(refused) - set(self._refused):
            log.warning("%s", reason)
        for name in found.keys() ^ self.queues.keys():
            log.info("device %s %s", name, "joined" if name in found else "left")
        compilers = frozenset(news["compilers"])
        for name in compilers ^ self._compilers:
            log.info(
                "node %s %s", name, "compiles for the fleet" if name in compilers else "compiles no more"
            )
        self._compilers = compilers
        self.queues, self._refused, self._trouble = dict(sorted(found.items())), refused, ""
        self._joining = news["joining"]


def _queue(found: Mapping[str, Any]) -> RemoteQueue:
    state, name = found["state"], found["name"]
    health = decode(DeviceHealth, state["health"])
    if found["reason"]:
        health = DeviceHealth(False, None, None, found["reason"])
    spec, others = DeviceSpec.from_dict(state["spec"]), tuple(state["neighbours"])
    device = RemoteDevice(name, spec, state["driver"], state["restart_reasons"], others)
    return RemoteQueue(name, device, health)
