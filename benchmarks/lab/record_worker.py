"""The process that measures for :mod:`benchmarks.lab.record_random`: a check, then a few short samples.

A trial of a job warms up for 0.07 s and takes nine samples of 3 ms or more. This one takes samples of 1 ms,
after 5 ms of load, so that a GPU keeps up with the compilers of a whole machine; the check before it is that
of a trial, the one of the timed launches is left out.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from tilewright.artifact import Artifact
from tilewright.errors import ArtifactError, LaunchError
from tilewright.launch import Kernel, load
from tilewright.schema.codec import encode
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import Outcome, TrialResult
from tuner.devices.base import Device
from tuner.measure import correctness, operands
from tuner.measure.stats import median
from tuner.measure.timing import PROBES, PRUNE_RATIO, timing
from tuner.workers.device_worker import driver_errors, open_device
from tuner.workers.frames import Frame
from tuner.workers.server import serve

SAMPLE_US, LOAD_US = 1000.0, 5000.0
LONG_LOAD_US = 50_000.0
_MOST_LAUNCHES = 256


def short_samples(
    device: Device, kernel: Kernel, problem: GemmProblem, stop_us: float | None, count: int
) -> list[float]:
    """Microseconds of a launch, ``count`` samples; three if their median is above ``stop_us``.

    Without ``stop_us`` the load before them takes ten times as long.
    """
    bound = operands.bind(device, kernel, problem, operands.rotated_sets(device, problem))
    probe = device.timer(bound.launches)
    probe()
    launch_us = max(probe(), 0.1)
    turns = min(_MOST_LAUNCHES, max(1, round(SAMPLE_US / launch_us / len(bound.launches))))
    sample = device.timer(list(bound.launches) * turns)
    load_us = LOAD_US if stop_us else LONG_LOAD_US
    for _ in range(max(1, round(load_us / (launch_us * turns * len(bound.launches))))):
        sample()
    samples = [sample() for _ in range(min(PROBES, count))]
    if stop_us is None or median(samples) <= stop_us:
        samples += [sample() for _ in range(count - len(samples))]
    return samples


class RecordServer:
    """Serves one operation: an artifact in, the result of its trial out."""

    def __init__(self, device_name: str) -> None:
        self._device = open_device(device_name)
        self._errors: tuple[type[Exception], ...] = (LaunchError, ArtifactError)
        self._errors += driver_errors(self._device)

    def greeting(self) -> dict[str, Any]:
        """The description of the device."""
        return {"spec": self._device.spec.to_dict(), "driver": self._device.driver}

    def handle(self, request: Frame) -> Frame:
        """Check and time one kernel."""
        try:
            return Frame({"kind": "ok", "result": encode(self._trial(request))})
        except self._errors as error:
            result = TrialResult(outcome=Outcome.LAUNCH_ERROR, message=str(error))
            dying = not isinstance(error, ArtifactError)
            return Frame({"kind": "ok", "result": encode(result), "dying": dying})

    def _trial(self, request: Frame) -> TrialResult:
        header, device = request.header, self._device
        problem = GemmProblem.from_dict(header["problem"])
        kernel = load(Artifact.from_bytes(request.payloads[0]))
        try:
            started = time.perf_counter()
            reason = correctness.check(device, kernel, problem)
            check_s = time.perf_counter() - started
            if reason:
                return TrialResult(outcome=Outcome.WRONG_RESULT, message=reason, check_s=check_s)
            incumbent_us = header["incumbent_us"]
            stop_us = incumbent_us and PRUNE_RATIO * incumbent_us
            samples = short_samples(device, kernel, problem, stop_us, header["samples"])
            measure_s = time.perf_counter() - started - check_s
        finally:
            kernel.close()
        return TrialResult(
            outcome=Outcome.OK, timing=timing(device, samples), check_s=check_s, measure_s=measure_s
        )


def main() -> None:
    """Answer requests until the parent closes its end."""
    parser = argparse.ArgumentParser(description="Measures for benchmarks.lab.record_random.")
    parser.add_argument("--device", required=True, help="host or cuda:INDEX")
    parser.add_argument("--pipes", required=True, help="file descriptors READ,WRITE")
    arguments = parser.parse_args()
    serve(arguments.pipes, lambda: RecordServer(arguments.device))


if __name__ == "__main__":
    main()
