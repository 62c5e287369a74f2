"""For which releases and drivers stale results are to be tuned again, and were.

Revision: 0005_retunes, after 0004_repeatable_and_answers.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005_retunes"
down_revision = "0004_repeatable_and_answers"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "retune",
        sa.Column("device_class", sa.String(128), nullable=False),
        sa.Column("problem_id", sa.Integer(), nullable=False),
        sa.Column("wanted", sa.String(16), nullable=False),
        sa.Column("queued", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["problem_id"], ["problem.id"], name=op.f("fk_retune_problem_id")),
        sa.PrimaryKeyConstraint("device_class", "problem_id", "wanted", name=op.f("pk_retune")),
    )
    op.create_index(op.f("ix_retune_problem_id"), "retune", ["problem_id"])


def downgrade() -> None:
    """Take back: stale results may be tuned once more."""
    op.drop_table("retune")
