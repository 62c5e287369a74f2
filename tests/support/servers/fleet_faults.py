"""Faults of a fleet at random moments of a job, and what is left of its trials, its winner and its writers.

Every job tries all configs of the host family once, on devices whose kernels take fixed times
(:mod:`fixed_times`): its winner is the fastest of them, in any order of trials. The stored winner
is removed before each job, so that a job cannot owe its winner to an earlier one. A moment is uniformly
random between the claim of a job and its end, its races included.
"""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import api_server
import fleet_cluster
import postgres_server
from cut_proxy import CutProxy
from fixed_times import kernel_us
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from tilewright import Client, GemmProblem
from tilewright.schema.config import Config
from tilewright.schema.job import JobStatus
from tilewright.schema.trial import BestConfig, Trial
from tuner.job.slots import SlotState
from tuner.store import jobs
from tuner.store.database import Store, StoreError
from tuner.store.imports import remove_best
from tuner.store.models import TrialSlotRow
from tuner.store.records import JobRecord
from tuner.store.trials import JobRecorder

PROBLEM = GemmProblem(16, 16, 16, "float32", "nn")
LEASE_S = 3
NODES = 3
_ALL = 1000  # trials: more than the family has configs
_LONGER = 1.1  # than the last job that nothing struck: until then a job may be struck
_ENDS_S = 120.0
_HELP_S = 10.0
_REFUSED_S = 60.0
_ENDED = "device host: the database takes no writes"


@dataclasses.dataclass
class Count:
    """What became of the jobs of one kind of fault.

    Attributes:
        moments: jobs that were met at work.
        lost, doubled: trials that were acknowledged and are gone; that ran twice.
        unfinished: jobs that did not end.
        changed: jobs that ended with another winner than the fastest kernel of all that did not fail. No two
            take the same time, so it has no ties.
        failed: trials that failed, as that of a device worker that is killed does.
        refused: claims whose write was refused since another device had taken the job over, or whose
            transaction the database had ended by then.
        racing: moments in the final races of the job.
        trials: that the jobs have in the end.
    """

    kind: str
    moments: int = 0
    lost: int = 0
    doubled: int = 0
    unfinished: int = 0
    changed: int = 0
    failed: int = 0
    refused: int = 0
    racing: int = 0
    trials: int = 0

    def __add__(self, other: Count) -> Count:
        names = [field.name for field in dataclasses.fields(self)[1:]]
        return Count(self.kind, *(getattr(self, name) + getattr(other, name) for name in names))


@dataclasses.dataclass(frozen=True)
class Unstruck:
    """A job that nothing struck: its winner, the time of each kernel, and the seconds from claim to end."""

    winner: BestConfig
    us: dict[Config, float]
    seconds: float


