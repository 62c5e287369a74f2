"""Keys: those that open the API, that make a request safe to repeat, and whose signatures are trusted.

An API key is made once, shown once, and kept as a salted digest.

It reads ``tw_ID_SECRET``. The secret has 256 random bits, so that a single SHA-256 over salt and secret
is enough: there is nothing to guess that a slow hash would protect.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import secrets
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, delete, func, or_, select, update
from sqlalchemy.orm import Session

from tilewright.schema.entries import TrustedKey
from tuner.store import records
from tuner.store.database import IdempotencyConflict, insert_new, insert_or_update, insert_row
from tuner.store.models import ApiKeyRow, EndedSignInRow, SubmissionRow, TrustedKeyRow
from tuner.store.records import utc_now

_PREFIX = "tw"
_NO_DIGEST = "0" * 64
_ENDED_EACH = 256


@dataclasses.dataclass(frozen=True, slots=True)
class KeyRecord:
    """A key without its secret; times are aware UTC.

    Attributes:
        id: its public part, to name it by.
        name: name of its owner.
        scopes: the operations that it allows, sorted.
        expires, revoked: None if it does not expire, or was not revoked.
        max_queued: how many jobs of it may wait; None for as many as the settings say.
        priority: its jobs go before those of keys of a lower one; 0 unless set, as for callers without keys.
    """

    id: str
    name: str
    scopes: tuple[str, ...]
    created: datetime
    expires: datetime | None
    revoked: datetime | None
    max_queued: int | None = None
    priority: int = 0

    @property
    def active(self) -> bool:
        """Whether the key is valid now."""
        return self.revoked is None and (self.expires is None or self.expires > utc_now())


@dataclasses.dataclass(frozen=True, slots=True)
class SignedIn:
    """A session of the page: its id, the key that it is of, and when it ends by itself."""

    id: str
    key_id: str
    expires: datetime


def create(
    session: Session, name: str, scopes: frozenset[str], expires: datetime | None = None
) -> tuple[KeyRecord, str]:
    """A new key and its text, which is not stored and known only here."""
    key_id, secret, salt = secrets.token_hex(6), secrets.token_hex(32), secrets.token_hex(16)
    values = {
        "id": key_id,
        "name": records.text(name),
        "salt": salt,
        "digest": _digest(salt, secret),
        "scopes": sorted(scopes),
        "created": utc_now(),
        "expires": expires,
    }
    insert_row(session, ApiKeyRow, values)
    [record] = [one for one in listing(session) if one.id == key_id]
    return record, f"{_PREFIX}_{key_id}_{secret}"


def listing(session: Session) -> list[KeyRecord]:
    """Every key, revoked ones too, the oldest first."""
    rows = session.scalars(select(ApiKeyRow).order_by(ApiKeyRow.created, ApiKeyRow.id))
    return [_record(row) for row in rows]


def count_valid(session: Session) -> int:
    """How many API keys are valid now and public keys trusted; damaged rows count too."""
    own = select(func.count()).select_from(ApiKeyRow).where(_is_active())
    return session.scalars(own).one() + session.scalars(select(func.count()).select_from(TrustedKeyRow)).one()


def _is_active() -> ColumnElement[bool]:
    lasts = or_(ApiKeyRow.expires.is_(None), ApiKeyRow.expires > utc_now())
    return ApiKeyRow.revoked.is_(None) & lasts


def find(session: Session, key_id: str) -> KeyRecord | None:
    """The active key of an id; None if there is none."""
    row = session.get(ApiKeyRow, key_id)
    record = _record(row) if row else None
    return record if record and record.active else None


def end_sign_in(session: Session, ending: SignedIn) -> None:
    """Record that a session of the page was ended, until it would expire.

    If a key has more than ``_ENDED_EACH`` such records, one row replaces them: it ends every session of the
    key that expires no later than the last of them.
    """
    key_id, expires = ending.key_id, ending.expires
    # NOTE: those of a key one after the other: its rows are counted and become one.
    session.execute(select(ApiKeyRow.id).where(ApiKeyRow.id == key_id).with_for_update())
    session.execute(delete(EndedSignInRow).where(EndedSignInRow.expires < utc_now()))
    mine = EndedSignInRow.key_id == key_id
    insert_new(session, EndedSignInRow, {"id": ending.id, "key_id": key_id, "expires": expires})
    count, last = session.execute(select(func.count(), func.max(EndedSignInRow.expires)).where(mine)).one()
    if count > _ENDED_EACH:
        session.execute(delete(EndedSignInRow).where(mine))
        insert_row(session, EndedSignInRow, {"id": key_id, "key_id": key_id, "expires": last})


def ended(session: Session, sign_in: SignedIn) -> bool:
    """Whether a session of the page was ended, alone or with all sessions of its key."""
    all_until = select(EndedSignInRow.expires).where(EndedSignInRow.id == sign_in.key_id)
    until = session.scalar(all_until)
    if until is not None and sign_in.expires <= until:
        return True
    return session.get(EndedSignInRow, sign_in.id) is not None


def revoke(session: Session, key_id: str) -> bool:
    """Close a key for good; False if there is none of this id that was not closed."""
    closed = update(ApiKeyRow).where(ApiKeyRow.id == key_id, ApiKeyRow.revoked.is_(None))
    found = session.execute(closed.values(revoked=utc_now()).returning(ApiKeyRow.id)).first()
    return found is not None


def set_quota(session: Session, key_id: str, max_queued: int | None, priority: int | None) -> None:
    """Set how many jobs of a key may wait, -1 for what the settings say, and its priority; None changes
    nothing."""
    values: dict[str, int | None] = {} if priority is None else {"priority": priority}
    if max_queued is not None:
        values["max_queued"] = max_queued if max_queued >= 0 else None
    if values:
        session.execute(update(ApiKeyRow).where(ApiKeyRow.id == key_id).values(values))


def max_queued(session: Session, caller: str) -> int | None:
    """How many jobs of a caller may wait; None for one whose key does not say so, or without a key."""
    return session.scalar(select(ApiKeyRow.max_queued).where(ApiKeyRow.id == caller))


def priorities(session: Session) -> dict[str, int]:
    """The priorities of the keys that have one. A key that is not valid any more has none above 0."""
    counts = or_(_is_active(), ApiKeyRow.priority < 0)
    query = select(ApiKeyRow.id, ApiKeyRow.priority).where(ApiKeyRow.priority.is_not(None), counts)
    return {key_id: priority or 0 for key_id, priority in session.execute(query)}


def any_made(session: Session) -> bool:
    """Whether a key was ever made; one that was revoked counts."""
    return session.scalar(select(ApiKeyRow.id).limit(1)) is not None


def verify(session: Session, text: str) -> KeyRecord | None:
    """The active key with this text; None for any other text.

    Takes the same steps whether there is such a key or not, and compares in constant time.
    """
    prefix, _, rest = text.partition("_")
    key_id, _, secret = rest.partition("_")
    row = session.scalar(select(ApiKeyRow).where(ApiKeyRow.id == (key_id if key_id.isalnum() else "")))
    salt, digest = (row.salt, row.digest) if row else ("", _NO_DIGEST)
    same = hmac.compare_digest(_digest(salt, secret), digest)
    if not same or row is None or prefix != _PREFIX:
        return None
    record = _record(row)
    return record if record.active else None


def _digest(salt: str, secret: str) -> str:
    return hashlib.sha256(f"{salt}{secret}".encode("utf-8", "surrogateescape")).hexdigest()


def _record(row: ApiKeyRow) -> KeyRecord:
    times = (row.created, row.expires, row.revoked)
    return KeyRecord(row.id, row.name, tuple(row.scopes), *times, row.max_queued, row.priority or 0)


KEY_LIFE = timedelta(hours=24)
MOST_KEYS = 10_000
_COUNTED_EACH = 50  # requests of which about one counts the keys: that reads each of them
Answer = dict[str, Any]


def once(session: Session, key: str | None, request_digest: str, work: Callable[[], Answer]) -> Answer:
    """The answer of ``work``, or the earlier answer if a request of the last 24 hours had this key.

    The key begins with its caller and a colon. Of each caller about the last ``MOST_KEYS`` are kept.

    ``work`` changes the store through ``session``, so that the key is kept if and only if its work is. A
    request with the same key that comes meanwhile waits for the end of the transaction.

    Raises:
        IdempotencyConflict: the key came with another request before.
    """
    if key is None:
        return work()
    if not _take(session, key, request_digest):
        return _earlier(session, key, request_digest)
    answer = work()
    session.execute(update(SubmissionRow).where(SubmissionRow.key == key).values(answer=answer))
    return answer


def _take(session: Session, key: str, request_digest: str) -> bool:
    now = utc_now()
    session.execute(delete(SubmissionRow).where(SubmissionRow.created < now - KEY_LIFE))
    if secrets.randbelow(_COUNTED_EACH) == 0:
        _forget_oldest(session, key.partition(":")[0])
    return insert_new(session, SubmissionRow, {"key": key, "request_digest": request_digest, "created": now})


def _forget_oldest(session: Session, caller: str) -> None:
    mine = SubmissionRow.key.startswith(f"{caller}:", autoescape=True)
    newest_first = select(SubmissionRow.created).where(mine).order_by(SubmissionRow.created.desc())
    last = session.scalar(newest_first.offset(MOST_KEYS).limit(1))
    if last is not None:
        # NOTE: others may be at the same rows; those that stay are not locked.
        oldest = select(SubmissionRow.key).where(mine, SubmissionRow.created <= last)
        free = oldest.with_for_update(skip_locked=True)
        session.execute(delete(SubmissionRow).where(SubmissionRow.key.in_(free)))


def _earlier(session: Session, key: str, request_digest: str) -> Answer:
    query = select(SubmissionRow.request_digest, SubmissionRow.answer).where(SubmissionRow.key == key)
    digest, answer = session.execute(query).one()
    if digest != request_digest:
        raise IdempotencyConflict(
            "this idempotency key was used for another request; repeat that request or use a new key"
        )
    return dict(answer)


def trust(session: Session, key: str, name: str) -> None:
    """Trust a key from now on; one that is trusted already gets the name."""
    values = {"public_key": key, "name": records.text(name), "created": utc_now()}
    insert_or_update(session, TrustedKeyRow, values, identity=("public_key",), kept=("created",))


def distrust(session: Session, key: str) -> bool:
    """Trust a key no more; False if it was not trusted. What came with it stays in use."""
    gone = delete(TrustedKeyRow).where(TrustedKeyRow.public_key == key)
    return session.execute(gone.returning(TrustedKeyRow.public_key)).first() is not None


def trusted(session: Session) -> list[TrustedKey]:
    """The keys that are trusted, the oldest first."""
    rows = session.scalars(select(TrustedKeyRow).order_by(TrustedKeyRow.created, TrustedKeyRow.public_key))
    return [TrustedKey(row.public_key, row.name, row.created) for row in rows]
