"""The local engine: a lane for each device of this machine, one pool of compilers."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy.exc import SQLAlchemyError

from service.lane import Lane
from service.metrics import Metrics
from service.settings import Settings
from tilewright.errors import DeviceUnavailable, TilewrightError
from tuner.bench import list_devices
from tuner.builder import Builder
from tuner.store import devices
from tuner.store.database import Store

_HEARTBEATS = 3  # in a lease: one may fail
log = logging.getLogger("tilewright.engine")


class Engine:
    """Runs jobs on the devices of this machine.

    Attributes:
        stopping: the service is shutting down.
        lanes: by device name, the default device first.
    """

    def __init__(self, store: Store, settings: Settings, metrics: Metrics | None = None) -> None:
        self.stopping = threading.Event()
        self.lanes: dict[str, Lane] = {}
        self._store = store
        self._settings = settings
        self._metrics = metrics or Metrics()
        self._stop_by = 0.0
        self._builder = Builder(settings.compile_processes, settings.cache_dir)
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
        if not self.lanes:
            self.open()
        for lane in self.lanes.values():
            lane.take_back()
            lane.start()
        self._heart.start()

    def wake(self) -> None:
        """There may be a new job."""
        for lane in self.lanes.values():
            lane.wake()

    def cancel(self, job_id: str) -> None:
        """Stop a job if it is being tuned here."""
        for lane in self.lanes.values():
            lane.cancel(job_id)

    def begin_stop(self) -> None:
        """Stop after the running trials; safe to call from a signal handler."""
        if not self.stopping.is_set():
            self._stop_by = time.monotonic() + self._settings.stop_s
        self.stopping.set()
        for lane in self.lanes.values():
            lane.begin_stop()

    def stop(self) -> None:
        """Stop within ``stop_s`` seconds; running jobs go back to the queue with their trials."""
        self.begin_stop()
        if self.lanes:
            # NOTE: at once: closing a device takes seconds where its process does not listen.
            with ThreadPoolExecutor(len(self.lanes)) as pool:
                for ended in [pool.submit(lane.finish_stop, self._stop_by) for lane in self.lanes.values()]:
                    ended.result()
        self._builder.close()

    def _beat(self) -> None:
        """Keep the leases of running jobs, and take over jobs whose server died, until the end."""
        while not self.stopping.wait(self._settings.lease_s / _HEARTBEATS):
            for lane in self.lanes.values():
                try:
                    lane.renew()
                    lane.take_back()
                except SQLAlchemyError:
                    log.exception("device %s: the lease was not renewed; trying again", lane.name)

    def _open(self, name: str) -> None:
        lane = Lane(name, self._store, self._builder, self._metrics, self._settings)
        self.lanes[name] = lane
        spec = lane.bench.spec
        with self._store.begin() as session:
            devices.seen(session, spec)
        log.info("device %s: %s (%s)", name, spec.name, spec.device_class.id)

    def _device_names(self) -> tuple[str, ...]:
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
