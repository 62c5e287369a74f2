"""Configs that broke a device class: nobody tries or serves them until source, compiler or driver changes."""

from __future__ import annotations

import dataclasses
import zlib
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Text, cast, func, select, update
from sqlalchemy.orm import Session

from tilewright.errors import ArtifactError
from tilewright.schema.codec import decode, gathered
from tilewright.schema.config import Config
from tilewright.schema.config_set import ConfigSet
from tilewright.schema.entries import QuarantineEntry
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import Outcome, Provenance, Trial
from tuner.store import entities, records, sets
from tuner.store.database import insert_new
from tuner.store.models import ArtifactRow, BestConfigRow, JobRow, ProblemRow, QuarantineRow, TrialRow
from tuner.store.records import RowReader, utc_now


@dataclasses.dataclass(frozen=True, slots=True)
class Evidence:
    """Where a trial failed: the problem, the job (None for a winner that was measured again), and the device
    in words."""

    problem: GemmProblem
    job_id: str | None
    device: str


def put(session: Session, trial: Trial, evidence: Evidence) -> bool:
    """Quarantine the config of a trial that failed by its own fault; False if it is already. Its winners are
    not served any more, nor is a pinned config set that names its kernels.

    Raises:
        ValueError: the trial has no provenance: nothing of it ran.
    """
    was = trial.provenance
    if was is None:
        raise ValueError(f"trial {trial.number} did not run; quarantine what failed on a device")
    values = records.row_values(
        QuarantineRow,
        trial,
        identity=_identity(trial.config, was),
        device_class=was.device_class,
        config_digest=trial.config.digest,
        message=records.text(trial.message),
        problem_id=entities.ensure_problem(session, evidence.problem),
        job_id=evidence.job_id,
        trial=None if trial.origin == "final" else trial.number,
        device=records.text(evidence.device),
        created=utc_now(),
    )
    if not insert_new(session, QuarantineRow, values):
        return False
    withdrawn = _judge_winners(session, was.device_class, trial.config)
    kernels = select(TrialRow.artifact).join(JobRow, JobRow.id == TrialRow.job_id).distinct()
    kernels = kernels.where(
        TrialRow.config_digest == trial.config.digest,
        TrialRow.source_digest == was.source_digest,
        JobRow.device_class == was.device_class,
    )
    built = {digest for digest in session.scalars(kernels) if digest}
    sets.unpin_naming(session, was.device_class, built | withdrawn)
    sets.unpin_naming(session, was.device_class, _of_pinned(session, was.device_class))
    return True


def why(session: Session, config: Config, today: Provenance) -> str | None:
    """Why a config must not be tried with the source, compiler and driver of ``today``; None if it may be."""
    query = select(QuarantineRow).where(QuarantineRow.identity == _identity(config, today))
    row = session.scalars(query).one_or_none()
    if row is None:
        return None
    of = f"in job {row.job_id} " if row.job_id else ""
    return (
        f"quarantined: {row.outcome} {of}on {row.device}; not tried again until source, compiler or driver"
        f" changes, or 'tilewright quarantine release {row.id}'"
    )


def of_winner(session: Session, config: Config, was: Provenance, raced: datetime) -> int | None:
    """The id of the entry that keeps a winner from being served; None if there is none.

    The entry has the winner's source and compiler, so the same kernel broke. An entry with another driver
    counts unless the winner was raced after the entry was made.
    """
    alike = QuarantineRow.device_class == was.device_class, QuarantineRow.config_digest == config.digest
    query = select(QuarantineRow.id, QuarantineRow.provenance, QuarantineRow.created).where(*alike)
    for entry_id, provenance, created in session.execute(query.order_by(QuarantineRow.id)):
        broke = decode(Provenance, provenance)
        same = (broke.source_digest, broke.compiler) == (was.source_digest, was.compiler)
        if same and (broke.driver == was.driver or raced <= created):
            return int(entry_id)
    return None


def of_set(session: Session, config_set: ConfigSet) -> tuple[int, str] | None:
    """The first entry that holds a winner of a set, and the digest of its kernel; None if there is none."""
    configs = select(QuarantineRow.config_digest).where(QuarantineRow.device_class == config_set.device_class)
    held = set(session.scalars(configs))
    for one in config_set.entries:
        if one.config.digest not in held:
            continue
        header = session.scalar(select(ArtifactRow.header).where(ArtifactRow.digest == one.artifact))
        if header is None:  # deleted, so nobody can load it
            continue
        # NOTE: a set does not tell the driver. No winner that was raced later with the same one is served.
        built = {name: header[name] for name in ("source_digest", "compiler")}
        was = Provenance(**built, driver="", device_class=config_set.device_class, package="", method="")
        entry_id = of_winner(session, one.config, was, one.created)
        if entry_id is not None:
            return entry_id, one.artifact
    return None


