"""Devices that work at once: on one job, beside a busy neighbour, and beside one that is struck.

Parts of :mod:`benchmarks.service.fleet_gpus`; ``one_job`` leaves kernels to ``neighbours``.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.results import Rows
from benchmarks.service.fleet_jobs import problems
from benchmarks.service.ray_services import Machine, wait
from tilewright import Artifact, Client, GemmProblem
from tilewright.schema.problem import DType, Layout
from tilewright.schema.trial import Outcome, Trial
from tilewright.wire import JobView
from tuner.job.progress import timed
from tuner.measure.race import RaceRules
from tuner.measure.stats import median, paired_ratio
from tuner.store import entities, jobs, trials
from tuner.store.database import Store
from tuner.workers.bench import Bench

_ON_GPU = [
    GemmProblem(m, n, k, DType.FLOAT16, Layout.NT)
    for m, n, k in ((4096, 4096, 4096), (16, 6144, 4096), (1024, 5120, 5120))
]
_KERNELS = 3  # of each job, for the comparison of devices
_RULES = RaceRules(8, 0, vendor=False, slice_s=0.1)
_LOAD = RaceRules(4, 0, vendor=False, slice_s=0.1)
_LONGEST_S = 120.0
_SETTLE_S = 1.0
_REPEATS = 2
_MOMENT_S = 30.0  # in which a device that is to be struck has a job with a trial
_STRIKES = ("worker", "worker", "actor")
_NEAR = 0.98
FAILED = (Outcome.COMPILE_ERROR, Outcome.LAUNCH_ERROR, Outcome.WRONG_RESULT, Outcome.TIMEOUT)
_ROOT = Path(__file__).parents[2]
_FAULTS = _ROOT / "tests/faults/soak/fault_kernels.py"


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
            samples = bench.race(pair, problem, _RULES, _LONGEST_S).samples_us
            ratio = paired_ratio(samples[1], samples[0]).value
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
        """When the search came within 2 % of the best of both jobs, the other's takes so many times as
        long as this one's; None if it never did."""
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


def _kept(folder: Path) -> list[tuple[GemmProblem, list[Artifact]]]:
    return [
        (
            GemmProblem.from_dict(problem),
            [Artifact.from_bytes((folder / name).read_bytes()) for name in names],
        )
        for problem, names in json.loads((folder / "index.json").read_text())
    ]


def neighbours(machine: Machine, rows: Rows) -> None:
    """How far devices differ from the first one on the same kernels, twice, before and after they are related
    by an anchor; and a kernel on the first and on the last device while all others are idle, and while they
    are busy."""
    known = _kept(machine.folder / "kernels")
    with contextlib.ExitStack() as stack:
        benches = [stack.enter_context(contextlib.closing(Bench(name))) for name in machine.devices]
        for (problem, kernels), repeat in itertools.product(known, range(_REPEATS)):
            here_us, *all_us = (_medians(bench, problem, kernels) for bench in benches)
            for bench, there_us in zip(benches[1:], all_us, strict=True):
                ratios = [other / one for one, other in zip(here_us, there_us, strict=True)]
                rows.add(
                    "devices",
                    problem=str(problem),
                    device=bench.name,
                    repeat=repeat,
                    kernels=[kernel.digest for kernel in kernels],
                    here_us=here_us,
                    there_us=there_us,
                    there_over_here=ratios,
                    after_anchor=[ratio / ratios[0] for ratio in ratios[1:]],
                )
        problem, kernels = known[0]
        for one in (benches[0], benches[-1]):
            for repeat in range(_REPEATS):
                for busy in ([], [bench for bench in benches if bench is not one]):
                    with contextlib.ExitStack() as loads:
                        for other in busy:
                            loads.enter_context(_loaded(other, problem, kernels[0]))
                        row = _timed(one, problem, kernels[0])
                    rows.add("beside", busy_neighbours=len(busy), repeat=repeat, **row)


def _medians(bench: Bench, problem: GemmProblem, kernels: Sequence[Artifact]) -> list[float]:
    return [median(row) for row in bench.race(kernels, problem, _RULES, _LONGEST_S).samples_us]


def _timed(bench: Bench, problem: GemmProblem, kernel: Artifact) -> dict[str, Any]:
    found = bench.race([kernel], problem, _RULES, _LONGEST_S)
    row: dict[str, Any] = {"device": bench.name, "identity": bench.identity, "problem": str(problem)}
    row |= {"median_us": median(found.samples_us[0]), "mhz": found.mhz, "watts": found.watts}
    return row | {"samples_us": found.samples_us[0], "company": found.company}


@contextlib.contextmanager
def _loaded(bench: Bench, problem: GemmProblem, kernel: Artifact) -> Iterator[None]:
    """A device that runs a kernel all the time."""
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            bench.race([kernel], problem, _LOAD, _LONGEST_S)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        time.sleep(_SETTLE_S)
        yield
    finally:
        ended.set()
        thread.join()


