"""Sessions of the page that were ended, for every server of the database.

Revision: 0019_ended_sign_ins, after 0018_drift.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019_ended_sign_ins"
down_revision = "0018_drift"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "ended_sign_in",
        sa.Column("id", sa.String(16), nullable=False),
        sa.Column("expires", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_ended_sign_in"),
    )
    op.create_index("ix_ended_sign_in_expires", "ended_sign_in", ["expires"])


def downgrade() -> None:
    """Take back."""
    op.drop_table("ended_sign_in")
