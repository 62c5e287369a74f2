"""Estimated times of GEMMs that were not measured: a roofline from the best rates of the vendor library."""

from __future__ import annotations

import dataclasses
import functools
from collections import defaultdict
from collections.abc import Callable, Sequence

from sqlalchemy.orm import Session

from tilewright import wire
from tilewright.schema.problem import DType, GemmProblem
from tuner.store.misses import Report
from tuner.store.reports import winners

# Operations and bytes per microsecond where a device class has no result yet: they only rank.
_NOMINAL_GPU = (1e8, 2e6)
_NOMINAL_HOST = (1e5, 2e4)


@dataclasses.dataclass(frozen=True, slots=True)
class Estimates:
    """The vendor library on a device class.

    Attributes:
        flops: the most operations per microsecond it reached, by element type.
        other_flops: for other element types.
        bandwidth: the most bytes of operands and result per microsecond.
    """

    flops: dict[DType, float]
    other_flops: float
    bandwidth: float

    @classmethod
    def of(cls, session: Session, device_class: str) -> Estimates:
        """From the baselines of the winners' races."""
        flops: dict[DType, float] = defaultdict(float)
        nominal_flops, bandwidth = _NOMINAL_GPU if device_class.startswith("sm_") else _NOMINAL_HOST
        reached = 0.0
        for one in winners.headlines(session, [device_class]):
            flops[one.problem.dtype] = max(flops[one.problem.dtype], one.problem.flops / one.baseline_us)
            reached = max(reached, one.problem.total_bytes / one.baseline_us)
        return cls(dict(flops), max(flops.values(), default=nominal_flops), reached or bandwidth)

    def micros(self, problem: GemmProblem) -> float:
        """Microseconds of one GEMM: bound by arithmetic or by memory, whichever takes longer."""
        rate = self.flops.get(problem.dtype, self.other_flops)
        return max(problem.flops / rate, problem.total_bytes / self.bandwidth)


def reports(misses: Sequence[wire.MissReport], estimates: Callable[[], Estimates]) -> list[Report]:
    """Misses with their times: as measured, else as estimated. ``estimates`` is called at most once, and only
    if a time was not measured.

    Raises:
        InvalidProblem: the types of a problem do not go together.
    """
    known, found = functools.cache(estimates), list[Report]()
    for miss in misses:
        problem = miss.to_problem()
        micros = miss.vendor_us or known().micros(problem)
        found.append(Report(problem, miss.count, micros, measured=miss.vendor_us is not None))
    return found
