"""The tables of callers: keys, sessions, idempotency keys, whose signatures count, and who changed what."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from tuner.store.tables.columns import Base, BigId


class SubmissionRow(Base):
    """An idempotency key, the request it came with and what that was answered; kept for a day."""

    __tablename__ = "submission"
    __table_args__ = (Index(None, "created"),)

    key: Mapped[str] = mapped_column(Text, primary_key=True)
    request_digest: Mapped[str] = mapped_column(String(64))
    # NOTE: null within the transaction of the request, because the key is taken before its work is done.
    answer: Mapped[dict[str, Any] | None]
    created: Mapped[datetime]


class TrustedKeyRow(Base):
    """A public key whose signature makes the kernels and winners of an import run here."""

    __tablename__ = "trusted_key"

    public_key: Mapped[str] = mapped_column(String(80), primary_key=True)
    name: Mapped[str] = mapped_column(Text)
    created: Mapped[datetime]


class AuditRow(Base):
    """Who changed what; ids are never used twice."""

    __tablename__ = "audit"
    __table_args__ = (Index(None, "created"), {"sqlite_autoincrement": True})

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    who: Mapped[str] = mapped_column(Text)
    action: Mapped[str] = mapped_column(String(32))
    target: Mapped[str] = mapped_column(Text)
    data: Mapped[dict[str, Any]]
    created: Mapped[datetime]


class ApiKeyRow(Base):
    """A key that opens the API, as a salted digest of its secret: the secret itself is kept nowhere.
    ``max_queued`` is NULL for what the settings say, ``priority`` for 0."""

    __tablename__ = "api_key"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    name: Mapped[str] = mapped_column(Text)
    salt: Mapped[str] = mapped_column(String(64))
    digest: Mapped[str] = mapped_column(String(64))
    scopes: Mapped[list[Any]]
    created: Mapped[datetime]
    expires: Mapped[datetime | None]
    revoked: Mapped[datetime | None]
    max_queued: Mapped[int | None]
    priority: Mapped[int | None]


class EndedSignInRow(Base):
    """A session of the page that was ended before it ended by itself; where ``id`` is that of a key, all of
    its sessions that end until then. ``key_id`` is NULL in rows of releases that did not keep it."""

    __tablename__ = "ended_sign_in"
    __table_args__ = (Index(None, "expires"),)

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    key_id: Mapped[str | None] = mapped_column(String(16), index=True)
    expires: Mapped[datetime]
