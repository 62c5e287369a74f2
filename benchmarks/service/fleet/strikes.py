"""Processes of a device of a fleet that are killed in the middle of a trial, while all devices work at jobs.

A part of :mod:`benchmarks.service.fleet_gpus`.
"""

from __future__ import annotations

import array
import concurrent.futures
import contextlib
import dataclasses
import fcntl
import os
import select
import signal
import termios
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.common.results import Rows
from benchmarks.service.fleet.jobs import problems
from benchmarks.service.fleet.rounds import FAILED, Rounds, add_states, told
from benchmarks.service.ray_services import Machine, wait
from tilewright.schema.job import JobStatus
from tilewright.schema.trial import Outcome, Trial
from tuner.job.slots import SEARCH
from tuner.store import jobs, trials
from tuner.store.database import Store
from tuner.store.records import JobRecord, utc_now

KINDS = ("worker", "actor")
_JOBS_A_STRIKE = 3  # the others are spare, in case that no trial is met in the first half of a job
_REQUEST_MS = 1000.0  # within which a busy device gets a trial
_READS_S = 0.002  # in which a worker reads a request and begins
_ANSWERED_S = 0.3  # in which an answer would be acknowledged


def strikes(machine: Machine, rows: Rows, kinds: Sequence[str], trials_of_job: int) -> None:
    """Kill a process of the last device for each of ``kinds``, in the first half of a job, while a trial is
    under way."""
    count, spare = len(machine.devices), _JOBS_A_STRIKE * len(kinds)
    of_device, quiet = (1, 2) if machine.on_host else (2, 3)
    environment = {"TILEWRIGHT_LEASE_S": "5", "TILEWRIGHT_HELP_JOBS": "0"}
    with (
        machine.fleet("struck", count, **environment) as client,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        target = max(one.name for one in client.devices())
        given = problems(machine, spare + of_device * count)
        rounds = Rounds(client, rows, target, max_trials=trials_of_job)
        rounds.quiet(given[spare:], quiet)
        options: dict[str, Any] = {"level": "quick", "max_trials": trials_of_job, "wait": False}
        ids = [client.tune(problem, device=target, **options).id for problem in given[:spare]]
        striking = pool.submit(_strike_all, machine.database("struck"), ids, kinds, rows)
        rounds.beside(given[spare:], striking.done)
        struck = striking.result()
        for job_id in ids:
            if job_id not in struck:
                client.cancel(job_id)
        wait(lambda: all(client.job(one).status.final for one in ids))
        for job_id in struck:
            job = client.job(job_id)
            failed = [told(one) for one in client.trials(job_id, limit=100).items if one.outcome in FAILED]
            error = job.error.detail if job.error else None
            rows.add("job", problem=str(job.problem), status=str(job.status), error=error, failed=failed)
        add_states(rows, client)


def _strike_all(database: str, ids: Sequence[str], kinds: Sequence[str], rows: Rows) -> list[str]:
    """The jobs that were struck; each strike is kept as a row."""
    struck, waiting = [], iter(ids)
    with contextlib.closing(Store.open(database)) as store:
        for kind in kinds:
            caught = next((one for job_id in waiting if (one := _caught(store, job_id))), None)
            row = _struck(store, caught, kind) if caught else {}
            rows.add("strike", what=kind, met=caught is not None, **row)
            struck += [caught.job_id] if caught else []
    return struck


@dataclasses.dataclass(frozen=True, slots=True)
class _Caught:
    """A job of which a trial is under way; the device worker is stopped (SIGSTOP).

    Attributes:
        attempt: the claim of the job.
        acknowledged: its trials, by number.
        actor, worker: the processes.
    """

    job_id: str
    attempt: int
    acknowledged: dict[int, Trial]
    actor: int
    worker: int


def _caught(store: Store, job_id: str) -> _Caught | None:
    """Stop the worker in the middle of a trial; None if the job has half of its trials before."""
    while True:
        job, before = _looked(store, job_id)
        if job.status.final or 2 * len(before) >= job.request.budget:
            return None
        if job.status is not JobStatus.RUNNING or not before:
            time.sleep(0.02)
            continue
        with contextlib.suppress(OSError, ValueError):  # a process is gone, or not there yet
            actor = int((job.owner or "").split("/")[-3])
            (worker,) = _workers(actor)
            if not _stopped_with_a_request(worker):
                continue
            _, before = _looked(store, job_id)
            time.sleep(_ANSWERED_S)
            job, acknowledged = _looked(store, job_id)
            searches = job.status is JobStatus.RUNNING and job.progress and job.progress.phase == SEARCH
            if searches and len(acknowledged) == len(before) and 2 * len(before) < job.request.budget:
                return _Caught(job_id, job.attempt, acknowledged, actor, worker)
            os.kill(worker, signal.SIGCONT)


def _stopped_with_a_request(worker: int) -> bool:
    """Wait a moment for a request, and stop the worker once it has read that; False if none came."""
    if not _gets_a_request(worker):
        return False
    os.kill(worker, signal.SIGSTOP)
    while _unread(worker):
        os.kill(worker, signal.SIGCONT)
        time.sleep(_READS_S)
        os.kill(worker, signal.SIGSTOP)
    return True


def _gets_a_request(worker: int) -> bool:
    """Wait a moment until a request lies in the pipe of a worker."""
    with _pipe(worker) as pipe:
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        return bool(poll.poll(_REQUEST_MS))


def _unread(worker: int) -> bool:
    """Whether a worker has not read a request yet."""
    found = array.array("i", [0])
    with _pipe(worker) as pipe:
        fcntl.ioctl(pipe, termios.FIONREAD, found)
    return found[0] > 0


@contextlib.contextmanager
def _pipe(worker: int) -> Iterator[int]:
    """The pipe from which a worker reads requests."""
    arguments = Path(f"/proc/{worker}/cmdline").read_text().split("\0")
    (pipes,) = [one.partition("=")[2] for one in arguments if one.startswith("--pipes=")]
    pipe = os.open(f"/proc/{worker}/fd/{pipes.partition(',')[0]}", os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield pipe
    finally:
        os.close(pipe)


def _struck(store: Store, caught: _Caught, kind: str) -> dict[str, Any]:
    """Kill a process, and follow the job to its end."""
    struck = utc_now()
    with contextlib.suppress(ProcessLookupError):
        os.kill(caught.actor if kind == "actor" else caught.worker, signal.SIGKILL)
    wait(lambda: _looked(store, caught.job_id)[0].status.final)
    job, kept = _looked(store, caught.job_id)
    with store.read() as session:
        dated = trials.dated(session, job.id, None, 0, 10_000)
    later = [(trial, ended) for trial, ended in dated if trial.number not in caught.acknowledged]
    row: dict[str, Any] = {
        "problem": str(job.request.problem),
        "acknowledged": len(caught.acknowledged),
        "of": job.request.budget,
        "lost": sum(kept.get(number) != trial for number, trial in caught.acknowledged.items()),
        "doubled": len(kept) - len({trial.config for trial in kept.values()}),
        "claims": [caught.attempt, job.attempt],
        "status": str(job.status),
    }
    return row | _following(sorted(later, key=lambda one: one[1]), struck)


def _following(later: Sequence[tuple[Trial, datetime]], struck: datetime) -> dict[str, Any]:
    """The trial that was under way, which is acknowledged next, and the next one that was measured."""
    if not later:
        return {"trial": None}
    (hit, ended), *_ = later
    measured = next((one for trial, one in later if trial.outcome in (Outcome.OK, Outcome.PRUNED)), None)
    return {
        "trial": hit.number,
        "outcome": str(hit.outcome),
        "message": hit.message[:200],
        "next_trial_s": round((ended - struck).total_seconds(), 3),
        "next_measured_s": measured and round((measured - struck).total_seconds(), 3),
    }


def _looked(store: Store, job_id: str) -> tuple[JobRecord, dict[int, Trial]]:
    """A job and its trials, by number."""
    with store.read() as session:
        found = {trial.number: trial for trial in trials.of_job(session, job_id)}
        return jobs.known(session, job_id), found


def _workers(actor: int) -> list[int]:
    """The device worker that a process started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            command = path.with_name("cmdline").read_bytes().split(b"\0")
            if parent == actor and b"tuner.workers.device_worker" in command:
                found.append(int(path.parent.name))
    return found
