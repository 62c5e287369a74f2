"""Kernels that break their GPU in the middle of a job, while the other devices of the fleet work at jobs.

A part of :mod:`benchmarks.service.fleet_gpus`. Its fleet runs with a copy of the package ``kernels`` in which
a family has faults for two of its configs.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.results import Rows
from benchmarks.service.fleet.jobs import problems
from benchmarks.service.fleet.rounds import FAILED, Rounds, add_states, told
from benchmarks.service.ray_services import Machine
from tilewright import Client
from tilewright.schema.trial import Outcome
from tilewright.wire import JobView

_KERNELS = Path(__file__).parents[3] / "kernels"
FAULTS = ("illegal", "endless")


@dataclasses.dataclass(frozen=True, slots=True)
class Planted:
    """Faults in the source of a family.

    Attributes:
        source: below ``kernels``.
        after: the line of it behind which the faults stand.
        illegal, endless: when a kernel writes to an illegal address, and when it never ends.
        others: the family of the other jobs.
    """

    family: str
    source: str
    after: str
    illegal: str
    endless: str
    others: str

    def copied_to(self, folder: Path, faults: Sequence[str] = FAULTS) -> Path:
        """The folder, with a copy of the package that has ``faults``."""
        shutil.copytree(_KERNELS, folder / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
        path = folder / "kernels" / self.source
        before, found, behind = path.read_text().partition(self.after)
        if not found:
            raise RuntimeError(f"{path} has no line {self.after!r} any more")
        lines = {
            "illegal": f"if ({self.illegal}) *(volatile int *)16 = 1;",
            "endless": f"if ({self.endless}) for (volatile int i = 0;; i++) {{}}",
        }
        text = "".join(f"\n    {lines[one]}" for one in faults)
        path.write_text(f"{before}{found}{text}{behind}")
        return folder


ON_GPU = Planted(
    family="wmma",
    source="wmma/kernel.cu",
    after="wmma(GEMM_PARAMETERS) {",
    illegal="cfg::tile_m == 128 && cfg::tile_n == 128",
    endless="cfg::tile_m == 64 && cfg::tile_n == 64",
    others="wgmma_ws",
)
# NOTE: the first two heuristic configs: their micro-tiles follow from the vector registers. Other jobs run
# this family too, on other k.
ON_HOST = Planted(
    family="host",
    source="host/kernel.c",
    after="int32_t thread, int32_t threads)\n{",
    illegal="8 * MR == 3 * VECTOR_REGISTERS && NV == 2 && KC == 256 && MC == 128 && NC == 128 && k == 32",
    endless="4 * MR == VECTOR_REGISTERS && NV == 3 && KC == 256 && MC == 128 && NC == 128 && k == 32",
    others="host",
)


def broken(machine: Machine, rows: Rows, faults: Sequence[str], trials_of_job: int) -> None:
    """A job of the last device meets ``faults``, while all other devices work at jobs."""
    planted = ON_HOST if machine.on_host else ON_GPU
    folder = planted.copied_to(machine.folder / "planted", faults)
    # NOTE: without the second, the folder in which a program starts would come before the copy.
    found = {
        "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
        "PYTHONSAFEPATH": "1",
    }
    count = len(machine.devices)
    of_device, quiet = (1, 2) if machine.on_host else (2, 3)
    with machine.fleet("broken", count, TILEWRIGHT_HELP_JOBS="0", **found) as client:
        target = max(one.name for one in client.devices())
        struck, *rest = problems(machine, 1 + of_device * count)
        options: dict[str, Any] = {"level": "quick", "max_trials": trials_of_job}
        rounds = Rounds(client, rows, target, families=(planted.others,), max_trials=trials_of_job)
        rounds.quiet(rest, quiet)
        job = client.tune(struck, families=(planted.family,), device=target, wait=False, **options)
        rounds.beside(rest, lambda: client.job(job.id).status.final)
        rows.add("job", device=target, **_ended(client, client.job(job.id)))
        for entry in client.quarantine().items:
            rows.add("quarantined", config=str(entry.config), outcome=str(entry.outcome))
        add_states(rows, client)


def _ended(client: Client, job: JobView) -> dict[str, Any]:
    trials = client.trials(job.id, limit=100).items
    took = job.finished - job.started if job.finished and job.started else None
    return {
        "problem": str(job.problem),
        "status": str(job.status),
        "job_s": took and round(took.total_seconds(), 2),
        "ok": sum(trial.outcome is Outcome.OK for trial in trials),
        "failed": [told(trial) for trial in trials if trial.outcome in FAILED],
    }
