"""The queue of one device: a thread that claims jobs, tunes them and records what they do."""

from __future__ import annotations

import dataclasses
import functools
import logging
import threading
import time

from sqlalchemy.exc import SQLAlchemyError

from service.engine.canary import Canary
from service.engine.database_health import outage
from service.engine.health import Backoff, DeviceHealth, Retry, Trouble, why
from service.engine.helper import Helper
from service.engine.retune import queue_imported, queue_stalest
from service.metrics import Metrics
from service.settings import Settings
from tilewright.artifact import Artifact
from tilewright.errors import DeviceUnavailable, TilewrightError
from tilewright.schema.config import Config
from tilewright.schema.job import JobStatus
from tilewright.schema.problem import DType, GemmProblem
from tilewright.schema.trial import BestConfig, Trial
from tuner.job.context import JobContext
from tuner.job.neighbours import first_tries
from tuner.job.selection import NO_WINNER
from tuner.job.slots import SlotBoard
from tuner.job.tune import run_job
from tuner.store import jobs
from tuner.store.database import JobTaken, Patience, Store, WritersBusy
from tuner.store.queue import claims
from tuner.store.queue.owners import new_owner
from tuner.store.records import JobRecord, utc_now
from tuner.store.trials import JobRecorder
from tuner.workers.bench import Bench
from tuner.workers.builder import Builder
from tuner.workers.device_lock import DeviceLock
from tuner.workers.process import WorkerError
from tuner.workers.recovery import DeviceAway, DeviceSetAside


class DeviceRecorder(JobRecorder):
    """A :class:`JobRecorder` that counts its trials in the metrics of the device."""

    def __init__(self, store: Store, job_id: str, patience: Patience, metrics: Metrics, bench: Bench) -> None:
        super().__init__(store, job_id, bench.known_as, patience)
        self._metrics = metrics
        self._name = bench.name

    def add_trial(self, trial: Trial, artifact: Artifact | None) -> None:
        """Keep a trial and count it."""
        super().add_trial(trial, artifact)
        if trial.anchor is None:  # else its helper counts it
            self._metrics.trials.labels(self._name, trial.outcome.value).inc()
            self._metrics.trial_seconds.labels(self._name).inc(trial.check_s + trial.measure_s)


LOOK_S = 2.0  # from one look for jobs whose server died to the next, at most
_POLL_S = 0.5
_IDLE_LOOK_S = 5.0  # from one look for work that nobody asked for to the next
_TAKE_OVER_S = 1.0
_ASIDE_S = 2.0  # from one look at a device that is set aside to the next
_LEAVE_S = 3.0  # for which a service that stops waits for other writers
_CLOSED_S = 5.0  # within which a thread ends whose device is closed
REHEARSED = (DType.BFLOAT16, DType.FLOAT16, DType.FLOAT8_E4M3FN, DType.FLOAT32)
log = logging.getLogger("tilewright.device_queue")


@dataclasses.dataclass(frozen=True, slots=True)
class _Current:
    """The job being tuned: its claim, and how to stop it."""

    job_id: str
    attempt: int
    cancelled: threading.Event


