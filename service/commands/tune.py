"""``tilewright tune``."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from service.commands.options import AsJson, Device, ElementType, K, M, N, OperandLayout, Url
from service.commands.output import connect, print_best, print_json
from tilewright import Client, wire
from tilewright.policy import Policy
from tilewright.problem import DType, GemmProblem, Layout
from tilewright.requests import TuneOptions

Families = Annotated[list[str] | None, typer.Option("--family", help="Search only this family; repeatable.")]
MaxTrials = Annotated[int, typer.Option(help="Measured configs to spend.", min=1)]
MaxSeconds = Annotated[float, typer.Option(help="Wall-clock bound of the search, 0 for none.", min=0)]
HowToSearch = Annotated[Policy, typer.Option("--policy", help="How to search.")]
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
    policy: HowToSearch = Policy.STAGED,
    min_gain_per_s: MinGain = 0.0,
    device: Device = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Tune a GEMM through the running service and show the winner.

    Ctrl-C stops watching; the job goes on ('tilewright jobs cancel' stops it).
    """
    options: TuneOptions = {"max_trials": max_trials, "max_seconds": max_seconds, "seed": seed}
    options |= {"policy": policy, "min_gain_per_s": min_gain_per_s}
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

        def show(progress: wire.ProgressView) -> None:
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
    return f"{job.problem.to_problem().flops / micros / 1e6:.3f} TFLOP/s"
