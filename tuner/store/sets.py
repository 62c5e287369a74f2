"""Config sets: immutable snapshots of a device class's winners, and which of them is served.

The store keeps snapshots as bytes under the digest of their content; the service decides what
is in them. Each change of a winner raises the ``revision`` of its device class, so that one row
says whether the latest snapshot still holds; the winner notes it, so that only what changed is read again.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import time
import zlib
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, case, func, select, tuple_, update
from sqlalchemy.orm import Session, aliased

from tilewright.schema.problem import GemmProblem
from tuner.store import entities
from tuner.store.access import audit
from tuner.store.database import StoreError, insert_new
from tuner.store.models import ArtifactRow, BestConfigRow, ConfigSetRow, ServedSetRow
from tuner.store.records import row_values, utc_now

_LEVEL = 6
_DIGEST = re.compile(rb"[0-9a-f]{64}")


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot: its name, what it is of, and the bytes that are served.

    Attributes:
        digest: ``sha256:`` and 64 hex digits.
        entries: how many winners are in it.
        packed: JSON in the zlib format, as :func:`pack` makes it.
        created: when this content was first made, aware UTC.
    """

    digest: str
    device_class: str
    arch: str
    entries: int
    packed: bytes
    created: datetime


@dataclasses.dataclass(frozen=True, slots=True)
class SetRecord:
    """A snapshot without its content; ``id`` grows with time."""

    id: int
    digest: str
    device_class: str
    arch: str
    entries: int
    created: datetime


@dataclasses.dataclass(frozen=True, slots=True)
class ServedSetRecord:
    """What a device class is served.

    Attributes:
        revision: grows with each change of its winners, or of what is pinned.
        latest, pinned: digests; None if there is none.
        made_from: what the latest snapshot was made from, as given to :func:`keep`.
    """

    revision: int = 0
    latest: str | None = None
    pinned: str | None = None
    made_from: str | None = None

    @property
    def serial(self) -> int:
        """What is served later has a higher one, or is of the same winners; at least 1."""
        return self.revision + 1


def served(session: Session, device_class: str) -> ServedSetRecord:
    """What a device class is served now."""
    row = session.execute(_served_query(), {"device_class": device_class}).one_or_none()
    return ServedSetRecord(*row) if row else ServedSetRecord()


def locked(session: Session, device_class: str) -> ServedSetRecord:
    """The same; nobody else changes it before this transaction ends."""
    # NOTE: SQLite has one writer and ignores FOR UPDATE. What is served is read after the wait for it.
    mine = select(ServedSetRow.revision).where(ServedSetRow.device_class == device_class)
    session.execute(mine.with_for_update()).one_or_none()
    return served(session, device_class)


def changed(session: Session, device_class: str, which: ColumnElement[bool]) -> None:
    """Note that winners of a device class changed: those that ``which`` selects, and others that are gone."""
    insert_new(session, ServedSetRow, {"device_class": device_class, "revision": 0})
    _serve(session, device_class, revision=ServedSetRow.revision + 1)
    now = select(ServedSetRow.revision).where(ServedSetRow.device_class == device_class).scalar_subquery()
    note = update(BestConfigRow).where(BestConfigRow.device_class == device_class, which)
    session.execute(note.values(revision=now), execution_options={"synchronize_session": False})


def classes(session: Session) -> dict[str, tuple[str, ServedSetRecord]]:
    """The device classes that have a winner or a pinned set, by name, with their architecture and what they
    are served."""
    rows = session.execute(_classes_query()).all()
    return {row[0]: (row[1], ServedSetRecord(*row[2:])) for row in rows if row[1] is not None}


