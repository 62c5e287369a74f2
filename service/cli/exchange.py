"""Results from one service to others: ``export``, ``import``, ``imports``, ``publish``, ``delete``, and
``trust``.

Importing and deleting work on the database itself where no service is named: who may write it needs no key.
"""

from __future__ import annotations

import dataclasses
import errno
import functools
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from service.cli.admin import Service, asks_service, open_store, owner, user
from service.cli.options import Asked, asks
from service.cli.output import (
    MOST_LISTED,
    WHOLE_ID,
    AsJson,
    DatabaseUrl,
    Url,
    connect,
    device_named,
    echo,
    need_known,
    only_one,
    print_json,
    print_list,
    print_result,
    tell_end,
)
from service.results import importing, optuna_export, publishing
from service.results.spool import Spool
from service.settings import Settings
from service.signing import Signer
from tilewright import Client
from tilewright.errors import naming, printable
from tilewright.launch import driver
from tilewright.schema.codec import encode
from tilewright.schema.entries import Import, RecordCounts
from tilewright.schema.problem import GemmProblem
from tilewright.trust import checked_key
from tilewright.wire import Counts, Format, ImportView
from tuner.store import imports
from tuner.store.access import audit, keys
from tuner.store.access.audit import Action
from tuner.store.database import Store
from tuner.store.upkeep import staging

_SCAN = 1000
Kind = Annotated[Format, typer.Option("--format", help="ndjson has everything, t4 the trials.")]


class Written(StrEnum):
    """The formats of an export; ``optuna`` is a storage that optuna-dashboard opens."""

    NDJSON = "ndjson"
    T4 = "t4"
    OPTUNA = "optuna"


def _may_write(file: Path) -> Path:
    """The file, before the service makes what is written to it.

    Raises:
        OSError: its folder is missing or read-only.
    """
    is_pipe = file.exists() and not file.is_file()  # which has its own rights
    place = file if is_pipe else Path(os.path.realpath(file)).parent
    if not os.access(place, os.W_OK):
        code = errno.EACCES if place.exists() else errno.ENOENT
        raise OSError(code, os.strerror(code), str(file))
    return file


