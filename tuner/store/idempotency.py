"""Idempotency keys: whatever a request changes happens once, however often it comes with its key."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from tuner.store.errors import IdempotencyConflict
from tuner.store.models import SubmissionRow
from tuner.store.records import utc_now
from tuner.store.upsert import insert_new

KEY_LIFE = timedelta(hours=24)
Answer = dict[str, Any]


def once(session: Session, key: str | None, request_digest: str, work: Callable[[], Answer]) -> Answer:
    """What ``work`` answers; where a request of the last 24 hours had this key, what that one was answered.

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
    return insert_new(session, SubmissionRow, {"key": key, "request_digest": request_digest, "created": now})


def _earlier(session: Session, key: str, request_digest: str) -> Answer:
    query = select(SubmissionRow.request_digest, SubmissionRow.answer).where(SubmissionRow.key == key)
    digest, answer = session.execute(query).one()
    if digest != request_digest:
        raise IdempotencyConflict(
            "this idempotency key was used for another request; repeat that request or use a new key"
        )
    return dict(answer)