def keep(session: Session, snapshot: Snapshot, made_from: str) -> bytes:
    """Serve a snapshot as the latest of its class. Returns its packed bytes as they are kept: those of an
    earlier one if its content is there already."""
    insert_new(session, ServedSetRow, {"device_class": snapshot.device_class, "revision": 0})
    locked(session, snapshot.device_class)  # so that sets become the latest one after the other
    now = _after_latest(session, snapshot.device_class)
    values = row_values(ConfigSetRow, snapshot, content=snapshot.packed, made_latest=now, unpinned=None)
    is_new = insert_new(session, ConfigSetRow, values)
    if not is_new:
        _note(session, snapshot.digest, made_latest=now)
    _serve(session, snapshot.device_class, latest_id=_id(session, snapshot.digest), made_from=made_from)
    return snapshot.packed if is_new else packed(session, snapshot.digest) or b""


def _after_latest(session: Session, device_class: str) -> datetime:
    """The time, or a moment after the latest set of a class if the clock was set back since."""
    row = ConfigSetRow
    last = session.scalar(select(func.max(row.made_latest)).where(row.device_class == device_class))
    return utc_now() if last is None else max(utc_now(), last + timedelta(microseconds=1))


def pack(*content: bytes) -> bytes:
    """The bytes of a snapshot as they are kept: in the zlib format, HTTP's content coding ``deflate``."""
    packing = zlib.compressobj(_LEVEL)
    return b"".join([*map(packing.compress, content), packing.flush()])


def unpack(packed: bytes) -> bytes:
    """The inverse of :func:`pack`."""
    return zlib.decompress(packed)


def packed(session: Session, digest: str) -> bytes | None:
    """The packed bytes of a snapshot, None if there is none of this digest."""
    return session.scalar(select(ConfigSetRow.content).where(ConfigSetRow.digest == digest))


def get(session: Session, digest: str) -> SetRecord | None:
    """A snapshot without its content, None if there is none of this digest."""
    row = session.execute(_records().where(ConfigSetRow.digest == digest)).one_or_none()
    return SetRecord(*row) if row else None


def listing(
    session: Session, device_class: str | None = None, limit: int = 50, before: int | None = None
) -> list[SetRecord]:
    """Snapshots, the one that became the latest last first; pins do not count; ``before`` is the id of the
    last one of the page before."""
    row = ConfigSetRow
    query = _records().order_by(row.made_latest.desc(), row.id.desc()).limit(limit)
    query = query if device_class is None else query.where(row.device_class == device_class)
    if before is not None:
        # NOTE: if it was deleted since, after the place of the one that was created before it.
        last = select(row.made_latest).where(row.id <= before).order_by(row.id.desc()).limit(1)
        query = query.where(tuple_(row.made_latest, row.id) < tuple_(last.scalar_subquery(), before))
    return [SetRecord(*row) for row in session.execute(query)]


def pin(session: Session, device_class: str, digest: str | None) -> None:
    """Serve a snapshot to its device class whatever changes; None serves the latest again.

    Raises:
        StoreError: there is no such snapshot of this device class.
    """
    was = locked(session, device_class).pinned
    if was is not None:
        _note(session, was, unpinned=utc_now())
    if digest is None:
        _serve(session, device_class, pinned_id=None, revision=_far_ahead())
        return
    found = get(session, digest)
    if found is None or found.device_class != device_class:
        raise StoreError(f"there is no config set {digest} of {device_class}; GET /config-sets lists them")
    insert_new(session, ServedSetRow, {"device_class": device_class, "revision": 0})
    _serve(session, device_class, pinned_id=found.id, revision=_far_ahead())
    entities.note_need(session, ArtifactRow.digest.in_(digests_in(packed(session, digest) or b"")))


def digests_in(packed: bytes) -> set[str]:
    """Every text in a snapshot that looks like a digest: those of its kernels, and a few harmless others."""
    try:
        return {found.decode() for found in _DIGEST.findall(unpack(packed))}
    except zlib.error:  # damaged, which 'tilewright db check' tells
        return set()


def unpin_naming(session: Session, device_class: str, artifacts: Collection[str]) -> None:
    """Serve the latest winners of a device class again where it is pinned to a snapshot that names one of
    these artifacts; the audit log tells."""
    pinned = served(session, device_class).pinned
    found = packed(session, pinned) if pinned else None
    if pinned and found and not digests_in(found).isdisjoint(artifacts):
        _unpin(session, device_class, pinned)


