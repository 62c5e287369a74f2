"""Two devices of one class with a database: toy kernels, whose trials take as long as a test says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from toy_family import CUDA_DEVICE, PROBLEM, TOY
from tune_lab import LabBench, LabBuilder

from kernels.registry import FAMILIES
from service.engine import device_queue, engine
from service.engine.engine import LocalEngine
from service.settings import Settings
from tilewright.schema.job import TuneRequest
from tilewright.schema.problem import DType
from tilewright.schema.trial import Trial, TrialResult
from tuner.job import helpers
from tuner.store import jobs
from tuner.store.database import Store
from tuner.store.records import JobRecord
from tuner.store.trials import JobRecorder


class TimedBench(LabBench):
    """A device that takes ``seconds`` for a trial, and ``slower`` times the microseconds of the first one."""

    def __init__(self, name: str) -> None:
        super().__init__(CUDA_DEVICE)
        self.name = self.identity = self.known_as = name
        self.slower = 1.0
        self.seconds: Callable[[], float] = lambda: 0.02
        self.cost = lambda text: self.slower * TOY_COST(text)
        self.set_aside, self.used = "", 0.0
        self.restart_reasons: dict[str, int] = {}
        self.interfering: tuple[str, ...] = ()

    def trial(self, *given: Any, **named: Any) -> TrialResult:
        time.sleep(self.seconds())
        return super().trial(*given, **named)

    def interference(self) -> tuple[str, ...]:
        return self.interfering

    def neighbours(self) -> tuple[str, ...]:
        return ()

    def look(self) -> None:
        pass

    def come_back(self) -> None:
        pass

    def rehearse(self, dtype: DType) -> None:
        del dtype

    def close(self) -> None:
        pass


TOY_COST = LabBench().cost


class TwoDevices:
    """An engine with the devices ``one`` and ``two``, on a database of the caller; it looks for work and for
    helpers twenty times a second.

    Attributes:
        engine: not started yet.
        benches: by name, once the engine was opened.
    """

    def __init__(self, store: Store, folder: Path, patch: pytest.MonkeyPatch, **settings: Any) -> None:
        patch.setitem(FAMILIES, "toy", TOY)
        patch.setattr(engine, "list_devices", lambda: ["one", "two", "host"])
        patch.setattr(device_queue, "Bench", self._bench)
        patch.setattr(device_queue, "_POLL_S", 0.05)
        patch.setattr(helpers, "_LOOK_S", 0.05)
        patch.setattr(engine, "Builder", lambda *_given, **_named: _Builder())
        given = {"devices": ("one", "two"), "cache_dir": folder, "lock_dir": folder, "stop_s": 5.0}
        given |= {"quiet_wait_s": 0.0, "lease_s": 10.0, "retune_stale": False}
        self.store = store
        self.benches: dict[str, TimedBench] = {}
        self.engine = LocalEngine(store, Settings(**(given | settings)))
        self.engine.open()

    def submit(self, max_trials: int = 24, seed: int = 0) -> str:
        """Queue a job on the toy's problem."""
        request = TuneRequest(PROBLEM, families=("toy",), max_trials=max_trials, seed=seed)
        with self.store.begin() as session:
            found = jobs.submit(session, request, CUDA_DEVICE)[0].id
        self.engine.wake()
        return found

    def job(self, job_id: str) -> JobRecord:
        """As the database has it."""
        with self.store.read() as session:
            return jobs.known(session, job_id)

    def trials(self, job_id: str) -> list[Trial]:
        """Those that are committed."""
        return JobRecorder(self.store, job_id).trials()

    def _bench(self, name: str) -> TimedBench:
        self.benches[name] = TimedBench(name)
        return self.benches[name]


class _Builder(LabBuilder):
    """Compiles at once, for two devices at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def submit(self, *given: Any) -> Any:
        with self._lock:
            return super().submit(*given)

    def close(self) -> None:
        pass
