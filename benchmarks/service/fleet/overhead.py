"""What the Ray engine costs over the local one: the same jobs of one device with each, by turns.

A part of :mod:`benchmarks.service.fleet_gpus`. Issue 27 asks at most 5 ms a trial and at most 2 % of a job's
wall clock on the host.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.common.results import Rows
from benchmarks.service.fleet.jobs import all_jobs, problems, seconds_of
from benchmarks.service.ray_services import Machine
from tilewright import Client
from tilewright.wire import JobView
from tuner.measure.stats import median_interval

ENGINES = ("local", "ray")
_JOBS = 6
_CONFIDENCE = 0.95
_ASKED = {"ms_per_trial": 5.0, "besides_ms_per_trial": 5.0, "job_s": 0.02}
_OUTSIDE = ("check_s", "measure_s", "idle_s", "search_s", "race_s")


def overhead(machine: Machine, rows: Rows, trials_of_job: int, repeats: int) -> None:
    """Run the jobs ``repeats`` times with each engine, in the order local, ray, ray, local and so on, each
    time on a new database, and with kernels that a first run of both compiled."""
    cache = str(machine.folder / "overhead-cache")
    kept = {"TILEWRIGHT_CACHE_DIR": cache, "CUDA_CACHE_PATH": f"{cache}-nvrtc"}
    found: dict[str, list[dict[str, float]]] = {engine: [] for engine in ENGINES}
    for repeat in range(-1, repeats):
        for engine in ENGINES if repeat % 2 else reversed(ENGINES):
            name = f"overhead-{engine}-{repeat}"
            with _service(machine, engine, name, **kept) as client:
                given = problems(machine, _JOBS)
                jobs = list(all_jobs(client, 1, given, trials_of_job, rows, engine=engine, repeat=repeat))
            row = _row(jobs)
            load = round(os.getloadavg()[0], 2)
            rows.add(
                "warm-up" if repeat < 0 else "jobs", engine=engine, repeat=repeat, load_1_min=load, **row
            )
            if repeat >= 0:
                found[engine].append(row)
        if repeat >= 0:  # each time, in case that the part is cut short
            for row in compared(*(found[engine] for engine in ENGINES)):
                rows.add("overhead", **row)


@contextlib.contextmanager
def _service(machine: Machine, engine: str, name: str, **environment: str) -> Iterator[Client]:
    """A service with the first device."""
    if engine == "ray":
        with machine.fleet(name, 1, **environment) as client:
            yield client
    else:
        with machine.local(name, machine.devices[0], **environment) as client:
            yield client


def _row(jobs: Sequence[JobView]) -> dict[str, Any]:
    """For all jobs of a run: the time of a trial, and the engine's part of it, which is the time that is
    spent neither on the device, nor in the search, nor waiting for a compiler."""
    progress = [job.progress for job in jobs if job.progress]
    done = sum(one.measured + one.failed for one in progress)
    spent = [job.finished - job.started for job in jobs if job.finished and job.started]
    job_s = sum(one.total_seconds() for one in spent)
    besides_s = sum(one.elapsed_s - sum(getattr(one, name) for name in _OUTSIDE) for one in progress)
    return {
        "succeeded": sum(job.best is not None for job in jobs),
        "trials": done,
        "trials_per_minute": 60 * done / seconds_of(jobs),
        "ms_per_trial": 1e3 * job_s / done,
        "besides_ms_per_trial": 1e3 * besides_s / done,
        "job_s": job_s / len(jobs),
    }


def compared(local: Sequence[dict[str, float]], ray: Sequence[dict[str, float]]) -> Iterator[dict[str, Any]]:
    """The differences of the runs side by side, ray's less local's: the median with its interval of order
    statistics, in the unit of the figure and over the local engine's median. Six runs give 95 %."""
    for name in ("trials_per_minute", "ms_per_trial", "besides_ms_per_trial", "job_s"):
        pairs = [(one[name], other[name]) for one, other in zip(local, ray, strict=True)]
        base = median_interval([one for one, _ in pairs], _CONFIDENCE).value
        found = median_interval([other - one for one, other in pairs], _CONFIDENCE)
        row: dict[str, Any] = {"figure": name, "pairs": len(pairs), "local": base}
        row |= {"difference": found.value, "low": found.low, "high": found.high}
        row |= {"relative": found.value / base, "relative_low": found.low / base}
        row |= {"relative_high": found.high / base, "confidence": found.confidence}
        if name in _ASKED:
            value, high = ("relative", "relative_high") if name == "job_s" else ("difference", "high")
            row |= {"asked": _ASKED[name], "within": row[value] <= _ASKED[name]}
            row["interval_within"] = row[high] <= _ASKED[name] and found.confidence >= _CONFIDENCE
        yield row
