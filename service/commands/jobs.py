"""``tilewright jobs``: ls, show, cancel."""

from __future__ import annotations

from typing import Annotated

import typer

from service.commands.options import AsJson, Url
from service.commands.output import connect, print_best, print_json, print_table
from tilewright import wire

app = typer.Typer(no_args_is_help=True, help="Tuning jobs.")
JobId = Annotated[str, typer.Argument(help="Id of the job.")]


@app.command("ls")
def list_jobs(
    status: Annotated[wire.JobStatus | None, typer.Option(help="Only jobs of this status.")] = None,
    limit: Annotated[int, typer.Option(help="How many, the newest first.", min=1, max=1000)] = 20,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List jobs, the newest first."""
    with connect(url) as client:
        found = client.jobs(status, limit=limit)
    if as_json:
        print_json(found)
        return
    print_table(("id", "status", "problem", "device class", "trials", "best us"), map(_row, found.items))


@app.command()
def show(job_id: JobId, url: Url = None, as_json: AsJson = False) -> None:
    """Show one job."""
    with connect(url) as client:
        _print(client.job(job_id), as_json)


@app.command()
def cancel(job_id: JobId, url: Url = None, as_json: AsJson = False) -> None:
    """Cancel a job; its trials are kept."""
    with connect(url) as client:
        _print(client.cancel(job_id), as_json)


def _print(job: wire.JobView, as_json: bool) -> None:
    if as_json:
        print_json(job)
        return
    print_table(("id", "status", "problem", "device class", "trials", "best us"), [_row(job)])
    if job.error:
        typer.echo(job.error.detail)
    if job.best:
        print_best(job.best)


def _row(job: wire.JobView) -> tuple[object, ...]:
    progress = job.progress
    trials = f"{progress.measured}/{progress.planned}" if progress else f"0/{job.max_trials}"
    best = f"{progress.best_us:.2f}" if progress and progress.best_us else "-"
    status = "stopping" if job.cancel_requested and not job.status.final else job.status
    return job.id, status, job.problem.to_problem(), job.device_class, trials, best
