"""``tilewright tune``, ``jobs`` and ``misses``."""

from __future__ import annotations

import dataclasses
import re
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from service.cli.options import takes
from service.cli.output import (
    MOST_LISTED,
    PROBLEM_ARGUMENTS,
    WHOLE_ID,
    AsJson,
    Device,
    ElementType,
    K,
    Limit,
    N,
    NewestFirst,
    OperandLayout,
    Url,
    connect,
    device_named,
    echo,
    only_one,
    print_best,
    print_json,
    print_list,
    print_result,
    print_table,
    problem_of,
    rate,
    tell_end,
    tell_unknown,
)
from tilewright import Client, wire
from tilewright.errors import InvalidProblem, printable
from tilewright.schema.job import SearchOptions, parse_rows
from tilewright.schema.problem import DType, GemmProblem, Layout

_ID_START = re.compile("[0-9a-f]{1,32}")
Rows = Annotated[str, typer.Argument(help="Rows of D: a number, or several such as 1..8192.", metavar="M")]


@takes("search", SearchOptions)
@takes("more", GemmProblem, *PROBLEM_ARGUMENTS)
def tune(
    m: Rows,
    n: N,
    k: K,
    more: dict[str, Any],
    search: dict[str, Any],
    dtype: ElementType = None,
    layout: OperandLayout = None,
    device: Device = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Tune a GEMM through the running service and show the winner; for several M a ladder of winners.

    M is a number, or numbers and ranges with commas: 1..8192 doubles, 512..4096+512 goes up by 512.
    Ctrl-C stops watching; the job goes on ('tilewright jobs watch' follows it, 'jobs cancel' stops it).
    """
    try:
        rows = parse_rows(m)
    except InvalidProblem as error:
        raise typer.BadParameter(str(error), param_hint="M") from error
    with connect(url) as client:
        problem = problem_of((max(rows), n, k), dtype, layout, device_named(client, device).kind, **more)
        job = _follow(client, client.tune(problem, wait=False, m=rows, device=device, **search))
    _tell(job, as_json)


def _follow(client: Client, job: wire.JobView) -> wire.JobView:
    echo(f"job {job.id} on {job.device_class}", err=True)
    for one in job.neighbours:
        echo(f"slower while this job runs: {one}", err=True)
    if job.stored and not job.status.final:
        echo(f"tuned before: {_short(job.stored)}; that kernel is in this job's race", err=True)
    columns = (
        TextColumn("{task.fields[phase]:9}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[best]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=job.max_trials, phase=job.status.value, best="")

        def show(progress: wire.JobProgress) -> None:
            phase, best = _phase_and_best(job, progress)
            bar.update(task, total=progress.planned, completed=progress.measured, phase=phase, best=best)

        def tell(waiting: str | None) -> None:
            text = f"it waits: {waiting}" if waiting else "it waits no longer"
            bar.console.out(printable(text), highlight=False)

        try:
            return client.wait(job.id, show, tell)
        except KeyboardInterrupt:
            follow, cancel = (f"'tilewright jobs {verb} {job.id}'" for verb in ("watch", "cancel"))
            bar.stop()
            echo(f"job {job.id} goes on; {follow} follows it, {cancel} stops it", err=True)
            raise


def _phase_and_best(job: wire.JobView, progress: wire.JobProgress) -> tuple[str, str]:
    """The phase and the best time as the progress bar names them."""
    if job.ladder and progress.phase == "done":
        return f"done, {progress.rows_done} rows", ""
    row = f" m={progress.m}" if progress.m else ""
    best = progress.best_us and f"best {progress.best_us:.2f} us, {_rate(job, progress.best_us, progress.m)}"
    return printable(f"{progress.phase}{row}"), best or ""


def _tell(job: wire.JobView, as_json: bool) -> None:
    """How the job ended; the exit code is 1 where it did not succeed."""
    if job.progress and job.progress.stopped:
        echo(f"search ended: {job.progress.stopped}", err=True)
    if as_json:
        print_json(job)
    elif job.best:
        print_best(job.best)
    elif job.ladder:
        _print_rows(job)
    if job.best and job.stored:
        echo(f"stored is another race: {_short(job.stored)}", err=True)
    if job.status is not wire.JobStatus.SUCCEEDED:
        echo(f"job {job.id} was {job.status}; its trials are kept", err=True)
        raise typer.Exit(1)


def _print_rows(job: wire.JobView) -> None:
    """The rows of a ladder that were decided, and the ranges that share a kernel."""
    headers = ("m", "us", "vendor us", "speed-up", "verdict", "run", "regret", "kernel")
    kernels = {digest: number for number, digest in enumerate(dict.fromkeys(map(_kernel, job.ranges)), 1)}
    print_table(
        headers,
        (
            (
                row.m,
                f"{row.median_us:.2f}",
                f"{row.vendor_us:.2f}",
                f"{row.speedup.value:.3f} [{row.speedup.low:.3f}, {row.speedup.high:.3f}]",
                row.verdict,
                "vendor" if row.use_vendor else "kernel",
                f"{row.regret:.2%}",
                kernels[_kernel(row)],
            )
            for row in job.rows
        ),
    )
    for one in job.ranges:
        rows = str(one.first) if one.first == one.last else f"{one.first}..{one.last}"
        echo(f"kernel {kernels[_kernel(one)]} for M = {rows}, regret {one.regret:.2%}: {one.config}")
    for outcome in job.outcomes:
        if outcome.outcome != "tuned":
            echo(f"M = {outcome.m}: {': '.join(filter(None, (outcome.outcome, outcome.error)))}", err=True)


def _kernel(one: wire.LadderRowView | wire.LadderRange) -> str:
    return one.artifact.digest


def _short(best: wire.BestConfigView) -> str:
    speedup = f"{best.speedup.value:.3f} times as fast as {best.baseline.name}"
    return f"{best.timing.median_us:.2f} us, {speedup}, job {best.job_id} on {best.created:%Y-%m-%d %H:%M}"


def _rate(job: wire.JobView, micros: float, m: int | None) -> str:
    flops = dataclasses.replace(job.problem, m=m or job.problem.m).flops
    return rate(flops / micros / 1e6)


app = typer.Typer(no_args_is_help=True, help="Tuning jobs.")
_COLUMNS = ("id", "status", "problem", "device class", "trials", "best us")
JobId = Annotated[str, typer.Argument(help="Id of the job, or its first characters.")]


@app.command("ls")
def list_jobs(
    status: Annotated[wire.JobStatus | None, typer.Option(help="Only jobs of this status.")] = None,
    limit: NewestFirst = 20,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List jobs, the newest first."""
    with connect(url) as client:
        found = client.jobs(status, limit=limit)
    for one in found.unreadable:
        echo(f"job {one.id} cannot be read: {one.detail}", err=True)
    print_list(found, as_json, _COLUMNS, map(_row, found.items))
    tell_end(limit, found.next)


@app.command()
def show(job_id: JobId, url: Url = None, as_json: AsJson = False) -> None:
    """Show one job."""
    with connect(url) as client:
        _print(client.job(_find_job(client, job_id)), as_json)


@app.command()
def watch(job_id: JobId, url: Url = None, as_json: AsJson = False) -> None:
    """Follow a job to its end and show the winner; Ctrl-C stops watching, the job goes on."""
    with connect(url) as client:
        job = _follow(client, client.job(_find_job(client, job_id)))
    _tell(job, as_json)


Extent = Annotated[int | None, typer.Option(help="Only jobs of such problems.", min=1)]


@app.command()
def cancel(
    job_id: Annotated[str | None, typer.Argument(help="Id of the job, or its first characters.")] = None,
    mine: Annotated[bool, typer.Option("--mine", help="All jobs of this key or address.")] = False,
    status: Annotated[wire.JobStatus | None, typer.Option(help="All jobs of this status.")] = None,
    m: Extent = None,
    n: Extent = None,
    k: Extent = None,
    dtype: Annotated[DType | None, typer.Option(help="Only jobs of such problems.")] = None,
    layout: Annotated[Layout | None, typer.Option(help="Only jobs of such problems.")] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Cancel a job, or all that the options choose together; their trials are kept."""
    given = {"mine": mine, "status": status, "m": m, "n": n, "k": k, "dtype": dtype, "layout": layout}
    which: Any = {name: value for name, value in given.items() if value}
    if bool(job_id) == bool(which):
        raise typer.BadParameter("give the id of a job, or options that choose jobs such as --mine")
    if status and status.final:
        live = " or ".join(one for one in wire.JobStatus if not one.final)
        raise typer.BadParameter(f"a job that is {status} has ended; use --status {live}")
    with connect(url) as client:
        if job_id:
            _print(client.cancel(_find_job(client, job_id)), as_json)
            return
        found = client.cancel_jobs(**which)
    print_result(found, as_json, f"{found.jobs} jobs cancelled")


def trials(job_id: JobId, limit: Limit = MOST_LISTED, url: Url = None, as_json: AsJson = False) -> None:
    """List the trials of a job by number: how each config did, and why it failed."""
    with connect(url) as client:
        found = client.trials(_find_job(client, job_id), limit=limit)
    headers = ("trial", "m", "outcome", "us", "from", "config", "message")
    print_list(found, as_json, headers, map(_trial_row, found.items))
    tell_end(limit, found.next)


def _trial_row(trial: wire.Trial) -> tuple[object, ...]:
    took = f"{trial.timing.median_us:.2f}" if trial.timing else "-"
    m, message = trial.m or "-", trial.message.partition("\n")[0]
    return trial.number, m, trial.outcome, took, trial.origin, trial.config, message


def _find_job(client: Client, start: str) -> str:
    """The id of the job that begins so."""
    may_be_one = _ID_START.fullmatch(start)
    if may_be_one and len(start) == WHOLE_ID:
        return start
    found = client.jobs(prefix=start, limit=2).items if may_be_one else []
    return only_one(start, [job.id for job in found], "job", "tilewright jobs ls")


def _print(job: wire.JobView, as_json: bool) -> None:
    if as_json:
        print_json(job)
        return
    print_table(_COLUMNS, [_row(job)])
    if job.error:
        echo(job.error.detail)
    if job.waiting:
        echo(f"it waits: {job.waiting}")
    for one in job.neighbours:
        echo(f"slower while it runs: {one}")
    if job.best:
        print_best(job.best)
    if job.rows:
        _print_rows(job)


def _row(job: wire.JobView) -> tuple[object, ...]:
    progress = job.progress
    trials = f"{progress.measured}/{progress.planned}" if progress else f"0/{job.max_trials}"
    best = f"{progress.best_us:.2f}" if progress and progress.best_us and not job.ladder else "-"
    status = "stopping" if job.cancel_requested and not job.status.final else job.status
    problem = f"{job.ladder[0]}..{job.problem}" if job.ladder else job.problem
    return job.id, status, problem, job.device_class, trials, best


@takes("search", SearchOptions)
def misses(
    search: dict[str, Any],
    device_class: Annotated[str | None, typer.Option(help="Only those of this class.")] = None,
    limit: Limit = 20,
    tune: Annotated[
        int, typer.Option(help="Start jobs for the first N on the service's first device.", min=0)
    ] = 0,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List problems that ran without a current result, the most device time at stake first."""
    if search and not tune:
        raise typer.BadParameter(f"{', '.join(search)}: for the jobs that --tune N starts")
    with connect(url) as client:
        if tune:
            name = device_class or device_named(client, None).device_class
            started = client.tune_misses(name, tune, **search)
            echo(f"{len(started)} jobs: {' '.join(job.id for job in started)}", err=True)
        asked = min(limit + 1, MOST_LISTED)
        found = client.misses(device_class, limit=asked)
        if not found:
            tell_unknown(client, device_class)
    headers = ("problem", "device class", "reason", "runs", "us", "seconds at stake")
    print_list(found[:limit], as_json, headers, map(_miss_row, found[:limit]))
    tell_end(limit, len(found) == asked)


def _miss_row(item: wire.MissView) -> tuple[object, ...]:
    took = f"{item.time_us:.2f}{'' if item.measured else ' (estimated)'}"
    return item.problem, item.device_class, item.reason, item.count, took, f"{item.stake_s:.3f}"
