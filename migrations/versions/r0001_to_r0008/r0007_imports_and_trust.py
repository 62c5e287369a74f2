"""Which import a result came with, winners that wait to be raced here, and trusted keys.

Revision: 0007_imports_and_trust, after 0006_field_words.

What earlier releases imported stays in use and becomes one import, so that it can be told apart and deleted:
jobs without an event never ran here.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007_imports_and_trust"
down_revision = "0006_field_words"
branch_labels = None
depends_on = None

_EARLIER = "0" * 32
_OF_IMPORT = ("job", "artifact", "best_config")


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "import",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("trusted", sa.Boolean(), nullable=False),
        sa.Column("signer", sa.String(80), nullable=True),
        sa.Column("key_id", sa.String(16), nullable=True),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_import")),
    )
    op.create_table(
        "trusted_key",
        sa.Column("public_key", sa.String(80), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("public_key", name=op.f("pk_trusted_key")),
    )
    _create_imported_best()
    for table in _OF_IMPORT:
        # NOTE: Alembic would copy a table of SQLite for this, with all kernels.
        reference = f'CONSTRAINT fk_{table}_import_id REFERENCES "import" (id)'
        op.execute(f"ALTER TABLE {table} ADD COLUMN import_id VARCHAR(32) {reference}")
        op.create_index(op.f(f"ix_{table}_import_id"), table, ["import_id"])
    _mark_earlier_imports()


def downgrade() -> None:
    """Take back: trusted keys, and winners that wait to be raced here, are lost."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute("SET CONSTRAINTS ALL IMMEDIATE")
    for table in _OF_IMPORT:
        op.drop_index(op.f(f"ix_{table}_import_id"), table)
        op.execute(f"ALTER TABLE {table} DROP COLUMN import_id")
    op.drop_table("imported_best")
    op.drop_table("trusted_key")
    op.drop_table("import")


def _create_imported_best() -> None:
    op.create_table(
        "imported_best",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("device_class", sa.String(128), nullable=False),
        sa.Column("arch", sa.String(32), nullable=False),
        sa.Column("problem_id", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.String(32), nullable=True),
        sa.Column("artifact", sa.String(64), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("timing", sa.JSON(), nullable=False),
        sa.Column("ties", sa.JSON(), nullable=False),
        sa.Column("baseline", sa.JSON(), nullable=False),
        sa.Column("speedup", sa.Double(), nullable=False),
        sa.Column("speedup_low", sa.Double(), nullable=False),
        sa.Column("speedup_high", sa.Double(), nullable=False),
        sa.Column("confidence", sa.Double(), nullable=False),
        sa.Column("provenance", sa.JSON(), nullable=False),
        sa.Column("resources", sa.JSON(), nullable=False),
        sa.Column("repeatable", sa.Boolean(), nullable=True),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.Column("import_id", sa.String(32), nullable=False),
        sa.Column("queued", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["import_id"], ["import.id"], name=op.f("fk_imported_best_import_id")),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name=op.f("fk_imported_best_job_id")),
        sa.ForeignKeyConstraint(["problem_id"], ["problem.id"], name=op.f("fk_imported_best_problem_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_imported_best")),
        sa.UniqueConstraint(
            "device_class",
            "problem_id",
            "import_id",
            name=op.f("uq_imported_best_device_class_problem_id_import_id"),
        ),
    )
    for column in ("import_id", "problem_id"):
        op.create_index(op.f(f"ix_imported_best_{column}"), "imported_best", [column])


def _mark_earlier_imports() -> None:
    connection = op.get_bind()
    elsewhere = "NOT EXISTS (SELECT 1 FROM event WHERE event.job_id = job.id)"
    latest = connection.execute(sa.text(f"SELECT max(finished) FROM job WHERE {elsewhere}")).scalar()
    if latest is None:
        return
    mine = {"id": _EARLIER}
    added = 'INSERT INTO "import" (id, trusted, created) VALUES (:id, :trusted, :created)'
    connection.execute(sa.text(added), {**mine, "trusted": True, "created": latest})
    connection.execute(sa.text(f"UPDATE job SET import_id = :id WHERE {elsewhere}"), mine)
    winners = "job_id IS NULL OR job_id IN (SELECT id FROM job WHERE import_id = :id)"
    connection.execute(sa.text(f"UPDATE best_config SET import_id = :id WHERE {winners}"), mine)
    built = "SELECT artifact FROM trial JOIN job ON job.id = trial.job_id WHERE job.import_id IS NULL"
    foreign = f"digest NOT IN ({built} AND artifact IS NOT NULL)"
    connection.execute(sa.text(f"UPDATE artifact SET import_id = :id WHERE {foreign}"), mine)
