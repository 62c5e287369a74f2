"""A winner has the revision of its device class at which it last changed; each class with a winner has one.

Revision: 0022_winner_revisions, after 0021_miss_callers.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022_winner_revisions"
down_revision = "0021_miss_callers"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply; winners count as changed at the present revision, as nothing tells the real one."""
    op.add_column("best_config", sa.Column("revision", sa.Integer(), server_default="0", nullable=False))
    op.execute(
        sa.text(
            "INSERT INTO served_set (device_class, revision) SELECT DISTINCT device_class, 0 FROM best_config"
            " WHERE device_class NOT IN (SELECT device_class FROM served_set)"
        )
    )
    op.execute(
        sa.text(
            "UPDATE best_config SET revision ="
            " (SELECT revision FROM served_set WHERE served_set.device_class = best_config.device_class)"
        )
    )
    op.create_index("ix_best_config_device_class_revision", "best_config", ["device_class", "revision"])


def downgrade() -> None:
    """Take back."""
    op.drop_index("ix_best_config_device_class_revision", "best_config")
    op.drop_column("best_config", "revision")
