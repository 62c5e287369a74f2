"""Gauges read at every scrape of ``GET /metrics``: the queue, the winners and the devices."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Sequence

from sqlalchemy.exc import SQLAlchemyError

from service.engine.base import Engine
from service.engine.health import Trouble
from service.metrics import Reading
from service.results.quality import REASONS, ResultQuality
from tilewright.schema.job import JobStatus
from tuner.store import jobs as jobs_
from tuner.store import sets
from tuner.store.best import Origin
from tuner.store.database import Store
from tuner.store.faults import drift, quarantine
from tuner.store.records import utc_now


def read(
    store: Store, engine: Engine, quality: ResultQuality, origins: Callable[[str], Sequence[Origin]]
) -> Iterable[Reading]:
    """The current gauges. If the database does not answer, its gauges are left out.

    ``origins`` gives those of the winners of a device class, see :func:`tuner.store.best.origins`.
    """
    try:
        with store.read() as session:
            counts = jobs_.counts(session)
            oldest = jobs_.oldest_queued(session)
            classes = sets.classes(session)
            quarantined = quarantine.counts(session)
            shifts = drift.counts(session)
        found_origins = [origin for name in classes for origin in origins(name)]
    except SQLAlchemyError:
        yield "tilewright_database_up", "The database answers", (), [((), 0.0)]
    else:
        yield "tilewright_database_up", "The database answers", (), [((), 1.0)]
        jobs = [((status.value,), float(counts.get(status, 0))) for status in JobStatus]
        yield "tilewright_jobs", "Jobs by status", ("status",), jobs
        found = [((outcome,), float(number)) for outcome, number in quarantined.items()]
        yield "tilewright_quarantined_configs", "Entries of the quarantine", ("outcome",), found
        shifted = [((cause.value,), float(shifts.get(cause, 0))) for cause in drift.Cause]
        yield "tilewright_shifted_winners", "Winners that idle devices measure otherwise", ("cause",), shifted
        age = (utc_now() - oldest).total_seconds() if oldest else 0.0
        yield "tilewright_queue_age_seconds", "Age of the oldest queued job", (), [((), max(age, 0.0))]
        stale = collections.Counter[str]()
        for family, provenance, drifted, number in found_origins:
            stale[quality.staleness_of(family, provenance, drifted)] += number
        reasons = [((reason,), float(stale[reason])) for reason in REASONS]
        yield "tilewright_stale_entries", "Winners that are not current, by reason", ("reason",), reasons
    queues, health = engine.queues.items(), engine.health().items()
    up = [((name,), float(one.ok)) for name, one in health]
    yield "tilewright_worker_up", "The device's queue is at work", ("device",), up
    aside = [((name,), float(one.trouble is Trouble.SET_ASIDE)) for name, one in health]
    yield "tilewright_device_set_aside", "The GPU did not come back after a kill", ("device",), aside
    restarts = [
        ((name, reason), float(count))
        for name, queue in queues
        for reason, count in queue.bench.restart_reasons.items()
    ]
    text = "Restarts of the device's process by what became of the one before"
    yield "tilewright_worker_restarts_total", text, ("device", "reason"), restarts
    tuning = [((name,), float(queue.job_id is not None)) for name, queue in queues]
    yield "tilewright_device_tuning", "The device runs a tuning job", ("device",), tuning
