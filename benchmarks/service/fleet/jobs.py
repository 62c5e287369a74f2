"""Many tuning jobs on one device and on several: the gain of each further device, and the results.

Parts of :mod:`benchmarks.service.fleet_gpus`; each leaves its kernels to the next one.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import logging
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.results import Rows
from benchmarks.service.ray_services import Machine, wait
from service.results.publishing import publish
from tilewright import Artifact, Client, GemmProblem
from tilewright.launch import local_device
from tilewright.schema.problem import DType, Layout
from tilewright.wire import JobView
from tuner.measure.race import RaceRules
from tuner.workers.bench import Bench

# N and K of layers, each of another model: Qwen3-14B (two), Llama-3-70B, Qwen2.5-7B (two), Llama-3.2-1B,
# Qwen3-4B and Qwen3-8B.
_WEIGHTS = (
    (7168, 5120),
    (5120, 5120),
    (10240, 8192),
    (18944, 3584),
    (4608, 3584),
    (3072, 2048),
    (2560, 9728),
    (4096, 12288),
)
_ROWS = (
    512,
    96,
    16,
)  # jobs on many rows take longest; with them last, one device would end long after others
_BETWEEN = RaceRules(24, 0, vendor=False, passes=1)
_AGAINST_VENDOR = RaceRules(24, 0, passes=1, quick=True)
_LONGEST_S = 120.0
_POLL_S = 0.2
_TOLERANCE = 0.01
_Winners = dict[GemmProblem, Artifact]
_log = logging.getLogger("tilewright.bench")


def problems(machine: Machine, jobs: int) -> list[GemmProblem]:
    """Different problems, those that take longest to tune first."""
    if machine.on_host:
        return [GemmProblem(64, 48, 32 + 16 * i, DType.FLOAT32, Layout.NN) for i in range(jobs)]
    shapes = itertools.islice(itertools.product(_ROWS, _WEIGHTS), jobs)
    return [GemmProblem(m, n, k, DType.FLOAT16, Layout.NT) for m, (n, k) in shapes]


def many_jobs(machine: Machine, rows: Rows, jobs: int, trials: int) -> None:
    """All jobs on one device, on twice as many each time, and on all of them, each with an empty database.
    Before the clock starts, every device runs a job or two, which load libraries and compile what is compiled
    once."""
    walls = {}
    for count in device_counts(machine):
        started = time.monotonic()
        with machine.fleet(f"many-{count}", count) as client:
            joined_s = time.monotonic() - started
            _warm_up(machine, client, count)
            warm_s = time.monotonic() - started - joined_s
            found = list(all_jobs(client, count, problems(machine, jobs), trials, rows, devices=count))
            walls[count] = seconds_of(found)
            done = sum(job.progress.measured + job.progress.failed for job in found if job.progress)
            rows.add(
                "jobs",
                devices=count,
                jobs=len(found),
                succeeded=sum(job.best is not None for job in found),
                trials=done,
                wall_s=round(walls[count], 2),
                trials_per_minute=round(60 * done / walls[count], 1),
                times_as_fast=round(walls[1] / walls[count], 3),
                joined_s=round(joined_s, 1),
                warm_up_s=round(warm_s, 1),
            )
            _keep(machine.folder / f"many-{count}", client, found)


def device_counts(machine: Machine) -> list[int]:
    """1, 2, 4 and so on, and all devices."""
    most = len(machine.devices)
    return [*itertools.takewhile(lambda count: count < most, (2**power for power in itertools.count())), most]


def _warm_up(machine: Machine, client: Client, count: int) -> None:
    n = 32 if machine.on_host else 512
    given = problems(machine, 1)[0]
    small = [GemmProblem(16 + i, n, n, given.dtype, given.layout) for i in range(3 * count)]
    ids = [client.tune(one, level="quick", max_trials=2, wait=False).id for one in small]
    wait(lambda: all(client.job(one).status.final for one in ids))


def all_jobs(
    client: Client, count: int, given: Sequence[GemmProblem], trials: int, rows: Rows, **told: Any
) -> Iterator[JobView]:
    """The quick jobs of ``count`` devices in the order in which they ended, each kept as a row, with
    ``told``."""
    options = {"level": "quick", "max_trials": trials}
    waiting = [client.tune(problem, wait=False, **options).id for problem in given]  # type: ignore[arg-type]
    while waiting:
        # NOTE: jobs start in the order of submission, so the others have not ended.
        for job in [client.job(one) for one in waiting[: count + 1]]:
            if job.finished is None:
                continue
            waiting.remove(job.id)
            row = _row(client, job)
            rows.add("job", **told, **row)
            _log.info("%d devices, %d jobs wait: %s", count, len(waiting), row)
            yield job
        time.sleep(_POLL_S)


def _row(client: Client, job: JobView) -> dict[str, Any]:
    assert job.finished is not None
    began = job.started or job.finished
    row: dict[str, Any] = {
        "problem": str(job.problem),
        "status": str(job.status),
        "waited_s": round((began - job.created).total_seconds(), 2),
        "job_s": round((job.finished - began).total_seconds(), 2),
    }
    if job.progress:
        spent = ("elapsed_s", "check_s", "measure_s", "idle_s", "search_s", "race_s")
        row |= {name: round(getattr(job.progress, name), 2) for name in spent}
    trials = client.trials(job.id, limit=100).items
    row["trials"], row["helped"] = len(trials), sum(one.anchor is not None for one in trials)
    if job.best:
        row |= {"winner": job.best.artifact.digest, "median_us": job.best.timing.median_us}
        row |= {"over_vendor": job.best.speedup.value}
    return row


def seconds_of(jobs: Sequence[JobView]) -> float:
    """From the first submission to the last end, by the service's clock."""
    ends = [job.finished for job in jobs if job.finished]
    return (max(ends) - min(job.created for job in jobs)).total_seconds()


