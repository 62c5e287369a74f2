"""Misses keep who told of them first.

Revision: 0021_miss_callers, after 0020_bounds.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021_miss_callers"
down_revision = "0020_bounds"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("miss", sa.Column("caller", sa.Text(), nullable=True))


def downgrade() -> None:
    """Take back."""
    op.drop_column("miss", "caller")