def faults(machine: Machine, rows: Rows, trials_of_job: int, seconds: float, kernels: int) -> None:
    """The last device runs broken kernels for so many seconds, while the first one works at the same jobs as
    before."""
    quiet = [_own_jobs(machine, f"quiet-{number}", trials_of_job) for number in range(2)]
    for number, found in enumerate(quiet):
        rows.add("quiet", **_beside(found, quiet[1 - number]))
    device = machine.devices[-1]
    out = machine.folder / "fault-kernels.json"
    command = [sys.executable, str(_FAULTS), "--devices", device, "--out", str(out)]
    command += ["--trials", str(kernels), "--stop-after", str(seconds)]
    path = [str(_ROOT / one) for one in ("", "client", "tests/support/samples")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")])}
    try:
        with subprocess.Popen(command, env=environment, stdout=sys.stderr) as campaign:
            number = 0
            while campaign.poll() is None:
                found = _own_jobs(machine, f"beside-{number}", trials_of_job)
                rows.add("beside faults", whole=campaign.poll() is None, **_beside(found, quiet[0]))
                number += 1
    finally:
        if out.exists():  # the campaign has ended, perhaps before the last jobs beside it were cut short
            rows.add("fault kernels", exit=campaign.poll(), device=device, **json.loads(out.read_text()))


class _Jobs:
    """What became of some jobs.

    Attributes:
        us: the median of each complete trial that others than helpers ran, by problem and config.
        failed: trials that failed, in words.
        unfinished: jobs without a winner.
    """

    def __init__(self) -> None:
        self.us: dict[tuple[str, str], float] = {}
        self.failed: list[str] = []
        self.unfinished: list[str] = []


def _own_jobs(machine: Machine, name: str, trials_of_job: int) -> _Jobs:
    """Three jobs of the first device, the same ones each time, with an empty database."""
    found = _Jobs()
    with machine.local(name, machine.devices[0]) as client:
        options: dict[str, Any] = {"level": "quick", "max_trials": trials_of_job, "wait": False}
        for job_id in [client.tune(problem, **options).id for problem in problems(machine, 3)]:
            wait(lambda job_id=job_id: client.job(job_id).status.final)  # type: ignore[misc]
            job = client.job(job_id)
            found.unfinished += [] if job.best else [f"{job.problem}: {job.error}"]
            for trial in client.trials(job_id, limit=100).items:
                if trial.outcome is Outcome.OK:
                    found.us[str(job.problem), str(trial.config)] = timed(trial).median_us
                elif trial.outcome in FAILED:
                    found.failed.append(told(trial))
    return found


def _beside(found: _Jobs, before: _Jobs) -> dict[str, Any]:
    """The same configs now and before."""
    ratios = [us / before.us[key] for key, us in found.us.items() if key in before.us]
    row: dict[str, Any] = {"trials": len(found.us), "failed": found.failed, "unfinished": found.unfinished}
    if ratios:
        low, middle, high = (float(one) for one in np.quantile(ratios, (0.05, 0.5, 0.95)))
        row |= {"same_configs": len(ratios), "over_before": middle, "low": low, "high": high}
    return row


def strikes(machine: Machine, rows: Rows, trials_of_job: int) -> None:
    """Processes of one device are killed while all work at jobs."""
    count = len(machine.devices)
    with (
        machine.fleet("struck", count, TILEWRIGHT_LEASE_S="5") as client,
        contextlib.closing(Store.open(machine.database("struck"))) as store,
    ):
        options: dict[str, Any] = {"level": "quick", "max_trials": trials_of_job, "wait": False}
        ids = [client.tune(problem, **options).id for problem in problems(machine, 5 * count)]
        target = max(one.name for one in client.devices())
        for kind in _STRIKES:
            rows.add("strike", what=kind, device=target, **_strike(client, store, target, kind))
        wait(lambda: all(client.job(one).status.final for one in ids))
        ended = [client.job(one) for one in ids]
        for one in ended:
            kept = _trials(store, one.id).values()
            failed = [told(trial) for trial in kept if trial.outcome in FAILED]
            error = one.error.detail if one.error else None
            rows.add("job", problem=str(one.problem), status=str(one.status), error=error, failed=failed)
        with contextlib.suppress(TimeoutError):
            wait(lambda: all(one.state == "idle" for one in client.devices()), _MOMENT_S)
        for device in client.devices():
            rows.add("after", device=device.name, state=device.state, detail=device.detail)


def _strike(client: Client, store: Store, target: str, kind: str) -> dict[str, Any]:
    """Kill a process of a device in the middle of a job, and see what is left of the job."""
    at: list[str] = []

    def at_work() -> bool:
        at[:] = [str(one.job) for one in client.devices() if one.name == target and one.job]
        return bool(at) and len(_trials(store, at[0])) > 0

    try:
        wait(at_work, _MOMENT_S)
    except TimeoutError:
        return {"met": False}
    acknowledged, struck_at = _trials(store, at[0]), time.monotonic()
    with store.read() as session:
        owner = jobs.known(session, at[0]).owner or ""
    actor = int(owner.split("/")[-3])
    killed = [actor] if kind == "actor" else _workers(actor)
    for pid in killed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait(lambda: len(_trials(store, at[0])) > len(acknowledged) or client.job(at[0]).status.final)
    next_trial_s = time.monotonic() - struck_at
    wait(lambda: client.job(at[0]).status.final)
    kept = _trials(store, at[0])
    return {
        "met": True,
        "processes": len(killed),
        "acknowledged": len(acknowledged),
        "lost": sum(kept.get(number) != trial for number, trial in acknowledged.items()),
        "doubled": len(kept) - len({(trial.m, trial.config) for trial in kept.values()}),
        "next_trial_s": round(next_trial_s, 2),
        "status": str(client.job(at[0]).status),
    }


def _trials(store: Store, job_id: str) -> dict[int, Trial]:
    with store.read() as session:
        return {trial.number: trial for trial in trials.of_job(session, job_id)}


def told(trial: Trial) -> str:
    return f"{trial.outcome.value}: {trial.message[:200]}"


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
