"""When raw samples were taken, whose a job is, what a key may queue, and indexes to find old rows by.

Revision: 0009_kept_for_years, after 0008_results_of_jobs.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009_kept_for_years"
down_revision = "0008_results_of_jobs"
branch_labels = None
depends_on = None

_INDEXES = (
    ("trial", "created"),
    ("trial", "sampled"),
    ("artifact", "created"),
    ("best_config", "artifact"),
    ("best_config", "job_id"),
    ("imported_best", "job_id"),
    ("config_set", "device_class", "created"),
    ("job", "caller", "started"),
)
_COLUMNS = (
    ("trial", "sampled", sa.DateTime(timezone=True)),
    ("job", "caller", sa.Text()),
    ("api_key", "max_queued", sa.Integer()),
    ("api_key", "priority", sa.Integer()),
)


def upgrade() -> None:
    """Apply."""
    for table, name, kind in _COLUMNS:
        op.add_column(table, sa.Column(name, kind, nullable=True))
    op.execute("UPDATE trial SET sampled = created WHERE timing IS NOT NULL")
    for table, *columns in _INDEXES:
        op.create_index(op.f(f"ix_{table}_{'_'.join(columns)}"), table, columns)


def downgrade() -> None:
    """Take back: what was pruned stays pruned; whose a job was, and the quotas of keys, are lost."""
    for table, *columns in _INDEXES:
        op.drop_index(op.f(f"ix_{table}_{'_'.join(columns)}"), table)
    for table, name, _ in _COLUMNS:
        op.drop_column(table, name)
