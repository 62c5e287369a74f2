"""Devices, problems and artifacts in the database: each is entered once and found by its identity."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from sqlalchemy import ColumnElement, Select, bindparam, delete, exists, or_, select, update
from sqlalchemy.orm import Session

from tilewright.artifact import Artifact, LaunchPlan
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem
from tuner.store.database import Values, insert_new, insert_or_update, parts
from tuner.store.models import ArtifactRow, Base, DeviceRow, JobRow, ProblemRow
from tuner.store.records import DeviceRecord, RowReader, canonical, utc_now

_NEVER_HERE = datetime(1970, 1, 1, tzinfo=UTC)


def see_device(session: Session, spec: DeviceSpec) -> int:
    """Note that a device is here now; gives its id."""
    now = utc_now()
    values = {
        "spec": canonical(spec.to_dict()),
        "device_class": spec.device_class.id,
        "arch": spec.arch,
        "first_seen": now,
        "last_seen": now,
    }
    device_id: int = insert_or_update(session, DeviceRow, values, identity=("spec",), kept=("first_seen",))
    return device_id


def describe_device(session: Session, spec: DeviceSpec) -> int:
    """Keep a device of an import, which need not have been here; gives its id."""
    text = canonical(spec.to_dict())
    values = {"spec": text, "device_class": spec.device_class.id, "arch": spec.arch}
    # NOTE: not at a time that the import tells: the device of its class that was seen last explains winners.
    insert_new(session, DeviceRow, {**values, "first_seen": _NEVER_HERE, "last_seen": _NEVER_HERE})
    return session.scalars(select(DeviceRow.id).where(DeviceRow.spec == text)).one()


def remove_described(session: Session) -> None:
    """Delete the devices of imports that were never here and of which no job is left."""
    of_job = exists().where(JobRow.device_id == DeviceRow.id)
    session.execute(delete(DeviceRow).where(DeviceRow.last_seen == _NEVER_HERE, ~of_job))


def list_devices(session: Session) -> list[DeviceRecord]:
    """Every device, the one seen last first."""
    rows = session.execute(select(DeviceRow).order_by(DeviceRow.last_seen.desc(), DeviceRow.id))
    return _DEVICES.readable(rows)


def devices_of(session: Session, device_class: str) -> list[DeviceRecord]:
    """The devices of a class, the one seen last first."""
    query = select(DeviceRow).where(DeviceRow.device_class == device_class)
    return _DEVICES.readable(session.execute(query.order_by(DeviceRow.last_seen.desc(), DeviceRow.id)))


def parse_device(text: str) -> DeviceSpec:
    """The device of a canonical text."""
    return DeviceSpec.from_dict(json.loads(text))


def _device(row: DeviceRow) -> DeviceRecord:
    return DeviceRecord(parse_device(row.spec), row.device_class, row.first_seen, row.last_seen)


_DEVICES = RowReader("device", lambda row: row.id, _device)


# NOTE: built once: building a statement anew costs more than SQLite takes to answer it.
_ID = select(ProblemRow.id).where(ProblemRow.canonical == bindparam("canonical"))
_HELD = _ID.with_for_update(read=True, key_share=True)


def ensure_problem(session: Session, problem: GemmProblem) -> int:
    """The id of a problem, which is kept where it was not, and not removed before this transaction ends."""
    data = problem.to_dict()
    text = canonical(data)
    while (found := session.scalars(_HELD, {"canonical": text}).one_or_none()) is None:
        logs = {f"log2_{name}": math.log2(getattr(problem, name)) for name in ("m", "n", "k")}
        insert_new(session, ProblemRow, {**data, **logs, "canonical": text})
    return found


def ensure_problems(session: Session, problems: Iterable[GemmProblem]) -> dict[GemmProblem, int]:
    """The ids of problems, see :func:`ensure_problem`. They are kept in one order for all, so that no two
    transactions wait for each other's new problems: one that keeps several begins with this."""
    in_order = sorted(set(problems), key=lambda one: canonical(one.to_dict()))
    return {problem: ensure_problem(session, problem) for problem in in_order}


def unnamed_problems() -> Select[int]:
    """The ids of problems that no row of another table names."""
    keys = (key for table in Base.metadata.sorted_tables for key in table.foreign_keys)
    naming = (key.parent for key in keys if key.column.table.name == ProblemRow.__tablename__)
    return select(ProblemRow.id).where(~or_(*(exists().where(one == ProblemRow.id) for one in naming)))


