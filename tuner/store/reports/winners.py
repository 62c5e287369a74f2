"""The winners as lists and plots need them: a row each, without samples, ties and kernels.

Every query finds its rows by an index: of the device class, of the architecture, or of the id.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, Text, cast, or_, select
from sqlalchemy.orm import Session

from tilewright.schema.codec import decode
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import Provenance
from tuner.store import best
from tuner.store.entities import parse_problem
from tuner.store.models import BestConfigRow, ProblemRow
from tuner.store.records import RowReader, StoredBest

# NOTE: decoding them would take most of the time of a list.
_SAMPLES = re.compile(r'(?<="samples_us": )\[[^]]*]')


@dataclasses.dataclass(frozen=True, slots=True)
class Headline:
    """What a list tells of a winner; times are microseconds of one GEMM, ``created`` is aware UTC.

    Attributes:
        id: of its row; stable for its problem and device class.
        problem, device_class, family, job_id, created: where it comes from.
        median_us, mhz, watts: its time, clock and power in the head-to-head; None if unknown.
        method: how it was measured.
        disturbed: what others took of the device meanwhile; empty if nothing.
        baseline, baseline_us: the vendor library and its time in the same race.
        stands_in: whether the vendor library ran another problem in its place.
        speedup, low, high, confidence: with its interval.
        provenance: of the result.
        drifted: an idle device measured another time since.
    """

    id: int
    problem: GemmProblem
    device_class: str
    arch: str
    family: str
    job_id: str | None
    created: datetime
    median_us: float
    mhz: float | None
    watts: float | None
    method: str
    disturbed: str
    baseline: str
    baseline_us: float
    stands_in: bool
    speedup: float
    low: float
    high: float
    confidence: float
    provenance: Provenance
    drifted: bool = False

    @property
    def verdict(self) -> str:
        """As :attr:`tilewright.schema.trial.BestConfig.verdict`."""
        if self.disturbed:
            return "disturbed"
        if self.low > 1.0 or self.stands_in:
            return "kernel"
        return "vendor" if self.high < 1.0 else "tie"

    @property
    def tflops(self) -> float:
        """Throughput in TFLOP/s at the median."""
        return self.problem.flops / self.median_us / 1e6


def headlines(
    session: Session, targets: Sequence[str], *, dtype: str | None = None, since: datetime | None = None
) -> list[Headline]:
    """The winners of device classes and architectures that are served, those that lose most first.

    Args:
        targets: ids of device classes, or architectures.
        dtype: only problems of this element type.
        since: only races that ended since then.
    """
    where: list[ColumnElement[bool]] = [BestConfigRow.quarantine_id.is_(None)]
    if dtype:
        where.append(ProblemRow.dtype == dtype)
    if since:
        where.append(BestConfigRow.created >= since)
    query = _query().where(*where)
    found = {
        one.id: one
        for target in targets
        for one in _READER.readable(session.execute(query.where(_of(target))))
    }
    return sorted(found.values(), key=lambda one: (one.speedup, one.id))


def everywhere(session: Session, **which: Any) -> list[Headline]:
    """The winners of every device class, see :func:`headlines`."""
    return headlines(session, best.archs(session), **which)


def by_id(session: Session, result_id: int) -> StoredBest | None:
    """One winner with all that is kept of it; None if there is none of this id."""
    found = best.of_ids(session, [result_id])
    return found[0] if found else None


def device_classes(session: Session) -> list[str]:
    """The device classes that have a winner, by name."""
    return [name for arch in best.archs(session) for name in best.classes(session, arch)]


def _of(target: str) -> ColumnElement[bool]:
    return or_(BestConfigRow.device_class == target, BestConfigRow.arch == target)


def _query() -> Select[Any]:
    row = BestConfigRow
    # NOTE: no paths into the JSON, on which SQLite fails the whole query if one row is damaged.
    return select(
        row.id,
        ProblemRow.canonical,
        row.device_class,
        row.arch,
        row.config,
        row.job_id,
        row.created,
        cast(row.timing, Text),
        row.baseline,
        row.speedup,
        row.speedup_low,
        row.speedup_high,
        row.confidence,
        row.provenance,
        row.drifted,
    ).join(ProblemRow, ProblemRow.id == row.problem_id)


def _headline(row_id: int, canonical: str, *rest: Any) -> Headline:
    device_class, arch, config, job_id, created, measured, baseline, *others = rest
    timing = json.loads(_SAMPLES.sub("[]", measured, count=1))
    speedup, low, high, confidence, provenance, drifted = others
    return Headline(
        row_id,
        parse_problem(canonical),
        device_class,
        arch,
        config["family"],
        job_id,
        created,
        float(timing["median_us"]),
        timing.get("mhz"),
        timing.get("watts"),
        timing["method"],
        timing.get("disturbed", ""),
        baseline["name"],
        float(baseline["median_us"]),
        "stands_in_for" in baseline.get("detail", {}),
        speedup,
        low,
        high,
        confidence,
        decode(Provenance, provenance),
        drifted is not None,
    )


_READER = RowReader("winner", lambda row_id, *_: row_id, _headline)
