"""How long the lease of a job lasts, so that another server counts its seconds itself.

Revision: 0015_lease_seconds, after 0014_row_outcomes.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015_lease_seconds"
down_revision = "0014_row_outcomes"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("job", sa.Column("lease_s", sa.Double(), nullable=True))


def downgrade() -> None:
    """Take back."""
    op.drop_column("job", "lease_s")
