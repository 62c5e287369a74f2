"""``tilewright bench``: the command line adds it in a checkout (:mod:`service.cli.main`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.common.options import RowOptions, RunOptions, ShapeOptions
from benchmarks.common.pages import PlotUnavailable
from benchmarks.common.shapes import HELD_OUT, SUITE, Shape, ShapesError, select
from benchmarks.fleet.run import FleetOptions, run_fleet
from benchmarks.ladder import report as ladder_report
from benchmarks.ladder.run import LadderRequest, run_ladder
from benchmarks.mma.run import (
    LAYOUTS,
    MOST_CONFIGS,
    SHAPES,
    TYPES,
    MmaRequest,
    WrongWord,
    problems,
    run_mma,
    summary,
)
from benchmarks.models.files import samples_path
from benchmarks.models.files import summary as summary_of
from benchmarks.models.model import WEIGHTS, ModelRequest, run_model
from benchmarks.models.peers import RATIOS as PEER_RATIOS
from benchmarks.models.run import RATIOS, BenchResult, ShapesRequest, run_shapes
from benchmarks.models.shapes import UNSEEN
from service.cli.options import takes
from service.cli.output import AsJson, print_json
from service.cli.serve import answer_promptly
from service.settings import Settings
from tilewright.schema.job import SearchOptions
from tilewright.schema.problem import DType

_TABLE_COLUMNS = 160
app = typer.Typer(no_args_is_help=True, help="Benchmarks of this checkout, run here without the service.")

Document = Annotated[
    str | None, typer.Option(help="One reference document, for instance 000; all by default.")
]


@app.callback()
def bench() -> None:
    """Benchmarks of this checkout, run here without the service."""
    answer_promptly()  # jobs run in this process as in that of the service


@app.command()
@takes("run", RunOptions, "resume")
def ladder(
    run: dict[str, Any],
    document: Document = None,
    runs: Annotated[int, typer.Option(help="Parts of a race, for the spread.", min=1)] = 5,
    as_json: AsJson = False,
) -> None:
    """Measure the reference kernels against cuBLAS and today's tuned winners; store table and plot."""
    console = Console(stderr=True, width=_TABLE_COLUMNS)
    request = LadderRequest(RunOptions(**run), document, Settings().cache_dir, runs)
    try:
        rows, path = run_ladder(request, lambda line: console.print(line, highlight=False))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--document") from error
    console.print(ladder_report.rich_table(rows))
    for said in ladder_report.summary(rows):
        console.print(said, highlight=False)
    try:
        written = ladder_report.write_report(path, rows)
    except PlotUnavailable as error:
        written = []
        console.print(str(error), highlight=False)
    if as_json:
        print_json([dataclasses.asdict(row) for row in rows])
        return
    for file in (path, path.with_suffix(".provenance.json"), *written):
        typer.echo(file)


@app.command()
@takes("run", ShapeOptions)
@takes("search", SearchOptions)
def suite(run: dict[str, Any], search: dict[str, Any], as_json: AsJson = False) -> None:
    """Tune the shapes of the suite from an empty database and race the winners with the vendor library.

    In float16 by default. Each row is written when it is measured; --resume goes on after the last one.
    """
    options = ShapeOptions(**run)
    name, shapes = ("suite-v3-held-out", HELD_OUT) if options.held_out else ("suite-v3", SUITE)
    _run_shapes(name, shapes, options.dtype or DType.FLOAT16, options, search, as_json)


@app.command()
@takes("run", ShapeOptions)
@takes("search", SearchOptions)
def unseen(run: dict[str, Any], search: dict[str, Any], as_json: AsJson = False) -> None:
    """Tune shapes of public models from an empty database, as a user does, and race the winners.

    In bfloat16 by default. Each row is written when it is measured; --resume goes on after the last one.
    """
    options = ShapeOptions(**run)
    shapes = [one for one in UNSEEN if one.held_out == options.held_out]
    _run_shapes("unseen", shapes, options.dtype or DType.BFLOAT16, options, search, as_json)


