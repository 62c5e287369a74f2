"""Work of idle devices: they tune again stale results that were served, and race imported configs."""

from __future__ import annotations

import dataclasses
import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime

from sqlalchemy.orm import Session

from service.engine import admission, staleness
from service.settings import Settings
from tilewright.schema.entries import MissReason
from tilewright.schema.job import TuneRequest, ladder_of
from tilewright.schema.problem import GemmProblem
from tuner.store import best, jobs, misses
from tuner.store.access import audit
from tuner.store.access.audit import Action
from tuner.store.database import Store
from tuner.store.jobs import submit
from tuner.store.queue import imported
from tuner.store.records import JobRecord, StoredBest
from tuner.workers.bench import Bench

_TRIALS = 100
_IMPORTED_TRIALS = 16  # few: imported configs are tried first
AGAIN_S = 60.0
_AT_ONCE = 100  # in one transaction, so that other writers come between
_Key = tuple[str, GemmProblem]
log = logging.getLogger("tilewright.retune")


@dataclasses.dataclass(frozen=True, slots=True)
class StaleResult:
    """What is noted of a stale result, other than that of any other race.

    Attributes:
        micros: the median time of its kernel.
        created: when it was raced.
    """

    device_class: str
    problem: GemmProblem
    micros: float
    created: datetime

    @classmethod
    def of(cls, stored: StoredBest) -> StaleResult:
        """Of a winner."""
        found = stored.best
        return cls(found.device_class, found.problem, found.timing.median_us, stored.created)

    @property
    def key(self) -> _Key:
        """Its device class and problem, which later races have too."""
        return self.device_class, self.problem


class StaleResults:
    """Notes each stale result once in the life of this service; safe to share.

    It remembers one result for each problem of a device class. If a result could not be noted, because the
    list of misses is full or the database fails, that is tried again when the result is served a minute
    later.
    """

    def __init__(self, store: Store, settings: Settings, state_of: Callable[[str], str]) -> None:
        """``state_of`` gives the state of this service by which it judges the results of a device class."""
        self._store = store
        self._settings = settings
        self._state_of = state_of
        self._noted: dict[_Key, tuple[StaleResult, float]] = {}  # not to be noted again before a time
        self._lock = threading.Lock()

    def is_due(self, result: StaleResult) -> bool:
        """Whether a stale result that is served is to be noted; costs no lock."""
        noted, not_before = self._noted.get(result.key, (None, 0.0))
        return noted != result or not_before <= time.monotonic()

    def served(self, stale: Sequence[StaleResult]) -> None:
        """Note stale results that were served."""
        by_class = defaultdict[str, list[StaleResult]](list)
        for result in filter(self._take, stale):
            by_class[result.device_class].append(result)
        for device_class, results in by_class.items():
            for start in range(0, len(results), _AT_ONCE):
                self._note(device_class, results[start : start + _AT_ONCE])

    def _take(self, result: StaleResult) -> bool:
        with self._lock:
            due = self.is_due(result)
            if due:
                self._noted[result.key] = result, time.monotonic() + AGAIN_S
        return due

    def _note(self, device_class: str, results: Sequence[StaleResult]) -> None:
        reports = [misses.Report(one.problem, 1, one.micros, measured=True) for one in results]
        with self._store.begin() as session:
            kept = misses.note(session, device_class, reports, self._settings.max_misses, MissReason.STALE)
            misses.ask(session, device_class, kept, self._state_of(device_class))
        with self._lock:
            for one in results:
                if (
                    one.problem in kept and self._noted[one.key][0] == one
                ):  # none of a later race came meanwhile
                    self._noted[one.key] = one, math.inf


def queue_stalest(store: Store, bench: Bench, settings: Settings) -> bool:
    """Queue a job for the noted stale result of a device's class with the most device time at stake. Returns
    False if none was queued: all were tuned again already in this service's state, or are being tuned, or the
    queue is full.

    For idle devices. However many results a new source makes stale, one such job runs at a time, and a
    caller's request waits for one of them at most.
    """
    device_class, wanted = bench.spec.device_class.id, staleness.state([bench.driver])
    with store.read() as session:
        problem = misses.top(session, device_class, wanted)
        full = jobs.queued_work(session) >= settings.max_queue
    if problem is None or full:
        return False
    job = _queue(store, bench, settings, problem, wanted)
    if job is None:
        return False
    log.info("job %s tunes %s again: its result is stale", job.id, problem)
    return True


def queue_imported(store: Store, bench: Bench, settings: Settings, refused: set[str]) -> bool:
    """Queue a job for the problem of a device's class whose imported winner claims the highest speed-up and
    was not built here; False if none was queued. Problems over a limit wait until a service allows them;
    ``refused`` keeps their texts for the next call of this service.

    The job builds the imported configs, checks and races them as it does any other, so that what is served
    afterwards was built and raced here.
    """
    device_class = bench.spec.device_class.id

    def possible(problem: GemmProblem) -> bool:
        found = admission.is_possible(problem, [], settings, bench)
        if not found:
            message = "what was imported for %s is not raced: it is over a limit, or no kernel computes it"
            log.warning(message, problem)
        return found

    with store.read() as session:
        problem = imported.waiting_problem(session, device_class, possible, refused)
        full = jobs.queued_work(session) >= settings.max_queue
    if problem is None or full:
        return False
    with store.begin() as session:
        if not imported.take_waiting(session, device_class, problem):
            return False
        request = TuneRequest(problem, max_trials=min(_IMPORTED_TRIALS, settings.max_trials))
        job, created = submit(session, request, bench.spec)
        _note(session, job, created)
    log.info("job %s races what an import brought for %s", job.id, problem)
    return True


def _queue(
    store: Store, bench: Bench, settings: Settings, problem: GemmProblem, wanted: str
) -> JobRecord | None:
    with store.begin() as session:
        if not admission.is_possible(problem, [], settings, bench):
            misses.withdraw(session, bench.spec.device_class.id, problem, wanted)
            log.warning("%s stays stale: it is over a limit, or no kernel computes it", problem)
            return None
        if not misses.take(session, bench.spec.device_class.id, problem, wanted):
            return None
        # NOTE: with its ladder, so that it is known again what the kernels of other rows take there.
        ladder = best.ladder(session, bench.spec.device_class.id, problem)
        rows = [dataclasses.replace(problem, m=m) for m in ladder]
        ladder = ladder_of(row.m for row in rows if admission.is_possible(row, [], settings, bench))
        for m in ladder:
            misses.take(session, bench.spec.device_class.id, dataclasses.replace(problem, m=m), wanted)
        largest = dataclasses.replace(problem, m=max(ladder, default=problem.m))
        request = TuneRequest(largest, ladder, max_trials=min(_TRIALS, settings.max_trials))
        job, created = submit(session, request, bench.spec)
        _note(session, job, created)
    return job if created else None


def _note(session: Session, job: JobRecord, created: bool) -> None:
    if created:
        audit.note(session, audit.SERVICE, Action.CREATE_JOB, job.id, problem=str(job.request.problem))
