"""Who changed what.

Revision: 0011_audit, after 0010_staged_imports.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011_audit"
down_revision = "0010_staged_imports"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("data", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_audit_created"), "audit", ["created"])


def downgrade() -> None:
    """Take back: the log is lost."""
    op.drop_table("audit")
