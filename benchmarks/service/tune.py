"""One full tuning job through a real service, and what serving its result costs.

    python -m benchmarks.service.tune --m 4096 --n 4096 --k 4096 --trials 120 --families mma_sync

Starts ``tilewright serve`` on a fresh SQLite database, tunes through ``POST /tune``, then checks a GEMM
run by the service (``POST /gemm``) and one launched here from the fetched artifact against float64,
times lookups and launches, and writes ``benchmarks/results/tune-DEVICE-PROBLEM.json``.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tilewright import Client, GemmProblem
from tilewright.launch import local_device
from tilewright.matmul.matmul import Choice, LocalMatmul
from tilewright.wire import JobView, Trial

RESULTS = Path(__file__).parents[1] / "results"
_LOOKUPS = 2000
_LAUNCHES = 200  # NOTE: more would fill the launch queue and time the GPU


@contextmanager
def running_service() -> Iterator[Client]:
    """A service of its own on a free loopback port, gone at the end."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "service.cli.main", "serve", "--json", "--port", "0"]
        command += ["--database-url", f"sqlite:///{folder}/tilewright.db"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            yield Client(_url(process), cache_dir=folder)
        finally:
            process.terminate()
            process.wait(60)


def _url(process: subprocess.Popen[str]) -> str:
    text = ""
    for line in process.stdout or ():
        text += line
        try:
            return str(json.loads(text)["url"])
        except ValueError:
            continue
    raise RuntimeError(f"the service did not start: {text}")


def all_trials(client: Client, job: JobView) -> list[Trial]:
    """Every trial of a job, page by page."""
    page = client.trials(job.id, limit=500)
    found = page.items
    while page.next:
        page = client.trials(job.id, limit=500, cursor=page.next)
        found += page.items
    return found


def tuning(job: JobView, trials: list[Trial], seconds: float) -> dict[str, Any]:
    """What the job cost and how it went."""
    assert job.progress is not None
    outcomes = collections.Counter(trial.outcome for trial in trials)
    compiles = sorted(trial.compile_s for trial in trials)
    best, curve = float("inf"), []
    for trial in trials:
        if trial.timing:
            best = min(best, trial.timing.median_us)
        curve.append(round(best, 2))
    return {
        "wall_clock_s": round(seconds, 2),
        "search_s": round(job.progress.elapsed_s, 2),
        "trials": len(trials),
        "measured": job.progress.measured,
        "evaluations_per_minute": round(60 * len(trials) / seconds, 1),
        "outcomes": dict(outcomes),
        "valid_configs": job.progress.valid_configs,
        "device_s": {
            "check": round(job.progress.check_s, 2),
            "measure": round(job.progress.measure_s, 2),
            "idle_waiting_for_compile": round(job.progress.idle_s, 2),
        },
        "compile_cpu_s": round(job.progress.compile_s, 2),
        "compile_s_median": round(statistics.median(compiles), 3),
        "compile_s_p90": round(compiles[int(0.9 * len(compiles))], 3),
        "best_us_after_each_trial": curve,
    }


def random_operands(problem: GemmProblem) -> tuple[np.ndarray, np.ndarray]:
    """N(0, 1) operands as stored."""
    random = np.random.default_rng(0)
    return tuple(  # type: ignore[return-value]
        random.standard_normal(shape, dtype="float32").astype(problem.dtype.value)
        for shape in (problem.a_shape, problem.b_shape)
    )


def relative_error(problem: GemmProblem, a: np.ndarray, b: np.ndarray, d: np.ndarray) -> float:
    """Frobenius error of D against float64."""
    left = a.astype("float64").T if problem.layout.a_transposed else a.astype("float64")
    right = b.astype("float64").T if problem.layout.b_transposed else b.astype("float64")
    expected = left @ right
    return float(np.linalg.norm(d.astype("float64") - expected) / np.linalg.norm(expected))


def lookups(client: Client, problem: GemmProblem, arch: str) -> dict[str, float]:
    """Milliseconds of ``GET /best-config`` for one problem over one connection."""
    costs = []
    for _ in range(_LOOKUPS):
        start = time.perf_counter()
        client.best_config(problem, arch=arch)
        costs.append((time.perf_counter() - start) * 1e3)
    costs.sort()
    return {"count": _LOOKUPS, "p50_ms": costs[_LOOKUPS // 2], "p99_ms": costs[int(0.99 * _LOOKUPS)]}


def gpu_matmul(
    client: Client, problem: GemmProblem, operands: tuple[np.ndarray, np.ndarray]
) -> dict[str, Any]:
    """Launches the fetched artifact here, also one that lost, and measures the cost of one call."""
    import cupy

    def fetch(wanted: GemmProblem, device: int) -> Choice:
        arch = local_device.device_class(device).arch
        return Choice(client.artifact(client.best_config(wanted, arch=arch).artifact.digest), "exact")

    matmul = LocalMatmul(fetch)
    a, b = (cupy.asarray(operand) for operand in operands)
    left = a.T if problem.layout.a_transposed else a
    right = b.T if problem.layout.b_transposed else b
    d = matmul(left, right)
    error = relative_error(problem, *operands, cupy.asnumpy(d))
    cupy.cuda.runtime.deviceSynchronize()
    start = time.perf_counter()
    for _ in range(_LAUNCHES):
        matmul(left, right)
    cost = (time.perf_counter() - start) / _LAUNCHES
    cupy.cuda.runtime.deviceSynchronize()
    return {"relative_error": error, "ran": dict(matmul.stats), "call_us_unsynchronised": cost * 1e6}


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """The whole run as one JSON document."""
    problem = GemmProblem(arguments.m, arguments.n, arguments.k, arguments.dtype, arguments.layout)
    with running_service() as client:
        start = time.monotonic()
        job = client.tune(
            problem, max_trials=arguments.trials, families=arguments.families, seed=arguments.seed
        )
        seconds = time.monotonic() - start
        assert job.best is not None
        operands = random_operands(problem)
        answer = client.gemm(
            *operands, transpose_a=problem.layout.a_transposed, transpose_b=problem.layout.b_transposed
        )
        [device] = [one for one in client.devices() if one.device_class == job.device_class]
        result = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "command": "python -m benchmarks.service.tune " + shlex.join(sys.argv[1:]),
            "device": device.model_dump(mode="json"),
            "problem": problem.to_dict(),
            "tuning": tuning(job, all_trials(client, job), seconds),
            "winner": job.best.model_dump(mode="json"),
            "winner_tflops": problem.flops / job.best.timing.median_us / 1e6,
            "vendor_tflops": problem.flops / job.best.baseline.median_us / 1e6,
            "post_gemm": {
                "relative_error": relative_error(problem, *operands, answer.d),
                "kernel_us": answer.kernel_us,
                "ran": answer.ran,
            },
            "best_config_lookup": lookups(client, problem, job.best.arch),
        }
        if device.kind == "cuda":
            result["artifact_launched_here"] = gpu_matmul(client, problem, operands)
        return result


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for extent in "mnk":
        parser.add_argument(f"--{extent}", type=int, required=True)
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--layout", default="nt")
    parser.add_argument("--trials", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--families", nargs="*", default=[])
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    result = measure(arguments)
    size = f"{arguments.m}x{arguments.n}x{arguments.k}-{arguments.dtype}-{arguments.layout}"
    name = f"tune-{result['device']['device_class']}-{size}.json"
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / name).write_text(json.dumps(result, indent=1) + "\n")
    shown = {key: value for key, value in result.items() if key not in ("winner", "tuning")}
    print(json.dumps(shown, indent=1))  # noqa: T201


if __name__ == "__main__":
    main()
