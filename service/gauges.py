"""Gauges read at every scrape of ``GET /metrics``: the queue, the winners and the devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from sqlalchemy.exc import SQLAlchemyError

from service.engine import Engine
from service.metrics import Reading
from service.trust import REASONS, Trust
from tuner.store import best, job_queries
from tuner.store.database import Store
from tuner.store.records import JobStatus, utc_now


def read(store: Store, engine: Engine, trust: Trust) -> Iterable[Reading]:
    """What stands now; without what only the database knows where that does not answer."""
    try:
        with store.read() as session:
            counts = job_queries.counts(session)
            oldest = job_queries.oldest_queued(session)
            origins = best.origins(session)
    except SQLAlchemyError:
        yield "tilewright_database_up", "The database answers", (), [((), 0.0)]
    else:
        yield "tilewright_database_up", "The database answers", (), [((), 1.0)]
        jobs = [((status.value,), float(counts.get(status, 0))) for status in JobStatus]
        yield "tilewright_jobs", "Jobs by status", ("status",), jobs
        age = (utc_now() - oldest).total_seconds() if oldest else 0.0
        yield "tilewright_queue_age_seconds", "Age of the oldest queued job", (), [((), max(age, 0.0))]
        stale = Counter[str]()
        for family, provenance, number in origins:
            stale[trust.staleness_of(family, provenance)] += number
        reasons = [((reason,), float(stale[reason])) for reason in REASONS]
        yield "tilewright_stale_entries", "Winners that are not current, by reason", ("reason",), reasons
    lanes = engine.lanes.items()
    up = [((name,), float(lane.alive)) for name, lane in lanes]
    yield "tilewright_worker_up", "The device's lane is at work", ("device",), up
    restarts = [
        ((name, reason), float(count))
        for name, lane in lanes
        for reason, count in lane.bench.restart_reasons.items()
    ]
    told = "Restarts of the device's process by what became of the one before"
    yield "tilewright_worker_restarts_total", told, ("device", "reason"), restarts
    tuning = [((name,), float(lane.job_id is not None)) for name, lane in lanes]
    yield "tilewright_device_tuning", "The device runs a tuning job", ("device",), tuning
