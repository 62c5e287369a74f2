"""When a config set was last made the latest of its device class, and when it was last unpinned.

Revision: 0023_set_order, after 0022_winner_revisions.
"""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

revision = "0023_set_order"
down_revision = "0022_winner_revisions"
branch_labels = None
depends_on = None

_COLUMNS = ("made_latest", "unpinned")
_OLD_INDEXES: tuple[tuple[str, ...], ...] = (("device_class", "id"), ("device_class", "created"))
_INDEXES: tuple[tuple[str, ...], ...] = (("made_latest", "id"), ("device_class", "made_latest", "id"))


def upgrade() -> None:
    """Apply; sets were the latest when they were created, and those that are again and are not the newest
    of their class became so by now: nothing tells when."""
    for name in _COLUMNS:
        op.add_column("config_set", sa.Column(name, sa.DateTime(timezone=True), nullable=True))
    op.execute("UPDATE config_set SET made_latest = created")
    came_back = sa.text(
        "UPDATE config_set SET made_latest = :now WHERE id IN (SELECT latest_id FROM served_set)"
        " AND EXISTS (SELECT 1 FROM config_set AS newer"
        " WHERE newer.device_class = config_set.device_class AND newer.id > config_set.id)"
    )
    now = sa.bindparam("now", datetime.now(UTC), sa.DateTime(timezone=True))
    op.execute(came_back.bindparams(now))
    for columns in _OLD_INDEXES:
        op.drop_index(_name(columns), "config_set")
    for columns in _INDEXES:
        op.create_index(_name(columns), "config_set", columns)


def downgrade() -> None:
    """Take back: sets are in the order in which they were created."""
    for columns in _INDEXES:
        op.drop_index(_name(columns), "config_set")
    for columns in _OLD_INDEXES:
        op.create_index(_name(columns), "config_set", columns)
    for name in _COLUMNS:
        op.drop_column("config_set", name)


def _name(columns: tuple[str, ...]) -> str:
    return f"ix_config_set_{'_'.join(columns)}"
