"""Commands for operators: ``export``, ``import``, ``db`` and ``keys``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from sqlalchemy import make_url

from service.cli.output import AsJson, Url, connect, print_json, print_table
from service.http.access import Scope
from service.settings import Settings
from tilewright.http.arguments import ExportOptions
from tilewright.wire import Format
from tuner.store import keys
from tuner.store.database import Store
from tuner.store.keys import KeyRecord
from tuner.store.records import utc_now

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
    with connect(url) as client:
        written = client.export(file, **options)
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
    with connect(url) as client:
        answer = client.import_results(file, kind)
    if as_json:
        print_json(answer)
        return
    for name, new in answer.added.model_dump().items():
        typer.echo(f"{name:9} {new} new, {getattr(answer.known, name)} known already")


database_app = typer.Typer(no_args_is_help=True, help="The database.")
DatabaseUrl = Annotated[
    str | None, typer.Option(help="TILEWRIGHT_DATABASE_URL or the user's own by default.")
]


@database_app.callback()
def db() -> None:
    """The database."""


@database_app.command()
def upgrade(database_url: DatabaseUrl = None, as_json: AsJson = False) -> None:
    """Bring an empty or older database to this release's schema; one of a newer release is refused."""
    url = database_url or Settings().database_url
    store = Store.open(url)
    try:
        before = store.schema_state()
        store.migrate()
        after = store.schema_state()
    finally:
        store.close()
    shown = make_url(url).render_as_string(hide_password=True)
    if as_json:
        print_json({"database_url": shown, "before": before, "after": after})
    else:
        typer.echo(f"{shown}: was {before}, is {after}")


keys_app = typer.Typer(no_args_is_help=True, help="API keys.")


@keys_app.command()
def create(
    name: Annotated[str, typer.Argument(help="Whose key it is.")],
    scope: Annotated[
        list[Scope] | None, typer.Option(help="What it may do; repeat for several. read by default.")
    ] = None,
    days: Annotated[int | None, typer.Option(help="Days until it expires; never by default.", min=1)] = None,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Make a key and show it, this once: the database keeps a salted digest."""
    expires = utc_now() + timedelta(days=days) if days else None
    with _store(database_url) as store, store.begin() as session:
        record, text = keys.create(session, name, frozenset(scope or [Scope.READ]), expires)
    if as_json:
        print_json(_plain(record) | {"key": text})
        return
    typer.echo(text)
    typer.echo(f"key {record.id} of {name}: {', '.join(record.scopes)}; it is not shown again", err=True)


@keys_app.command("ls")
def list_keys(database_url: DatabaseUrl = None, as_json: AsJson = False) -> None:
    """List the keys without their secrets, the oldest first."""
    with _store(database_url) as store, store.read() as session:
        found = keys.listing(session)
    if as_json:
        print_json([_plain(record) for record in found])
        return
    print_table(("id", "name", "scopes", "created", "expires", "state"), map(_row, found))


@keys_app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(help="Id of the key, as 'keys ls' shows it.")],
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Close a key for good; a running service refuses it within two seconds."""
    with _store(database_url) as store, store.begin() as session:
        there = keys.revoke(session, key_id)
        found = [record for record in keys.listing(session) if record.id == key_id]
    if not there:
        typer.echo(f"error: there is no key {key_id}; 'tilewright keys ls' lists them", err=True)
        raise typer.Exit(1)
    if as_json:
        print_json(_plain(found[0]))
    else:
        typer.echo(f"key {key_id} is revoked")


@contextmanager
def _store(database_url: str | None) -> Iterator[Store]:
    store = Store.open(database_url or Settings().database_url)
    try:
        store.migrate()
        yield store
    finally:
        store.close()


def _plain(record: KeyRecord) -> dict[str, Any]:
    return dataclasses.asdict(record) | {"active": record.active}


def _row(record: KeyRecord) -> tuple[object, ...]:
    ended = "revoked" if record.revoked else "expired"
    expires = f"{record.expires:%Y-%m-%d}" if record.expires else "never"
    state = "active" if record.active else ended
    return record.id, record.name, " ".join(record.scopes), f"{record.created:%Y-%m-%d}", expires, state
