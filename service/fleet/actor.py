"""``DeviceActor``: one device of a Ray cluster, in a process that Ray places and restarts."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from typing import Any

import ray

from service import logs
from service.engine.engine import LocalEngine
from service.fleet.compiling import FleetBuilder
from service.settings import Settings
from tilewright import __version__
from tilewright.errors import DeviceUnavailable
from tilewright.schema.codec import encode
from tuner.store.database import Store

UNWATCHED_S = 60.0  # without a question from a service, after which the actor stops
_LOOK_S = 5.0
log = logging.getLogger("tilewright.fleet")


class DeviceActor:
    """Runs the local engine with one device: its queue claims jobs from the database under a lease.

    The environment of the node gives the settings of that machine, such as the folders of kernels and locks;
    the service gives the others. It stops by itself after a minute in which no service asked for its state.
    """

    def __init__(self, release: str, given: dict[str, Any], device: str, devices_of_node: int) -> None:
        """``devices_of_node`` share the cores of the node for compiling.

        Raises:
            DeviceUnavailable: the service has another release than this node, its database is not there, or
                the device is not.
        """
        if release != __version__:
            raise DeviceUnavailable(f"this node has tilewright {__version__}; install {release} here")
        settings = Settings(devices=(device,), **given)
        logs.configure(settings.log_level, settings.log_format)
        each = max(1, settings.compile_processes // devices_of_node)
        settings = settings.model_copy(update={"compile_processes": each})
        self._seen = time.monotonic()
        self._store = _open(settings.database_url)
        self._builder = FleetBuilder(settings)
        self._engine = LocalEngine(self._store, settings, builder=self._builder)
        self._engine.start()
        (self._queue,) = self._engine.queues.values()
        threading.Thread(target=self._watch, name="watched", daemon=True).start()

    def state(self, compile_nodes: dict[str, int]) -> dict[str, Any]:
        """What the device is and does now, as plain data; from now on it compiles on these nodes,
        with so many CPUs of each."""
        self._seen = time.monotonic()
        self._builder.nodes = compile_nodes
        bench = self._queue.bench
        return {
            "spec": bench.spec.to_dict(),
            "driver": bench.driver,
            "pid": os.getpid(),
            "health": encode(self._engine.health()[self._queue.name]),
            "restart_reasons": bench.restart_reasons,
            "neighbours": bench.neighbours(),
            "stopped": self._engine.stopping.is_set(),
        }

    def cancel(self, job_id: str) -> None:
        """Stop a job if it is the one being tuned; without this its next lease does."""
        self._engine.cancel(job_id)

    def release(self) -> None:
        """Use a device that is set aside as it is."""
        self._queue.release()

    def _watch(self) -> None:
        while time.monotonic() - self._seen < UNWATCHED_S:
            time.sleep(_LOOK_S)
        log.info("no service has asked for %g s: the device stops", UNWATCHED_S)
        try:
            self._engine.stop()
            self._store.close()
        finally:
            with contextlib.suppress(Exception):  # NOTE: without a head this fails; the watcher ends it later
                ray.kill(ray.get_runtime_context().current_actor, no_restart=True)


def _open(url: str) -> Store:
    store = Store.open(url)
    state = store.schema_state()
    if state != "head":
        store.close()
        raise DeviceUnavailable(
            f"the service's database is {state} here; use one that every node reaches, such as PostgreSQL"
        )
    return store
