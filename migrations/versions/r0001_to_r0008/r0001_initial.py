"""The tables of the first release.

Revision: 0001, the first.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TABLES = (
    "device",
    "problem",
    "family_source",
    "artifact",
    "job",
    "submission",
    "trial",
    "best_config",
    "event",
)


def upgrade() -> None:
    """Apply."""
    _create_vocabulary()
    _create_artifact()
    _create_job()
    _create_submission()
    _create_trial()
    _create_best_config()
    _create_event()


def downgrade() -> None:
    """Take back: everything is lost."""
    for table in reversed(TABLES):
        op.drop_table(table)


def _create_vocabulary() -> None:
    op.create_table(
        "device",
        _column("id", sa.Integer()),
        _column("spec", sa.Text()),
        _column("device_class", sa.String(128)),
        _column("arch", sa.String(32)),
        _time("first_seen"),
        _time("last_seen"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_device")),
        sa.UniqueConstraint("spec", name=op.f("uq_device_spec")),
    )
    op.create_index(op.f("ix_device_device_class"), "device", ["device_class"])
    op.create_table(
        "problem",
        _column("id", sa.Integer()),
        _column("canonical", sa.Text()),
        *(_column(name, sa.Integer()) for name in ("m", "n", "k", "batch")),
        *(
            _column(name, sa.String(16))
            for name in ("dtype", "layout", "out_dtype", "acc_dtype", "activation")
        ),
        *(_column(name, sa.Boolean()) for name in ("has_bias", "has_c")),
        *(_column(name, sa.Double()) for name in ("log2_m", "log2_n", "log2_k")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_problem")),
        sa.UniqueConstraint("canonical", name=op.f("uq_problem_canonical")),
    )
    op.create_index("ix_problem_signature", "problem", ["dtype", "layout", "batch", "activation"])
    op.create_table(
        "family_source",
        _column("family", sa.String(64)),
        _column("source_digest", sa.String(64)),
        _time("first_seen"),
        sa.PrimaryKeyConstraint("family", "source_digest", name=op.f("pk_family_source")),
    )


def _create_artifact() -> None:
    op.create_table(
        "artifact",
        _column("digest", sa.String(64)),
        _column("data", sa.LargeBinary()),
        _json("header"),
        _time("created"),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_artifact")),
    )


def _create_job() -> None:
    op.create_table(
        "job",
        _column("id", sa.String(32)),
        _column("problem_id", sa.Integer()),
        _column("device_id", sa.Integer()),
        _column("device_class", sa.String(128)),
        _json("options"),
        _column("active_key", sa.String(64), nullable=True),
        _column("status", sa.String(16)),
        _column("owner", sa.Text(), nullable=True),
        _column("attempt", sa.Integer()),
        _json("progress", nullable=True),
        _column("error", sa.Text(), nullable=True),
        _column("cancel_requested", sa.Boolean()),
        _time("created"),
        _time("started", nullable=True),
        _time("finished", nullable=True),
        _foreign("job", "problem_id", "problem.id"),
        _foreign("job", "device_id", "device.id"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_job")),
        sa.UniqueConstraint("active_key", name=op.f("uq_job_active_key")),
    )
    op.create_index(op.f("ix_job_device_class_status_id"), "job", ["device_class", "status", "id"])
    op.create_index(op.f("ix_job_status_id"), "job", ["status", "id"])


def _create_submission() -> None:
    op.create_table(
        "submission",
        _column("key", sa.Text()),
        _column("request_digest", sa.String(64)),
        _column("job_id", sa.String(32)),
        _foreign("submission", "job_id", "job.id", deferrable=True, initially="DEFERRED"),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_submission")),
    )


def _create_trial() -> None:
    op.create_table(
        "trial",
        _column("job_id", sa.String(32)),
        _column("number", sa.Integer(), autoincrement=False),
        _column("family", sa.String(64)),
        _column("source_digest", sa.String(64), nullable=True),
        _json("config"),
        _column("config_digest", sa.String(16)),
        _column("outcome", sa.String(16)),
        _column("message", sa.Text()),
        _column("median_us", sa.Double(), nullable=True),
        _json("timing", nullable=True),
        _column("artifact", sa.String(64), nullable=True),
        _json("resources", nullable=True),
        _json("provenance", nullable=True),
        *(_column(name, sa.Double()) for name in ("compile_s", "check_s", "measure_s")),
        _column("origin", sa.String(16)),
        _time("created"),
        _foreign("trial", "job_id", "job.id"),
        sa.ForeignKeyConstraint(
            ["family", "source_digest"],
            ["family_source.family", "family_source.source_digest"],
            name=op.f("fk_trial_family_source_digest"),
        ),
        sa.PrimaryKeyConstraint("job_id", "number", name=op.f("pk_trial")),
    )


def _create_best_config() -> None:
    op.create_table(
        "best_config",
        _column("id", sa.Integer()),
        _column("device_class", sa.String(128)),
        _column("arch", sa.String(32)),
        _column("problem_id", sa.Integer()),
        _column("job_id", sa.String(32), nullable=True),
        _column("artifact", sa.String(64)),
        *(_json(name) for name in ("config", "timing", "ties", "baseline")),
        *(_column(name, sa.Double()) for name in ("speedup", "speedup_low", "speedup_high", "confidence")),
        *(_json(name) for name in ("provenance", "resources")),
        _time("created"),
        _foreign("best_config", "problem_id", "problem.id"),
        _foreign("best_config", "job_id", "job.id"),
        _foreign("best_config", "artifact", "artifact.digest"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_best_config")),
        sa.UniqueConstraint(
            "device_class", "problem_id", name=op.f("uq_best_config_device_class_problem_id")
        ),
    )
    op.create_index(op.f("ix_best_config_arch"), "best_config", ["arch"])
    op.create_index(op.f("ix_best_config_problem_id"), "best_config", ["problem_id"])


def _create_event() -> None:
    op.create_table(
        "event",
        _column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite")),
        _column("job_id", sa.String(32)),
        _column("kind", sa.String(32)),
        _json("data"),
        _time("created"),
        _foreign("event", "job_id", "job.id"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_event")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_event_job_id_id"), "event", ["job_id", "id"])


def _column(name: str, kind: Any, nullable: bool = False, **options: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=nullable, **options)


def _json(name: str, nullable: bool = False) -> sa.Column[Any]:
    return _column(name, sa.JSON(), nullable)


def _time(name: str, nullable: bool = False) -> sa.Column[Any]:
    return _column(name, sa.DateTime(timezone=True), nullable)


def _foreign(table: str, column: str, target: str, **options: Any) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([column], [target], name=op.f(f"fk_{table}_{column}"), **options)
