"""One tuning job at a time on several devices of a class: with helpers, and without them.

``python -m benchmarks.service.helped_jobs --devices cuda:0 cuda:1 --out helped-jobs.json`` on a machine with
two GPUs; the same with ``--engine ray`` and the extra ``fleet``; or with ``--devices host host``, each the
device of a service of its own. Each setting has an empty database and an empty kernel cache.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import statistics
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.common.results import now, write_json
from benchmarks.service.ray_services import head, service, wait
from tilewright import Client, GemmProblem
from tilewright.schema.problem import DType, Layout
from tuner.store.database import Store
from tuner.store.trials import JobRecorder

_ON_GPU = [
    GemmProblem(m, n, k, DType.BFLOAT16, Layout.NT)
    for m, n, k in ((4096, 4096, 4096), (16, 6144, 4096), (1024, 5120, 5120))
]
_ON_HOST = [GemmProblem(64, 48, 32, DType.FLOAT32, Layout.NN)]
_log = logging.getLogger("tilewright.bench")


def main() -> None:
    """Write the jobs of each setting to ``--out``, and print their means."""
    parser = argparse.ArgumentParser(description="One job at a time on several devices.")
    parser.add_argument("--devices", nargs="+", default=["cuda:0", "cuda:1"])
    parser.add_argument("--engine", choices=("local", "ray"), default="local")
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=1, help="jobs of each problem")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    found: dict[str, Any] = {"date": now(), "command": sys.argv}
    for helpers in (False, True):
        found["with" if helpers else "without"] = _measured(given, helpers)
        write_json(given.out, found)
    for name in ("without", "with"):
        jobs = found[name]
        print(name, {key: round(statistics.mean(job[key] for job in jobs), 2) for key in _FIGURES})  # noqa: T201


_FIGURES = ("trials", "helped", "search_s", "idle_s", "job_s", "trials_per_minute", "median_us", "speedup")


def _measured(given: argparse.Namespace, helpers: bool) -> list[dict[str, Any]]:
    on_host = given.devices[0] == "host"
    with tempfile.TemporaryDirectory() as named, contextlib.ExitStack() as stack:
        folder = Path(named)
        kept = {"TILEWRIGHT_CACHE_DIR": str(folder / "cache"), "TILEWRIGHT_HELP_JOBS": str(int(helpers))}
        database = f"sqlite:///{folder / 'jobs.db'}"
        if given.engine == "ray":
            stack.enter_context(head(0 if on_host else len(given.devices), **kept))
            clients = [stack.enter_context(service(folder / "service", database, **kept))]
            wait(lambda: len(clients[0].devices()) == (1 if on_host else len(given.devices)))
        else:
            of_services = given.devices if on_host else [",".join(given.devices)]
            clients = [
                stack.enter_context(
                    service(
                        folder / str(number),
                        database,
                        engine="local",
                        TILEWRIGHT_DEVICES=devices,
                        TILEWRIGHT_LOCK_DIR=str(folder / str(number)),
                        **kept,
                    )
                )
                for number, devices in enumerate(of_services)
            ]
        problems = _ON_HOST if on_host else _ON_GPU
        with contextlib.closing(Store.open(database)) as store:
            return [
                _tuned(clients[0], store, problem, given.trials, seed)
                for problem in problems
                for seed in range(given.seeds)
            ]


def _tuned(client: Client, store: Store, problem: GemmProblem, max_trials: int, seed: int) -> dict[str, Any]:
    job = client.tune(problem, max_trials=max_trials, seed=seed)
    assert job.best is not None
    assert job.progress is not None
    assert job.finished is not None
    assert job.started is not None
    trials = JobRecorder(store, job.id).trials()
    helped = [one.anchor for one in trials if one.anchor]
    search_s = job.progress.elapsed_s - job.progress.race_s
    row = {
        "problem": str(problem),
        "seed": seed,
        "trials": len(trials),
        "helped": len(helped),
        "helpers": Counter(one.device for one in helped),
        "anchor_ratios": sorted({round(one.here_us / one.there_us, 4) for one in helped}),
        "job_s": (job.finished - job.started).total_seconds(),
        "search_s": search_s,
        "idle_s": job.progress.idle_s,
        "race_s": job.progress.race_s,
        "trials_per_minute": 60 * len(trials) / search_s,
        "median_us": job.best.timing.median_us,
        "speedup": job.best.speedup.value,
    }
    _log.info("%s", row)
    return row


if __name__ == "__main__":
    main()
