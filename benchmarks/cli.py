"""``tilewright bench``: the command line adds it in a checkout (:mod:`service.cli.main`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.common.pages import PlotUnavailable
from benchmarks.common.results import RESULTS
from benchmarks.fleet.run import DEFAULT_SPACES, SPACES, FleetRequest, run_fleet
from benchmarks.ladder import report as ladder_report
from benchmarks.ladder.run import LadderRequest, run_ladder
from benchmarks.mma.run import LAYOUTS, MOST_CONFIGS, SHAPES, TYPES, MmaRequest, problems, run_mma, summary
from benchmarks.models.files import samples_path
from benchmarks.models.files import summary as summary_of
from benchmarks.models.model import WEIGHTS, ModelRequest, run_model
from benchmarks.models.peers import RATIOS as PEER_RATIOS
from benchmarks.models.shapes import UNSEEN
from benchmarks.models.unseen import RATIOS, BenchResult, UnseenRequest, run_unseen
from benchmarks.suite import report as suite_report
from benchmarks.suite.files import load_provenance, provenance_path, tuning_path
from benchmarks.suite.run import SuiteRequest, run_suite
from benchmarks.suite.shapes import HELD_OUT, SUITE, Shape, ShapesError, read_shapes, select
from benchmarks.suite.tuning import Tools
from service.cli.output import AsJson, print_json
from service.settings import Settings
from tilewright.schema.job import Level
from tilewright.schema.problem import DType

_TABLE_COLUMNS = 160
app = typer.Typer(no_args_is_help=True, help="Benchmarks of this checkout, run here without the service.")

Document = Annotated[
    str | None, typer.Option(help="One reference document, for instance 000; all by default.")
]
Gpu = Annotated[str, typer.Option("--device", help="cuda:0, cuda:1 ...")]
AnyDevice = Annotated[str, typer.Option("--device", help="cuda:0, cuda:1 ... or host.")]
Out = Annotated[Path | None, typer.Option(help="Folder of the results; benchmarks/results by default.")]
Rounds = Annotated[int, typer.Option(help="Samples of each candidate.", min=1)]
SuiteRounds = Annotated[int, typer.Option(help="Samples of each candidate.", min=8)]
ShapesFile = Annotated[Path | None, typer.Option("--shapes", help="Measure the shapes of a JSON file.")]
HeldOut = Annotated[bool, typer.Option("--held-out", help="Measure the held-out shapes.")]
Only = Annotated[list[str] | None, typer.Option(help="Only this group, MxNxK or MxNxK-LAYOUT; repeatable.")]
Budget = Annotated[int, typer.Option(help="Measured configs to spend on a shape.", min=1)]
Seconds = Annotated[float, typer.Option(help="Seconds to search for a shape, 0 for no bound.", min=0)]
StopAfter = Annotated[float, typer.Option(help="Start no shape after so many seconds, 0 for none.", min=0)]
RandomSeed = Annotated[int, typer.Option("--seed", help="Of every random choice.", min=0)]
Resume = Annotated[bool, typer.Option("--resume", help="Leave out what the results hold already.")]
MaxTrials = Annotated[
    int | None, typer.Option(help="Measured configs for a shape; as in a job by default.", min=1)
]
PeersOption = Annotated[bool, typer.Option("--peers", help="Add torch.compile and nvMatmulHeuristics.")]
LevelOption = Annotated[Level, typer.Option("--level", help="How much a job spends.")]
NoTune = Annotated[bool, typer.Option("--no-tune", help="Race stored winners only.")]
Retune = Annotated[bool, typer.Option("--retune", help="Tune also what has a winner.")]


@app.callback()
def bench() -> None:
    """Benchmarks of this checkout, run here without the service."""


@app.command()
def ladder(
    document: Document = None,
    device: Gpu = "cuda:0",
    out: Out = None,
    rounds: Rounds = 31,
    runs: Annotated[int, typer.Option(help="Parts of a race, for the spread.", min=1)] = 5,
    stop_after: StopAfter = 0.0,
    as_json: AsJson = False,
) -> None:
    """Measure the reference kernels against cuBLAS and today's tuned winners; store table and plot."""
    console = Console(stderr=True, width=_TABLE_COLUMNS)
    cache = Settings().cache_dir
    request = LadderRequest(document, device, out or RESULTS, cache, rounds, runs, stop_after)
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
def suite(
    dtype: Annotated[DType, typer.Option("--dtype", help="Element type of A and B.")] = DType.FLOAT16,
    shapes: ShapesFile = None,
    held_out: HeldOut = False,
    only: Only = None,
    budget: Budget = 120,
    seconds: Seconds = 0.0,
    seed: RandomSeed = 0,
    rounds: SuiteRounds = 61,
    resume: Resume = False,
    no_tune: NoTune = False,
    retune: Retune = False,
    stop_after: StopAfter = 0.0,
    device: AnyDevice = "cuda:0",
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Tune real shapes that have no winner yet, race the winners against the vendor, store tables and plots.

    Ctrl-C keeps what is done; --resume goes on there.
    """
    if no_tune and retune:
        raise typer.BadParameter("--no-tune and --retune exclude each other", param_hint="--retune")
    settings, (chosen, part) = Settings(), _shapes(shapes, held_out, only or [])
    tools = Tools(device, settings.database_url, settings.compile_processes, settings.cache_dir)
    request = SuiteRequest(
        tools, dtype, chosen, part, **({"out": out} if out else {}), budget=budget, seconds=seconds,
        rounds=rounds, seed=seed, tune=not no_tune, retune=retune, resume=resume, stop_after=stop_after,
    )  # fmt: skip
    _run_suite(request, as_json)


@app.command()
def mma(
    peers: Annotated[Path | None, typer.Option(help="Shared library of CUTLASS's kernels.")] = None,
    shapes: Annotated[str, typer.Option(help="MxNxK, separated by blanks.")] = SHAPES,
    types: Annotated[str, typer.Option(help="TYPE or TYPE:ACCUMULATE, separated by blanks.")] = TYPES,
    layouts: Annotated[str, typer.Option(help="Separated by blanks.")] = LAYOUTS,
    configs: Annotated[int, typer.Option(help="Our configs for a problem.", min=1)] = MOST_CONFIGS,
    rounds: SuiteRounds = 21,
    resume: Resume = False,
    stop_after: StopAfter = 0.0,
    device: Gpu = "cuda:0",
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Race family mma_sync with CUTLASS's kernels of the same instruction and with that instruction alone.

    benchmarks/mma/cutlass_peers.cu says how to build the library. Rows are written one by one.
    """
    settings = Settings()
    try:
        asked = list(problems(shapes, types, layouts))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--shapes / --types / --layouts") from error
    request = MmaRequest(
        asked, settings.cache_dir, settings.compile_processes, peers, device, out or RESULTS, configs,
        rounds, resume, stop_after,
    )  # fmt: skip
    result = run_mma(request, _tell())
    if as_json:
        print_json(result.rows)
    else:
        typer.echo(summary(result.rows))
        typer.echo(result.path)
    _print_missing(result.failed, result.left)


@app.command()
def unseen(
    dtype: Annotated[DType, typer.Option("--dtype", help="Element type.")] = DType.BFLOAT16,
    held_out: Annotated[bool, typer.Option("--held-out", help="Measure the half that is held out.")] = False,
    only: Annotated[list[str] | None, typer.Option(help="Only this group; repeatable.")] = None,
    max_trials: MaxTrials = None,
    level: LevelOption = Level.FULL,
    repeat: Annotated[int, typer.Option(help="Number of this run, of several on one GPU.", min=1)] = 1,
    rounds: SuiteRounds = 48,
    resume: Resume = False,
    stop_after: StopAfter = 0.0,
    peers: PeersOption = False,
    device: AnyDevice = "cuda:0",
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Tune shapes of public models from an empty database, as a user does, and race the winners.

    Each row is written when it is measured; --resume goes on after the last one.
    """
    groups = dict.fromkeys(shape.group for shape in UNSEEN)
    if unknown := set(only or ()) - set(groups):
        raise typer.BadParameter(
            f"no group is called {min(unknown)!r}; use {', '.join(groups)}", param_hint="--only"
        )
    shapes = [one for one in UNSEEN if one.held_out == held_out and (not only or one.group in only)]
    options = _options(max_trials=max_trials, level=level)
    request = UnseenRequest(
        shapes, dtype, device, Settings().compile_processes, options, out or RESULTS,
        repeat, rounds, resume, stop_after, peers,
    )  # fmt: skip
    _print_rows(run_unseen(request, _tell()), RATIOS + PEER_RATIOS, as_json)


@app.command()
def model(
    weights: Annotated[list[str] | None, typer.Option(help="Only this weight; repeatable.")] = None,
    level: LevelOption = Level.FULL,
    max_trials: MaxTrials = None,
    rounds: SuiteRounds = 48,
    resume: Resume = False,
    stop_after: StopAfter = 0.0,
    peers: PeersOption = False,
    device: AnyDevice = "cuda:0",
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Tune the weights of Llama-3-8B in bfloat16, each on a ladder of M = 1 to 8192, and race every row."""
    if unknown := set(weights or ()) - set(WEIGHTS):
        raise typer.BadParameter(
            f"no weight is called {min(unknown)!r}; use {', '.join(WEIGHTS)}", param_hint="--weights"
        )
    options = _options(max_trials=max_trials, level=level)
    processes = Settings().compile_processes
    request = ModelRequest(
        weights or list(WEIGHTS), device, processes, options, out=out or RESULTS, rounds=rounds,
        resume=resume, stop_after=stop_after, peers=peers,
    )  # fmt: skip
    _print_rows(run_model(request, _tell()), RATIOS + PEER_RATIOS, as_json)


@app.command()
def fleet(
    devices: Annotated[str, typer.Option(help="Sizes of the fleet, separated by blanks.")] = "1 2 4 8 64",
    space: Annotated[
        list[Path] | None, typer.Option(help="A recorded space; repeatable, of one device class.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Jobs for each device.", min=1)] = 8,
    trials: Annotated[int, typer.Option(help="Measured configs of a job.", min=1)] = 40,
    database_url: Annotated[str | None, typer.Option(help="A scratch database; SQLite by default.")] = None,
    real_time: Annotated[bool, typer.Option("--real-time", help="Sleep; no virtual clock.")] = False,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Simulate fleets whose devices replay recorded spaces, with the real search and a real database.

    On the virtual clock, PostgreSQL must run on this machine: the CPU time of its processes counts.
    """
    spaces = tuple(space or [SPACES / name for name in DEFAULT_SPACES])
    sizes = [int(text) for text in devices.split() if text.isdecimal() and int(text)]
    if len(sizes) != len(devices.split()) or not sizes:
        raise typer.BadParameter("use whole numbers, such as '1 8 64'", param_hint="--devices")
    shown = f"tilewright bench fleet --devices '{devices}' --jobs {jobs} --trials {trials}"
    command = shown + (" --database-url ..." if database_url else "") + (" --real-time" if real_time else "")
    request = FleetRequest(sizes, spaces, jobs, trials, database_url, real_time, command, out or RESULTS)
    rows, path = run_fleet(request, _tell())
    if as_json:
        print_json(rows)
    else:
        typer.echo(path)


def _options(**given: Any) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in given.items() if value is not None}


def _tell() -> Callable[[str], None]:
    console = Console(stderr=True, soft_wrap=True)
    return lambda text: console.print(text, highlight=False, markup=False)


def _print_rows(result: BenchResult, ratios: Sequence[str], as_json: bool) -> None:
    if as_json:
        print_json(result.rows)
    else:
        for line in (summary_of(result.rows, ratios), result.path, samples_path(result.path)):
            typer.echo(line)
    if result.left:
        typer.echo(f"{result.left} are left; --resume goes on with them", err=True)
    if any(row["failure"] for row in result.rows):
        raise typer.Exit(1)


def _shapes(file: Path | None, held_out: bool, only: list[str]) -> tuple[Sequence[Shape], str]:
    """The shapes to measure, and what names their results."""
    if file and held_out:
        raise typer.BadParameter("--shapes and --held-out exclude each other", param_hint="--shapes")
    try:
        given = read_shapes(file) if file else HELD_OUT if held_out else SUITE
        return select(given, only), file.stem if file else "held-out" if held_out else ""
    except ShapesError as error:
        raise typer.BadParameter(str(error), param_hint="--shapes / --only") from error


def _run_suite(request: SuiteRequest, as_json: bool) -> None:
    console, written = Console(stderr=True, soft_wrap=True), []
    result = run_suite(request, lambda line: console.print(line, highlight=False))
    if result.rows:
        wide = Console(stderr=True, width=max(console.width, _TABLE_COLUMNS))
        for table in suite_report.rich_tables(result.rows, load_provenance(result.path)):
            wide.print(table)
        try:
            written = suite_report.write_report(result.path)
        except PlotUnavailable as error:
            console.print(str(error), highlight=False)
    if as_json:
        print_json([dataclasses.asdict(row) for row in result.rows])
    else:
        for path in (result.path, provenance_path(result.path), tuning_path(result.path), *written):
            typer.echo(path)
    _print_missing(result.failed, len(result.left), interrupted=result.interrupted)


def _print_missing(failed: Mapping[str, str], left: int, *, interrupted: bool = False) -> None:
    """What has no result, and why; ends the program if there is some."""
    for name, reason in failed.items():
        typer.echo(f"no result for {name}: {reason}", err=True)
    if left:
        typer.echo(f"{left} are left; --resume goes on with them", err=True)
    if interrupted or failed:
        raise typer.Exit(130 if interrupted else 1)
