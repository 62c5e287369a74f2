"""Faults of a fleet at random moments of a job, and what is left of its trials."""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import api_server
import fleet_cluster
import postgres_server
from cut_proxy import CutProxy
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from tilewright import Client, GemmProblem
from tilewright.schema.job import JobStatus
from tilewright.schema.trial import Trial
from tuner.job.slots import SlotState
from tuner.store import jobs
from tuner.store.database import Store
from tuner.store.models import TrialSlotRow
from tuner.store.records import JobRecord
from tuner.store.trials import JobRecorder

PROBLEM = GemmProblem(64, 48, 32, "float32", "nn")
TRIALS = 24
LEASE_S = 3
NODES = 3
_ENDS_S = 120.0
_HELP_S = 10.0


@dataclasses.dataclass
class Count:
    """What became of the jobs of one kind of fault; ``moments`` counts those that were met at work."""

    kind: str
    moments: int = 0
    lost: int = 0
    doubled: int = 0
    unfinished: int = 0

    def __add__(self, other: Count) -> Count:
        names = ("moments", "lost", "doubled", "unfinished")
        return Count(self.kind, *(getattr(self, name) + getattr(other, name) for name in names))


class Lab:
    """A fleet of three nodes with a service on a PostgreSQL database, and the faults that befall it.

    The service and the actors reach the database through a proxy, and the lab itself does not.
    """

    def __init__(self, fleet: fleet_cluster.Fleet, database: postgres_server.Server) -> None:
        self.fleet, self.database, self.proxy = fleet, database, CutProxy(database.port)
        proxied = dataclasses.replace(database, port=self.proxy.port).url("postgres")
        self.settings: dict[str, object] = {"database_url": proxied, "lease_s": LEASE_S}
        self._added = 0
        for _ in range(NODES):
            self._add()
        self.server = fleet.serve(**self.settings)
        self.client = Client(self.server.url, timeout=60.0)
        self.store = Store.open(database.url("postgres"))
        self.wait(lambda: len(self.client.devices()) == NODES)
        self._seed = random.randrange(10**6)

    def close(self) -> None:
        """Stop the service; the cluster is the caller's."""
        self.client.close()
        self.store.close()
        api_server.finish(self.server)
        self.proxy.close()

    def _add(self) -> None:
        self.fleet.add(f"n{self._added}")
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

    def submit(self) -> str:
        """Start a job like no other one."""
        self._seed += 1
        return self.client.tune(PROBLEM, max_trials=TRIALS, seed=self._seed, wait=False).id

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

    def strike(self, count: Count) -> None:
        """Start a job, let the fault happen after a random number of its trials, and count what is lost."""
        self.wait(lambda: bool(self.client.devices()))  # after a fault that took all of them
        job_id, after = self.submit(), random.randrange(TRIALS - 4)
        self.wait(lambda: len(self.trials(job_id)) >= after or self.job(job_id).status.final)
        held = self.holder(job_id)
        if held is None:
            return  # it was over already: no moment of a running job
        acknowledged = self.trials(job_id)
        if getattr(self, f"_{count.kind}")(held) is False:
            return
        count.moments += 1
        count.unfinished += not self.wait(lambda: self.job(job_id).status.final)
        kept = {trial.number: trial for trial in self.trials(job_id)}
        count.lost += sum(kept.get(one.number) != one for one in acknowledged)
        count.doubled += len(kept) - len({trial.config for trial in kept.values()})

    def _worker(self, actor: int) -> None:
        for pid in api_server.children(actor, b"tuner.workers.device_worker"):
            os.kill(pid, signal.SIGKILL)

    def _actor(self, actor: int) -> None:
        os.kill(actor, signal.SIGKILL)

    def _helper(self, _actor: int) -> bool:
        """In the middle of a trial that it runs for another device's job; False if none does."""
        running = select(TrialSlotRow.helper).where(TrialSlotRow.state == SlotState.RUNNING)
        owners: list[str] = []

        def at_work() -> bool:
            with self.store.read() as session:
                owners[:] = session.scalars(running)
            return bool(owners)

        if not self.wait(at_work, _HELP_S):
            return False
        os.kill(int(owners[0].split("/")[-3]), signal.SIGKILL)
        return True

    def _stopped(self, actor: int) -> None:
        """Longer than its lease: another takes the job over, and the late writer is refused."""
        os.kill(actor, signal.SIGSTOP)
        time.sleep(3.0 * LEASE_S)
        with suppress(ProcessLookupError):
            os.kill(actor, signal.SIGCONT)

    def _raylet(self, actor: int) -> None:
        stat = Path(f"/proc/{actor}/stat").read_text()
        os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
        self._add()

    def _replica(self, _actor: int) -> None:
        self.server.stop(signal.SIGKILL)
        api_server.finish(self.server)
        self.client.close()
        self.server = self.fleet.serve(**self.settings)
        self.client = Client(self.server.url, timeout=60.0)
        self.wait(lambda: len(self.client.devices()) > 0)

    def _gcs(self, _actor: int) -> None:
        """Without it Ray ends its nodes within a minute; the operator starts the cluster again meanwhile."""
        [gcs] = self.fleet.cluster.head_node.all_processes["gcs_server"]
        os.kill(gcs.process.pid, signal.SIGKILL)
        time.sleep(random.uniform(0.0, LEASE_S))
        self.fleet.restart()
        for _ in range(NODES):
            self._add()

    def _postgres(self, _actor: int) -> None:
        self.database.restart()

    def _cut(self, actor: int) -> None:
        """For less than a lease or for longer: the trial is delivered late, or by another device."""
        self.proxy.cut(actor)
        time.sleep(random.uniform(0.2, 4.0) * LEASE_S)
        self.proxy.mend()


KINDS = ("worker", "actor", "helper", "stopped", "raylet", "replica", "gcs", "postgres", "cut")