class DeviceQueue:
    """Runs the jobs of one device, each under a lease of ``lease_s`` seconds that :meth:`renew` extends.

    It takes jobs only once it holds the device's lock, which it keeps until it stops, because two services on
    one device disturb each other.

    While no job waits, and as the settings allow, it helps the jobs of other devices, tunes again the stale
    results that were served, and races imported configs. Until its first job, a GPU rehearses trials. A
    :class:`Canary` measures winners again.

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
        self._lock = DeviceLock(settings.lock_dir, self.bench.identity)
        self._store = store
        self._builder = builder
        self._owner = new_owner()
        self._leases = claims.LeaseWatch(settings.lease_s, 2 * LOOK_S)
        self._metrics = metrics
        self._settings = settings
        self._wake, self._stopping = threading.Event(), threading.Event()
        given = (store, self.bench, builder, metrics, settings.lease_s, self._wake)
        self._helper = Helper(*given) if settings.help_jobs else None
        self._rehearsals = [] if self.bench.spec.kind == "host" else list(REHEARSED)
        self._canary = Canary(store, self.bench, metrics, settings)
        self._next_idle_look, self._refused_imports = 0.0, set[str]()
        self._looked = False  # since this queue has the lock: the service that had it may have been killed
        self._current: _Current | None = None
        self._trouble: tuple[Trouble | None, str] = None, ""
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

    def health(self) -> DeviceHealth:
        """How the device is now."""
        trouble, reason = self._trouble
        ended = "" if self.alive else "its thread ended; restart the service"
        return DeviceHealth(self.alive, self.job_id, trouble, ended or reason)

    def take_back(self) -> None:
        """Queue again the jobs whose server died or does not renew their leases."""
        with self._store.begin() as session:
            interrupted = claims.requeue_lost(session, self._device_class, self._leases)
        for job_id in interrupted:
            log.info("job %s was interrupted; it resumes with its trials", job_id)
        if interrupted:
            self.wake()

    def renew(self) -> None:
        """Extend the lease of the job being tuned, or of trials for another device's; stop a job that was
        taken over, or cancelled through another server of this database."""
        if self._helper:
            self._helper.renew()
        current = self._current
        if current is None:
            return
        try:
            with self._store.begin() as session:
                record = claims.renew(session, current.job_id, current.attempt, self._settings.lease_s)
        except JobTaken:
            current.cancelled.set()
        else:
            if record.cancel_requested:
                current.cancelled.set()

    def release(self) -> bool:
        """Use a device that is set aside as it is; False if it is not set aside."""
        if not self.bench.set_aside:
            return False
        self.bench.release()
        self.wake()
        return True

    def suspect(self, problem: GemmProblem, config: Config, artifact: Artifact) -> None:
        self._canary.suspect(problem, config, artifact)

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
        soon = self._store.impatient(_LEAVE_S, 1)
        try:
            with soon.begin() as session:
                claims.requeue_interrupted(session, self._device_class, self._owner)
            if self._helper:
                self._helper.leave(soon)
        except (SQLAlchemyError, WritersBusy):
            log.exception("the database takes no writes; another start finds the job of %s", self.name)
        self.bench.close()
        if self.alive:  # its device is closed, so it ends, and gives back its connection to the database
            self._thread.join(_CLOSED_S)
        self._lock.release()

    def _run(self) -> None:
        backoff = Backoff(self._stopping)
        while not self._stopping.is_set():
            try:
                mine = self._lock.acquire()
                if mine:
                    self._step()
            except DeviceSetAside as error:
                self._give_back()
                self._trouble = Trouble.SET_ASIDE, f"set aside: {error}"
                self._wake.wait(_ASIDE_S)
                self._wake.clear()
            except Exception as error:
                # NOTE: the boundary of the thread: the device goes on after any error.
                if isinstance(error, DeviceUnavailable):
                    self._give_back()
                trouble = Trouble.WAITING if outage(error) else Trouble.FAILED
                self._trouble = trouble, why(error, backoff.seconds)
                log.exception("device %s: %s", self.name, self._trouble[1])
                backoff.pause()
            else:
                backoff.reset()
                if mine:
                    self._trouble = None, ""
                    continue
                self._trouble = Trouble.IN_USE, f"in use by another service (pid {self._lock.holder()})"
                self._stopping.wait(_TAKE_OVER_S)

    def _give_back(self) -> None:
        """Give the job, or the trials of another one, back for other devices of the class."""
        try:
            if self._helper:
                self._helper.leave()
            with self._store.begin() as session:
                claims.requeue_interrupted(session, self._device_class, self._owner)
        except Exception as failed:
            # NOTE: the boundary of the thread: the next look at the device gives the job back.
            if outage(failed) is None:
                log.exception("device %s: its job was not given back; trying again", self.name)

    def _tell(self, trouble: Trouble | None, reason: str) -> None:
        self._trouble = trouble, reason

    def _step(self) -> None:
        self._wake.clear()
        if self._looked:
            self.bench.come_back()  # a job that is claimed now would fail with a device that does not start
        else:
            self.bench.look()
            self._looked = True
        with self._store.begin() as session:
            # NOTE: what this queue holds now is a job whose end the database did not take.
            claims.requeue_interrupted(session, self._device_class, self._owner)
            job = claims.claim(session, self._device_class, self._owner, self._settings.lease_s)
        if job is not None:
            if self._helper:
                self._helper.leave()
            self._work(job)
        elif not (self._help() or self._queue_idle_work() or self._rehearse() or self._canary.step()):
            self._wake.wait(_POLL_S)

    def _help(self) -> bool:
        if self._helper is None or not self._helper.help():
            return False
        self._rehearsals.clear()
        self._canary.disturb()
        return True

    def _queue_idle_work(self) -> bool:
        # NOTE: a look takes 5 ms, for which lookups wait.
        if not self._settings.retune_stale or time.monotonic() < self._next_idle_look:
            return False
        given = (self._store, self.bench, self._settings)
        queued = queue_stalest(*given) or queue_imported(*given, self._refused_imports)
        if not queued:
            self._next_idle_look = time.monotonic() + _IDLE_LOOK_S
        return queued

    def _rehearse(self) -> bool:
        """Have an idle GPU get ready for the first trial of the next type; False if there is none left."""
        if not self._rehearsals:
            return False
        dtype = self._rehearsals.pop(0)
        try:
            self.bench.rehearse(dtype)
        except (TilewrightError, WorkerError, RuntimeError) as error:
            log.info("device %s: no rehearsal for %s: %s", self.name, dtype, error)
            self._rehearsals.clear()
        return True

    def _work(self, job: JobRecord) -> None:
        self._rehearsals.clear()
        self._canary.disturb()
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
            self._canary.disturb()

    def _tune_or_fail(self, job: JobRecord, cancelled: threading.Event) -> None:
        try:
            self._tune(job, cancelled)
        except (JobTaken, SQLAlchemyError, DeviceAway):
            raise
        except TilewrightError as error:
            self._finish(job, JobStatus.FAILED, str(error))
        except Exception as error:
            # NOTE: the boundary of the thread: the job fails with the reason, the device goes on.
            log.exception("job %s failed", job.id)
            reason = (
                f"internal error ({type(error).__name__}): the service's log has the reason under this id"
            )
            self._finish(job, JobStatus.FAILED, reason)

    def _tune(self, job: JobRecord, cancelled: threading.Event) -> None:
        patience = Retry(cancelled, self._tell)
        recorder = DeviceRecorder(self._store, job.id, patience, self._metrics, self.bench)
        board = SlotBoard(self._store, job, patience) if self._settings.help_jobs else None
        wait_s = self._settings.quiet_wait_s
        context = JobContext(
            job.request, job.id, self.bench, self._builder, recorder, cancelled, wait_s, board
        )
        initial = functools.partial(first_tries, self._store, self.bench.spec)
        won = list[BestConfig]()
        if self._await_quiet(job.id, cancelled):
            log.info("job %s: tuning %s on %s", job.id, job.request.problem, self.name)
            won = run_job(context, recorder, initial)
        if won:
            self._finish(job, JobStatus.SUCCEEDED, None)
        elif not cancelled.is_set():
            self._finish(job, JobStatus.FAILED, NO_WINNER)
        elif not self._stopping.is_set() or self._cancel_requested(job.id):
            self._finish(job, JobStatus.CANCELLED, None)

    def _await_quiet(self, job_id: str, cancelled: threading.Event) -> bool:
        """Wait until no other process uses the device, ``quiet_wait_s`` at most; False if the job was
        cancelled."""
        ends = time.monotonic() + self._settings.quiet_wait_s
        while not cancelled.is_set() and (reasons := "; ".join(self.bench.interference())):
            left_s = ends - time.monotonic()
            if left_s <= 0:
                log.warning("job %s runs despite interference on %s: %s", job_id, self.name, reasons)
                break
            self._tell(Trouble.SHARED, f"{reasons}; waiting for it, {left_s:.0f} s at most (quiet_wait_s)")
            cancelled.wait(min(_POLL_S, left_s))
        self._tell(None, "")
        return not cancelled.is_set()

    def _cancel_requested(self, job_id: str) -> bool:
        with self._store.read() as session:
            record = jobs.get(session, job_id)
        return record is not None and record.cancel_requested

    def _finish(self, job: JobRecord, status: JobStatus, error: str | None) -> None:
        def finish() -> None:
            with self._store.begin() as session:
                # NOTE: a stop gives the job back to the queue and closes the device under a running race,
                # which then fails here; the job is not this claim's to end any more.
                claims.hold(session, job.id, job.attempt)
                jobs.finish(session, job.id, status, error)

        Retry(self._stopping, self._tell)(finish)
        if job.started:
            self._metrics.jobs.labels(status.value).observe((utc_now() - job.started).total_seconds())
        log.info("job %s %s%s", job.id, status, f": {error}" if error else "")
