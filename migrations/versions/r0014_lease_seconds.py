"""How long the lease of a job lasts, so that another server counts its seconds itself.

Revision: 0014_lease_seconds, after 0013_vendor_samples.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014_lease_seconds"
down_revision = "0013_vendor_samples"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("job", sa.Column("lease_s", sa.Double(), nullable=True))


def downgrade() -> None:
    """Take back."""
    op.drop_column("job", "lease_s")
