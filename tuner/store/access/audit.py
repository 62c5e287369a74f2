"""The audit log: who changed what. An entry is written in the transaction of the change that it tells of."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Select, select, update
from sqlalchemy.orm import Session

from tilewright.schema.codec import gathered
from tilewright.schema.entries import AuditRecord
from tuner.store import records
from tuner.store.database import insert_row
from tuner.store.models import AuditRow
from tuner.store.records import utc_now

SERVICE = "service"  # what nobody asked for: retunes and retention


class Action(StrEnum):
    """What was done; what it was done to is a job, an import, a key, a problem or a device class."""

    CREATE_JOB = "create job"
    CANCEL_JOB = "cancel job"
    TAKE_OVER_JOB = "take over job"
    IMPORT = "import"
    DELETE_IMPORT = "delete import"
    DELETE_BEST = "delete best"
    DELETE_PROBLEM = "delete problem"
    PIN_SET = "pin config set"
    UNPIN_SET = "unpin config set"
    CREATE_KEY = "create key"
    SET_KEY = "set key"
    REVOKE_KEY = "revoke key"
    TRUST = "trust key"
    DISTRUST = "distrust key"
    DRIFT = "note drift"
    RELEASE = "release from quarantine"
    PRUNE = "prune"
    RESTORE = "restore"


def note(session: Session, who: str, action: Action, target: object = "", **data: Any) -> int:
    """Add an entry, in the transaction of the change; gives its id."""
    values = {"who": records.text(who), "action": action.value, "target": records.text(str(target))}
    told = {name: records.text(one) if isinstance(one, str) else one for name, one in data.items()}
    entry_id: int = insert_row(session, AuditRow, {**values, "data": told, "created": utc_now()})
    return entry_id


def amend(session: Session, entry_id: int, **data: Any) -> None:
    """Replace the particulars of a change that goes on."""
    session.execute(update(AuditRow).where(AuditRow.id == entry_id).values(data=data))


def who_is(caller: str, *, by_key: bool) -> str:
    """How entries name a caller of the service: the id of a key, or an address."""
    return f"key {caller}" if by_key else f"address {caller}"


def cancelled_by(caller: str, since: datetime) -> Select[str]:
    """The ids of the jobs that a caller, a key or an address, cancelled since a time."""
    names = [who_is(caller, by_key=by_key) for by_key in (True, False)]
    query = select(AuditRow.target).where(AuditRow.created >= since)
    return query.where(AuditRow.action == Action.CANCEL_JOB, AuditRow.who.in_(names))


def listing(session: Session, limit: int = 50, before: int | None = None) -> list[AuditRecord]:
    """Entries, the newest first; ``before`` is the id of the last one of the page before."""
    query = select(AuditRow).order_by(AuditRow.id.desc()).limit(limit)
    query = query if before is None else query.where(AuditRow.id < before)
    return [AuditRecord(**gathered(AuditRecord, row)) for row in session.scalars(query)]
