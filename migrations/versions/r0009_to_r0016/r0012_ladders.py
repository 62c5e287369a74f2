"""M ladders: the rows of a job, which row a trial is of, and what each kernel of a ladder takes on a row.

Revision: 0012_ladders, after 0011_audit.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012_ladders"
down_revision = "0011_audit"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "ladder_row",
        sa.Column("job_id", sa.String(32), nullable=False),
        sa.Column("m", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("problem_id", sa.Integer(), nullable=False),
        sa.Column("result", sa.JSON(none_as_null=True), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name="fk_ladder_row_job_id"),
        sa.ForeignKeyConstraint(["problem_id"], ["problem.id"], name="fk_ladder_row_problem_id"),
        sa.PrimaryKeyConstraint("job_id", "m", name="pk_ladder_row"),
    )
    op.create_index("ix_ladder_row_problem_id", "ladder_row", ["problem_id"])
    op.add_column("trial", sa.Column("m", sa.Integer(), nullable=True))
    for table in ("best_config", "imported_best"):
        op.add_column(table, sa.Column("kernels", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    """Take back: jobs of a ladder keep its largest M alone, with the trials and the result of that row."""
    op.execute(
        "UPDATE job SET result = (SELECT ladder_row.result FROM ladder_row"
        " JOIN problem ON problem.id = job.problem_id AND problem.m = ladder_row.m"
        " WHERE ladder_row.job_id = job.id)"
        " WHERE status = 'succeeded' AND id IN (SELECT job_id FROM ladder_row)"
    )
    op.execute(
        "DELETE FROM trial WHERE m IS NOT NULL AND m <> (SELECT problem.m FROM problem"
        " JOIN job ON job.problem_id = problem.id WHERE job.id = trial.job_id)"
    )
    job = sa.table("job", sa.column("id", sa.String), sa.column("options", sa.JSON))
    on_ladder = sa.text("id IN (SELECT job_id FROM ladder_row)")
    for job_id, options in op.get_bind().execute(sa.select(job.c.id, job.c.options).where(on_ladder)).all():
        if isinstance(options, dict):  # else it is damaged
            alone = {name: value for name, value in options.items() if name != "ladder"}
            op.execute(sa.update(job).where(job.c.id == job_id).values(options=alone))
    for table in ("best_config", "imported_best"):
        op.drop_column(table, "kernels")
    op.drop_column("trial", "m")
    op.drop_table("ladder_row")
