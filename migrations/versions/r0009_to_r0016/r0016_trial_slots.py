"""Trials that idle devices run for the job of another one.

Revision: 0016_trial_slots, after 0015_lease_seconds.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016_trial_slots"
down_revision = "0015_lease_seconds"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "trial_slot",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("job_id", sa.String(32), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("helper", sa.Text(), nullable=False),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("turn", sa.Integer(), nullable=False),
        sa.Column("task", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("trial", sa.JSON(none_as_null=True), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name="fk_trial_slot_job_id"),
        sa.PrimaryKeyConstraint("id", name="pk_trial_slot"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_trial_slot_job_id", "trial_slot", ["job_id"])
    op.create_index("ix_trial_slot_helper", "trial_slot", ["helper"])
    op.add_column("trial", sa.Column("anchor", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    """Take back: trials of helpers stay, without what their times were related by."""
    op.drop_column("trial", "anchor")
    op.drop_table("trial_slot")
