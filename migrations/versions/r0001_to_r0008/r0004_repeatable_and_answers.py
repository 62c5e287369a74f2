"""Whether kernels repeat bit by bit, what any request with an idempotency key was answered, jobs by problem.

Revision: 0004_repeatable_and_answers, after 0003_sets_and_misses.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004_repeatable_and_answers"
down_revision = "0003_sets_and_misses"
branch_labels = None
depends_on = None

_MEASURED = ("trial", "best_config")


def upgrade() -> None:
    """Apply."""
    for table in _MEASURED:
        op.add_column(table, sa.Column("repeatable", sa.Boolean(), nullable=True))
    # NOTE: the latest sets say of every kernel that it repeats; they are made anew when they are asked for.
    op.execute("UPDATE served_set SET made_from = NULL")
    op.create_index(op.f("ix_job_problem_id_device_class"), "job", ["problem_id", "device_class"])
    op.add_column("submission", sa.Column("answer", sa.JSON(), nullable=True))
    _answer_with_jobs()
    if op.get_bind().dialect.name == "postgresql":
        # NOTE: each row written in this transaction waits for the deferred check of its job until then, and
        # nothing can be dropped from a table while any does.
        op.execute("SET CONSTRAINTS ALL IMMEDIATE")
    with op.batch_alter_table("submission") as submission:
        submission.drop_constraint(op.f("fk_submission_job_id"), type_="foreignkey")
        submission.drop_column("job_id")


def downgrade() -> None:
    """Take back: the idempotency keys of the last day are lost."""
    op.execute("DELETE FROM submission")
    with op.batch_alter_table("submission") as submission:
        submission.drop_column("answer")
        submission.add_column(sa.Column("job_id", sa.String(32), nullable=False))
        submission.create_foreign_key(
            op.f("fk_submission_job_id"), "job", ["job_id"], ["id"], deferrable=True, initially="DEFERRED"
        )
    op.drop_index(op.f("ix_job_problem_id_device_class"), "job")
    for table in _MEASURED:
        with op.batch_alter_table(table) as measured:
            measured.drop_column("repeatable")


def _answer_with_jobs() -> None:
    submission = sa.table(
        "submission", sa.column("key", sa.Text()), sa.column("job_id"), sa.column("answer", sa.JSON())
    )
    connection = op.get_bind()
    for key, job_id in connection.execute(sa.select(submission.c.key, submission.c.job_id)).all():
        answered = sa.update(submission).where(submission.c.key == key)
        connection.execute(answered.values(answer={"jobs": [job_id]}))
