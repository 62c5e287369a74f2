"""``tilewright tune``, ``jobs`` and ``misses``."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from service.cli.output import (
    AsJson,
    Device,
    ElementType,
    K,
    M,
    N,
    OperandLayout,
    Url,
    connect,
    print_best,
    print_json,
    print_table,
)
from tilewright import Client, wire
from tilewright.http.arguments import TuneOptions
from tilewright.schema.job import Sampler
from tilewright.schema.problem import DType, GemmProblem, Layout

Families = Annotated[list[str] | None, typer.Option("--family", help="Search only this family; repeatable.")]
MaxTrials = Annotated[int, typer.Option(help="Measured configs to spend.", min=1)]
MaxSeconds = Annotated[float, typer.Option(help="Wall-clock bound of the search, 0 for none.", min=0)]
HowToSearch = Annotated[Sampler, typer.Option("--sampler", help="How to search.")]
MinGain = Annotated[
    float,
    typer.Option(
        "--min-gain-per-s",
        help="End where 30 trials gained less than this share per device second, 0 for never.",
        min=0,
    ),
]
Seed = Annotated[int, typer.Option(help="Of every random choice.", min=0)]


def tune(
    m: M,
    n: N,
    k: K,
    dtype: ElementType = DType.FLOAT16,
    layout: OperandLayout = Layout.NT,
    family: Families = None,
    max_trials: MaxTrials = 100,
    max_seconds: MaxSeconds = 0.0,
    seed: Seed = 0,
    sampler: HowToSearch = Sampler.STAGED,
    min_gain_per_s: MinGain = 0.0,
    device: Device = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Tune a GEMM through the running service and show the winner.

    Ctrl-C stops watching; the job goes on ('tilewright jobs cancel' stops it).
    """
    options: TuneOptions = {"max_trials": max_trials, "max_seconds": max_seconds, "seed": seed}
    options |= {"sampler": sampler, "min_gain_per_s": min_gain_per_s}
    if family:
        options["families"] = family
    if device:
        options["device"] = device
    with connect(url) as client:
        job = _follow(client, client.tune(GemmProblem(m, n, k, dtype, layout), wait=False, **options))
    _tell(job, as_json)


def _follow(client: Client, job: wire.JobView) -> wire.JobView:
    console = Console(stderr=True)
    console.print(f"job {job.id} on {job.device_class}", highlight=False)
    columns = (
        TextColumn("{task.fields[phase]:9}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[best]}"),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=job.max_trials, phase=job.status.value, best="")

        def show(progress: wire.JobProgress) -> None:
            best = (
                f"best {progress.best_us:.2f} us, {_tflops(job, progress.best_us)}"
                if progress.best_us
                else ""
            )
            bar.update(
                task, total=progress.planned, completed=progress.measured, phase=progress.phase, best=best
            )

        return client.wait(job.id, show)


def _tell(job: wire.JobView, as_json: bool) -> None:
    """How the job ended; the exit code is 1 where it did not succeed."""
    if job.progress and job.progress.stopped:
        typer.echo(f"search ended: {job.progress.stopped}", err=True)
    if as_json:
        print_json(job)
    elif job.best:
        print_best(job.best)
    if job.status is not wire.JobStatus.SUCCEEDED:
        typer.echo(f"job {job.id} was {job.status}; its trials are kept", err=True)
        raise typer.Exit(1)


def _tflops(job: wire.JobView, micros: float) -> str:
    return f"{job.problem.flops / micros / 1e6:.3f} TFLOP/s"


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
    return job.id, status, job.problem, job.device_class, trials, best


def misses(
    device_class: Annotated[str | None, typer.Option(help="Only those of this class.")] = None,
    limit: Annotated[int, typer.Option(help="How many.", min=1, max=1000)] = 20,
    tune: Annotated[
        int, typer.Option(help="Start a job for each of the first N on the service's first device.", min=0)
    ] = 0,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List problems that ran without a current result, the most device time at stake first."""
    with connect(url) as client:
        if tune:
            name = device_class or client.devices()[0].device_class
            started = client.tune_misses(name, tune)
            typer.echo(f"{len(started)} jobs: {' '.join(job.id for job in started)}", err=True)
        found = client.misses(device_class, limit=limit)
    if as_json:
        print_json(found)
        return
    print_table(
        ("problem", "device class", "reason", "runs", "us", "seconds at stake"),
        (
            (
                item.problem,
                item.device_class,
                item.reason,
                item.count,
                f"{item.time_us:.2f}{'' if item.measured else ' (estimated)'}",
                f"{item.stake_s:.3f}",
            )
            for item in found
        ),
    )
