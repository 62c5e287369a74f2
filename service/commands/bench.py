"""``tilewright bench``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from service.commands.options import AsJson
from service.commands.output import print_json
from service.settings import Settings
from tilewright.errors import TilewrightError

app = typer.Typer(no_args_is_help=True, help="Benchmarks of this checkout, run here without the service.")

Seed = Annotated[str | None, typer.Option(help="One seed document, for instance 000; all by default.")]
Gpu = Annotated[str, typer.Option("--device", help="cuda:0, cuda:1 ...")]
Out = Annotated[Path | None, typer.Option(help="Folder of the results; benchmarks/results by default.")]
Rounds = Annotated[int, typer.Option(help="Samples of each contender.", min=1)]


@app.callback()
def bench() -> None:
    """Benchmarks of this checkout, run here without the service."""


@app.command()
def ladder(
    seed: Seed = None, device: Gpu = "cuda:0", out: Out = None, rounds: Rounds = 31, as_json: AsJson = False
) -> None:
    """Measure the kernels of the seed documents against cuBLAS and store table and plot."""
    try:
        from benchmarks.ladder import RESULTS, LadderRequest, run_ladder
        from benchmarks.ladder_plot import PlotUnavailable
        from benchmarks.ladder_report import rich_table, write_report
    except ImportError as error:
        raise TilewrightError(
            f"the benchmarks belong to the checkout; run this from there: {error}"
        ) from error
    console = Console(stderr=True)
    request = LadderRequest(seed, device, out or RESULTS, Settings().cache_dir, rounds)
    try:
        rows, path = run_ladder(request, lambda line: console.print(line, highlight=False))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--seed") from error
    console.print(rich_table(rows))
    try:
        written = write_report(path, rows)
    except PlotUnavailable as error:
        written = []
        console.print(str(error), highlight=False)
    if as_json:
        print_json([dataclasses.asdict(row) for row in rows])
        return
    for file in (path, path.with_suffix(".provenance.json"), *written):
        typer.echo(file)
