"""``Helper``: an idle device that runs trials for the job of another device of its class."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from concurrent import futures
from concurrent.futures import Future

from sqlalchemy.exc import SQLAlchemyError

from service.metrics import Metrics
from tilewright.artifact import Artifact
from tilewright.errors import ArtifactError, TilewrightError
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import Anchor, Timing, Trial
from tuner.job import slots
from tuner.job.context import JobContext
from tuner.job.helpers import SLOTS, AnchorTimes
from tuner.job.slots import Slot, SlotState, TrialTask
from tuner.search.search import Proposal
from tuner.store import entities
from tuner.store.database import Store
from tuner.store.queue.owners import new_owner
from tuner.store.records import JobRecord
from tuner.store.trials import JobRecorder
from tuner.workers.bench import Bench
from tuner.workers.builder import Builder, Compiled

_MOMENT_S = 0.5  # after which the device looks for a job of its own again
_QUIET_S = 10.0  # after which a device that others use is looked at again
_POLL_S = (0.02, 0.25)  # the pause between two looks for trials, at first and after some in vain
log = logging.getLogger("tilewright.device_queue")


class NoAnchor(TilewrightError):
    """The kernel that relates this device to that of the job does not run here."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Helped:
    """The job that is helped, and the kernels that relate both devices, with their times on each problem."""

    job: JobRecord
    context: JobContext
    anchors: dict[tuple[str, GemmProblem], tuple[Artifact, AnchorTimes]]


@dataclasses.dataclass(frozen=True, slots=True)
class _Compiling:
    """A trial that is compiled or waits for the device."""

    slot: Slot
    task: TrialTask
    work: Future[Compiled]


