"""``tilewright``: the command line. Data goes to stdout, progress and errors to stderr.

Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

from typing import Any

import typer
from pydantic import ValidationError

from service.cli import admin, bench, doctor, gemm, jobs, replay, results, serve
from service.settings import Settings
from tilewright.errors import TilewrightError


class _Group(typer.core.TyperGroup):
    """Turns expected errors into one line on stderr and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except TilewrightError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(1) from error
        except ValidationError as error:
            if error.title != Settings.__name__:
                raise
            for item in error.errors():
                where = ".".join(str(part) for part in item["loc"])
                typer.echo(f"setting {where}: {item['msg']}" if where else item["msg"], err=True)
            raise typer.Exit(2) from error
        except KeyboardInterrupt as error:
            raise typer.Exit(130) from error


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Tune GEMM kernels on the GPU in front of you, keep every measurement, serve the winners.",
)
app.command()(serve.serve)
app.command()(jobs.tune)
app.command()(results.best)
app.command()(gemm.gemm)
app.add_typer(jobs.app, name="jobs")
app.command()(jobs.misses)
app.add_typer(results.sets_app, name="sets")
app.command()(results.diff)
app.command("export")(admin.export_results)
app.command("import")(admin.import_results)
app.command()(results.families)
app.command()(results.devices)
app.add_typer(admin.database_app, name="db")
app.add_typer(admin.keys_app, name="keys")
app.command()(doctor.doctor)
app.add_typer(bench.app, name="bench")
app.command()(replay.record)
app.command()(replay.replay)

if __name__ == "__main__":
    app()