@app.command()
@takes("run", RowOptions, "repeat")
@takes("search", SearchOptions)
def model(
    run: dict[str, Any],
    search: dict[str, Any],
    weights: Annotated[list[str] | None, typer.Option(help="Only this weight; repeatable.")] = None,
    as_json: AsJson = False,
) -> None:
    """Tune the weights of Llama-3-8B in bfloat16, each on a ladder of M = 1 to 8192, and race every row."""
    if unknown := set(weights or ()) - set(WEIGHTS):
        raise typer.BadParameter(
            f"no weight is called {min(unknown)!r}; use {', '.join(WEIGHTS)}", param_hint="--weights"
        )
    processes = Settings().compile_processes
    request = ModelRequest(weights or list(WEIGHTS), processes, RowOptions(**run), search)
    _print_rows(run_model(request, _tell()), as_json)


@app.command()
@takes("run", RunOptions)
def mma(
    run: dict[str, Any],
    peers: Annotated[Path | None, typer.Option(help="Shared library of CUTLASS's kernels.")] = None,
    shapes: Annotated[str, typer.Option(help="MxNxK, separated by blanks.")] = SHAPES,
    types: Annotated[str, typer.Option(help="TYPE or TYPE:ACCUMULATE, separated by blanks.")] = TYPES,
    layouts: Annotated[str, typer.Option(help="Separated by blanks.")] = LAYOUTS,
    configs: Annotated[int, typer.Option(help="Our configs for a problem.", min=1)] = MOST_CONFIGS,
    as_json: AsJson = False,
) -> None:
    """Race family mma_sync with CUTLASS's kernels of the same instruction and with that instruction alone.

    benchmarks/mma/cutlass_peers.cu says how to build the library. Rows are written one by one.
    """
    settings = Settings()
    try:
        asked = list(problems(shapes, types, layouts))
    except WrongWord as error:
        raise typer.BadParameter(str(error), param_hint=f"--{error.argument}") from error
    request = MmaRequest(
        asked, settings.cache_dir, settings.compile_processes, RunOptions(**run), peers, configs
    )
    result = run_mma(request, _tell())
    if as_json:
        print_json(result.rows)
    else:
        typer.echo(summary(result.rows))
        typer.echo(result.path)
    for name, reason in result.failed.items():
        typer.echo(f"no result for {name}: {reason}", err=True)
    _tell_left(result.left)
    if result.failed:
        raise typer.Exit(1)


@app.command()
@takes("options", FleetOptions)
def fleet(options: dict[str, Any], as_json: AsJson = False) -> None:
    """Simulate fleets whose devices replay recorded spaces, with the real search and a real database.

    PostgreSQL must run on this machine: the CPU time of its processes counts.
    """
    rows, path = run_fleet(FleetOptions(**options), _tell())
    if as_json:
        print_json(rows)
    else:
        typer.echo(path)


def _tell() -> Callable[[str], None]:
    console = Console(stderr=True, soft_wrap=True)
    return lambda text: console.print(text, highlight=False, markup=False)


def _run_shapes(
    name: str,
    shapes: Sequence[Shape],
    dtype: DType,
    options: ShapeOptions,
    search: dict[str, Any],
    as_json: bool,
) -> None:
    """Tune and race the shapes that the options name, and print the result."""
    try:
        chosen = select(shapes, options.only)
    except ShapesError as error:
        raise typer.BadParameter(str(error), param_hint="--only") from error
    request = ShapesRequest(name, chosen, dtype, Settings().compile_processes, options, search)
    _print_rows(run_shapes(request, _tell()), as_json)


def _print_rows(result: BenchResult, as_json: bool) -> None:
    if as_json:
        print_json(result.rows)
    else:
        for line in (summary_of(result.rows, RATIOS + PEER_RATIOS), result.path, samples_path(result.path)):
            typer.echo(line)
    for row in result.rows:
        if row["failure"]:
            typer.echo(f"no result for {row['m']}x{row['n']}x{row['k']}: {row['failure']}", err=True)
        elif row.get("disturbed"):
            told = f"{row['m']}x{row['n']}x{row['k']} was disturbed: {', '.join(row['disturbed'])}"
            typer.echo(f"{told}; measure it again on a quiet machine", err=True)
    if result.stopped:
        typer.echo(result.stopped, err=True)
    _tell_left(result.left)
    if any(row["failure"] for row in result.rows):
        raise typer.Exit(1)


def _tell_left(left: int) -> None:
    if left:
        typer.echo(f"{left} are left; --resume goes on with them", err=True)
