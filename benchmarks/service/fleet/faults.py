"""Broken kernels on one device, in processes of their own, while another device works at jobs.

A part of :mod:`benchmarks.service.fleet_gpus`; in :mod:`.broken` the fleet's own workers run them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.common.results import Rows
from benchmarks.service.fleet.jobs import problems
from benchmarks.service.fleet.rounds import Times, add_quiet, middle
from benchmarks.service.ray_services import Machine

_ROOT = Path(__file__).parents[3]
_FAULTS = _ROOT / "tests/faults/soak/fault_kernels.py"
_JOBS = 3


def faults(machine: Machine, rows: Rows, trials_of_job: int, seconds: float, kernels: int) -> None:
    """The last device runs broken kernels for so many seconds, while the first one works at the same jobs as
    before."""
    quiet = [_own_jobs(machine, f"quiet-{number}", trials_of_job) for number in range(2)]
    add_quiet(rows, quiet)
    before = middle(quiet)
    device = machine.devices[-1]
    out = machine.folder / "fault-kernels.json"
    command = [sys.executable, str(_FAULTS), "--devices", device, "--out", str(out)]
    command += ["--trials", str(kernels), "--stop-after", str(seconds), "--again", "0", "--compilations", "0"]
    path = [str(_ROOT / one) for one in ("", "client", "tests/support/faults", "tests/support/samples")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")])}
    try:
        with subprocess.Popen(command, env=environment, stdout=sys.stderr) as campaign:
            number = 0
            while campaign.poll() is None:
                found = _own_jobs(machine, f"beside-{number}", trials_of_job)
                rows.add("beside faults", whole=campaign.poll() is None, **found.row(before))
                number += 1
    finally:
        if out.exists():  # the campaign has ended, perhaps before the last jobs beside it were cut short
            rows.add("fault kernels", exit=campaign.poll(), device=device, **json.loads(out.read_text()))


def _own_jobs(machine: Machine, name: str, trials_of_job: int) -> Times:
    """Three jobs of the first device, the same ones each time, with an empty database."""
    found, device = Times(), machine.devices[0]
    with machine.local(name, device) as client:
        options: dict[str, Any] = {"level": "quick", "max_trials": trials_of_job, "wait": False}
        for job_id in [client.tune(problem, **options).id for problem in problems(machine, _JOBS)]:
            found.add(client, job_id, device)
    return found
