"""Gauges read at every scrape of ``GET /metrics``: the queue and the devices."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy.exc import SQLAlchemyError

from service.engine import Engine
from service.metrics import Reading
from tuner.store import job_queries
from tuner.store.database import Store
from tuner.store.records import JobStatus, utc_now


def read(store: Store, engine: Engine) -> Iterable[Reading]:
    """What stands now; without the queue where the database does not answer."""
    try:
        with store.read() as session:
            counts = job_queries.counts(session)
            oldest = job_queries.oldest_queued(session)
    except SQLAlchemyError:
        yield "tilewright_database_up", "The database answers", (), [((), 0.0)]
    else:
        yield "tilewright_database_up", "The database answers", (), [((), 1.0)]
        jobs = [((status.value,), float(counts.get(status, 0))) for status in JobStatus]
        yield "tilewright_jobs", "Jobs by status", ("status",), jobs
        age = (utc_now() - oldest).total_seconds() if oldest else 0.0
        yield "tilewright_queue_age_seconds", "Age of the oldest queued job", (), [((), max(age, 0.0))]
    lanes = engine.lanes.items()
    up = [((name,), float(lane.alive)) for name, lane in lanes]
    yield "tilewright_worker_up", "The device's lane is at work", ("device",), up
    restarts = [((name,), float(lane.bench.restarts)) for name, lane in lanes]
    yield "tilewright_worker_restarts", "Restarts of the device's process", ("device",), restarts
    tuning = [((name,), float(lane.job_id is not None)) for name, lane in lanes]
    yield "tilewright_device_tuning", "The device runs a tuning job", ("device",), tuning
