"""Stale results: noted among the misses when they are served and, where the settings say so, tuned again."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Sequence

from service.engine import Engine
from service.settings import Settings
from tuner.job import TuneRequest
from tuner.store import jobs, misses
from tuner.store.database import Store
from tuner.store.records import StoredBest
from tuner.store.submission import submit

log = logging.getLogger("tilewright.retune")


class Retuner:
    """Notes each stale result once in the life of this service; safe to share.

    Without the setting ``retune_stale`` nothing starts by itself: the misses then say what to tune.
    """

    def __init__(self, store: Store, engine: Engine, settings: Settings) -> None:
        self._store = store
        self._engine = engine
        self._settings = settings
        self._noted: set[tuple[int, object]] = set()
        self._lock = threading.Lock()

    def served(self, stale: Sequence[StoredBest]) -> None:
        """Stale results were served."""
        news = [stored for stored in stale if self._take(stored)]
        by_class = defaultdict[str, list[misses.Report]](list)
        for stored in news:
            best = stored.best
            report = misses.Report(best.problem, 1, best.timing.median_us, measured=True)
            by_class[best.device_class].append(report)
        for device_class, reports in by_class.items():
            with self._store.begin() as session:
                misses.note(session, device_class, reports, self._settings.max_misses, reason="stale")
        if self._settings.retune_stale:
            for stored in news:
                self._queue(stored)

    def _take(self, stored: StoredBest) -> bool:
        key = stored.id, stored.created
        with self._lock:
            taken = key not in self._noted
            self._noted.add(key)
        return taken

    def _queue(self, stored: StoredBest) -> None:
        best = stored.best
        benches = [lane.bench for lane in self._engine.lanes.values()]
        mine = [bench for bench in benches if bench.spec.device_class.id == best.device_class]
        if not mine:
            return
        request = TuneRequest(best.problem, max_trials=min(100, self._settings.max_trials))
        with self._store.begin() as session:
            if jobs.queued_count(session) >= self._settings.max_queue:
                return
            job, created = submit(session, request, mine[0].spec)
        if created:
            log.info("job %s tunes %s again: its result is stale", job.id, best.problem)
            self._engine.wake()
