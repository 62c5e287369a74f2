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
    """Take back; revokes the keys of which all sessions were ended."""
    # NOTE: the release before takes the row of a key for that of one session: the others would open again.
    op.execute(
        sa.text(
            "UPDATE api_key SET revoked = CURRENT_TIMESTAMP"
            " WHERE revoked IS NULL"
            " AND id IN (SELECT id FROM ended_sign_in WHERE expires > CURRENT_TIMESTAMP)"
        )
    )
    op.drop_index("ix_job_device_class_finished", "job")
    op.drop_index("ix_ended_sign_in_key_id", "ended_sign_in")
    op.drop_column("ended_sign_in", "key_id")
