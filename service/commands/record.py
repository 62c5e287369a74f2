"""``tilewright record``."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from kernels.family import ConfigSpace
from kernels.registry import FAMILIES
from service.commands.options import AsJson, ElementType, OperandLayout
from service.commands.output import print_json
from service.settings import Settings
from tilewright.problem import DType, GemmProblem, Layout
from tuner.bench import Bench, list_devices
from tuner.builder import Builder
from tuner.operands import why_too_large
from tuner.replay.files import space_name, write_space
from tuner.replay.journal import Journal, space_of
from tuner.replay.narrow import narrowed
from tuner.replay.record import Recording, RecordPlan, Tally, head, planned
from tuner.replay.space import SpaceError

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
Out = Annotated[Path, typer.Option(help="The file to write: T4, gzipped.", dir_okay=False)]
Samples = Annotated[int, typer.Option(help="Fewest samples of a config that is not slow.", min=9)]
Slow = Annotated[float, typer.Option(help="Times the best; slower configs get three samples.", min=1.15)]
MaxSeconds = Annotated[float, typer.Option(help="Stop then, to be resumed; 0 for never.", min=0)]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with an interrupted recording.")]


def record(
    family: FamilyName,
    m: M,
    n: N,
    k: K,
    out: Out,
    dtype: ElementType = DType.FLOAT16,
    layout: OperandLayout = Layout.NT,
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
    problem = GemmProblem(m, n, k, dtype, layout)
    plan = RecordPlan(_family(family, knob or []), problem, samples, slow, max_seconds)
    _tell(_record(plan, device, out, resume), out, as_json)


def _record(plan: RecordPlan, device: str | None, out: Path, resume: bool) -> Tally:
    """Fill the journal, write the file, and drop the journal of a complete recording."""
    settings = Settings()
    path = out.with_name(out.name + ".journal")
    if out.exists() and not path.exists():
        raise SpaceError(f"{out} holds a complete recording; remove it to record anew")
    with _bench(device) as bench, _builder(settings) as builder:
        too_large = why_too_large(plan.problem, bench.spec)
        if too_large:
            raise typer.BadParameter(too_large)
        configs = planned(plan, bench)
        out.parent.mkdir(parents=True, exist_ok=True)
        journal = Journal(path, head(plan, bench), resume)
        recording = Recording(plan, bench, builder, journal, configs)
        _watch(recording, settings.compile_processes, f"{plan.family.name} {plan.problem}")
        _write(plan, bench, journal, recording.tally, out)
    if recording.complete:
        path.unlink()
    return recording.tally


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


def _write(plan: RecordPlan, bench: Bench, journal: Journal, tally: Tally, out: Path) -> None:
    space = space_of(journal, space_name(out), plan.family.knobs, plan.problem, bench.spec)
    told = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "planned": tally.planned,
        "fewest_samples": plan.samples,
        "slow": plan.slow,
    }
    write_space(dataclasses.replace(space, provenance={**journal.provenance, **told}), out)


def _watch(recording: Recording, processes: int, title: str) -> None:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[now]}"),
    )
    tally = recording.tally
    with Progress(*columns, console=Console(stderr=True), speed_estimate_period=120.0) as bar:
        task = bar.add_task(title, total=tally.planned, completed=tally.done, now="")

        def show(now: Tally) -> None:
            best = f"best {now.best_us:.2f} us" if now.best_us else ""
            text = f"{best}, {now.failed} failed, idle {now.idle_s:.0f} s"
            bar.update(task, completed=now.done, now=text)

        recording.run(processes, show)


def _tell(tally: Tally, out: Path, as_json: bool) -> None:
    if as_json:
        print_json(dataclasses.asdict(tally) | {"file": str(out)})
        return
    best = f", the best at {tally.best_us:.2f} us" if tally.best_us else ""
    typer.echo(f"{tally.done} of {tally.planned} configs, {tally.failed} of them failed{best}: {out}")
    if tally.done < tally.planned:
        typer.echo("run it again with --resume for the others", err=True)


@contextmanager
def _bench(device: str | None) -> Iterator[Bench]:
    bench = Bench(device or list_devices()[0])
    try:
        yield bench
    finally:
        bench.close()


@contextmanager
def _builder(settings: Settings) -> Iterator[Builder]:
    builder = Builder(settings.compile_processes, settings.cache_dir)
    try:
        yield builder
    finally:
        builder.close()
