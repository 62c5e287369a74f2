"""The state of devices and the progress of jobs, cached for a moment, however many pages ask."""

from __future__ import annotations

import dataclasses
import functools
import threading
import time
from collections.abc import Sequence

from sqlalchemy.orm import Session

from service.engine.base import Engine
from service.web import html
from service.web.charts import Cell, Chart, Column
from tilewright.schema.job import JobStatus
from tuner.store import jobs
from tuner.store.database import Store
from tuner.store.records import JobRecord
from tuner.store.reports import trials
from tuner.store.reports.trials import Point

MOST_POINTS = 2000
_SHORTEST_S, _LONGEST_S = 1.0, 10.0  # between two looks
_PART = 0.005  # of the time that looking at a job may take
_MOST_KEPT = 100
_QUEUED = 20


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceNow:
    """A device of this service; ``state`` is ``idle``, ``tuning`` or ``down``, ``queued`` jobs wait for its
    class, ``busy`` is the job that it tunes, and ``detail`` says what is wrong."""

    name: str
    model: str
    device_class: str
    state: str
    detail: str
    queued: int
    busy: str | None


@dataclasses.dataclass(frozen=True)  # NOTE: without slots, for what is cached
class JobNow:
    """A job with its trials by outcome, and why it waits."""

    job: JobRecord
    outcomes: dict[str, int]
    waiting: str | None

    @property
    def failed(self) -> int:
        """Trials without a time, timeouts left out."""
        return sum(self.outcomes.get(name, 0) for name in _FAILED)

    @functools.cached_property
    def panel(self) -> str:
        """The panel of the job's page on one line, made once for all pages that are open."""
        return html.page("panel.html", now=self, job=self.job).replace("\n", " ")


_FAILED = ("invalid", "compile_error", "launch_error", "wrong_result")


def devices(session: Session, engine: Engine) -> list[DeviceNow]:
    """The devices of this service."""
    found = []
    for name, queue in engine.queues.items():
        spec, health = queue.bench.spec, queue.health()
        state = "down" if not health.ok else "tuning" if health.job_id else "idle"
        waiting = jobs.queued_count(session, spec.device_class.id)
        found.append(
            DeviceNow(name, spec.name, spec.device_class.id, state, health.reason, waiting, health.job_id)
        )
    return found


def running(session: Session, status: JobStatus = JobStatus.RUNNING) -> list[JobRecord]:
    """The jobs at work, or those of another status, at most twenty."""
    return [one for one in jobs.listing(session, status, _QUEUED) if isinstance(one, JobRecord)]


class _Look:
    """The last look at a job, and the lock that the next one needs."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.found: JobNow | None = None
        self.started = self.until = 0.0


class JobWatch:
    """The progress of jobs. Looks at the database at most once a second for each job, however many pages ask.
    Looks of 50 ms or less take at most half a percent of the time. No job waits for another one."""

    def __init__(self, store: Store, engine: Engine) -> None:
        self._store, self._engine = store, engine
        self._looks: dict[str, _Look] = {}
        self._lock = threading.Lock()

    def known(self, job_id: str) -> JobNow | None:
        """A job as it was a moment ago, without a look at the database; None if a look is needed."""
        look = self._looks.get(job_id)
        return look.found if look and time.monotonic() < look.until else None

    def now(self, job_id: str, fresh: bool = False) -> JobNow | None:
        """A job as it was at most a moment ago, or with ``fresh`` as it is after this call. None if there is
        no such job."""
        asked = time.monotonic()
        with self._lock:
            look = self._looks.pop(job_id, None) or _Look()
            self._looks[job_id] = look  # at the end: the first one is the one that was asked for longest ago
            while len(self._looks) > _MOST_KEPT:
                del self._looks[next(iter(self._looks))]
        with look.lock:
            if look.found is None or (look.started < asked and (fresh or asked >= look.until)):
                self._take(job_id, look)
            if look.found is None:
                with self._lock:
                    self._looks.pop(job_id, None)
            return look.found

    def _take(self, job_id: str, look: _Look) -> None:
        started, cpu = time.monotonic(), time.thread_time()
        look.found = self._read(job_id)
        wait = min(_LONGEST_S, max(_SHORTEST_S, (time.thread_time() - cpu) / _PART))
        look.started, look.until = started, time.monotonic() + wait

    def _read(self, job_id: str) -> JobNow | None:
        with self._store.read() as session:
            job = jobs.get(session, job_id)
            if job is None:
                return None
            return JobNow(job, trials.outcomes(session, job_id), self._engine.why_waiting(job))


_COLUMNS = (
    Column("number", "trial"),
    Column("median", "median time", "µs"),
    Column("best", "best so far", "µs"),
    Column("outcome", "outcome"),
    Column("family", "family"),
)


def convergence(points: Sequence[Point], method: str) -> Chart:
    """The times of a job's trials in their order, and the best so far. Of many trials it shows each that
    improved the best, and of the others as many as a plot can show."""
    rows: list[tuple[Cell, ...]] = []
    best: float | None = None
    step = max(1, -(-len(points) // MOST_POINTS))
    for index, point in enumerate(points):
        better = _improves(point, best)
        best = point.median_us if better else best
        if better or index % step == 0:
            rows.append((point.number, point.median_us, best, point.outcome, point.family))
    note = f"{len(points):,} trials; {method}"
    if step > 1:
        note += f"; shown is each that improved the best, and every {step}th of the others"
    title = "Time by trial, and the best so far"
    return Chart("convergence", "steps", title, _COLUMNS, rows, note, {"x": 0, "y": [1, 2], "log": True})


def _improves(point: Point, best: float | None) -> bool:
    return point.outcome == "ok" and point.median_us is not None and (best is None or point.median_us < best)
