"""Many tuning jobs on one GPU of a machine, then on more of them: what each further GPU brings.

``python -m benchmarks.service.fleet_gpus --gpus 1 2 --out fleet-gpus.json`` on a machine with several GPUs
and the extra ``fleet``. Each count has a Ray cluster, a service, an empty database and an empty kernel cache
of its own. Then the winners of the counts race each other on one GPU; one kernel is timed on each GPU
alone, and on all at once; and winners of the first GPU race the vendor library on the last.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import logging
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.common.results import device_facts, now, write_json
from benchmarks.service.ray_services import head, service, wait
from tilewright import Artifact, Client, GemmProblem
from tilewright.schema.problem import DType, Layout
from tuner.measure.race import METHOD, RaceRules
from tuner.measure.stats import median, paired_ratio
from tuner.workers.bench import Bench

# N and K of weights; none is in the suite.
_WEIGHTS = (
    (3072, 2048),
    (5120, 5120),
    (7168, 5120),
    (8192, 3584),
    (10240, 8192),
    (18944, 3584),
    (4608, 4096),
    (2560, 9728),
)
_ROWS = (16, 96, 512)
_RACE = RaceRules(24, 0, vendor=False, slice_s=0.1)
_AGAINST_VENDOR = RaceRules(24, 0)
_BUSY = RaceRules(48, 1, vendor=False)
_LONGEST_S = 600.0
_COMMAND = ("python", "-m", "benchmarks.service.fleet_gpus")
_log = logging.getLogger("tilewright.bench")


@dataclasses.dataclass(frozen=True, slots=True)
class Tuned:
    """What a number of GPUs made of all jobs."""

    row: dict[str, Any]
    kernels: dict[GemmProblem, Artifact]


def main() -> None:
    """Write the figures of each number of GPUs to ``--out``."""
    parser = argparse.ArgumentParser(description="Tuning jobs on several GPUs of a machine.")
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--jobs", type=int, default=24)
    parser.add_argument("--level", choices=("quick", "full"), default="quick")
    parser.add_argument("--compile-processes", type=int, default=12, help="of each GPU")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    pairs = itertools.islice(itertools.product(_WEIGHTS, _ROWS), given.jobs)
    problems = [GemmProblem(m, n, k, DType.BFLOAT16, Layout.NT) for (n, k), m in pairs]
    tuned = [_tuned(gpus, problems, given.level, given.compile_processes) for gpus in given.gpus]
    found: dict[str, Any] = {
        "date": now(),
        "method": METHOD,
        "level": given.level,
        "command": " ".join([*_COMMAND, *sys.argv[1:]]),
    }
    found["counts"] = [one.row for one in tuned]
    write_json(given.out, found)
    with contextlib.closing(Bench("cuda:0")) as bench:
        found |= device_facts(bench.spec, bench.driver)
        found["winners"] = [_quality(bench, tuned[0], other) for other in tuned[1:]]
    write_json(given.out, found)
    largest = tuned[0].kernels.popitem()
    found["neighbours"] = _neighbours(max(given.gpus), *largest)
    found["other_gpu"] = _elsewhere(max(given.gpus) - 1, tuned[0].kernels)
    write_json(given.out, found)


def _tuned(gpus: int, problems: Sequence[GemmProblem], level: str, processes: int) -> Tuned:
    with tempfile.TemporaryDirectory() as named:
        folder = Path(named)
        kept = {"TILEWRIGHT_CACHE_DIR": str(folder / "cache"), "TILEWRIGHT_COMPILE_PROCESSES": str(processes)}
        with head(gpus, **kept), service(folder / "service") as client:
            wait(lambda: len(client.devices()) == gpus)
            return _all_jobs(client, gpus, problems, level)


def _all_jobs(client: Client, gpus: int, problems: Sequence[GemmProblem], level: str) -> Tuned:
    started = time.monotonic()
    ids = [client.tune(problem, level=level, wait=False).id for problem in problems]
    while any(client.job(one).finished is None for one in ids):
        time.sleep(0.5)
    seconds = time.monotonic() - started
    jobs = [client.job(one) for one in ids]
    trials = sum(job.progress.measured + job.progress.failed for job in jobs if job.progress)
    row = {
        "gpus": gpus,
        "jobs": len(jobs),
        "succeeded": sum(job.best is not None for job in jobs),
        "trials": trials,
        "wall_s": round(seconds, 1),
        "trials_per_minute": round(60 * trials / seconds, 1),
        "job_s": [
            round((job.finished - job.started).total_seconds(), 1)
            for job in jobs
            if job.finished and job.started
        ],
    }
    _log.info("%s", row)
    kernels = {job.problem: client.artifact(job.best.artifact.digest) for job in jobs if job.best}
    return Tuned(row, kernels)


def _quality(bench: Bench, one: Tuned, other: Tuned) -> dict[str, Any]:
    """The times of the winners of a count over those of another, problem by problem on one GPU."""
    rows = list[dict[str, Any]]()
    for problem, kernel in one.kernels.items():
        rival = other.kernels.get(problem)
        if rival is None:
            continue
        if kernel.digest == rival.digest:
            rows.append({"problem": str(problem), "ratio": 1.0, "same": True})
            continue
        samples = bench.race([kernel, rival], problem, _RACE, _LONGEST_S).samples_us
        ratio = paired_ratio(samples[1], samples[0])
        rows.append({"problem": str(problem), "ratio": ratio.value, "low": ratio.low, "high": ratio.high})
    mean = math.exp(sum(math.log(row["ratio"]) for row in rows) / len(rows))
    _log.info("winners of %d GPUs over those of %d: %.4f", other.row["gpus"], one.row["gpus"], mean)
    return {"gpus": other.row["gpus"], "over": one.row["gpus"], "geometric_mean": mean, "rows": rows}


def _neighbours(gpus: int, problem: GemmProblem, kernel: Artifact) -> list[dict[str, Any]]:
    """One kernel on each GPU alone, and on all of them at once."""
    with contextlib.ExitStack() as stack:
        benches = [stack.enter_context(contextlib.closing(Bench(f"cuda:{index}"))) for index in range(gpus)]
        rows = [_timed(bench, problem, kernel, "alone") for bench in benches]
        with ThreadPoolExecutor(gpus) as pool:
            beside = pool.map(lambda bench: _timed(bench, problem, kernel, "all busy"), benches)
            return rows + list(beside)


def _timed(bench: Bench, problem: GemmProblem, kernel: Artifact, when: str) -> dict[str, Any]:
    samples = bench.race([kernel, kernel], problem, _BUSY, _LONGEST_S)
    times = [time_us for row in samples.samples_us for time_us in row]
    row = {"device": bench.name, "gpu": bench.identity, "when": when, "median_us": median(times)}
    return row | {"mhz": samples.mhz, "watts": samples.watts, "problem": str(problem)}


def _elsewhere(index: int, kernels: dict[GemmProblem, Artifact]) -> list[dict[str, Any]]:
    """Winners of the first GPU against the vendor library, on the first GPU and on another."""
    rows = []
    for name in ("cuda:0", f"cuda:{index}"):
        with contextlib.closing(Bench(name)) as bench:
            for problem, kernel in itertools.islice(kernels.items(), 0, None, 4):
                samples = bench.race([kernel], problem, _AGAINST_VENDOR, _LONGEST_S).samples_us
                ratio = paired_ratio(samples[1], samples[0])
                row = {"device": name, "gpu": bench.identity, "problem": str(problem), "ratio": ratio.value}
                rows.append(row | {"low": ratio.low, "high": ratio.high})
    return rows


if __name__ == "__main__":
    main()
