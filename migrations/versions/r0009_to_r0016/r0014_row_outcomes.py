"""Why a row of an M ladder has no winner.

Revision: 0014_row_outcomes, after 0013_vendor_samples.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014_row_outcomes"
down_revision = "0013_vendor_samples"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("ladder_row", sa.Column("error", sa.Text(), nullable=True))


def downgrade() -> None:
    """Take back."""
    op.drop_column("ladder_row", "error")
