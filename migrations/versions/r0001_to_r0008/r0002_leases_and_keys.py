"""Leases of running jobs, idempotency keys that expire, API keys.

Revision: 0002_leases_and_keys, after 0001.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002_leases_and_keys"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("job", sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True))
    _add_age_of_submissions()
    op.create_table(
        "api_key",
        sa.Column("id", sa.String(16), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("salt", sa.String(64), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_key")),
    )


def downgrade() -> None:
    """Take back: every API key is lost."""
    op.drop_table("api_key")
    op.drop_index(op.f("ix_submission_created"), "submission")
    with op.batch_alter_table("submission") as submission:
        submission.drop_column("created")
    # NOTE: a batch would drop the table and make it anew, which SQLite refuses while trials refer to it.
    op.drop_column("job", "lease_until")


def _add_age_of_submissions() -> None:
    """Keys that are there already count from now."""
    op.add_column("submission", sa.Column("created", sa.DateTime(timezone=True), nullable=True))
    op.execute("UPDATE submission SET created = CURRENT_TIMESTAMP")
    with op.batch_alter_table("submission") as submission:
        submission.alter_column("created", existing_type=sa.DateTime(timezone=True), nullable=False)
    op.create_index(op.f("ix_submission_created"), "submission", ["created"])