def _keep(folder: Path, client: Client, jobs: Sequence[JobView]) -> None:
    """Write the winners of some jobs, and the tree that clients read, to a folder."""
    index = {}
    for job in jobs:
        if job.best:
            digest = job.best.artifact.digest
            (folder / digest).write_bytes(client.artifact(digest).to_bytes())
            index[json.dumps(job.problem.to_dict())] = digest
    (folder / "index.json").write_text(json.dumps(index))
    publish(client, folder / "tree")


def kept(folder: Path) -> _Winners:
    """The winners that an earlier part left, by problem."""
    index = json.loads((folder / "index.json").read_text())
    return {
        GemmProblem.from_dict(json.loads(problem)): Artifact.from_bytes((folder / digest).read_bytes())
        for problem, digest in index.items()
    }


def winners(machine: Machine, rows: Rows) -> None:
    """Race, on one device, the winners of problems for which one device and several found different ones."""
    alone = kept(machine.folder / "many-1")
    with contextlib.closing(Bench(machine.devices[0])) as bench:
        for count in device_counts(machine)[1:]:
            _compare(bench, alone, kept(machine.folder / f"many-{count}"), count, rows)


def _compare(bench: Bench, alone: _Winners, many: _Winners, count: int, rows: Rows) -> None:
    ratios, same = [], 0
    for problem in alone.keys() & many.keys():
        pair = [alone[problem], many[problem]]
        row: dict[str, Any] = {"problem": str(problem), "devices": count, "ratio": 1.0}
        same += pair[0].digest == pair[1].digest
        if pair[0].digest != pair[1].digest:
            samples = bench.race(pair, problem, _BETWEEN, _LONGEST_S)
            ratio = samples.ratio(1, 0)
            row |= {"ratio": ratio.value, "low": ratio.low, "high": ratio.high}
            row["samples_us"] = samples.samples_us
        ratios.append(row["ratio"])
        rows.add("pair", **row)
    rows.add(
        "winners",
        of=count,
        over=1,
        pairs=len(ratios),
        same=same,
        geometric_mean=math.exp(sum(map(math.log, ratios)) / len(ratios)),
        worst=max(ratios),
    )


def elsewhere(machine: Machine, rows: Rows) -> None:
    """Winners of the first device on the last one: a client there reads the published set and runs them all,
    then their ratio to the vendor library on both."""
    winners = kept(machine.folder / "many-1")
    url = f"file://{machine.folder / 'many-1' / 'tree'}"
    with Client(url, cache_dir=machine.folder / "client", start_timeout=60.0) as client:
        _run_all(machine, client, list(winners), rows)
    ends = machine.devices[0], machine.devices[-1]
    with contextlib.ExitStack() as stack:
        benches = [stack.enter_context(contextlib.closing(Bench(name))) for name in ends]
        for problem, kernel in list(winners.items())[::3]:
            ratios = [_over_vendor(bench, problem, kernel) for bench in benches]
            rows.add("over vendor", problem=str(problem), tuned_there=ratios[0], elsewhere=ratios[1])


def _over_vendor(bench: Bench, problem: GemmProblem, kernel: Artifact) -> dict[str, Any]:
    found = bench.race([kernel], problem, _AGAINST_VENDOR, _LONGEST_S)
    ratio = found.ratio(1, 0)
    row = {"device": bench.identity, "ratio": ratio.value, "low": ratio.low, "high": ratio.high}
    return row | {"samples_us": found.samples_us, "mhz": found.mhz, "watts": found.watts}


def _run_all(machine: Machine, client: Client, given: Sequence[GemmProblem], rows: Rows) -> None:
    """One product of each problem through the client, on the last device."""
    device = machine.devices[-1]
    library, current = _library(device)
    with current:
        library.zeros(1)  # NOTE: the GPU is the current one for the client once CuPy has used it
        client.start(device)
        wrong = []
        draw = np.random.default_rng(0).standard_normal
        for problem in given:
            a, b = (
                draw((extent, problem.k), dtype=np.float32).astype(problem.dtype.value)
                for extent in (problem.m, problem.n)
            )
            right = a.astype(np.float32) @ b.astype(np.float32).T
            b_here = library.asarray(b).T
            b_here = b_here if problem.layout is Layout.NT else library.ascontiguousarray(b_here)
            d = client.matmul(library.asarray(a), b_here)
            found = (d if library is np else d.get()).astype(np.float32)
            error = float(abs(found - right).max() / abs(right).max())
            reason = client.lookup(problem, device).reason
            rows.add("product", problem=str(problem), reason=reason, error=error)
            wrong += [str(problem)] if not error < _TOLERANCE else []
    device_class = local_device.device_class(local_device.ordinal(device)).id
    rows.add("client", device=device, device_class=device_class, ran=dict(client.stats), wrong=wrong)


@functools.cache
def _library(device: str) -> tuple[Any, Any]:
    """The array library of a device, and what makes the device the current one."""
    if device == "host":
        return np, contextlib.nullcontext()
    import cupy

    return cupy, cupy.cuda.Device(int(device.partition(":")[2]))
