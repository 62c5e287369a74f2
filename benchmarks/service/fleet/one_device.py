"""Two fleets of one machine that both offer its first device: the second waits until the first is gone.

A part of :mod:`benchmarks.service.fleet_gpus`. Each has a Ray cluster, a service and a database of its own,
so that nothing but the device's lock keeps their actors apart.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from benchmarks.common.results import Rows
from benchmarks.service.fleet.jobs import problems
from benchmarks.service.ray_services import Machine, head, service, wait
from tilewright import Client
from tilewright.schema.trial import Trial
from tuner.store import trials
from tuner.store.database import Store

_NAMES = ("first", "second")
_WAITS_S = 5.0  # at least, in which the second may not begin
_Run = tuple[datetime, datetime]


def one_device(machine: Machine, rows: Rows, trials_of_job: int) -> None:
    """Each fleet has the same job at the same time; the first one goes once its job has ended."""
    with contextlib.ExitStack() as stack:
        first_stack = stack.enter_context(contextlib.ExitStack())
        first = first_stack.enter_context(_fleet(machine, _NAMES[0]))
        second = stack.enter_context(_fleet(machine, _NAMES[1]))
        options: dict[str, Any] = {"level": "quick", "max_trials": trials_of_job, "wait": False}
        ids = [one.tune(problems(machine, 1)[0], **options).id for one in (first, second)]
        started = time.monotonic()
        told, early = set[str](), 0
        while not first.job(ids[0]).status.final or time.monotonic() - started < _WAITS_S:
            told |= {one.detail or "" for one in second.devices()}
            early += second.job(ids[1]).started is not None
            time.sleep(0.1)
        rows.add(
            "waits",
            seconds=round(time.monotonic() - started, 1),
            began_early=early > 0,
            told=sorted(told - {""}),
        )
        job = first.job(ids[0])
        left = time.monotonic()
        first_stack.close()
        wait(lambda: second.job(ids[1]).started is not None)
        taken_over_s = round(time.monotonic() - left, 1)
        wait(lambda: second.job(ids[1]).status.final)
        found = [job, second.job(ids[1])]
    runs: list[list[_Run]] = []
    for name, one in zip(_NAMES, found, strict=True):
        kept = _trials(machine, name, one.id)
        runs.append([(ended - _spent(trial), ended) for trial, ended in kept])
        doubled = len(kept) - len({trial.config for trial, _ in kept})
        began = one.started and one.started.isoformat()
        rows.add("job", fleet=name, status=str(one.status), trials=len(kept), doubled=doubled, started=began)
    rows.add("one device", overlapping=overlapping(*runs), taken_over_s=taken_over_s)


@contextlib.contextmanager
def _fleet(machine: Machine, name: str) -> Iterator[Client]:
    """A service of a Ray cluster with the first device, once that has joined."""
    folder = machine.folder / f"one-device-{name}"
    kept = {"TILEWRIGHT_CACHE_DIR": str(folder / "cache"), "CUDA_CACHE_PATH": str(folder / "nvrtc")}
    kept |= {"TILEWRIGHT_LOCK_DIR": str(machine.folder / "one-device-locks")}
    kept |= {"TILEWRIGHT_COMPILE_PROCESSES": str(machine.compile_processes)} | machine.waiting
    folder.mkdir()
    with (
        head(0 if machine.on_host else 1, **kept) as address,
        service(folder / "service", address, machine.database(folder.name), **kept) as client,
    ):
        wait(lambda: bool(client.devices()))
        yield client


def _trials(machine: Machine, name: str, job_id: str) -> list[tuple[Trial, datetime]]:
    with (
        contextlib.closing(Store.open(machine.database(f"one-device-{name}"))) as store,
        store.read() as session,
    ):
        return trials.dated(session, job_id, None, 0, 10_000)


def _spent(trial: Trial) -> timedelta:
    """What a trial took of the device."""
    return timedelta(seconds=trial.check_s + trial.measure_s)


def overlapping(some: list[_Run], others: list[_Run]) -> int:
    """How many pairs ran at the same time, for a moment at least."""
    return sum(begin < until and since < end for begin, end in some for since, until in others)
