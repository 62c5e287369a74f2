"""``tilewright export`` and ``tilewright import``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.commands.options import AsJson, Url
from service.commands.output import connect, print_json
from tilewright.store_requests import ExportOptions
from tilewright.wire import Format

Kind = Annotated[Format, typer.Option("--format", help="ndjson has everything, t4 the trials.")]


def export_results(
    file: Annotated[Path, typer.Argument(help="Where to write.")],
    kind: Kind = Format.NDJSON,
    device_class: Annotated[str | None, typer.Option(help="Only results of this class.")] = None,
    family: Annotated[str | None, typer.Option(help="Only trials of this kernel family.")] = None,
    artifacts: Annotated[bool, typer.Option(help="The winners' kernels too.")] = True,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Write the results of the running service to a file, to be imported by another one."""
    options: ExportOptions = {"format": kind.value, "artifacts": artifacts}
    if device_class:
        options["device_class"] = device_class
    if family:
        options["family"] = family
    with connect(url) as client, file.open("wb") as out:
        written = client.export(out, **options)
    if as_json:
        print_json({"file": str(file), "bytes": written})
    else:
        typer.echo(f"{file}: {written} bytes")


def import_results(
    file: Annotated[
        Path, typer.Argument(help="What 'tilewright export' wrote.", exists=True, dir_okay=False)
    ],
    kind: Kind = Format.NDJSON,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Merge results of another service: what is known already changes nothing."""
    with connect(url) as client, file.open("rb") as source:
        answer = client.import_results(source, kind.value)
    if as_json:
        print_json(answer)
        return
    for name, new in answer.added.model_dump().items():
        typer.echo(f"{name:9} {new} new, {getattr(answer.known, name)} known already")
