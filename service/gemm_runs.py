"""One GEMM on request, from its operands to its result: let in, matched with a kernel, run in its turn.

The device takes calls in the order of asking (:mod:`tuner.turns`): a tuning job asks anew for each trial and
for each second of a race, so a GEMM waits for the measurement in progress and never disturbs it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping

from service import admission, gemms
from service.deps import Service
from service.lane import Lane
from service.operands import Operand
from service.problems import Kind, Problem
from tilewright.errors import DeviceUnavailable, LaunchError
from tilewright.problem import GemmProblem
from tilewright.wire import GemmQuery
from tuner.bench import DeviceBusy
from tuner.gemm import GemmRun
from tuner.process import WorkerError
from tuner.regions import Pages


@dataclasses.dataclass(frozen=True, slots=True)
class Served:
    """A GEMM that ran.

    Attributes:
        d: the result.
        micros: microseconds of the kernel.
        ran: the config of the kernel, or the name of the vendor library.
        match: how the kernel was found, see :class:`service.gemms.Chosen`.
        parts_s: where the seconds went, by name.
    """

    d: Operand
    micros: float
    ran: str
    match: str
    parts_s: dict[str, float]

    def headers(self, body_s: float) -> dict[str, str]:
        """What an answer tells beside the result, with the milliseconds of each part."""
        parts = {"body": body_s, **self.parts_s}
        return {
            "Tilewright-Ran": self.ran,
            "Tilewright-Kernel-Us": f"{self.micros:.3f}",
            "Tilewright-Match": self.match,
            "Server-Timing": ", ".join(f"{name};dur={1e3 * took:.3f}" for name, took in parts.items()),
        }


def run(service: Service, found: Mapping[str, Operand], query: GemmQuery, result: Pages | None) -> Served:
    """Run what the operands and the query describe, into ``result`` or, for None, into the operand ``d``.

    Raises:
        Problem: it is over a limit, nothing computes it, or the device is busy or failed.
        InvalidProblem: an operand is missing, unknown, or of the wrong shape or type.
    """
    inputs = {name: operand for name, operand in found.items() if name != "d" or result}
    problem = gemms.problem_of(inputs, query)
    admission.check_size(problem, service.settings)
    if result:
        admission.check_result(problem, service.settings)
    lane = admission.lane_for(service.engine, query.device)
    admission.check_supported(problem, [], lane)
    shape = gemms.result_shape(problem, inputs)
    size = problem.m * problem.n * problem.batch * problem.out.size
    d = Operand(problem.out, shape, result.resize(size)) if result else found["d"]
    return _run(service, lane, problem, {**inputs, "d": d}, query)


def _run(
    service: Service, lane: Lane, problem: GemmProblem, operands: Mapping[str, Operand], query: GemmQuery
) -> Served:
    started = time.perf_counter()
    chosen = gemms.choose(service, lane.bench.spec.device_class.id, problem, query)
    regions = {name: operand.region for name, operand in operands.items()}
    asked, wait_s = time.perf_counter(), service.settings.gemm_wait_s
    try:
        ran = lane.bench.gemm(chosen.artifact, problem, regions, (query.alpha, query.beta), wait_s)
    except DeviceBusy as error:
        service.metrics.gemm_refusals.labels("busy").inc()
        detail = f"{lane.name} was busy for {wait_s:g} s (gemm_wait_s); try again"
        raise Problem(Kind.DEVICE_BUSY, detail, retry_after=2) from error
    except (LaunchError, DeviceUnavailable, WorkerError) as error:
        service.metrics.gemm_refusals.labels("failed").inc()
        raise Problem(Kind.DEVICE_FAILED, f"{lane.name}: {error}", retry_after=2) from error
    parts = _parts(ran, asked - started, time.perf_counter() - asked)
    for part, seconds in parts.items():
        service.metrics.gemms.labels(lane.name, part).observe(seconds)
    service.metrics.gemm_runs.labels(lane.name, "tuned" if chosen.config else "vendor").inc()
    return Served(operands["d"], ran.micros, str(chosen.config or ran.ran), chosen.match, parts)


def _parts(ran: GemmRun, lookup_s: float, called_s: float) -> dict[str, float]:
    """What the device's process told, the kernel apart from its launch; the rest was waiting for it."""
    kernel_s = ran.micros / 1e6
    launch_s = max(0.0, ran.parts_s["launch"] - kernel_s)
    wait_s = max(0.0, called_s - sum(ran.parts_s.values()))
    return {"lookup": lookup_s, "wait": wait_s, **ran.parts_s, "launch": launch_s, "kernel": kernel_s}