class Helper:
    """Takes trials from the running job of its device class that has the fewest helpers.

    Belongs to the thread of a device queue, except :meth:`renew`. An error here outside of a trial itself
    gives the trials back.
    """

    def __init__(
        self,
        store: Store,
        bench: Bench,
        builder: Builder,
        metrics: Metrics,
        lease_s: float,
        wake: threading.Event,
    ) -> None:
        """``wake`` tells that there may be a job for the device itself."""
        self._store, self._bench, self._builder, self._metrics = store, bench, builder, metrics
        self._lease_s, self._wake = lease_s, wake
        self._owner = ""  # of the slots of the job that is helped
        self._device = " ".join(dict.fromkeys((bench.name, bench.identity)))
        self._helped: _Helped | None = None
        self._failed = False
        self._not_before = 0.0
        self._open: dict[tuple[int, int], _Compiling] = {}

    @property
    def job_id(self) -> str | None:
        """The job that is helped, or None."""
        helped = self._helped
        return helped.job.id if helped else None

    def renew(self) -> None:
        """Extend the lease of the trials taken."""
        if self._owner:
            with self._store.begin() as session:
                slots.renew(session, self._owner, self._lease_s)

    def help(self) -> bool:
        """Run one trial of another device's job, or wait for one for half a second; False if no job takes
        help."""
        if self._failed:
            self.leave()
        try:
            return self._help()
        except ArtifactError as error:  # the store's fault, not this device's
            damaged = f"a kernel of job {self.job_id} is damaged in the database, check its storage: {error}"
            log.warning("device %s helps nobody: %s", self._bench.name, damaged)
            self._not_before = time.monotonic() + _QUIET_S
            self.leave()
            return False
        except SQLAlchemyError:
            self._failed = True  # nothing can be given back before the database answers again
            raise
        except Exception:
            self.leave()
            raise

    def leave(self, store: Store | None = None) -> None:
        """Give back the trials that were taken, if any; through ``store`` if that waits less."""
        if not self._owner:
            return
        with (store or self._store).begin() as session:
            slots.leave(session, self._owner)
        self._forget()

    def _forget(self) -> None:
        self._helped, self._owner, self._failed = None, "", False
        for one in self._open.values():
            one.work.cancel()
        self._open.clear()

    def _help(self) -> bool:
        helped = self._helped or self._join()
        if helped is None:
            return False
        pause_s, until = _POLL_S[0], time.monotonic() + _MOMENT_S
        while time.monotonic() < until:
            with self._store.read() as session:
                mine = slots.held(session, self._owner)
            if not mine:
                self._forget()
                return True
            self._compile(helped, [slot for slot in mine if slot.state is SlotState.OFFERED])
            ready = self._compiled(pause_s)
            if ready is not None:
                self._run(helped, ready.slot, ready.task, ready.work.result())
                return True
            if self._wake.wait(0.0 if self._open else pause_s):
                return True
            pause_s = min(2 * pause_s, _POLL_S[1])
        return True

    def _join(self) -> _Helped | None:
        if time.monotonic() < self._not_before:
            return None
        owner, device_class = new_owner(), self._bench.spec.device_class.id
        try:
            with self._store.read() as session:  # an idle device asks twice a second, and writes nothing
                if not slots.helpable(session, device_class, owner):
                    return None
            with self._store.begin() as session:
                job = slots.join(session, device_class, owner, SLOTS, self._lease_s)
        except slots.OtherRelease as error:
            log.warning("device %s helps nobody: %s", self._bench.name, error)
            self._not_before = time.monotonic() + _QUIET_S
            return None
        if job is None:
            return None
        self._owner = owner
        recorder, never = JobRecorder(self._store, job.id), threading.Event()
        context = JobContext(job.request, job.id, self._bench, self._builder, recorder, never)
        self._helped = _Helped(job, context, {})
        if reasons := "; ".join(self._bench.interference()):
            log.info("device %s helps nobody: %s", self._bench.name, reasons)
            self._not_before = time.monotonic() + _QUIET_S
            self.leave()
        else:
            log.info("device %s helps job %s", self._bench.name, job.id)
        return self._helped

    def _compile(self, helped: _Helped, offered: list[Slot]) -> None:
        for gone in self._open.keys() - {(slot.id, slot.turn) for slot in offered}:
            self._open.pop(gone).work.cancel()
        for slot in offered:
            if slot.task and (slot.id, slot.turn) not in self._open:
                work = _of_task(helped, slot.task).submit(slot.task.config)
                self._open[slot.id, slot.turn] = _Compiling(slot, slot.task, work)

    def _compiled(self, wait_s: float) -> _Compiling | None:
        """The oldest compiled trial; None if none is compiled within ``wait_s`` seconds. On the host all must
        be compiled first, because compilers would run on the cores being measured."""
        on_host = self._bench.spec.kind == "host"
        until = futures.ALL_COMPLETED if on_host else futures.FIRST_COMPLETED
        waiting = futures.wait([one.work for one in self._open.values()], wait_s, until).not_done
        ready = [one for one in self._open.values() if one.work.done()]
        if not ready or (on_host and waiting):
            return None
        oldest = min(ready, key=lambda one: one.task.number)
        return self._open.pop((oldest.slot.id, oldest.slot.turn))

    def _run(self, helped: _Helped, slot: Slot, task: TrialTask, compiled: Compiled) -> None:
        context = _of_task(helped, task)
        anchor = self._anchor(helped, context, task)
        with self._store.begin() as session:
            begun = slots.start(session, slot)
        if not begun:
            return
        proposal = Proposal(task.number, task.config, task.origin)
        there = anchor.there_us / anchor.here_us
        incumbent_us = None if task.incumbent_us is None else task.incumbent_us * there
        trial = _related(context.tried(proposal, compiled, incumbent_us), anchor)
        if helped.job.request.ladder:
            trial = dataclasses.replace(trial, m=task.problem.m)
        with self._store.begin() as session:
            counts = slots.answer(session, slot, trial, compiled.artifact)
        if counts:
            self._metrics.trials.labels(self._bench.name, trial.outcome.value).inc()
            self._metrics.trial_seconds.labels(self._bench.name).inc(trial.check_s + trial.measure_s)
        else:
            log.info("job %s took trial %d back before it ended here", helped.job.id, task.number)

    def _anchor(self, helped: _Helped, context: JobContext, task: TrialTask) -> Anchor:
        """The anchor that relates this device to the job's device now.

        Raises:
            NoAnchor: the kernel that both measure is gone, or does not run here.
            ArtifactError: it is damaged.
        """
        key = task.anchor, task.problem
        if key not in helped.anchors:
            with self._store.read() as session:
                data = entities.get_artifact(session, task.anchor)
            if data is None:
                raise NoAnchor(
                    f"the job's kernel {task.anchor} must be kept while it is helped; "
                    "set TILEWRIGHT_HELP_JOBS=0"
                )
            helped.anchors[key] = Artifact.from_bytes(data, task.anchor), AnchorTimes()
        kernel, times = helped.anchors[key]
        if not times.again(context, kernel):
            raise NoAnchor(
                f"kernel {task.anchor} ran on the job's device and does not on {self._bench.name}; look at "
                "this device, or set TILEWRIGHT_HELP_JOBS=0"
            )
        return Anchor(self._device, task.anchor, times.median_us, task.anchor_us)


def _of_task(helped: _Helped, task: TrialTask) -> JobContext:
    """The context of a trial: of a ladder, that of its row."""
    request = dataclasses.replace(helped.job.request, problem=task.problem, ladder=())
    return dataclasses.replace(helped.context, request=request)


def _related(trial: Trial, anchor: Anchor) -> Trial:
    """A trial of this device with the times that the job's device would take."""
    return dataclasses.replace(
        trial, anchor=anchor, timing=trial.timing and _times(trial.timing, anchor.here_us / anchor.there_us)
    )


def _times(timing: Timing, factor: float) -> Timing:
    samples_us = tuple(factor * us for us in timing.samples_us)
    low_us, median_us, high_us = (factor * us for us in (timing.low_us, timing.median_us, timing.high_us))
    return dataclasses.replace(
        timing, samples_us=samples_us, median_us=median_us, low_us=low_us, high_us=high_us
    )
