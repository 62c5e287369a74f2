"""Ended sessions of the page are counted by key; the jobs of a device class that ended lately have an index.

Revision: 0020_bounds, after 0019_ended_sign_ins.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020_bounds"
down_revision = "0019_ended_sign_ins"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("ended_sign_in", sa.Column("key_id", sa.String(16), nullable=True))
    op.create_index("ix_ended_sign_in_key_id", "ended_sign_in", ["key_id"])
    op.create_index("ix_job_device_class_finished", "job", ["device_class", "finished"])


def downgrade() -> None:
    """Take back."""
    op.drop_index("ix_job_device_class_finished", "job")
    op.drop_index("ix_ended_sign_in_key_id", "ended_sign_in")
    op.drop_column("ended_sign_in", "key_id")