def _of_pinned(session: Session, device_class: str) -> list[str]:
    """The kernel of the pinned set that an entry holds, also where its trials and its winner were deleted."""
    pinned = sets.served(session, device_class).pinned
    if pinned is None:
        return []
    try:
        found = ConfigSet.from_bytes(sets.unpack(sets.packed(session, pinned) or b""))
    except (zlib.error, ArtifactError):  # damaged, which 'tilewright db check' tells
        return []
    held = of_set(session, found)
    return [] if held is None else [held[1]]


def listing(
    session: Session, device_class: str | None = None, limit: int = 50, before: int | None = None
) -> list[QuarantineEntry]:
    """Entries, the newest first; ``before`` is the id of the last one of the page before."""
    winners = select(func.count()).where(BestConfigRow.quarantine_id == QuarantineRow.id).scalar_subquery()
    query = select(QuarantineRow, ProblemRow.canonical, winners.label("winners"))
    query = query.join(ProblemRow, ProblemRow.id == QuarantineRow.problem_id)
    query = query if device_class is None else query.where(QuarantineRow.device_class == device_class)
    query = query if before is None else query.where(QuarantineRow.id < before)
    return _READER.page(session, query.order_by(QuarantineRow.id.desc()), limit, _following)


def counts(session: Session) -> dict[Outcome, int]:
    """How many entries there are of each outcome that occurs."""
    rows = session.execute(select(QuarantineRow.outcome, func.count()).group_by(QuarantineRow.outcome))
    return {outcome: number for outcome, number in rows}  # noqa: C416


def release(session: Session, entry_id: int) -> bool:
    """Take an entry out: its config may be tried again, and its winners are served again unless another entry
    holds them; False if there is none of this id."""
    row = session.get(QuarantineRow, entry_id)
    if row is None:
        return False
    device_class, config = row.device_class, Config.from_dict(row.config)
    held = BestConfigRow.quarantine_id == entry_id
    sets.changed(session, device_class, held)
    freed = update(BestConfigRow).where(held).values(quarantine_id=None)
    session.execute(freed, execution_options={"synchronize_session": False})
    session.delete(row)
    session.flush()
    _judge_winners(session, device_class, config)
    return True


def _judge_winners(session: Session, device_class: str, config: Config) -> set[str]:
    """Withdraw the winners of a config that an entry holds; gives the digests of their kernels."""
    row = BestConfigRow
    query = select(row.id, row.config, row.provenance, row.created, row.artifact).where(
        row.device_class == device_class,
        # NOTE: no path into the JSON, on which SQLite fails the whole query if one row is damaged.
        cast(row.config, Text).contains(f'"{config.family}"', autoescape=True),
        row.quarantine_id.is_(None),
    )
    withdrawn, held = set(), list[int]()
    for row_id, chosen, was, created, artifact in _WINNERS.readable(session.execute(query)):
        if chosen == config:
            entry_id = of_winner(session, config, was, created)
            session.execute(update(row).where(row.id == row_id).values(quarantine_id=entry_id))
            if entry_id is not None:
                withdrawn.add(artifact)
                held.append(row_id)
    sets.changed(session, device_class, row.id.in_(held))
    return withdrawn


def _winner(
    row_id: int, config: Any, provenance: Any, created: datetime, artifact: str
) -> tuple[int, Config, Provenance, datetime, str]:
    return row_id, Config.from_dict(config), decode(Provenance, provenance), created, artifact


def _entry(row: QuarantineRow, problem: str, winners: int) -> QuarantineEntry:
    of, outcome = entities.parse_problem(problem), Outcome(row.outcome)
    given: dict[str, Any] = {"problem": of, "outcome": outcome, "winners": winners}
    given |= {"config": Config.from_dict(row.config), "provenance": decode(Provenance, row.provenance)}
    return QuarantineEntry(**gathered(QuarantineEntry, row, **given))


def _following(row: QuarantineRow, *_: object) -> ColumnElement[bool]:
    return QuarantineRow.id < row.id


def _identity(config: Config, was: Provenance) -> str:
    return records.digest(
        {
            "device_class": was.device_class,
            "config": config.to_dict(),
            "source": was.source_digest,
            "compiler": was.compiler,
            "driver": was.driver,
        }
    )


_READER = RowReader("quarantine entry", lambda row, *_: row.id, _entry)
_WINNERS = RowReader("winner", lambda row_id, *_: row_id, _winner)
