"""``tilewright replay``."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from kernels.base.family import ConfigSpace
from kernels.registry import FAMILIES
from service.cli.output import AsJson, ElementType, OperandLayout, echo, print_json, print_table, problem_of
from service.settings import Settings
from tilewright.schema.job import Sampler
from tuner.measure.operands import why_too_large
from tuner.replay import report
from tuner.replay.device import narrowed
from tuner.replay.formats import read_space, space_name, write_space
from tuner.replay.record import Counts, Journal, Recording, RecordPlan, head, planned, space_of
from tuner.replay.report import PlotUnavailable, plot, summarize
from tuner.replay.run import RunResult
from tuner.replay.runner import ReplayPlan, replay_file
from tuner.replay.space import SpaceError
from tuner.workers.bench import Bench, list_devices
from tuner.workers.builder import Builder

TRANSFERRED = 8

Space = Annotated[
    Path, typer.Argument(help="A recorded space: T4 or Kernel Tuner cache, gzipped or not.", dir_okay=False)
]
HowToSearch = Annotated[Sampler, typer.Option("--sampler", help="How to search.")]
Runs = Annotated[int, typer.Option(help="Runs, each with a seed of its own.", min=1)]
Budget = Annotated[int, typer.Option(help="Measured configs a run.", min=1)]
Seed = Annotated[int, typer.Option(help="Of the runs' seeds.", min=0)]
InitialFrom = Annotated[
    Path | None, typer.Option(help=f"Another recorded space; its {TRANSFERRED} best configs are tried first.")
]
MinGain = Annotated[float, typer.Option(help="As in a job: end a run that gains less.", min=0, max=1)]
Out = Annotated[
    Path | None, typer.Option(help="Store the results and a plot in this folder.", file_okay=False)
]
Processes = Annotated[int | None, typer.Option(help="Runs side by side; one a core by default.", min=1)]


def replay(
    space: Space,
    sampler: HowToSearch = Sampler.STAGED,
    runs: Runs = 45,
    budget: Budget = 200,
    seed: Seed = 0,
    initial_from: InitialFrom = None,
    min_gain_per_s: MinGain = 0.0,
    out: Out = None,
    processes: Processes = None,
    as_json: AsJson = False,
) -> None:
    """Run the search many times on a recorded space and show how good it is; needs no GPU, no service."""
    recorded = read_space(space)
    if len(recorded) < 2:
        raise SpaceError(f"{space} holds one config, and a search needs a choice: record more")
    initial = recorded.best_of(read_space(initial_from), TRANSFERRED) if initial_from else []
    plan = ReplayPlan(sampler, runs, budget, seed, tuple(initial), min_gain_per_s)
    for doubt in recorded.doubts:
        echo(doubt, err=True)
    results = _watch(space, plan, min(runs, processes or len(os.sched_getaffinity(0))))
    result = report.Report.of(recorded, plan, summarize(results, budget), results)
    stored = _store(result, out) if out else ""
    if as_json:
        print_json(result.to_dict())
        return
    print_table(report.HEADERS, report.rows(result.summary))
    for line in (*report.lines(result.summary), *([stored] if stored else [])):
        echo(line)


def _store(result: report.Report, folder: Path) -> str:
    path = result.write(folder)
    try:
        title = f"{result.space}: {result.plan.runs} runs"
        plot({result.plan.sampler: result.summary}, title, folder / result.stem)
    except PlotUnavailable as error:
        echo(error, err=True)
    return f"stored      {path}"


def _watch(space: Path, plan: ReplayPlan, processes: int) -> list[RunResult]:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(f"{space_name(space)} {plan.sampler}", total=plan.runs)
        return replay_file(space, plan, processes, lambda _result: bar.advance(task))


FamilyName = Annotated[
    str, typer.Argument(metavar="FAMILY", help="The family; 'tilewright families' lists them.")
]
M = Annotated[int, typer.Option("--m", help="Rows of D.", min=1)]
N = Annotated[int, typer.Option("--n", help="Columns of D.", min=1)]
K = Annotated[int, typer.Option("--k", help="Length of the sum.", min=1)]
Device = Annotated[str | None, typer.Option("--device", help="cuda:0, host ...; the first here by default.")]
Knobs = Annotated[
    list[str] | None, typer.Option("--knob", help="Cover only these values, NAME=V1,V2; repeatable.")
]
RecordOut = Annotated[Path, typer.Option(help="The file to write: T4, gzipped.", dir_okay=False)]
Samples = Annotated[int, typer.Option(help="Fewest samples of a config that is not slow.", min=9)]
Slow = Annotated[float, typer.Option(help="Times the best; slower configs get three samples.", min=1.15)]
MaxSeconds = Annotated[float, typer.Option(help="Stop then, to be resumed; 0 for never.", min=0)]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with an interrupted recording.")]


def record(
    family: FamilyName,
    m: M,
    n: N,
    k: K,
    out: RecordOut,
    dtype: ElementType = None,
    layout: OperandLayout = None,
    knob: Knobs = None,
    device: Device = None,
    samples: Samples = 16,
    slow: Slow = 2.0,
    max_seconds: MaxSeconds = 0.0,
    resume: Resume = False,
    as_json: AsJson = False,
) -> None:
    """Measure every valid config of a family on a device here, for 'tilewright replay'; needs no service.

    An interrupted recording keeps what it measured in FILE.journal.
    """
    chosen = _family(family, knob or [])
    problem = problem_of((m, n, k), dtype, layout, FAMILIES[family].device_kind)
    plan = RecordPlan(chosen, problem, samples, slow, max_seconds)
    _tell(_record(plan, device, out, resume), out, as_json)


def _record(plan: RecordPlan, device: str | None, out: Path, resume: bool) -> Counts:
    """Fill the journal, write the file, and drop the journal of a complete recording."""
    settings = Settings()
    path = out.with_name(out.name + ".journal")
    if out.exists():
        if not path.exists():
            raise SpaceError(f"{out} holds a complete recording; remove it to record anew")
        _need_part(plan, out)
    with (
        contextlib.closing(Bench(device or list_devices()[0])) as bench,
        contextlib.closing(
            Builder(settings.compile_processes, settings.cache_dir, cache_bytes=settings.cache_bytes)
        ) as builder,
    ):
        too_large = why_too_large(plan.problem, bench.spec)
        if too_large:
            raise typer.BadParameter(too_large)
        configs = planned(plan, bench)
        out.parent.mkdir(parents=True, exist_ok=True)
        journal = Journal(path, head(plan, bench), resume)
        recording = Recording(plan, bench, builder, journal, configs)
        _watch_recording(recording, settings.compile_processes, f"{plan.family.name} {plan.problem}")
        _write(plan, bench, journal, recording.counts, out)
    if recording.complete:
        path.unlink()
    return recording.counts


def _need_part(plan: RecordPlan, out: Path) -> None:
    """Refuse to replace a file that no earlier part of this recording wrote."""
    try:
        space = read_space(out)
    except SpaceError as error:
        raise SpaceError(f"{out} is no recording: choose another file ({error})") from error
    if (space.family, space.problem) != (plan.family.name, plan.problem):
        raise SpaceError(f"{out} is no recording of {plan.family.name} {plan.problem}: choose another file")


def _family(name: str, knobs: list[str]) -> ConfigSpace[Any]:
    if name not in FAMILIES:
        raise typer.BadParameter(f"there is no family {name!r}; choose among {', '.join(FAMILIES)}")
    values = {}
    for text in knobs:
        key, equals, listed = text.partition("=")
        if not equals:
            raise typer.BadParameter(f"write NAME=V1,V2, got {text!r}", param_hint="--knob")
        values[key.strip()] = [value.strip() for value in listed.split(",")]
    return narrowed(FAMILIES[name], values)


def _write(plan: RecordPlan, bench: Bench, journal: Journal, counts: Counts, out: Path) -> None:
    space = space_of(journal, space_name(out), plan.family.knobs, plan.problem, bench.spec)
    provenance = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "planned": counts.planned,
        "fewest_samples": plan.samples,
        "slow": plan.slow,
    }
    write_space(dataclasses.replace(space, provenance={**journal.provenance, **provenance}), out)


def _watch_recording(recording: Recording, processes: int, title: str) -> None:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[now]}"),
    )
    counts = recording.counts
    with Progress(*columns, console=Console(stderr=True), speed_estimate_period=120.0) as bar:
        task = bar.add_task(title, total=counts.planned, completed=counts.done, now="")

        def show(now: Counts) -> None:
            best = f"best {now.best_us:.2f} us" if now.best_us else ""
            text = f"{best}, {now.failed} failed, idle {now.idle_s:.0f} s"
            bar.update(task, completed=now.done, now=text)

        recording.run(processes, show)


def _tell(counts: Counts, out: Path, as_json: bool) -> None:
    if as_json:
        print_json(dataclasses.asdict(counts) | {"file": str(out)})
        return
    best = f", the best at {counts.best_us:.2f} us" if counts.best_us else ""
    echo(f"{counts.done} of {counts.planned} configs, {counts.failed} of them failed{best}: {out}")
    if counts.done < counts.planned:
        echo("run it again with --resume for the others", err=True)
