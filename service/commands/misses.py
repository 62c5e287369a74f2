"""``tilewright misses``."""

from __future__ import annotations

from typing import Annotated

import typer

from service.commands.options import AsJson, Url
from service.commands.output import connect, print_json, print_table


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
                item.problem.to_problem(),
                item.device_class,
                item.reason,
                item.count,
                f"{item.time_us:.2f}{'' if item.measured else ' (estimated)'}",
                f"{item.stake_s:.3f}",
            )
            for item in found
        ),
    )
