"""A fleet on the GPUs of one machine: what a second GPU brings, how far they differ, and what a fault costs.
The parts are in :mod:`benchmarks.service.fleet`.

``python -m benchmarks.service.fleet_gpus --out DIR`` on a machine with two GPUs and the extra ``fleet``, on
one with more with ``--devices cuda:0 cuda:1 ...``; with ``--devices host host`` the machine's CPU is both
devices. The parts run one after the other, each in a process of its own that is ended with all its children
once its time, or that of the whole run, is over.
Each writes ``fleet-gpus-PART-CLASS.json``, whole after every row; ``fleet-gpus-parts-CLASS.json`` says how
each part ended. ``winners`` and ``elsewhere`` need ``jobs`` in the same run, ``neighbours`` ``one-job``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common.results import Rows, device_facts, machine_facts, write_json
from benchmarks.service.fleet import broken, faults, jobs, neighbours, one_device, one_job, overhead, strikes
from benchmarks.service.ray_services import Machine, marked
from tuner.measure.race import METHOD
from tuner.workers.bench import Bench

# The most seconds of each part.
PARTS = {
    "jobs": 420.0,
    "winners": 90.0,
    "elsewhere": 90.0,
    "one-job": 210.0,
    "neighbours": 240.0,
    "strikes": 240.0,
    "broken": 240.0,
    "faults": 330.0,
    "one-device": 240.0,
    "overhead": 1800.0,
}
_LEAST_S = 10.0  # that a part needs to be worth its start
_UNWIND_S = 12.0  # in which a part that is cut short ends its services itself
_FACTS = "facts.json"  # of the devices, in the folder that the parts share
_log = logging.getLogger("tilewright.bench")


def main() -> None:
    """Run the parts; exits with 1 if one did not end as it should."""
    parser = argparse.ArgumentParser(description="A fleet on the GPUs of one machine.")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--devices", nargs="+", default=["cuda:0", "cuda:1"])
    parser.add_argument("--seconds", type=float, default=465.0, help="that all parts may take together")
    parser.add_argument("--jobs", type=int, default=24, help="of the part jobs")
    parser.add_argument("--trials", type=int, default=12, help="of each quick job, 16 at most")
    parser.add_argument("--search-trials", type=int, default=48, help="of each job of the part one-job")
    parser.add_argument("--fault-seconds", type=float, default=60.0, help="that the fault kernels may take")
    parser.add_argument("--fault-kernels", type=int, default=1000)
    parser.add_argument("--strikes", nargs="+", choices=strikes.KINDS, default=[*strikes.KINDS * 2])
    parser.add_argument("--planted", nargs="+", choices=broken.FAULTS, default=list(broken.FAULTS))
    parser.add_argument("--repeats", type=int, default=8, help="of the part overhead, with each engine")
    parser.add_argument("--compile-processes", type=int, default=14, help="of each device")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    if given.part:
        machine = Machine(tuple(given.devices), given.folder, given.compile_processes)
        _run_part(given, machine, _rows(given, given.folder, given.part))
    else:
        sys.exit(_run(given))


def _run_part(given: argparse.Namespace, machine: Machine, rows: Rows) -> None:
    match given.part:
        case "jobs":
            jobs.many_jobs(machine, rows, given.jobs, given.trials)
        case "winners":
            jobs.winners(machine, rows)
        case "elsewhere":
            jobs.elsewhere(machine, rows)
        case "one-job":
            one_job.one_job(machine, rows, given.search_trials)
        case "neighbours":
            neighbours.neighbours(machine, rows)
        case "strikes":
            strikes.strikes(machine, rows, given.strikes, given.trials)
        case "broken":
            broken.broken(machine, rows, given.planted, given.trials)
        case "faults":
            faults.faults(machine, rows, given.trials, given.fault_seconds, given.fault_kernels)
        case "one-device":
            one_device.one_device(machine, rows, given.trials)
        case "overhead":
            overhead.overhead(machine, rows, given.trials, given.repeats)


def _rows(given: argparse.Namespace, folder: Path, part: str) -> Rows:
    facts = json.loads((folder / _FACTS).read_text())
    return Rows(given.out / f"fleet-gpus-{part}-{facts['device_class']}.json", facts)


def _run(given: argparse.Namespace) -> int:
    given.out.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(Bench(given.devices[0])) as bench:
        facts = device_facts(bench.spec, bench.driver) | {"machine": machine_facts(), "method": METHOD}
    facts["command"] = ["python", "-m", "benchmarks.service.fleet_gpus", *sys.argv[1:]]
    with tempfile.TemporaryDirectory(prefix="fleet-", ignore_cleanup_errors=True) as folder:
        write_json(Path(folder) / _FACTS, facts)
        parts = _rows(given, Path(folder), "parts")
        ends, all_well = time.monotonic() + given.seconds, True
        for part in given.parts:
            limit_s = min(PARTS[part], ends - time.monotonic() - _UNWIND_S)
            how, seconds = "left out: no time is left", 0.0
            if limit_s > _LEAST_S:
                started = time.monotonic()
                how = _ended(part, folder, limit_s)
                seconds = round(time.monotonic() - started, 1)
            _log.info("part %s: %s after %g s", part, how, seconds)
            parts.add("part", part=part, ended=how, seconds=seconds)
            all_well &= how == "well"
    return 0 if all_well else 1


def _ended(part: str, folder: str, limit_s: float) -> str:
    """How a part ended, with all its processes gone."""
    command = [sys.executable, "-m", "benchmarks.service.fleet_gpus", *sys.argv[1:]]
    command += ["--part", part, "--folder", folder]
    with (
        marked() as mark,
        subprocess.Popen(command, env=os.environ | mark, start_new_session=True) as process,
    ):
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(_UNWIND_S)
            except subprocess.TimeoutExpired:
                process.kill()
            return f"cut short after {limit_s:.0f} s"
        return "well" if code == 0 else f"exit code {code}"


if __name__ == "__main__":
    main()
