"""The local engine: a queue for each device of this machine, one pool of compilers."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from service.engine.base import Engine
from service.engine.device_queue import LOOK_S, DeviceQueue
from service.engine.health import DeviceHealth
from service.metrics import Metrics
from service.settings import Settings
from tilewright.artifact import Artifact
from tilewright.errors import DeviceUnavailable, TilewrightError
from tilewright.schema.config import Config
from tilewright.schema.problem import GemmProblem
from tuner.store import entities
from tuner.store.database import Store
from tuner.workers.bench import list_devices
from tuner.workers.builder import Builder

_HEARTBEATS = 3  # in a lease: one may fail
_HEART_S = 5.0  # for the statement that the heartbeat is at
log = logging.getLogger("tilewright.engine")


class LocalEngine(Engine):
    """Runs jobs on the devices of this machine.

    Attributes:
        queues: by device name, the default device first.
    """

    queues: dict[str, DeviceQueue]

    def __init__(
        self,
        store: Store,
        settings: Settings,
        metrics: Metrics | None = None,
        builder: Builder | None = None,
    ) -> None:
        """``builder`` compiles, by default in processes of this machine; :meth:`stop` closes it."""
        super().__init__()
        self.queues = {}
        self._store = store
        self._settings = settings
        self._metrics = metrics or Metrics()
        self._stop_by = 0.0
        self._builder = builder or Builder(
            settings.compile_processes, settings.cache_dir, cache_bytes=settings.cache_bytes
        )
        self._heart = threading.Thread(target=self._beat, name="leases", daemon=True)

    def open(self) -> None:
        """Start the devices' processes.

        Raises:
            DeviceUnavailable: a device of the settings is not there; the engine is stopped then.
        """
        try:
            for name in self._device_names():
                self._open(name)
        except TilewrightError:
            self.stop()
            raise

    def start(self) -> None:
        """Take up interrupted jobs and work, on devices that are opened first where they are not.

        Raises:
            DeviceUnavailable: a device of the settings is not there.
        """
        if not self.queues:
            self.open()
        for queue in self.queues.values():
            queue.take_back()
            queue.start()
        self._heart.start()

    def health(self) -> dict[str, DeviceHealth]:
        """How each device is, by name; answers from memory."""
        found = super().health()
        if self._heart.is_alive() or self._heart.ident is None:
            return found
        reason = "no lease is renewed: the thread for it ended; restart the service"
        return {name: dataclasses.replace(one, alive=False, reason=reason) for name, one in found.items()}

    def wake(self) -> None:
        """There may be a new job."""
        for queue in self.queues.values():
            queue.wake()

    def cancel(self, job_id: str) -> None:
        """Stop a job if it is being tuned here."""
        for queue in self.queues.values():
            queue.cancel(job_id)

    def suspect(self, device: str, problem: GemmProblem, config: Config, artifact: Artifact) -> None:
        self.queues[device].suspect(problem, config, artifact)

    def begin_stop(self) -> None:
        """Stop after the running trials; safe to call from a signal handler."""
        if not self.stopping.is_set():
            self._stop_by = time.monotonic() + self._settings.stop_s
        self.stopping.set()
        for queue in self.queues.values():
            queue.begin_stop()

    def stop(self) -> None:
        """Stop within ``stop_s`` seconds; running jobs go back to the queue with their trials."""
        self.begin_stop()
        if self.queues:
            # NOTE: at once: closing a device takes seconds where its process does not listen.
            with ThreadPoolExecutor(len(self.queues)) as pool:
                for ended in [
                    pool.submit(queue.finish_stop, self._stop_by) for queue in self.queues.values()
                ]:
                    ended.result()
        if self._heart.is_alive():
            self._heart.join(_HEART_S)
        self._builder.close()

    def _beat(self) -> None:
        """Keep the leases of running jobs, and take over jobs whose server died, until the end."""
        every_s = self._settings.lease_s / _HEARTBEATS
        due = time.monotonic() + every_s
        while not self.stopping.wait(min(every_s, LOOK_S)):
            beats = time.monotonic() >= due
            due += every_s if beats else 0.0
            for queue in self.queues.values():
                try:
                    if beats:
                        queue.renew()
                    queue.take_back()
                except Exception:
                    # NOTE: the boundary of the thread: without it all jobs would be lost to their leases.
                    log.exception("device %s: the lease was not renewed; trying again", queue.name)

    def _open(self, name: str) -> None:
        queue = DeviceQueue(name, self._store, self._builder, self._metrics, self._settings)
        self.queues[name] = queue
        spec = queue.bench.spec
        with self._store.begin() as session:
            entities.see_device(session, spec)
        log.info("device %s: %s (%s)", name, spec.name, spec.device_class.id)

    def _device_names(self) -> tuple[str, ...]:
        if self._settings.devices == ("host",):
            return self._settings.devices  # every machine has it
        here = list_devices()
        if not self._settings.devices:
            gpus = tuple(name for name in here if name != "host")
            return gpus or ("host",)
        missing = [name for name in self._settings.devices if name not in here]
        if missing:
            raise DeviceUnavailable(
                f"TILEWRIGHT_DEVICES names {', '.join(missing)}; this machine has {', '.join(here)}. "
                "'tilewright doctor' says what is missing"
            )
        return tuple(dict.fromkeys(self._settings.devices))
