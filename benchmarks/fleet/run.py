"""Runs of a simulated fleet, and their file.

Real: the search (ask and tell), the tuning loop and selection, and the store: jobs are claimed under
leases, and trials, progress and winners are committed. The CPU time of all this counts. Simulated: a trial
and a race take their recorded seconds on the device; nothing is compiled, kernels are a few bytes, and Ray
and the network take no time. The database is one core that executes one transaction
at a time, and a commit does not wait for the disk.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from benchmarks.common.results import RESULTS, now, write_json
from benchmarks.fleet.clock import VirtualClock
from benchmarks.fleet.simulation import Fleet, Load, Outcome
from tilewright.errors import TilewrightError
from tilewright.schema.codec import Bounds
from tuner.replay.formats import read_space
from tuner.replay.report import estimate
from tuner.replay.space import RecordedSpace
from tuner.store import jobs
from tuner.store.database import Store

SPACES = Path(__file__).parents[1] / "spaces"
DEFAULT_SPACES = ("wgmma_ws-4096x4096x4096-h200.t4.json.gz", "wgmma_ws-64x4096x14336-h200.t4.json.gz")
NAME = "fleet-scaling.json"


class FleetError(TilewrightError):
    """The fleet cannot be simulated as asked for."""


# NOTE: without slots, so that the command line reads the defaults from the class.
@dataclasses.dataclass(frozen=True, kw_only=True)
class FleetOptions:
    """What to simulate.

    Attributes:
        devices: sizes of the fleet, separated by blanks, each run by itself.
        space: files of recorded spaces of one device class; repeatable.
        jobs: jobs for each device, so that a larger fleet has more to do.
        trials: measured configs of a job.
        database_url: a scratch database, as jobs stay in it; a new SQLite file by default.
        out: folder of the result; benchmarks/results by default.
    """

    devices: str = "1 2 4 8 64"
    space: tuple[str, ...] = ()
    jobs: Annotated[int, Bounds(1, 10_000)] = 8
    trials: Annotated[int, Bounds(1, 10_000)] = 40
    database_url: str | None = None
    out: Path | None = None

    @property
    def sizes(self) -> list[int]:
        """Sizes of the fleet.

        Raises:
            FleetError: they are not numbers from 1 on.
        """
        sizes = [int(text) for text in self.devices.split() if text.isdecimal() and int(text)]
        if len(sizes) != len(self.devices.split()) or not sizes:
            raise FleetError(f"--devices takes whole numbers, such as '1 8 64', not {self.devices!r}")
        return sizes

    @property
    def command(self) -> str:
        """How it is asked for, without the credentials of a database."""
        given = f"--devices '{self.devices}' --jobs {self.jobs} --trials {self.trials}"
        return f"tilewright bench fleet {given}" + (" --database-url ..." if self.database_url else "")


def run_fleet(options: FleetOptions, tell: Callable[[str], None]) -> tuple[list[dict[str, Any]], Path]:
    """Run each size of the fleet and write the rows after each; gives the rows and the file.

    Raises:
        FleetError: a size is no number, the spaces are of several device classes, or jobs wait in the
            database.
    """
    sizes = options.sizes
    files = [Path(file) for file in options.space] or [SPACES / name for name in DEFAULT_SPACES]
    spaces = tuple(map(read_space, files))
    classes = {space.device.device_class.id for space in spaces}
    if len(classes) != 1 or len({space.problem for space in spaces}) != len(spaces):
        raise FleetError("the spaces must be of one device class and of different problems; use others")
    path, rows = (options.out or RESULTS) / NAME, list[dict[str, Any]]()
    with _store(options.database_url) as store:
        facts = _facts(options, spaces, store)
        for devices in sizes:
            load = Load(spaces, devices * options.jobs, options.trials)
            callers = _submit(load, store)
            clock = VirtualClock()
            outcome = Fleet(load, callers, store, clock).run(devices)
            rows.append(_row(devices, outcome, clock, rows))
            tell(line(rows[-1]))
            write_json(path, facts | {"rows": rows})
    return rows, path


def _submit(load: Load, store: Store) -> dict[str, str]:
    with store.read() as session:
        waiting = jobs.queued_count(session, load.device_class)
    if waiting:
        raise FleetError(f"{waiting} jobs wait in this database already; use an empty one")
    return load.submit(store)


def _facts(options: FleetOptions, spaces: Sequence[RecordedSpace], store: Store) -> dict[str, Any]:
    return {
        "date": now(),
        "command": options.command,
        "method": " ".join((__doc__ or "").split()),
        "database": store.engine.dialect.name,
        "device_class": spaces[0].device.device_class.id,
        "spaces": [space.name for space in spaces],
        "jobs_a_device": options.jobs,
        "trials_a_job": options.trials,
    }


def line(row: dict[str, Any]) -> str:
    """A row as a line of text."""
    text = (
        f"{row['devices']:>3} devices: {row['trials_per_minute']:.0f} trials a minute, "
        f"{row['speedup']:.1f} x of {row['speedup_over']}, quality {row['quality']:.4f}, "
        f"{row['device_busy']:.0%} of the devices busy"
    )
    return f"{text}, {row['database_busy']:.0%} of the database"


def _row(
    devices: int, outcome: Outcome, clock: VirtualClock, before: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    quality, rate = estimate(np.asarray(outcome.winners)), 60 * outcome.trials / outcome.seconds
    fairness = outcome.fairness
    first = before[0] if before else {"devices": devices, "trials_per_minute": rate}
    return {
        "devices": devices,
        "trials_per_minute": round(rate, 1),
        "quality": round(quality.value, 4),
        "quality_low": round(quality.low, 4),
        "quality_high": round(quality.high, 4),
        "speedup": round(rate / first["trials_per_minute"], 2),
        "speedup_over": first["devices"],
        "jobs": len(outcome.winners),
        "trials": outcome.trials,
        "seconds": round(outcome.seconds, 1),
        "device_busy": round(outcome.device_s / outcome.seconds / devices, 4),
        "fairness": None if fairness is None else round(fairness, 3),
        # What a trial takes beside the device, and how much of the database's core all of them take.
        "transactions_a_trial": round(clock.transactions / outcome.trials, 2),
        "host_ms_a_trial": round(1e3 * clock.cpu_s / outcome.trials, 2),
        "database_ms_a_trial": round(1e3 * clock.busy_s / outcome.trials, 3),
        "database_wait_ms_a_trial": round(1e3 * clock.waited_s / outcome.trials, 3),
        "database_busy": round(clock.busy_s / outcome.seconds, 4),
    }


@contextmanager
def _store(url: str | None) -> Iterator[Store]:
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(url or f"sqlite:///{folder}/fleet.db")
        try:
            store.migrate()
            yield store
        finally:
            store.close()