def remove_unnamed_problems(session: Session, ids: Sequence[int]) -> None:
    """Delete those of some problems that no row of another table names."""
    # NOTE: two statements: PostgreSQL's second one sees the rows of those who held a problem until the first.
    these = unnamed_problems().where(ProblemRow.id.in_(ids))
    held = list(session.scalars(these.with_for_update(skip_locked=True, of=ProblemRow)))
    going = delete(ProblemRow).where(ProblemRow.id.in_(these.where(ProblemRow.id.in_(held))))
    session.execute(going, execution_options={"synchronize_session": False})


def find_problem(session: Session, problem: GemmProblem) -> int | None:
    """The id of a problem, None if it was never seen."""
    return session.scalars(_ID, {"canonical": canonical(problem.to_dict())}).one_or_none()


def parse_problem(text: str) -> GemmProblem:
    """The problem of a canonical text."""
    return GemmProblem.from_dict(json.loads(text))


_NEED = (
    update(ArtifactRow.__table__)  # type: ignore[arg-type]
    .where(ArtifactRow.digest == bindparam("of"))
    .values(created=bindparam("now"), import_id=None)
    .returning(ArtifactRow.digest)
)


def put_artifact(session: Session, artifact: Artifact) -> str:
    """Keep an artifact that was built here unless it is kept already; gives its digest."""
    return put_prepared(session, prepared(artifact))


def prepared(artifact: Artifact) -> Values:
    """An artifact that was built here, for :func:`put_prepared`; so its transaction is short."""
    data = artifact.to_bytes()
    return {"digest": hashlib.sha256(data).hexdigest(), "data": data, "header": artifact.header}


def put_prepared(session: Session, artifact: Values) -> str:
    digest, now = artifact["digest"], utc_now()
    if session.execute(_NEED, {"of": digest, "now": now}).first() is None:
        insert_new(session, ArtifactRow, {**artifact, "import_id": None, "created": now})
    return str(digest)


def put_artifact_bytes(session: Session, data: bytes, import_id: str | None = None) -> str:
    """Keep the bytes of an artifact that may run, as any version wrote them; gives their digest.

    Raises:
        ArtifactError: they are not an artifact.
    """
    digest = hashlib.sha256(data).hexdigest()
    if not need_artifact(session, digest):
        artifact = Artifact.from_bytes(data)
        values = {"digest": digest, "data": data, "header": artifact.header, "import_id": import_id}
        insert_new(session, ArtifactRow, {**values, "created": utc_now()})
    return digest


def note_need(session: Session, which: ColumnElement[bool]) -> bool:
    """Note that kept artifacts are needed now, so that they are not pruned soon; False if none is kept."""
    # NOTE: takes the rows' locks, so that a prune that meets them waits and then sees that they are needed.
    needed = update(ArtifactRow).where(which).values(created=utc_now()).returning(ArtifactRow.digest)
    return session.execute(needed, execution_options={"synchronize_session": False}).first() is not None


def need_artifact(session: Session, digest: str) -> bool:
    """The same of one artifact."""
    return note_need(session, ArtifactRow.digest == digest)


def has_artifact(session: Session, digest: str) -> bool:
    """Whether an artifact is kept."""
    return session.scalar(select(ArtifactRow.digest).where(ArtifactRow.digest == digest)) is not None


def computes(session: Session, digest: str, problem: GemmProblem) -> bool:
    """Whether an artifact is kept whose kernel computes a problem."""
    query = select(ArtifactRow.digest, ArtifactRow.header).where(ArtifactRow.digest == digest)
    return any(plan.why_not(problem) is None for plan in _PLANS.readable(session.execute(query)))


_PLANS = RowReader("kernel", lambda digest, _: digest, lambda _, header: LaunchPlan.from_dict(header["plan"]))


def lacking(session: Session, digests: Iterable[str]) -> list[str]:
    """Those of the artifacts that are not kept."""
    wanted, there = list(digests), set[str]()
    for part in parts(wanted):
        there.update(session.scalars(select(ArtifactRow.digest).where(ArtifactRow.digest.in_(part))))
    return [digest for digest in wanted if digest not in there]


def get_artifact(session: Session, digest: str) -> bytes | None:
    """The bytes of an artifact, None if it is not kept."""
    return session.scalar(select(ArtifactRow.data).where(ArtifactRow.digest == digest))


def get_artifacts(session: Session, digests: Sequence[str]) -> dict[str, bytes]:
    """The bytes of those artifacts that are kept, by digest."""
    query = select(ArtifactRow.digest, ArtifactRow.data).where(ArtifactRow.digest.in_(digests))
    return {row.digest: row.data for row in session.execute(query)}
