"""What the final race of each job found, whether or not it became the stored winner.

Revision: 0008_results_of_jobs, after 0007_imports_and_trust.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008_results_of_jobs"
down_revision = "0007_imports_and_trust"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("job", sa.Column("result", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    """Take back: results that did not become the stored winner are lost."""
    op.drop_column("job", "result")