def unpin_serving(session: Session, problem: GemmProblem, target: str | None = None) -> bool:
    """Serve the latest winners again where the pinned set has an entry for a problem, of any kernel;
    the audit log tells. Whether there was such a set.

    Args:
        target: a device class or an architecture; all if None.
    """
    query = select(ServedSetRow.device_class, ConfigSetRow.digest)
    query = query.join(ConfigSetRow, ConfigSetRow.id == ServedSetRow.pinned_id)
    if target is not None:
        query = query.where((ServedSetRow.device_class == target) | (ConfigSetRow.arch == target))
    found = [row for row in session.execute(query).all() if _has(packed(session, row.digest), problem)]
    for device_class, digest in found:
        _unpin(session, device_class, digest)
    return bool(found)


def _has(packed: bytes | None, problem: GemmProblem) -> bool:
    """Whether a snapshot has an entry for a problem; no if it is damaged."""
    try:
        entries = json.loads(unpack(packed or b""))["entries"]
    except (zlib.error, ValueError, KeyError):
        return False
    # NOTE: compared as they are written: to read the problem of each entry of a large set takes long.
    written = problem.to_dict()
    return any(one.get("problem") == written for one in entries)


def _unpin(session: Session, device_class: str, digest: str) -> None:
    pin(session, device_class, None)
    audit.note(session, audit.SERVICE, audit.Action.UNPIN_SET, device_class, digest=digest)


# NOTE: both are built once: building one anew costs ten times its run, and callers wait for it all the time.
@functools.cache
def _classes_query() -> Select[*tuple[Any, ...]]:
    mine = BestConfigRow.device_class == ServedSetRow.device_class
    of_winner = select(BestConfigRow.arch).where(mine).limit(1).scalar_subquery()
    of_pinned = select(ConfigSetRow.arch).where(ConfigSetRow.id == ServedSetRow.pinned_id).scalar_subquery()
    query = _what_is_served(ServedSetRow.device_class, func.coalesce(of_winner, of_pinned))
    return query.order_by(ServedSetRow.device_class)


@functools.cache
def _served_query() -> Select[int, str, str, str | None]:
    return _what_is_served().where(ServedSetRow.device_class == bindparam("device_class"))


def _what_is_served(*columns: Any) -> Select[*tuple[Any, ...]]:
    latest, pinned = aliased(ConfigSetRow), aliased(ConfigSetRow)
    return (
        select(*columns, ServedSetRow.revision, latest.digest, pinned.digest, ServedSetRow.made_from)
        .outerjoin(latest, latest.id == ServedSetRow.latest_id)
        .outerjoin(pinned, pinned.id == ServedSetRow.pinned_id)
    )


def _serve(session: Session, device_class: str, **values: Any) -> None:
    session.execute(update(ServedSetRow).where(ServedSetRow.device_class == device_class).values(**values))


def _note(session: Session, digest: str, **values: Any) -> None:
    session.execute(update(ConfigSetRow).where(ConfigSetRow.digest == digest).values(**values))


def _far_ahead() -> ColumnElement[int]:
    """A revision above all earlier ones, also after an older database was restored: the time in minutes, or
    the last revision plus one if that is not below the time."""
    now = int(time.time() / 60)
    return case((ServedSetRow.revision < now, now), else_=ServedSetRow.revision + 1)


def renumber(session: Session) -> None:
    """Raise all revisions, so that clients accept the served sets as newer than theirs after a backup was
    restored."""
    session.execute(update(ServedSetRow).values(revision=_far_ahead()))


def _id(session: Session, digest: str) -> int:
    return session.scalars(select(ConfigSetRow.id).where(ConfigSetRow.digest == digest)).one()


def _records() -> Select[int, str, str, str, int, datetime]:
    row = ConfigSetRow
    return select(row.id, row.digest, row.device_class, row.arch, row.entries, row.created)
