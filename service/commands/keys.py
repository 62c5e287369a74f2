"""``tilewright keys``: create, ls, revoke; on the database itself, not through a service."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Annotated, Any

import typer

from service.access import Scope
from service.commands.options import AsJson
from service.commands.output import print_json, print_table
from service.settings import Settings
from tuner.store import keys
from tuner.store.database import Store
from tuner.store.keys import KeyRecord
from tuner.store.records import utc_now

app = typer.Typer(no_args_is_help=True, help="API keys.")
DatabaseUrl = Annotated[
    str | None, typer.Option(help="TILEWRIGHT_DATABASE_URL or the user's own by default.")
]


@app.command()
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


@app.command("ls")
def list_keys(database_url: DatabaseUrl = None, as_json: AsJson = False) -> None:
    """List the keys without their secrets, the oldest first."""
    with _store(database_url) as store, store.read() as session:
        found = keys.listing(session)
    if as_json:
        print_json([_plain(record) for record in found])
        return
    print_table(("id", "name", "scopes", "created", "expires", "state"), map(_row, found))


@app.command()
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
