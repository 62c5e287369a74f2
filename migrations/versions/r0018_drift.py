"""What winners took when idle devices measured them again.

Revision: 0018_drift, after 0017_quarantine.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018_drift"
down_revision = "0017_quarantine"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "canary",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("device", sa.String(200), nullable=False),
        sa.Column("device_class", sa.String(128), nullable=False),
        sa.Column("problem_id", sa.Integer(), nullable=False),
        sa.Column("artifact", sa.String(64), nullable=False),
        sa.Column("reference", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("latest", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("cause", sa.String(16), nullable=True),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.Column("checked", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["problem_id"], ["problem.id"], name="fk_canary_problem_id"),
        sa.PrimaryKeyConstraint("id", name="pk_canary"),
        sa.UniqueConstraint(
            "device", "device_class", "problem_id", name="uq_canary_device_device_class_problem_id"
        ),
    )
    op.create_index("ix_canary_problem_id", "canary", ["problem_id"])
    op.add_column("best_config", sa.Column("drifted", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    """Take back."""
    op.drop_column("best_config", "drifted")
    op.drop_table("canary")