class Lab:
    """A fleet of three nodes with a service on a PostgreSQL database, and the faults that befall it.

    The service and the actors reach the database through a proxy, and the lab itself does not.
    """

    def __init__(self, fleet: fleet_cluster.Fleet, database: postgres_server.Server) -> None:
        self.fleet, self.database, self.proxy = fleet, database, CutProxy(database.port)
        proxied = dataclasses.replace(database, port=self.proxy.port).url("postgres")
        self.settings: dict[str, object] = {"database_url": proxied, "lease_s": LEASE_S}
        self._added = self._ended = 0
        for _ in range(NODES):
            self._add()
        self.server = fleet.serve(**self.settings)
        self.client = Client(self.server.url, timeout=60.0)
        self.store = Store.open(database.url("postgres"))
        self.wait(lambda: len(self.client.devices()) == NODES)
        self._seed = random.randrange(10**6)
        self.unstruck = self._tuned()

    def close(self) -> None:
        """Stop the service; the cluster is the caller's."""
        self.client.close()
        self.store.close()
        api_server.finish(self.server)
        self.proxy.close()

    def _add(self) -> None:
        self.fleet.add(f"n{self._added}", **fleet_cluster.QUICK_DEVICES)
        self._added += 1

    def wait(self, condition: Callable[[], bool], seconds: float = _ENDS_S) -> bool:
        """Whether a condition came true in time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with suppress(SQLAlchemyError):  # the database was restarted
                if condition():
                    return True
            time.sleep(0.05)
        return False

    def submit(self, trials: int = _ALL) -> str:
        """Start a job like no other one, on a problem that has no winner."""
        self._seed += 1
        with self.store.begin() as session, suppress(StoreError):
            remove_best(session, self.client.devices()[0].device_class, PROBLEM)
        return self.client.tune(PROBLEM, max_trials=trials, seed=self._seed, wait=False).id

    def job(self, job_id: str) -> JobRecord:
        """As the database has it."""
        with self.store.read() as session:
            return jobs.known(session, job_id)

    def trials(self, job_id: str) -> list[Trial]:
        """Those that are committed."""
        return JobRecorder(self.store, job_id).trials()

    def holder(self, job_id: str) -> int | None:
        """The process that holds a job, an actor's."""
        record = self.job(job_id)
        running = record.status is JobStatus.RUNNING and record.owner
        return int(record.owner.split("/")[-3]) if running and record.owner else None

    def _tuned(self) -> Unstruck:
        job_id = self.submit()
        if not self.wait(lambda: self.job(job_id).status.final):
            raise TimeoutError(f"job {job_id} did not end, though nothing struck it")
        job, trials = self.job(job_id), self.trials(job_id)
        if job.result is None or job.started is None or job.finished is None:
            raise RuntimeError(f"job {job_id} has no winner: {job.error}")
        us = {trial.config: kernel_us(trial.artifact) for trial in trials if trial.artifact}
        if job.result.config != min(us, key=us.__getitem__) or len(set(us.values())) < len(trials):
            raise RuntimeError(f"the winner is not the one fastest kernel, but {job.result.config}")
        return Unstruck(job.result, us, (job.finished - job.started).total_seconds())

    def strike(self, count: Count) -> None:
        """Start a job, let the fault happen at a random moment of it, and count what is lost."""
        self.wait(lambda: bool(self.client.devices()))  # after a fault that took all of them
        job_id = self.submit()
        self.wait(lambda: self.holder(job_id) is not None or self.job(job_id).status.final)
        time.sleep(random.uniform(0.0, _LONGER * self.unstruck.seconds))
        held, progress = self.holder(job_id), self.job(job_id).progress
        if held is None:
            return  # it was over already: no moment of a running job
        acknowledged = self.trials(job_id)
        if getattr(self, f"_{count.kind}")(held, job_id) is False:
            return
        count.moments += 1
        count.racing += progress is not None and progress.phase == "race"
        ended = self.wait(lambda: self.job(job_id).status.final)
        count.unfinished += not ended
        kept = {trial.number: trial for trial in self.trials(job_id)}
        failed = {trial.config for trial in kept.values() if trial.timing is None}
        count.changed += ended and not self._won_as_ever(job_id, failed)
        count.failed += len(failed)
        count.lost += sum(kept.get(one.number) != one for one in acknowledged)
        count.doubled += len(kept) - len({trial.config for trial in kept.values()})
        count.trials += len(kept)
        count.refused += self._refused(job_id, count.kind == "stopped")

    def facts(self) -> dict[str, Any]:
        """What the jobs are."""
        device, unstruck = self.client.devices()[0], self.unstruck
        return {
            "method": " ".join((__doc__ or "").split()),
            "device": {"model": device.model, "device_class": device.device_class, "driver": device.driver},
            "problem": str(PROBLEM),
            "trials_a_job": len(unstruck.us),
            "winner": str(unstruck.winner.config),
            "winner_us": round(unstruck.winner.timing.median_us, 3),
            "job_seconds": round(unstruck.seconds, 1),
        }

    def _won_as_ever(self, job_id: str, failed: set[Config]) -> bool:
        """Whether a job's winner is that of the job that nothing struck, or the next one if that failed."""
        found = self.job(job_id).result
        us = {config: us for config, us in self.unstruck.us.items() if config not in failed}
        return found is not None and found.config == min(us, key=us.__getitem__)

    def _refused(self, job_id: str, awaited: bool) -> int:
        """How many claims of a job were refused a write; an actor logs each. One that was stopped within a
        transaction finds that the database ended it instead."""
        words = f"job {job_id}: job {job_id} is not running under claim"

        def told() -> int:
            ended = awaited and self.fleet.log_lines(_ENDED) > self._ended
            return self.fleet.log_lines(words) or int(ended)

        if awaited:
            self.wait(lambda: told() > 0, _REFUSED_S)
        return told()

    def _worker(self, actor: int, _job_id: str) -> bool:
        """False if it has none now."""
        found = api_server.children(actor, b"tuner.workers.device_worker")
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        return bool(found)

    def _actor(self, actor: int, _job_id: str) -> None:
        os.kill(actor, signal.SIGKILL)

    def _helper(self, _actor: int, job_id: str) -> bool:
        """In the middle of a trial that it runs for another device's job; False if none does."""
        running = select(TrialSlotRow.helper).where(TrialSlotRow.state == SlotState.RUNNING)
        owners: list[str] = []

        def at_work() -> bool:
            with self.store.read() as session:
                owners[:] = session.scalars(running)
            return bool(owners) or self.job(job_id).status.final

        if not self.wait(at_work, _HELP_S) or not owners:
            return False
        os.kill(int(owners[0].split("/")[-3]), signal.SIGKILL)
        return True

    def _stopped(self, actor: int, job_id: str) -> bool:
        """Until its lease ended and another took the job over: the late writer is refused. False if it had
        ended the job just before."""
        claim = self.job(job_id).attempt
        self._ended = self.fleet.log_lines(_ENDED)
        os.kill(actor, signal.SIGSTOP)
        self.wait(lambda: self.job(job_id).status.final or self.job(job_id).attempt != claim)
        with suppress(ProcessLookupError):
            os.kill(actor, signal.SIGCONT)
        return self.job(job_id).attempt != claim

    def _raylet(self, actor: int, _job_id: str) -> None:
        stat = Path(f"/proc/{actor}/stat").read_text()
        os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
        self._add()

    def _replica(self, _actor: int, _job_id: str) -> None:
        self.server.stop(signal.SIGKILL)
        api_server.finish(self.server)
        self.client.close()
        self.server = self.fleet.serve(**self.settings)
        self.client = Client(self.server.url, timeout=60.0)
        self.wait(lambda: len(self.client.devices()) > 0)

    def _gcs(self, _actor: int, _job_id: str) -> None:
        """Without it Ray ends its nodes within a minute; the operator starts the cluster again meanwhile."""
        [gcs] = self.fleet.cluster.head_node.all_processes["gcs_server"]
        os.kill(gcs.process.pid, signal.SIGKILL)
        time.sleep(random.uniform(0.0, LEASE_S))
        self.fleet.restart()
        for _ in range(NODES):
            self._add()

    def _postgres(self, _actor: int, _job_id: str) -> None:
        self.database.restart()

    def _cut(self, actor: int, _job_id: str) -> None:
        """For less than a lease or for longer: the trial is delivered late, or by another device."""
        self.proxy.cut(actor)
        time.sleep(random.uniform(0.2, 4.0) * LEASE_S)
        self.proxy.mend()


KINDS = ("worker", "actor", "helper", "stopped", "raylet", "replica", "gcs", "postgres", "cut")
