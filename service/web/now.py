"""What the devices do now, and how a job comes along: kept for a moment, however many look."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Sequence

from sqlalchemy.orm import Session

from service.engine.engine import Engine
from service.web.charts import Cell, Chart, Column
from tilewright.schema.job import JobStatus
from tuner.store import jobs
from tuner.store.database import Store
from tuner.store.records import JobRecord
from tuner.store.reports import trials
from tuner.store.reports.trials import Point

MOST_POINTS = 2000
_SHORTEST_S = 1.0
_PART = 0.005  # of the time that looking at a job may take
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


@dataclasses.dataclass(frozen=True, slots=True)
class JobNow:
    """A job with its trials by outcome, and why it waits."""

    job: JobRecord
    outcomes: dict[str, int]
    waiting: str | None

    @property
    def failed(self) -> int:
        """Trials without a time, timeouts left out."""
        return sum(self.outcomes.get(name, 0) for name in _FAILED)


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


class JobWatch:
    """How jobs come along; looks at the database at most once a second a job, however many ask, and never
    for more than half a percent of the time."""

    def __init__(self, store: Store, engine: Engine) -> None:
        self._store, self._engine = store, engine
        self._kept: dict[str, tuple[float, JobNow | None]] = {}
        self._lock = threading.Lock()

    def now(self, job_id: str, fresh: bool = False) -> JobNow | None:
        """A job as it is, or was a moment ago; ``fresh`` looks in any case. None if there is none."""
        with self._lock:
            until, found = self._kept.get(job_id, (0.0, None))
            started = time.monotonic()
            if found is None or fresh or started >= until:
                found = self._look(job_id)
                took = time.monotonic() - started
                if len(self._kept) >= 100:
                    self._kept.clear()
                self._kept[job_id] = time.monotonic() + max(_SHORTEST_S, took / _PART), found
            return found

    def _look(self, job_id: str) -> JobNow | None:
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
    """The times of a job's trials in their order and the best so far; of many trials those that improved it,
    and of the others as many as a plot can show."""
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
