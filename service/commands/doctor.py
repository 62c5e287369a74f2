"""``tilewright doctor``."""

from __future__ import annotations

import typer

from service.checkup import examine, usable
from service.commands.options import AsJson
from service.commands.output import print_json
from service.settings import Settings


def doctor(as_json: AsJson = False) -> None:
    """Say what is missing on this machine and how to get it; exit code 1 where nothing can be tuned."""
    findings = examine(Settings())
    ready = usable(findings)
    if as_json:
        print_json({"usable": ready, "findings": [finding.to_dict() for finding in findings]})
    else:
        for finding in findings:
            typer.echo(f"{'ok     ' if finding.ok else 'missing'}  {finding.name}: {finding.found}")
            if not finding.ok:
                typer.echo(f"         {finding.remedy}")
        typer.echo("ready to tune" if ready else "nothing can be tuned here yet")
    if not ready:
        raise typer.Exit(1)
