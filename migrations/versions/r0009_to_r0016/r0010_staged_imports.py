"""Imports that are entering, and what is to be taken back if they do not end.

Revision: 0010_staged_imports, after 0009_kept_for_years.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010_staged_imports"
down_revision = "0009_kept_for_years"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("import", sa.Column("staged", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    """Take back: an import that was under way is kept as far as it came."""
    op.drop_column("import", "staged")
