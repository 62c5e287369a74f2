"""``tilewright replay``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from service.commands.options import AsJson
from service.commands.output import print_json, print_table
from tilewright.config import Config
from tilewright.policy import Policy
from tuner.replay import report
from tuner.replay.files import read_space, space_name
from tuner.replay.plot import PlotUnavailable, plot
from tuner.replay.run import RunResult
from tuner.replay.runner import ReplayPlan, replay_file
from tuner.replay.summary import summarize

TRANSFERRED = 8

Space = Annotated[
    Path, typer.Argument(help="A recorded space: T4 or Kernel Tuner cache, gzipped or not.", dir_okay=False)
]
HowToSearch = Annotated[Policy, typer.Option("--policy", help="How to search.")]
Runs = Annotated[int, typer.Option(help="Runs, each with a seed of its own.", min=1)]
Budget = Annotated[int, typer.Option(help="Measured configs a run.", min=1)]
Seed = Annotated[int, typer.Option(help="Of the runs' seeds.", min=0)]
SeedsFrom = Annotated[
    Path | None, typer.Option(help=f"Another recorded space; its {TRANSFERRED} best configs are tried first.")
]
Out = Annotated[Path, typer.Option(help="Folder of the results.", file_okay=False)]
Processes = Annotated[int | None, typer.Option(help="Runs side by side; one a core by default.", min=1)]


def replay(
    space: Space,
    policy: HowToSearch = Policy.STAGED,
    runs: Runs = 45,
    budget: Budget = 200,
    seed: Seed = 0,
    seeds_from: SeedsFrom = None,
    out: Out = Path(),
    processes: Processes = None,
    as_json: AsJson = False,
) -> None:
    """Run the search many times on a recorded space and show how good it is; needs no GPU, no service."""
    recorded = read_space(space)
    seeds: tuple[Config, ...] = tuple(read_space(seeds_from).best(TRANSFERRED)) if seeds_from else ()
    plan = ReplayPlan(policy, runs, budget, seed, seeds)
    console = Console(stderr=True)
    planned = recorded.provenance.get("planned", len(recorded))
    if planned > len(recorded):
        _warn(console, f"{space} holds {len(recorded)} of {planned} configs: the optimum may be missing")
    results = _watch(console, space, plan, min(runs, processes or len(os.sched_getaffinity(0))))
    result = report.Report.of(recorded, plan, summarize(results, budget), results)
    path = result.write(out)
    try:
        plot({policy: result.summary}, f"{recorded.name}: {runs} runs", out / result.stem)
    except PlotUnavailable as error:
        _warn(console, str(error))
    if as_json:
        print_json(result.to_dict())
        return
    print_table(report.HEADERS, report.rows(result.summary))
    for line in (*report.lines(result.summary), f"stored      {path}"):
        typer.echo(line)


def _watch(console: Console, space: Path, plan: ReplayPlan, processes: int) -> list[RunResult]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(f"{space_name(space)} {plan.policy}", total=plan.runs)
        return replay_file(space, plan, processes, lambda _result: bar.advance(task))


def _warn(console: Console, text: str) -> None:
    console.print(text, highlight=False)
