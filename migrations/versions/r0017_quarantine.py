"""Configs that broke a device class, whose fault a failed trial was, and which winners are not served for it.

Revision: 0017_quarantine, after 0016_trial_slots.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017_quarantine"
down_revision = "0016_trial_slots"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "quarantine",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("identity", sa.String(64), nullable=False),
        sa.Column("device_class", sa.String(128), nullable=False),
        sa.Column("config", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("config_digest", sa.String(16), nullable=False),
        sa.Column("provenance", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("problem_id", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.String(32), nullable=True),
        sa.Column("trial", sa.Integer(), nullable=True),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["problem_id"], ["problem.id"], name="fk_quarantine_problem_id"),
        sa.PrimaryKeyConstraint("id", name="pk_quarantine"),
        sa.UniqueConstraint("identity", name="uq_quarantine_identity"),
    )
    op.create_index("ix_quarantine_problem_id", "quarantine", ["problem_id"])
    op.create_index(
        "ix_quarantine_device_class_config_digest", "quarantine", ["device_class", "config_digest"]
    )
    op.add_column("trial", sa.Column("own_fault", sa.Boolean(), nullable=True))
    # NOTE: Alembic would copy a table of SQLite for this.
    reference = "CONSTRAINT fk_best_config_quarantine_id REFERENCES quarantine (id)"
    op.execute(f"ALTER TABLE best_config ADD COLUMN quarantine_id INTEGER {reference}")
    op.create_index("ix_best_config_quarantine_id", "best_config", ["quarantine_id"])


def downgrade() -> None:
    """Take back: what is quarantined is tried and served again."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute("SET CONSTRAINTS ALL IMMEDIATE")
    op.drop_index("ix_best_config_quarantine_id", "best_config")
    op.execute("ALTER TABLE best_config DROP COLUMN quarantine_id")
    op.drop_column("trial", "own_fault")
    op.drop_table("quarantine")
