"""One GEMM on request, from its operands to its result: it is admitted, matched with a kernel, and run in its
turn.

The device takes calls in the order of asking (:class:`tuner.workers.process.FairLock`): a tuning job asks
anew for each trial and for each second of a race, so a GEMM waits for the measurement in progress and never
disturbs it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping

from service.engine import admission
from service.engine.base import Device, Engine
from service.errors import Kind, Refusal
from service.gemm import choice
from service.gemm.operands import Operand
from service.metrics import Metrics
from service.results.served import ServedSets
from service.settings import Settings
from tilewright.errors import DeviceUnavailable, LaunchError
from tilewright.schema.problem import GemmProblem, check_factors
from tilewright.wire import GemmQuery
from tuner.workers.bench import DeviceBusy, may_be_by_kernel
from tuner.workers.gemm import GemmRun
from tuner.workers.process import WorkerError
from tuner.workers.shared_memory import Pages


@dataclasses.dataclass(frozen=True, slots=True)
class GemmResult:
    """A GEMM that ran.

    Attributes:
        d: the result.
        micros: microseconds of the kernel.
        ran: the config of the kernel, or the name of the vendor library.
        match: how the kernel was found, see :class:`service.gemm.choice.Chosen`.
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


@dataclasses.dataclass(frozen=True, slots=True)
class GemmRunner:
    """Runs GEMMs on the devices of an engine, with kernels of the served config sets."""

    settings: Settings
    engine: Engine
    served: ServedSets
    metrics: Metrics

    def run(self, found: Mapping[str, Operand], query: GemmQuery, result: Pages | None) -> GemmResult:
        """Run what the operands and the query describe, into ``result`` or, for None, into the operand ``d``.

        Raises:
            Refusal: it is over a limit, nothing computes it, or the device is busy or failed.
            InvalidProblem: an operand is missing, unknown, or of the wrong shape or type.
        """
        inputs = {name: operand for name, operand in found.items() if name != "d" or result}
        problem = choice.problem_of(inputs, query)
        check_factors(problem, query.alpha, query.beta)
        admission.check_size(problem, self.settings)
        if result:
            admission.check_result(problem, self.settings)
        bench = self.engine.bench(query.device)
        admission.check_supported(problem, [], bench)
        shape = choice.result_shape(problem, inputs)
        size = problem.m * problem.n * problem.batch * problem.out.size
        d = Operand(problem.out, shape, result.resize(size)) if result else found["d"]
        return self._run(bench, problem, {**inputs, "d": d}, query)

    def _run(
        self,
        bench: Device,
        problem: GemmProblem,
        operands: Mapping[str, Operand],
        query: GemmQuery,
    ) -> GemmResult:
        started = time.perf_counter()
        chosen = choice.choose(self.served, bench.spec.device_class.id, problem, query)
        regions = {name: operand.region for name, operand in operands.items()}
        asked, wait_s = time.perf_counter(), self.settings.gemm_wait_s
        try:
            ran = bench.gemm(chosen.artifact, problem, regions, (query.alpha, query.beta), wait_s)
        except DeviceBusy as error:
            self.metrics.gemm_refusals.labels("busy").inc()
            detail = f"{bench.name} was busy for {wait_s:g} s (gemm_wait_s); try again"
            raise Refusal(Kind.DEVICE_BUSY, detail, retry_after=2) from error
        except (LaunchError, DeviceUnavailable, WorkerError) as error:
            self.metrics.gemm_refusals.labels("failed").inc()
            if chosen.config and chosen.artifact and may_be_by_kernel(error):
                self.engine.suspect(bench.name, problem, chosen.config, chosen.artifact)
            raise Refusal(Kind.DEVICE_FAILED, f"{bench.name}: {error}", retry_after=2) from error
        parts = _parts(ran, asked - started, time.perf_counter() - asked)
        for part, seconds in parts.items():
            self.metrics.gemms.labels(bench.name, part).observe(seconds)
        self.metrics.gemm_runs.labels(bench.name, "tuned" if chosen.config else "vendor").inc()
        return GemmResult(operands["d"], ran.micros, str(chosen.config or ran.ran), chosen.match, parts)


def _parts(ran: GemmRun, lookup_s: float, called_s: float) -> dict[str, float]:
    """The seconds of each part as the device's process reported them, with the kernel apart from its launch;
    the rest was spent waiting."""
    kernel_s = ran.micros / 1e6
    launch_s = max(0.0, ran.parts_s["launch"] - kernel_s)
    wait_s = max(0.0, called_s - sum(ran.parts_s.values()))
    return {"lookup": lookup_s, "wait": wait_s, **ran.parts_s, "launch": launch_s, "kernel": kernel_s}
