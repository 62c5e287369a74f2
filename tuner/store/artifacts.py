"""Compiled kernels by digest."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from tilewright.artifact import Artifact
from tuner.store.models import ArtifactRow
from tuner.store.records import utc_now
from tuner.store.upsert import insert_new


def put(session: Session, artifact: Artifact) -> str:
    """Keep an artifact unless it is kept already; gives its digest."""
    data = artifact.to_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if not has(session, digest):
        header = {
            "plan": artifact.plan.to_dict(),
            "resources": dataclasses.asdict(artifact.resources),
            "source_digest": artifact.source_digest,
            "compiler": artifact.compiler,
        }
        insert_new(
            session, ArtifactRow, {"digest": digest, "data": data, "header": header, "created": utc_now()}
        )
    return digest


def has(session: Session, digest: str) -> bool:
    """Whether an artifact is kept."""
    return session.scalar(select(ArtifactRow.digest).where(ArtifactRow.digest == digest)) is not None


def get(session: Session, digest: str) -> bytes | None:
    """The bytes of an artifact, None where it is not kept."""
    return session.scalar(select(ArtifactRow.data).where(ArtifactRow.digest == digest))


def several(session: Session, digests: Sequence[str]) -> dict[str, bytes]:
    """The bytes of those artifacts that are kept, by digest."""
    query = select(ArtifactRow.digest, ArtifactRow.data).where(ArtifactRow.digest.in_(digests))
    return {row.digest: row.data for row in session.execute(query)}