def export_results(
    file: Annotated[Path, typer.Argument(help="Where to write.", dir_okay=False, callback=_may_write)],
    kind: Annotated[
        Written,
        typer.Option(
            "--format", help="ndjson has everything, t4 the trials; optuna opens in optuna-dashboard."
        ),
    ] = Written.NDJSON,
    device_class: Annotated[str | None, typer.Option(help="Only results of this class.")] = None,
    family: Annotated[str | None, typer.Option(help="Only trials of this kernel family.")] = None,
    since: Annotated[
        str | None, typer.Option(help="Only jobs that ended since then, such as 2026-01-31T12:00:00Z.")
    ] = None,
    artifacts: Annotated[bool, typer.Option(help="The winners' kernels too.")] = True,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Write the results of the running service to a file, to be imported by another one."""
    with connect(url) as client:
        need_known(client, device_class, family)
        chosen = functools.partial(client.export, device_class=device_class, family=family, since=since)
        if kind is Written.OPTUNA:
            folder = Path(tempfile.gettempdir())
            with tempfile.TemporaryFile(dir=folder) as lines:
                with naming(folder, folder):
                    chosen(lines, artifacts=False)
                    lines.seek(0)
                optuna_export.write(lines, file)
            written = file.stat().st_size
        else:
            written = chosen(file, format=kind.value, artifacts=artifacts)
    print_result({"file": printable(file), "bytes": written}, as_json, f"{file}: {written} bytes")


def import_results(
    file: Annotated[
        Path, typer.Argument(help="What 'tilewright export' wrote.", exists=True, dir_okay=False)
    ],
    kind: Kind = Format.NDJSON,
    url: Service = None,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Merge results of another service: what is known already changes nothing."""
    if asks_service(url, database_url):
        with connect(url) as client:
            answer = client.import_results(file, kind)
    else:
        # NOTE: a copy: its signatures and its records are read one after the other, and a file may change.
        with open_store(database_url, create=True) as store, Spool(Settings().cache_dir) as copy:
            with file.open("rb") as source:
                shutil.copyfileobj(source, copy)
            answer = importing.merge(store, copy.whole(), kind, _own_key(), user())
    if as_json:
        print_json(answer)
        return
    for name, new in answer.added.model_dump().items():
        echo(f"{name:9} {new} new, {getattr(answer.known, name)} known already")
    if answer.import_id:
        echo(f"import    {answer.import_id}")
    if answer.waiting:
        echo(f"waiting   {answer.waiting} winners, to be built and raced here")
    if answer.reason:
        echo(f"{answer.dropped} kernels were left out: {answer.reason}", err=True)


def publish_kernels(
    folder: Annotated[Path, typer.Argument(help="The folder; what it lacks is added.", file_okay=False)],
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Write what the running service serves for start-up to a folder, which any file server hands out."""
    with connect(url) as client:
        written = publishing.publish(client, folder)
    if as_json:
        print_json(dataclasses.asdict(written))
        return
    echo(f"{folder}: {written.sets} config sets and {written.kernels} kernels, {written.bytes} bytes, new")
    for device_class, digest in written.served.items():
        echo(f"{device_class}  {digest}")
    for device_class in written.kept:
        echo(
            f"{device_class}: the folder has a later set than {client.url} served, and keeps it; to go back,"
            " use 'tilewright sets pin' and publish again",
            err=True,
        )


def list_imports(url: Url = None, as_json: AsJson = False) -> None:
    """List what was imported, the last import first."""
    with connect(url) as client:
        found = client.imports(limit=MOST_LISTED)
    headers = ("id", "entered", "signed by", "trusted", "jobs", "winners", "waiting")
    print_list(found, as_json, headers, map(_import_row, found.items))
    tell_end(MOST_LISTED, found.next)


def _import_row(item: ImportView) -> tuple[object, ...]:
    entered, trusted = f"{item.created:%Y-%m-%d %H:%M:%S}", "yes" if item.trusted else "no"
    return item.id, entered, item.signer or "-", trusted, item.jobs, item.best, item.waiting


delete_app = typer.Typer(no_args_is_help=True, help="Take results out again.")


@delete_app.command("import")
def delete_import(
    import_id: Annotated[str, typer.Argument(help="Id of the import, or its first characters.")],
    url: Service = None,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Delete everything that an import brought; what was raced here stands as before."""
    removed = _removed(
        url,
        database_url,
        lambda client: client.delete_import(_whole_id(import_id, lambda: client.imports(limit=_SCAN).items)),
        lambda store: staging.remove(store, _whole_id(import_id, lambda: _imports(store)), user()),
    )
    _print_removed(removed, as_json)


def _whole_id(start: str, listed: Callable[[], Sequence[Import]]) -> str:
    """The id of the import that begins so; a whole one need not be listed."""
    if len(start) == WHOLE_ID:
        return start
    found = [one.id for one in listed() if one.id.startswith(start)]
    return only_one(start, found, "import", "tilewright imports")


def _imports(store: Store) -> list[Import]:
    with store.read() as session:
        return imports.listing(session, _SCAN)


@delete_app.command("best")
@asks()
def delete_best(
    asked: Asked,
    target: Annotated[str, typer.Option("--on", help="Device class, or an architecture such as sm_90.")],
    url: Service = None,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Delete the winner of a problem: it counts as never tuned until it is tuned again."""
    problem = asked.on("cuda" if target.startswith("sm_") else "host")
    removed = _removed(
        url,
        database_url,
        lambda client: client.delete_best(problem, device_class=target),
        lambda store: _remove_best(store, target, problem),
    )
    _print_removed(removed, as_json)


@delete_app.command("problem")
@asks()
def delete_problem(
    asked: Asked, url: Service = None, database_url: DatabaseUrl = None, as_json: AsJson = False
) -> None:
    """Delete a problem on all devices: its jobs, trials, winners and misses."""
    problem = asked.on("cuda" if driver.device_count() else "host")
    removed = _removed(
        url,
        database_url,
        lambda client: client.delete_problem(_as_there(asked, client)),
        lambda store: staging.remove_problem(store, problem, user()),
    )
    _print_removed(removed, as_json)


def _as_there(asked: Asked, client: Client) -> GemmProblem:
    """The problem; a type or layout that was not given is that of the service's first device."""
    is_whole = {"dtype", "layout"} <= asked.fields.keys()
    return asked.on("host" if is_whole else device_named(client, None).kind)


def _removed(
    url: str | None,
    database_url: str | None,
    by_service: Callable[[Client], Counts],
    here: Callable[[Store], RecordCounts],
) -> Counts:
    """What was deleted, by a service or in the database here."""
    if asks_service(url, database_url):
        with connect(url) as client:
            return by_service(client)
    with open_store(database_url) as store:
        return Counts(**encode(here(store)))


def _remove_best(store: Store, target: str, problem: GemmProblem) -> RecordCounts:
    with store.begin() as session:
        removed = imports.remove_best(session, target, problem)
        audit.note(session, user(), Action.DELETE_BEST, f"{problem} on {target}", **encode(removed))
    return removed


def _print_removed(removed: Counts, as_json: bool) -> None:
    if as_json:
        print_json(removed)
        return
    for name, count in removed.model_dump().items():
        echo(f"{name:9} {count} deleted")


def _own_key() -> str | None:
    """The key that the service of this machine signs with; None before its first start."""
    path = Settings().signing_key
    return Signer.load(path).public_key if path.exists() else None


trust_app = typer.Typer(no_args_is_help=True, help="Keys whose signed kernels may run here.")
PublicKey = Annotated[str, typer.Argument(help="ed25519:..., as 'tilewright trust show' prints it there.")]


@trust_app.command()
def show(as_json: AsJson = False) -> None:
    """Show the public key that the service of this machine signs with, for others to trust."""
    key = Signer.load(Settings().signing_key).public_key
    print_result({"key": key}, as_json, key)


@trust_app.command("ls")
def list_trusted(database_url: DatabaseUrl = None, as_json: AsJson = False) -> None:
    """List the keys that are trusted, the oldest first."""
    with open_store(database_url) as store, store.read() as session:
        found = keys.trusted(session)
    rows = ((one.key, one.name, f"{one.created:%Y-%m-%d}") for one in found)
    print_list([dataclasses.asdict(one) for one in found], as_json, ("key", "name", "since"), rows)


@trust_app.command()
def add(
    key: PublicKey,
    name: Annotated[str, typer.Option(help="Whose key it is.", callback=owner)] = "",
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Let kernels and winners that this key signed run here once they are imported."""
    with open_store(database_url, create=True) as store, store.begin() as session:
        keys.trust(session, checked_key(key), name)
        audit.note(session, user(), Action.TRUST, key, name=name)
    text = f"{key} is trusted; import its results again for those that were left out"
    print_result({"key": key, "name": name}, as_json, text)


@trust_app.command()
def remove(key: PublicKey, database_url: DatabaseUrl = None, as_json: AsJson = False) -> None:
    """Trust a key no more; what was imported stays in use until it is deleted."""
    with open_store(database_url) as store, store.begin() as session:
        there = keys.distrust(session, checked_key(key))
        if there:
            audit.note(session, user(), Action.DISTRUST, key)
    if not there:
        echo(f"error: {key} is not trusted; 'tilewright trust ls' lists the keys that are", err=True)
        raise typer.Exit(1)
    print_result({"key": key, "trusted": False}, as_json, f"{key} is not trusted any more")
