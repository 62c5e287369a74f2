"""Times of winners that an idle device measured again, and the causes of their shifts."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from enum import StrEnum

from sqlalchemy import and_, func, select, update
from sqlalchemy.orm import Session

from tilewright.schema.codec import decode, encode
from tilewright.schema.config import Config
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import Outcome
from tuner.store import entities, sets
from tuner.store.database import insert_or_update
from tuner.store.models import BestConfigRow, CanaryRow, ProblemRow, TrialRow
from tuner.store.records import RowReader, utc_now

SAME = 0.01  # by how much clocks may differ and be called the same
_IDENTITY = ("device", "device_class", "problem_id")


class Cause(StrEnum):
    """Why a winner takes another time than before: the power limit, the clock or the driver changed, or none
    of them did."""

    POWER_LIMIT = "power-limit"
    CLOCK = "clock"
    DRIVER = "driver"
    DRIFT = "drift"


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """A winner's time on a device from several trials, and what it was measured under; None for what the
    device does not tell.

    Attributes:
        median_us: the median of the medians of the trials.
        low_us, high_us: from the lowest to the highest end of their intervals.
        mhz, watts: mean clock and power.
        most_mhz, power_limit_watts, celsius: highest clock, power limit and temperature after it.
        driver: name and version.
        method: of measurement; readings of different methods do not compare.
    """

    median_us: float
    low_us: float
    high_us: float
    mhz: float | None
    watts: float | None
    most_mhz: float | None
    power_limit_watts: float | None
    celsius: float | None
    driver: str
    method: str = ""


def cause_of(before: Reading, now: Reading) -> Cause | None:
    """Why a winner's time shifted beyond the interval; None if the intervals overlap.

    A change of the power limit is told anyway: the bursts of a trial end before it takes hold.
    """
    if _differ(before.power_limit_watts, now.power_limit_watts):
        return Cause.POWER_LIMIT
    if _overlap(before, now, 1.0):
        return None
    same_cycles = before.mhz and now.mhz and _overlap(before, now, now.mhz / before.mhz)
    if _differ(before.most_mhz, now.most_mhz) or (same_cycles and _differ(before.mhz, now.mhz)):
        return Cause.CLOCK
    return Cause.DRIVER if before.driver != now.driver else Cause.DRIFT


def _overlap(before: Reading, now: Reading, scale: float) -> bool:
    return now.low_us * scale <= before.high_us and before.low_us <= now.high_us * scale


def _differ(before: float | None, now: float | None) -> bool:
    return bool(before and now) and abs((now or 0) / (before or 1) - 1.0) > SAME


@dataclasses.dataclass(frozen=True, slots=True)
class Watched:
    """A winner that a device measures again; ``reference`` is its first reading on the device since its
    race, None if there is none, and ``cause`` that of the last shift."""

    problem: GemmProblem
    config: Config
    artifact: str
    reference: Reading | None
    cause: Cause | None


def to_watch(session: Session, device: str, device_class: str, most_s: float, limit: int) -> list[Watched]:
    """Winners whose trial took at most ``most_s`` seconds of a device, those that were read here before
    first."""
    row, mine = BestConfigRow, CanaryRow
    read = (mine.device == device) & (mine.device_class == device_class)
    short = (
        select(TrialRow.number)
        .where(TrialRow.job_id == row.job_id, TrialRow.artifact == row.artifact)
        .where(TrialRow.outcome == Outcome.OK, TrialRow.m.is_(None) | (TrialRow.m == ProblemRow.m))
        .where(TrialRow.check_s + TrialRow.measure_s <= most_s)
    )
    query = (
        select(ProblemRow.canonical, row.config, row.artifact, mine.artifact, mine.reference, mine.cause)
        .add_columns((mine.created >= row.created).label("since"))
        .join(ProblemRow, ProblemRow.id == row.problem_id)
        .outerjoin(mine, read & (mine.problem_id == row.problem_id))
        .where(row.device_class == device_class, row.quarantine_id.is_(None), short.exists())
        .order_by(mine.id.is_(None), row.id)
        .limit(limit)
    )
    return _WATCHED.readable(session.execute(query))


def last_look(session: Session, device: str) -> tuple[datetime, str] | None:
    """When a device measured winners last, and under which driver; None if it never did."""
    query = select(CanaryRow.checked, CanaryRow.latest).where(CanaryRow.device == device)
    found = session.execute(query.order_by(CanaryRow.checked.desc()).limit(1)).one_or_none()
    return None if found is None else (found.checked, str(found.latest["driver"]))


def keep(session: Session, device: str, device_class: str, watched: Watched, now: Reading) -> Cause | None:
    """Keep a reading, and mark the winner while its time drifted; gives the cause of a shift."""
    before = watched.reference or now
    cause, at = cause_of(before, now), utc_now()
    problem_id = entities.ensure_problem(session, watched.problem)
    values = {
        "device": device,
        "device_class": device_class,
        "problem_id": problem_id,
        "artifact": watched.artifact,
        "reference": encode(before),
        "latest": encode(now),
        "cause": cause and cause.value,
        "created": at,
        "checked": at,
    }
    kept = ("created",) if watched.reference else ()
    insert_or_update(session, CanaryRow, values, _IDENTITY, kept=kept)
    if (cause is Cause.DRIFT) != (watched.cause is Cause.DRIFT):
        where = {"device_class": device_class, "problem_id": problem_id, "artifact": watched.artifact}
        raced = select(BestConfigRow.created).filter_by(**where).scalar_subquery()
        drifts = session.scalar(
            select(func.count())
            .select_from(CanaryRow)
            .filter_by(**where, cause=Cause.DRIFT.value)
            .where(CanaryRow.created >= raced)
        )
        mark = update(BestConfigRow).filter_by(**where)
        session.execute(mark.values(drifted=at if drifts else None))  # as long as it does on any device
        same = BestConfigRow.problem_id == problem_id, BestConfigRow.artifact == watched.artifact
        sets.changed(session, device_class, and_(*same))
    return cause


def counts(session: Session) -> dict[str, int]:
    """How many winners take another time than before on some device, by cause."""
    row, read = BestConfigRow, CanaryRow
    same = (read.device_class == row.device_class) & (read.problem_id == row.problem_id)
    # NOTE: readings of winners that were replaced, deleted or quarantined since stay.
    today = (read.artifact == row.artifact) & (read.created >= row.created) & row.quarantine_id.is_(None)
    shifted = select(read.cause, func.count(row.id.distinct())).join(row, same & today)
    shifted = shifted.where(read.cause.is_not(None)).group_by(read.cause)
    return {str(cause): number for cause, number in session.execute(shifted)}


def _watched(
    canonical: str,
    config: object,
    artifact: str,
    read: str | None,
    reference: object,
    cause: str | None,
    since: bool | None,
) -> Watched:
    known = read == artifact and bool(since)
    return Watched(
        entities.parse_problem(canonical),
        decode(Config, config),
        artifact,
        decode(Reading, reference) if known else None,
        Cause(cause) if known and cause else None,
    )


_WATCHED = RowReader("winner", lambda canonical, *_: canonical, _watched)
