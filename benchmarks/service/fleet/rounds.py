"""Rounds of the same jobs on some devices, to find out whether faults of another device disturb them."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.common.results import Rows
from benchmarks.service.ray_services import wait
from tilewright import Client, GemmProblem
from tilewright.schema.trial import Outcome, Trial
from tuner.job.progress import timed

FAILED = (Outcome.COMPILE_ERROR, Outcome.LAUNCH_ERROR, Outcome.WRONG_RESULT, Outcome.TIMEOUT)
_MOMENT_S = 30.0  # in which devices are idle again
_Kernel = tuple[str, str, str]  # device, problem, and config or library


def told(trial: Trial) -> str:
    """How a trial ended, in words."""
    return f"{trial.outcome.value}: {trial.message[:200]}"


@dataclasses.dataclass(frozen=True, slots=True)
class Times:
    """The results of some jobs.

    Attributes:
        us: the median of each complete trial, and of the winner and the vendor library in its race.
        failed: trials that failed, in words.
        unfinished: jobs without a winner.
    """

    us: dict[_Kernel, float] = dataclasses.field(default_factory=dict)
    failed: list[str] = dataclasses.field(default_factory=list)
    unfinished: list[str] = dataclasses.field(default_factory=list)

    def add(self, client: Client, job_id: str, device: str) -> None:
        """Add a job of a device, once it has ended."""
        wait(lambda: client.job(job_id).status.final)
        job = client.job(job_id)
        problem = str(job.problem)
        if job.best:
            self.us[device, problem, f"{job.best.config} in its race"] = job.best.timing.median_us
            self.us[device, problem, job.best.baseline.name] = job.best.baseline.median_us
        else:
            self.unfinished.append(f"{problem}: {job.error}")
        for trial in client.trials(job_id, limit=100).items:
            if trial.outcome is Outcome.OK:
                self.us[device, problem, str(trial.config)] = timed(trial).median_us
            elif trial.outcome in FAILED:
                self.failed.append(f"{device}: {told(trial)}")

    def row(self, before: Times) -> dict[str, Any]:
        """The times of the same kernels now over those before, of all devices and of each one."""
        ratios = {key: us / before.us[key] for key, us in self.us.items() if key in before.us}
        row: dict[str, Any] = {"kernels": len(self.us), "failed": self.failed, "unfinished": self.unfinished}
        row |= _summary(list(ratios.values()))
        devices = sorted({device for device, _, _ in ratios})
        if len(devices) > 1:
            each = {one: [ratio for key, ratio in ratios.items() if key[0] == one] for one in devices}
            row["devices"] = {device: _summary(found) for device, found in each.items()}
        return row | {"times_us": [[*key, round(us, 3)] for key, us in self.us.items()]}


def _summary(ratios: Sequence[float]) -> dict[str, Any]:
    if not ratios:
        return {"same_kernels": 0}
    low, middle, high = (float(one) for one in np.quantile(ratios, (0.05, 0.5, 0.95)))
    return {"same_kernels": len(ratios), "over_before": middle, "low": low, "high": high}


def middle(found: Sequence[Times]) -> Times:
    """The median time of each kernel in some rounds."""
    keys = {key for one in found for key in one.us}
    return Times({key: statistics.median(one.us[key] for one in found if key in one.us) for key in keys})


def add_quiet(rows: Rows, quiet: Sequence[Times]) -> None:
    """Add a row that relates each quiet round to the others; it shows how the times scatter by themselves."""
    for number, found in enumerate(quiet):
        others = [one for one in quiet if one is not found]
        rows.add("quiet", round=number, **found.row(middle(others)))


class Rounds:
    """Rounds of the same jobs on the devices of a service, each pinned to its device."""

    def __init__(self, client: Client, rows: Rows, target: str, **options: Any) -> None:
        """``target`` is the device on which faults happen later; its own times do not count. ``options`` are
        those of each job."""
        self._client, self._rows, self._target = client, rows, target
        self._others = sorted(one.name for one in client.devices() if one.name != target)
        self._options = {"level": "quick", **options}
        self._quiet: list[Times] = []

    def quiet(self, given: Sequence[GemmProblem], rounds: int) -> None:
        """Run ``rounds`` rounds without faults; the target has as many jobs as each other device."""
        for _ in range(rounds):
            self._quiet.append(self._round(given, [*self._others, self._target]))
        add_quiet(self._rows, self._quiet)

    def beside(self, given: Sequence[GemmProblem], ended: Callable[[], bool]) -> None:
        """Repeat the jobs of the other devices until the faults of the target have ended."""
        before, number = middle(self._quiet), 0
        while not ended():
            found = self._round(given, self._others)
            self._rows.add("beside", round=number, whole=not ended(), **found.row(before))
            number += 1

    def _round(self, given: Sequence[GemmProblem], devices: Sequence[str]) -> Times:
        """The times of all but the target. Each device always gets the same of the problems."""
        jobs = []
        for place, problem in enumerate(given):
            device = [*self._others, self._target][place % (len(self._others) + 1)]
            if device in devices:
                tuned = self._client.tune(problem, device=device, wait=False, **self._options)
                jobs.append((tuned.id, device))
        found = Times()
        for job_id, device in jobs:
            if device == self._target:
                wait(lambda job_id=job_id: self._client.job(job_id).status.final)  # type: ignore[misc]
            else:
                found.add(self._client, job_id, device)
        return found


def add_states(rows: Rows, client: Client) -> None:
    """A row of each device once all are idle, or half a minute later."""
    with contextlib.suppress(TimeoutError):
        wait(lambda: all(one.state == "idle" for one in client.devices()), _MOMENT_S)
    for device in client.devices():
        rows.add("after", device=device.name, state=device.state, detail=device.detail)
