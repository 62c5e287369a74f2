"""One job on one device and on several at once: when its search comes near the best.

A part of :mod:`benchmarks.service.fleet_gpus` that leaves kernels to ``neighbours``.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.results import Rows
from benchmarks.service.fleet.jobs import problems
from benchmarks.service.ray_services import Machine, wait
from tilewright import Artifact, Client, GemmProblem
from tilewright.schema.problem import DType, Layout
from tilewright.schema.trial import Outcome
from tilewright.wire import JobView
from tuner.job.progress import timed
from tuner.measure.race import RaceRules
from tuner.store import entities, trials
from tuner.store.database import Store
from tuner.workers.bench import Bench

_ON_GPU = [
    GemmProblem(m, n, k, DType.FLOAT16, Layout.NT)
    for m, n, k in ((4096, 4096, 4096), (16, 6144, 4096), (1024, 5120, 5120))
]
_KERNELS = 3  # of each job, for the comparison of devices
_RULES = RaceRules(8, 0, vendor=False, passes=1)
_LONGEST_S = 120.0
_NEAR = 0.98


def one_job(machine: Machine, rows: Rows, trials_of_job: int) -> None:
    """The searches of a few jobs, one by one, on one device, then with all others as helpers: when each came
    within 2 % of the best that either found."""
    given = problems(machine, 1) if machine.on_host else _ON_GPU
    found: dict[tuple[GemmProblem, bool], _Searched] = {}
    for helpers in (False, True):
        name = f"one-{'helped' if helpers else 'alone'}"
        with (
            machine.fleet(name, len(machine.devices), TILEWRIGHT_HELP_JOBS=str(int(helpers))) as client,
            contextlib.closing(Store.open(machine.database(name))) as store,
        ):
            for problem in given:
                job = client.tune(problem, max_trials=trials_of_job, wait=False)
                holder = _searched_by(client, job.id)
                searched = _Searched(store, client.job(job.id))
                found[problem, helpers] = searched
                rows.add("job", problem=str(problem), helpers=helpers, holder=holder, **searched.row)
                if not helpers:
                    _keep(machine.folder / "kernels", problem, searched.kernels(_KERNELS))
    with contextlib.closing(Bench(machine.devices[0])) as bench:
        for problem in given:
            alone, helped = found[problem, False], found[problem, True]
            pair = [*alone.kernels(1), *helped.kernels(1)]
            ratio = bench.race(pair, problem, _RULES, _LONGEST_S).ratio(1, 0).value
            alone_s, helped_s = alone.seconds_to(ratio), helped.seconds_to(1 / ratio)
            rows.add(
                "near the best",
                problem=str(problem),
                within=_NEAR,
                alone_s=alone_s,
                helped_s=helped_s,
                times_as_fast=round(alone_s / helped_s, 3) if alone_s and helped_s else None,
                best_of_helped_over_alone=ratio,
            )


def _searched_by(client: Client, job_id: str) -> str:
    """The device that searched for a job, which is cancelled before its races."""
    found = ""

    def ended() -> bool:
        nonlocal found
        found = next((one.name for one in client.devices() if one.job == job_id), found)
        progress = client.job(job_id).progress
        return progress is not None and progress.phase not in ("enumerate", "search")

    wait(ended)
    client.cancel(job_id)
    wait(lambda: client.job(job_id).status.final)
    return found


class _Searched:
    """The search of a job, as the database has it."""

    def __init__(self, store: Store, job: JobView) -> None:
        assert job.started is not None
        assert job.progress is not None
        self._store = store
        with store.read() as session:
            dated = trials.dated(session, job.id, None, 0, 10_000)
        began = job.started
        ordered = sorted(dated, key=lambda one: one[1])
        self._trials = [(trial, (ended - began).total_seconds()) for trial, ended in ordered]
        self._complete = [one for one in self._trials if one[0].outcome is Outcome.OK]
        helped = [trial.anchor for trial, _ in self._trials if trial.anchor]
        self.row: dict[str, Any] = {
            "trials": len(self._trials),
            "helped": len(helped),
            "search_s": round(self._trials[-1][1], 2),
            "idle_s": round(job.progress.idle_s, 2),
            "anchors": sorted({(round(one.here_us, 3), round(one.there_us, 3)) for one in helped}),
            "best_us_after": self._trace(),
        }

    def _trace(self) -> list[tuple[float, float]]:
        """Seconds and microseconds of each trial that was the best so far."""
        found: list[tuple[float, float]] = []
        for trial, after_s in self._complete:
            us = timed(trial).median_us
            if not found or us < found[-1][1]:
                found.append((round(after_s, 2), round(us, 3)))
        return found

    def kernels(self, most: int) -> list[Artifact]:
        """The fastest ones, the fastest first."""
        ranked = sorted(self._complete, key=lambda one: timed(one[0]).median_us)
        digests = list(dict.fromkeys(str(trial.artifact) for trial, _ in ranked))[:most]
        with self._store.read() as session:
            return [Artifact.from_bytes(entities.get_artifact(session, one) or b"") for one in digests]

    def seconds_to(self, others_ratio: float) -> float | None:
        """Seconds until the search came within 2 % of the best of both jobs; None if it never did.
        ``others_ratio`` is the other job's best time over this one's."""
        best_us = min(timed(one).median_us for one, _ in self._complete)
        enough_us = best_us * min(1.0, others_ratio) / _NEAR
        return next((round(s, 2) for one, s in self._complete if timed(one).median_us <= enough_us), None)


def _keep(folder: Path, problem: GemmProblem, kernels: Sequence[Artifact]) -> None:
    folder.mkdir(exist_ok=True)
    index = folder / "index.json"
    known = json.loads(index.read_text()) if index.exists() else []
    for kernel in kernels:
        (folder / kernel.digest).write_bytes(kernel.to_bytes())
    index.write_text(json.dumps([*known, [problem.to_dict(), [kernel.digest for kernel in kernels]]]))


def kept(folder: Path) -> list[tuple[GemmProblem, list[Artifact]]]:
    """What the part left: problems with some of their kernels, the fastest first."""
    return [
        (
            GemmProblem.from_dict(problem),
            [Artifact.from_bytes((folder / name).read_bytes()) for name in names],
        )
        for problem, names in json.loads((folder / "index.json").read_text())
    ]
