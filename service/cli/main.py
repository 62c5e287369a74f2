"""``tilewright``: the command line. Data goes to stdout, progress and errors to stderr.

Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import sys

try:
    import gc
    import importlib
    import os
    import shlex
    from http import HTTPStatus
    from typing import Annotated, Any

    import typer
    from pydantic import ValidationError

    from service.settings import Settings
    from tilewright import __version__
    from tilewright.errors import ServiceError, TilewrightError, printable
    from tilewright.schema.codec import rule
    from tuner.store.engines.full_disk import remedy
except KeyboardInterrupt:  # these imports take most of the time of a start
    sys.exit(130)

# Where each verb is: a function, or a group of verbs. A module is imported when its verb is called, since a
# client's verb needs neither the service nor the database.
_VERBS = {
    "serve": "service.cli.serve:serve",
    "tune": "service.cli.jobs:tune",
    "best": "service.cli.results:best",
    "explain": "service.cli.results:explain",
    "gemm": "service.cli.gemm:gemm",
    "jobs": "service.cli.jobs:app",
    "trials": "service.cli.jobs:trials",
    "misses": "service.cli.jobs:misses",
    "sets": "service.cli.results:sets_app",
    "diff": "service.cli.results:diff",
    "report": "service.cli.results:write_report",
    "export": "service.cli.exchange:export_results",
    "import": "service.cli.exchange:import_results",
    "publish": "service.cli.exchange:publish_kernels",
    "imports": "service.cli.exchange:list_imports",
    "delete": "service.cli.exchange:delete_app",
    "trust": "service.cli.exchange:trust_app",
    "quarantine": "service.cli.results:quarantine_app",
    "audit": "service.cli.admin:list_audit",
    "families": "service.cli.results:families",
    "devices": "service.cli.results:devices",
    "backup": "service.cli.admin:back_up_database",
    "restore": "service.cli.admin:restore_database",
    "db": "service.cli.admin:database_app",
    "keys": "service.cli.admin:keys_app",
    "doctor": "service.cli.doctor:doctor",
    "record": "service.cli.replay:record",
    "replay": "service.cli.replay:replay",
    "bench": "benchmarks.cli:app",
}
_EXTENTS = ("m", "n", "k")


class _Group(typer.core.TyperGroup):
    """Imports verbs as they are called; turns expected errors into a line on stderr and an exit code."""

    def list_commands(self, _ctx: Any) -> list[str]:
        return list(_VERBS)

    def get_command(self, _ctx: Any, name: str) -> Any:
        module, _, attribute = _VERBS.get(name, "").partition(":")
        if not module:
            return None
        try:
            found = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            if error.name in ("benchmarks", "benchmarks.cli"):
                return None  # a checkout has it, an installed service has not
            raise
        if not gc.isenabled():
            gc.freeze()
            gc.enable()
        if isinstance(found, typer.Typer):
            command: Any = typer.main.get_group(found)
        else:
            verb = typer.Typer(add_completion=False)
            verb.command()(found)
            command = typer.main.get_command(verb)
        command.name = name
        return command

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except TilewrightError as error:
            typer.echo(printable(f"error: {error}"), err=True)
            if isinstance(error, ServiceError) and (advice := _advice(error)):
                typer.echo(printable(advice), err=True)
            raise typer.Exit(1) from error
        except OSError as error:
            if error.filename is None:
                raise
            advice = remedy(error, "use a file or folder that you may use")
            typer.echo(printable(f"error: {error.filename}: {error.strerror}; {advice}"), err=True)
            raise typer.Exit(1) from error
        except MemoryError as error:
            text = f"this machine has too little memory{f': {error}' if str(error) else ''}"
            typer.echo(printable(f"error: {text}"), err=True)
            raise typer.Exit(1) from error
        except ValidationError as error:
            if error.title != Settings.__name__:
                raise
            for item in error.errors():
                if item["type"] == "default_factory_not_called":
                    continue  # follows from another setting, which is wrong
                where = ".".join(str(part) for part in item["loc"])
                text = f"setting {where}: {rule(item)}" if where else rule(item)
                typer.echo(printable(f"error: {text}"), err=True)
            raise typer.Exit(2) from error
        except typer.BadParameter as error:
            if isinstance(error.__cause__, ValidationError):
                error.message = printable(rule(error.__cause__.errors()[0]))
            raise
        except KeyboardInterrupt as error:
            raise typer.Exit(130) from error


def _advice(error: ServiceError) -> str:
    """What the command line can do about an error, whose text is for every client; empty if it says all."""
    if error.status == HTTPStatus.UNAUTHORIZED:
        return "the command line sends the key that TILEWRIGHT_KEY holds"
    asked = error.problem.get("tune", {})
    return f"tune it with: {_tune_command(asked)}" if asked.keys() >= set(_EXTENTS) else ""


def _tune_command(asked: dict[str, Any]) -> str:
    """The command for a body of ``POST /tune``, whose fields are the options."""
    words = ["tilewright", "tune", *(str(asked[name]) for name in _EXTENTS)]
    for name, value in asked.items():
        if name not in _EXTENTS:
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return shlex.join(words)  # so that no word of a service is another command


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Tune GEMM kernels on the GPU in front of you, keep every measurement, serve the winners.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tilewright {__version__}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
]


@app.callback()
def options(version: Version = False) -> None:
    pass


def run() -> None:
    """The program. What it imports lives as long as the process and is left out of the search for garbage,
    which saves 0.7 s of CPU from a start of the service to its end."""
    gc.disable()
    try:
        app()
    except KeyboardInterrupt:  # before a verb is at work
        sys.exit(130)
    except OSError as error:  # of stdout, such as a full disk: one of a file has been told with its name
        typer.echo(printable(f"error: {error.strerror or error}"), err=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # takes what the end of the process would write again
        sys.exit(1)


if __name__ == "__main__":
    run()
