"""The tables, one class for each; those of callers are in :mod:`tuner.store.tables.callers`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, ForeignKeyConstraint, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column, relationship

from tilewright.schema.entries import MissReason
from tilewright.schema.job import JobStatus
from tilewright.schema.problem import Activation, DType, Layout
from tilewright.schema.trial import Outcome
from tuner.store.tables.callers import ApiKeyRow as ApiKeyRow
from tuner.store.tables.callers import AuditRow as AuditRow
from tuner.store.tables.callers import EndedSignInRow as EndedSignInRow
from tuner.store.tables.callers import SubmissionRow as SubmissionRow
from tuner.store.tables.callers import TrustedKeyRow as TrustedKeyRow
from tuner.store.tables.columns import Base as Base
from tuner.store.tables.columns import BigId


class DeviceRow(Base):
    """A device, told apart by its full description; several may share a class."""

    __tablename__ = "device"
    __table_args__ = (Index(None, "device_class"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    spec: Mapped[str] = mapped_column(Text, unique=True)
    device_class: Mapped[str] = mapped_column(String(128))
    arch: Mapped[str] = mapped_column(String(32))
    first_seen: Mapped[datetime]
    last_seen: Mapped[datetime]


class ProblemRow(Base):
    """A problem as canonical JSON, with the columns that lookups filter and order by."""

    __tablename__ = "problem"
    __table_args__ = (Index("ix_problem_signature", "dtype", "layout", "batch", "activation"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    canonical: Mapped[str] = mapped_column(Text, unique=True)
    m: Mapped[int]
    n: Mapped[int]
    k: Mapped[int]
    batch: Mapped[int]
    dtype: Mapped[DType]
    layout: Mapped[Layout]
    out_dtype: Mapped[DType]
    acc_dtype: Mapped[DType]
    activation: Mapped[Activation]
    has_bias: Mapped[bool]
    has_c: Mapped[bool]
    log2_m: Mapped[float]
    log2_n: Mapped[float]
    log2_k: Mapped[float]


class FamilySourceRow(Base):
    """A state of a kernel family's source that was measured."""

    __tablename__ = "family_source"

    family: Mapped[str] = mapped_column(String(64), primary_key=True)
    source_digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    first_seen: Mapped[datetime]


class ImportRow(Base):
    """Results of another store that entered together. ``trusted``: its kernels and winners are in use.
    ``staged`` while it enters: nobody sees its jobs, and its winners wait to be merged."""

    __tablename__ = "import"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    trusted: Mapped[bool]
    signer: Mapped[str | None] = mapped_column(String(80))
    key_id: Mapped[str | None] = mapped_column(String(16))
    staged: Mapped[dict[str, Any] | None]
    created: Mapped[datetime]


class JobRow(Base):
    """A job. ``active_key`` is the request's digest while others may join it, NULL after: no work twice.
    ``result`` is what its final race found. ``caller`` asked for it: the id of a key or an address; NULL for
    the service itself. ``import_id`` names the import of a job that ran elsewhere."""

    __tablename__ = "job"
    __table_args__ = (
        Index(None, "device_class", "status", "id"),
        Index(None, "status", "id"),
        Index(None, "problem_id", "device_class"),
        Index(None, "caller", "started"),
        Index(None, "device_class", "finished"),
    )

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    problem_id: Mapped[int] = mapped_column(ForeignKey("problem.id"))
    device_id: Mapped[int] = mapped_column(ForeignKey("device.id"))
    device_class: Mapped[str] = mapped_column(String(128))
    options: Mapped[dict[str, Any]]
    active_key: Mapped[str | None] = mapped_column(String(64), unique=True)
    status: Mapped[JobStatus]
    caller: Mapped[str | None] = mapped_column(Text)
    owner: Mapped[str | None] = mapped_column(Text)
    attempt: Mapped[int]
    lease_until: Mapped[datetime | None]
    lease_s: Mapped[float | None]
    progress: Mapped[dict[str, Any] | None]
    result: Mapped[dict[str, Any] | None]
    error: Mapped[str | None] = mapped_column(Text)
    cancel_requested: Mapped[bool]
    import_id: Mapped[str | None] = mapped_column(ForeignKey("import.id"), index=True)
    created: Mapped[datetime]
    started: Mapped[datetime | None]
    finished: Mapped[datetime | None]

    problem: Mapped[ProblemRow] = relationship(lazy="joined", innerjoin=True)
    device: Mapped[DeviceRow] = relationship(lazy="joined", innerjoin=True)


class LadderRow(Base):
    """One row of the M ladder of a job; ``result`` is what its final race found, ``error`` why it found
    nothing; both are NULL until the row is decided."""

    __tablename__ = "ladder_row"

    job_id: Mapped[str] = mapped_column(ForeignKey("job.id"), primary_key=True)
    m: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    problem_id: Mapped[int] = mapped_column(ForeignKey("problem.id"), index=True)
    result: Mapped[dict[str, Any] | None]
    error: Mapped[str | None] = mapped_column(Text)


