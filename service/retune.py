"""Stale results: noted among the misses when they are served, and tuned again by devices that are idle."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Sequence

from service.settings import Settings
from tilewright.device import DeviceSpec
from tuner.job import TuneRequest
from tuner.store import misses
from tuner.store.database import Store
from tuner.store.records import StoredBest
from tuner.store.submission import submit

_TRIALS = 100
log = logging.getLogger("tilewright.retune")


class StaleResults:
    """Notes each stale result once in the life of this service; safe to share."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._noted: set[tuple[int, object]] = set()
        self._lock = threading.Lock()

    def served(self, stale: Sequence[StoredBest]) -> None:
        """Stale results were served."""
        by_class = defaultdict[str, list[misses.Report]](list)
        for stored in filter(self._take, stale):
            best = stored.best
            report = misses.Report(best.problem, 1, best.timing.median_us, measured=True)
            by_class[best.device_class].append(report)
        for device_class, reports in by_class.items():
            with self._store.begin() as session:
                misses.note(session, device_class, reports, self._settings.max_misses, reason="stale")

    def _take(self, stored: StoredBest) -> bool:
        key = stored.id, stored.created
        with self._lock:
            taken = key not in self._noted
            self._noted.add(key)
        return taken


def queue_stalest(store: Store, device: DeviceSpec, max_trials: int) -> bool:
    """Queue a job for the noted stale result of a device's class that has most at stake; False where none is
    left that was not tuned again since.

    For devices with nothing else to do: however many results a new source makes stale, one job at a time
    comes of it, and whoever asks for another waits for that one at most.
    """
    with store.read() as session:
        problem = misses.top_stale(session, device.device_class.id)
    if problem is None:
        return False
    with store.begin() as session:
        job, _ = submit(session, TuneRequest(problem, max_trials=min(_TRIALS, max_trials)), device)
    log.info("job %s tunes %s again: its result is stale", job.id, problem)
    return True
