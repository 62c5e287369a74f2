"""The queue of one device: a thread that claims jobs, tunes them and records what they do."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time

from sqlalchemy.exc import SQLAlchemyError

from service.engine.retune import queue_stalest
from service.metrics import Metrics
from service.results import staleness
from service.settings import Settings
from tilewright.artifact import Artifact
from tilewright.errors import TilewrightError
from tilewright.schema.config import Config
from tilewright.schema.job import JobStatus
from tilewright.schema.trial import Trial
from tuner.job.tune import tune
from tuner.store import jobs
from tuner.store.database import JobTaken, Store
from tuner.store.jobs import new_owner
from tuner.store.neighbours import first_tries
from tuner.store.records import JobRecord, utc_now
from tuner.store.trials import JobRecorder
from tuner.workers.bench import Bench
from tuner.workers.builder import Builder


class CountingRecorder(JobRecorder):
    """A :class:`JobRecorder` whose trials show in the metrics of their device, and whose winner replaces one
    that sources or compilers of this service would not make."""

    def __init__(self, store: Store, job_id: str, metrics: Metrics, device: str) -> None:
        super().__init__(store, job_id, staleness.is_current)
        self._metrics = metrics
        self._device = device

    def add_trial(self, trial: Trial, artifact: Artifact | None) -> None:
        """As :meth:`JobRecorder.add_trial`."""
        super().add_trial(trial, artifact)
        self._metrics.trials.labels(self._device, trial.outcome.value).inc()
        self._metrics.trial_seconds.labels(self._device).inc(trial.check_s + trial.measure_s)


_POLL_S = 0.5
_RETRY_S = 5.0
_CLOSED_S = 5.0  # within which a thread ends whose device is closed
log = logging.getLogger("tilewright.device_queue")


@dataclasses.dataclass(frozen=True, slots=True)
class _Current:
    """The job being tuned: its claim, and how to stop it."""

    job_id: str
    attempt: int
    cancelled: threading.Event


class DeviceQueue:
    """Runs the jobs of one device, each under a lease of ``lease_s`` seconds that :meth:`renew` extends.

    While none waits, stale results that were served are tuned again, where the settings say so.

    Attributes:
        name: ``cuda:0``, ``host`` and the like.
        bench: the device's process.
    """

    def __init__(
        self, name: str, store: Store, builder: Builder, metrics: Metrics, settings: Settings
    ) -> None:
        self.name = name
        self.bench = Bench(name)
        self._device_class = self.bench.spec.device_class.id
        self._store = store
        self._builder = builder
        self._owner = new_owner()
        self._metrics = metrics
        self._settings = settings
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._current: _Current | None = None
        self._thread = threading.Thread(target=self._run, name=f"device-queue-{name}", daemon=True)

    @property
    def alive(self) -> bool:
        """The thread is at work."""
        return self._thread.is_alive()

    @property
    def job_id(self) -> str | None:
        """The job being tuned, or None."""
        current = self._current
        return current.job_id if current else None

    def take_back(self) -> None:
        """Queue again the jobs whose server died; those of servers that live are left alone."""
        with self._store.begin() as session:
            interrupted = jobs.requeue_lost(session, self._device_class)
        for job_id in interrupted:
            log.info("job %s was interrupted; it resumes with its trials", job_id)
        if interrupted:
            self.wake()

    def renew(self) -> None:
        """Extend the lease of the job being tuned; stop it where it was taken over, or cancelled through
        another server of this database."""
        current = self._current
        if current is None:
            return
        try:
            with self._store.begin() as session:
                record = jobs.renew(session, current.job_id, current.attempt, self._settings.lease_s)
        except JobTaken:
            current.cancelled.set()
        else:
            if record.cancel_requested:
                current.cancelled.set()

    def start(self) -> None:
        """Work."""
        self._thread.start()

    def wake(self) -> None:
        """There may be a new job."""
        self._wake.set()

    def cancel(self, job_id: str) -> None:
        """Stop a job if it is the one being tuned."""
        current = self._current
        if current and current.job_id == job_id:
            current.cancelled.set()

    def begin_stop(self) -> None:
        """Stop after the running trial."""
        self._stopping.set()
        self._wake.set()
        current = self._current
        if current:
            current.cancelled.set()

    def finish_stop(self, deadline: float) -> None:
        """Wait for the running trial until ``deadline`` (``time.monotonic()``), then leave the job to the
        next start."""
        if self.alive:
            self._thread.join(max(0.0, deadline - time.monotonic()))
        with self._store.begin() as session:
            jobs.requeue_interrupted(session, self._device_class, self._owner)
        self.bench.close()
        if self.alive:  # its device is closed, so it ends, and gives back its connection to the database
            self._thread.join(_CLOSED_S)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._step()
            except SQLAlchemyError:
                log.exception("the database does not answer; trying again in %g s", _RETRY_S)
                self._stopping.wait(_RETRY_S)

    def _step(self) -> None:
        with self._store.begin() as session:
            # NOTE: what this queue holds now is a job whose end the database did not take.
            jobs.requeue_interrupted(session, self._device_class, self._owner)
            job = jobs.claim(session, self._device_class, self._owner, self._settings.lease_s)
        if job is not None:
            self._work(job)
        elif not self._queue_stalest():
            self._wake.wait(_POLL_S)
            self._wake.clear()

    def _queue_stalest(self) -> bool:
        return self._settings.retune_stale and queue_stalest(self._store, self.bench, self._settings)

    def _work(self, job: JobRecord) -> None:
        cancelled = threading.Event()
        self._current = _Current(job.id, job.attempt, cancelled)
        try:
            # NOTE: a stop or a cancellation between the claim and the line above would be missed.
            if self._stopping.is_set() or self._cancel_requested(job.id):
                cancelled.set()
            self._tune_or_fail(job, cancelled)
        except JobTaken as error:
            log.warning("job %s: %s", job.id, error)
        finally:
            self._current = None

    def _tune_or_fail(self, job: JobRecord, cancelled: threading.Event) -> None:
        try:
            self._tune(job, cancelled)
        except (JobTaken, SQLAlchemyError):
            raise
        except TilewrightError as error:
            self._finish(job, JobStatus.FAILED, str(error))
        except Exception as error:
            # NOTE: the boundary of the thread: the job fails with the reason, the device goes on.
            self._finish(job, JobStatus.FAILED, f"internal error, {type(error).__name__}: {error}")
            log.exception("job %s failed", job.id)

    def _tune(self, job: JobRecord, cancelled: threading.Event) -> None:
        recorder = CountingRecorder(self._store, job.id, self._metrics, self.name)
        log.info("job %s: tuning %s on %s", job.id, job.request.problem, self.name)
        winner = tune(
            job.request, job.id, self.bench, self._builder, recorder, cancelled, self._initial_configs(job)
        )
        if winner is not None:
            self._finish(job, JobStatus.SUCCEEDED, None)
        elif not cancelled.is_set():
            reason = "no config of this problem compiled, ran and gave the right result; its trials say why"
            self._finish(job, JobStatus.FAILED, reason)
        elif not self._stopping.is_set() or self._cancel_requested(job.id):
            self._finish(job, JobStatus.CANCELLED, None)

    def _initial_configs(self, job: JobRecord) -> list[Config]:
        with self._store.read() as session:
            return first_tries(session, job.device_class, job.request.problem)

    def _cancel_requested(self, job_id: str) -> bool:
        with self._store.read() as session:
            record = jobs.get(session, job_id)
        return record is not None and record.cancel_requested

    def _finish(self, job: JobRecord, status: JobStatus, error: str | None) -> None:
        with self._store.begin() as session:
            # NOTE: a stop gives the job back to the queue and closes the device under a running race,
            # which then fails here; the job is not this claim's to end any more.
            jobs.hold(session, job.id, job.attempt)
            jobs.finish(session, job.id, status, error)
        if job.started:
            self._metrics.jobs.labels(status.value).observe((utc_now() - job.started).total_seconds())
        log.info("job %s %s%s", job.id, status, f": {error}" if error else "")