class TrialRow(Base):
    """One config tried; raw samples are in ``timing``, taken at ``sampled``, which is NULL once they were
    pruned. ``artifact`` may name one that was not kept, ``m`` is the row of a ladder."""

    __tablename__ = "trial"
    __table_args__ = (
        ForeignKeyConstraint(
            ["family", "source_digest"], ["family_source.family", "family_source.source_digest"]
        ),
        Index(None, "config_digest"),
        Index(None, "created"),
        Index(None, "sampled"),
    )

    job_id: Mapped[str] = mapped_column(ForeignKey("job.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    family: Mapped[str] = mapped_column(String(64))
    source_digest: Mapped[str | None] = mapped_column(String(64))
    config: Mapped[dict[str, Any]]
    config_digest: Mapped[str] = mapped_column(String(16))
    outcome: Mapped[Outcome]
    message: Mapped[str] = mapped_column(Text)
    median_us: Mapped[float | None]
    timing: Mapped[dict[str, Any] | None]
    artifact: Mapped[str | None] = mapped_column(String(64))
    resources: Mapped[dict[str, Any] | None]
    provenance: Mapped[dict[str, Any] | None]
    compile_s: Mapped[float]
    check_s: Mapped[float]
    measure_s: Mapped[float]
    origin: Mapped[str] = mapped_column(String(16))
    repeatable: Mapped[bool | None]
    own_fault: Mapped[bool | None]
    m: Mapped[int | None]
    anchor: Mapped[dict[str, Any] | None]
    sampled: Mapped[datetime | None]
    created: Mapped[datetime]


class TrialSlotRow(Base):
    """Room for one trial of a running job on another device: ``helper`` made it, the claim ``attempt`` of the
    job puts trials into it (:mod:`tuner.job.slots`). ``trial`` is what the helper answered."""

    __tablename__ = "trial_slot"
    __table_args__ = (Index(None, "job_id"), Index(None, "helper"), {"sqlite_autoincrement": True})

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("job.id"))
    attempt: Mapped[int]
    helper: Mapped[str] = mapped_column(Text)
    lease_until: Mapped[datetime]
    state: Mapped[str] = mapped_column(String(16))
    turn: Mapped[int]
    task: Mapped[dict[str, Any] | None]
    trial: Mapped[dict[str, Any] | None]


class ArtifactRow(Base):
    """A compiled kernel that may run: built here, or taken from a trusted import. ``header`` repeats what its
    bytes say about it, to be searched. ``created`` is when a trial or a winner last needed it."""

    __tablename__ = "artifact"
    __table_args__ = (Index(None, "created"),)

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    data: Mapped[bytes]
    header: Mapped[dict[str, Any]]
    import_id: Mapped[str | None] = mapped_column(ForeignKey("import.id"), index=True)
    created: Mapped[datetime]


class QuarantineRow(Base):
    """A config that broke a device class, with the evidence. ``identity`` is the digest of all that it is
    quarantined for: device class, config, source, compiler and driver. The job may be deleted since."""

    __tablename__ = "quarantine"
    __table_args__ = (Index(None, "device_class", "config_digest"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    identity: Mapped[str] = mapped_column(String(64), unique=True)
    device_class: Mapped[str] = mapped_column(String(128))
    config: Mapped[dict[str, Any]]
    config_digest: Mapped[str] = mapped_column(String(16))
    provenance: Mapped[dict[str, Any]]
    outcome: Mapped[Outcome]
    message: Mapped[str] = mapped_column(Text)
    problem_id: Mapped[int] = mapped_column(ForeignKey("problem.id"), index=True)
    job_id: Mapped[str | None] = mapped_column(String(32))
    trial: Mapped[int | None]
    device: Mapped[str] = mapped_column(Text)
    created: Mapped[datetime]


class CanaryRow(Base):
    """What a winner took when an idle device measured it, first and last; ``cause`` of a shift."""

    __tablename__ = "canary"
    __table_args__ = (UniqueConstraint("device", "device_class", "problem_id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    device: Mapped[str] = mapped_column(String(200))
    device_class: Mapped[str] = mapped_column(String(128))
    problem_id: Mapped[int] = mapped_column(ForeignKey("problem.id"), index=True)
    artifact: Mapped[str] = mapped_column(String(64))
    reference: Mapped[dict[str, Any]]
    latest: Mapped[dict[str, Any]]
    cause: Mapped[str | None] = mapped_column(String(16))
    created: Mapped[datetime]
    checked: Mapped[datetime]


class _Winner:
    """The columns of a winner."""

    id: Mapped[int] = mapped_column(primary_key=True)
    device_class: Mapped[str] = mapped_column(String(128))
    arch: Mapped[str] = mapped_column(String(32))
    problem_id: Mapped[int] = mapped_column(ForeignKey("problem.id"), index=True)
    job_id: Mapped[str | None] = mapped_column(ForeignKey("job.id"), index=True)
    config: Mapped[dict[str, Any]]
    timing: Mapped[dict[str, Any]]
    ties: Mapped[list[Any]]
    baseline: Mapped[dict[str, Any]]
    speedup: Mapped[float]
    speedup_low: Mapped[float]
    speedup_high: Mapped[float]
    confidence: Mapped[float]
    provenance: Mapped[dict[str, Any]]
    resources: Mapped[dict[str, Any]]
    repeatable: Mapped[bool | None]
    kernels: Mapped[list[Any] | None]
    vendor_samples: Mapped[dict[str, Any] | None]
    created: Mapped[datetime]


class BestConfigRow(_Winner, Base):
    """The winner of the latest race for a problem on a device class, which may run. ``import_id`` names the
    import of one that was raced elsewhere, ``quarantine_id`` why one is not served; ``drifted`` since when it
    takes another time than before; ``revision`` of its device class at which it last changed."""

    __tablename__ = "best_config"
    __table_args__ = (
        UniqueConstraint("device_class", "problem_id"),
        Index(None, "arch"),
        Index(None, "device_class", "revision"),
    )

    artifact: Mapped[str] = mapped_column(ForeignKey("artifact.digest"), index=True)
    import_id: Mapped[str | None] = mapped_column(ForeignKey("import.id"), index=True)
    quarantine_id: Mapped[int | None] = mapped_column(ForeignKey("quarantine.id"), index=True)
    drifted: Mapped[datetime | None]
    revision: Mapped[int] = mapped_column(server_default="0")


class ImportedBestRow(_Winner, Base):
    """A winner of an import that does not run: its config is to be built and raced here first, as no trusted
    key signed it or as the problem has a winner that was raced here. Its artifact need not be kept.
    ``queued`` once a device took it up."""

    __tablename__ = "imported_best"
    __table_args__ = (UniqueConstraint("device_class", "problem_id", "import_id"),)

    artifact: Mapped[str] = mapped_column(String(64))
    import_id: Mapped[str] = mapped_column(ForeignKey("import.id"), index=True)
    queued: Mapped[datetime | None]


class ConfigSetRow(Base):
    """A snapshot of a device class's winners, named by its content; ``content`` is compressed. The same
    winners may come back: ``made_latest`` is when it last became the latest of its class, later than those
    before; ``unpinned`` when it was last unpinned."""

    __tablename__ = "config_set"
    __table_args__ = (Index(None, "made_latest", "id"), Index(None, "device_class", "made_latest", "id"))

    id: Mapped[int] = mapped_column(primary_key=True)
    digest: Mapped[str] = mapped_column(String(71), unique=True)
    device_class: Mapped[str] = mapped_column(String(128))
    arch: Mapped[str] = mapped_column(String(32))
    entries: Mapped[int]
    content: Mapped[bytes]
    created: Mapped[datetime]
    made_latest: Mapped[datetime | None]
    unpinned: Mapped[datetime | None]


class ServedSetRow(Base):
    """What a device class is served. ``revision`` counts the changes of its winners, ``made_from`` says
    which revision, judged how, the latest snapshot was made from."""

    __tablename__ = "served_set"

    device_class: Mapped[str] = mapped_column(String(128), primary_key=True)
    revision: Mapped[int]
    latest_id: Mapped[int | None] = mapped_column(ForeignKey("config_set.id"))
    made_from: Mapped[str | None] = mapped_column(Text)
    pinned_id: Mapped[int | None] = mapped_column(ForeignKey("config_set.id"))


class MissRow(Base):
    """A problem that ran without a current result, with how often and how long. ``caller`` told of it first,
    as in jobs; NULL in rows of releases that did not keep it, too."""

    __tablename__ = "miss"
    __table_args__ = (UniqueConstraint("device_class", "problem_id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    device_class: Mapped[str] = mapped_column(String(128))
    problem_id: Mapped[int] = mapped_column(ForeignKey("problem.id"), index=True)
    reason: Mapped[MissReason]
    caller: Mapped[str | None] = mapped_column(Text)
    count: Mapped[int] = mapped_column(BigInteger)
    time_us: Mapped[float]
    measured: Mapped[bool]
    first_seen: Mapped[datetime]
    last_seen: Mapped[datetime]


class RetuneRow(Base):
    """A problem whose winner was stale to services in the state ``wanted``; ``queued`` once one tuned it."""

    __tablename__ = "retune"

    device_class: Mapped[str] = mapped_column(String(128), primary_key=True)
    problem_id: Mapped[int] = mapped_column(ForeignKey("problem.id"), primary_key=True, index=True)
    wanted: Mapped[str] = mapped_column(String(16), primary_key=True)
    queued: Mapped[datetime | None]


class EventRow(Base):
    """The event log; ids are never used twice."""

    __tablename__ = "event"
    __table_args__ = (Index(None, "job_id", "id"), {"sqlite_autoincrement": True})

    id: Mapped[int] = mapped_column(BigId, primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("job.id"))
    kind: Mapped[str] = mapped_column(String(32))
    data: Mapped[dict[str, Any]]
    created: Mapped[datetime]
