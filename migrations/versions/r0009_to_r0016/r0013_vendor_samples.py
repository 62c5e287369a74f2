"""Raw samples of the vendor library in the races of a winner.

Revision: 0013_vendor_samples, after 0012_ladders.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013_vendor_samples"
down_revision = "0012_ladders"
branch_labels = None
depends_on = None
_TABLES = ("best_config", "imported_best")


def upgrade() -> None:
    """Apply."""
    for table in _TABLES:
        op.add_column(table, sa.Column("vendor_samples", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    """Take back: the samples are lost."""
    for table in _TABLES:
        op.drop_column(table, "vendor_samples")
