"""Config sets and what is served of them, misses, and trials by config.

Revision: 0003_sets_and_misses, after 0002_leases_and_keys.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003_sets_and_misses"
down_revision = "0002_leases_and_keys"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    _create_sets()
    _create_miss()
    op.create_index(op.f("ix_trial_config_digest"), "trial", ["config_digest"])


def downgrade() -> None:
    """Take back: snapshots, pins and misses are lost, results stay."""
    op.drop_index(op.f("ix_trial_config_digest"), "trial")
    for table in ("miss", "served_set", "config_set"):
        op.drop_table(table)


def _create_sets() -> None:
    op.create_table(
        "config_set",
        _column("id", sa.Integer()),
        _column("digest", sa.String(71)),
        _column("device_class", sa.String(128)),
        _column("arch", sa.String(32)),
        _column("entries", sa.Integer()),
        _column("content", sa.LargeBinary()),
        _column("created", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_config_set")),
        sa.UniqueConstraint("digest", name=op.f("uq_config_set_digest")),
    )
    op.create_index(op.f("ix_config_set_device_class_id"), "config_set", ["device_class", "id"])
    op.create_table(
        "served_set",
        _column("device_class", sa.String(128)),
        _column("revision", sa.Integer()),
        _column("latest_id", sa.Integer(), nullable=True),
        _column("made_from", sa.Text(), nullable=True),
        _column("pinned_id", sa.Integer(), nullable=True),
        _foreign("served_set", "latest_id", "config_set.id"),
        _foreign("served_set", "pinned_id", "config_set.id"),
        sa.PrimaryKeyConstraint("device_class", name=op.f("pk_served_set")),
    )


def _create_miss() -> None:
    op.create_table(
        "miss",
        _column("id", sa.Integer()),
        _column("device_class", sa.String(128)),
        _column("problem_id", sa.Integer()),
        _column("reason", sa.String(16)),
        _column("count", sa.BigInteger()),
        _column("time_us", sa.Double()),
        _column("measured", sa.Boolean()),
        _column("first_seen", sa.DateTime(timezone=True)),
        _column("last_seen", sa.DateTime(timezone=True)),
        _foreign("miss", "problem_id", "problem.id"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_miss")),
        sa.UniqueConstraint("device_class", "problem_id", name=op.f("uq_miss_device_class_problem_id")),
    )
    op.create_index(op.f("ix_miss_problem_id"), "miss", ["problem_id"])


def _column(name: str, kind: Any, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=nullable)


def _foreign(table: str, column: str, target: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([column], [target], name=op.f(f"fk_{table}_{column}"))
