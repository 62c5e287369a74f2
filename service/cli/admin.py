"""Commands for operators: ``db``, ``backup``, ``restore``, ``keys`` and ``audit``."""

from __future__ import annotations

import dataclasses
import json
import os
import pwd
import sqlite3
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from service.cli.output import (
    AsJson,
    DatabaseUrl,
    NewestFirst,
    connect,
    echo,
    only_one,
    print_json,
    print_list,
    print_result,
    tell_end,
)
from service.engine.database_health import unusable
from service.engine.upkeep import kept_days
from service.http.access import Scope
from service.settings import Settings
from tilewright.errors import printable
from tilewright.schema.codec import gathered
from tilewright.wire import AuditEntry
from tuner.store.access import audit, keys
from tuner.store.access.audit import Action
from tuner.store.access.keys import KeyRecord
from tuner.store.database import Store, without_secrets
from tuner.store.engines.full_disk import remedy
from tuner.store.records import utc_now
from tuner.store.upkeep.backup import back_up, restore
from tuner.store.upkeep.check import damages, need_schema, unreadable
from tuner.store.upkeep.check import vacuum as reclaim
from tuner.store.upkeep.retention import prune

Service = Annotated[
    str | None,
    typer.Option("--url", help="A service to do it, with TILEWRIGHT_KEY; the database here unless given."),
]


def asks_service(url: str | None, database_url: str | None) -> bool:
    """Whether a service is asked: one was named, or no database was and the settings have a service or a key.

    Raises:
        typer.BadParameter: both were named.
    """
    if url and database_url:
        raise typer.BadParameter("--url names a service and --database-url a database here; use one of them")
    settings = Settings()
    return bool(url or (not database_url and (settings.url or settings.key)))


def user() -> str:
    """Who calls the command line, as the audit log has it."""
    try:
        return f"user {pwd.getpwuid(os.getuid()).pw_name}"
    except KeyError:  # in a container, where the user need not have a name
        return f"user {os.getuid()}"


@contextmanager
def open_store(url: str | None, *, create: bool = False, any_schema: bool = False) -> Iterator[Store]:
    """The database at ``url``, or where the settings say it is; made and migrated if ``create``, and of this
    release's schema unless ``any_schema``.

    Raises:
        StoreError: it cannot be used, now or at all, or has another schema.
    """
    store = Store.open(url or Settings().database_url, create=create)
    try:
        if create and not any_schema:
            store.migrate()
        elif not any_schema:
            need_schema(store)
        yield store
    except (SQLAlchemyError, sqlite3.Error) as error:
        advice = remedy(error, "try again, or restore a backup with 'tilewright restore'")
        raise unusable(error, advice) from error
    finally:
        store.close()


database_app = typer.Typer(no_args_is_help=True, help="The database.")


@database_app.callback()
def db() -> None:
    """The database."""


@database_app.command()
def upgrade(database_url: DatabaseUrl = None, as_json: AsJson = False) -> None:
    """Bring an empty or older database to this release's schema; one of a newer release is refused."""
    url = database_url or Settings().database_url
    with open_store(url, create=True, any_schema=True) as store:
        before = store.schema_state()
        store.migrate()
        after = store.schema_state()
    shown = without_secrets(url)
    found = {"database_url": shown, "before": before, "after": after}
    print_result(found, as_json, f"{shown}: was {before}, is {after}")


@database_app.command()
def check(database_url: DatabaseUrl = None, as_json: AsJson = False) -> None:
    """Look for damage, and for rows of a newer release; exit code 1 if something is damaged."""
    with open_store(database_url, any_schema=True) as store:
        damaged = damages(store)
        unread = [] if damaged else unreadable(store)
    text = "\n".join([*damaged, *unread]) or "nothing is wrong"
    print_result({"damaged": damaged, "unreadable": unread}, as_json, text)
    if damaged:
        echo("error: restore a backup with 'tilewright restore'", err=True)
        raise typer.Exit(1)


@database_app.command()
def vacuum(database_url: DatabaseUrl = None, as_json: AsJson = False) -> None:
    """Give the room of deleted rows back to the disk; a SQLite database must have as much free room as it
    takes, and no other writes meanwhile. PostgreSQL keeps most of the room for new rows."""
    with open_store(database_url) as store:
        before, after = reclaim(store)
        keeps = store.engine.dialect.name == "postgresql"
    text = f"{before / 1e6:.1f} MB before, {after / 1e6:.1f} MB after"
    print_result({"bytes_before": before, "bytes_after": after}, as_json, text)
    if keeps:
        echo("PostgreSQL keeps the room for new rows; to give it to the disk, use its VACUUM FULL", err=True)


@database_app.command("prune")
def prune_database(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would go.")] = False,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Delete what is older than the settings say, as the service does once an hour; stopped with Ctrl-C, the
    next one goes on. 'tilewright db vacuum' then gives the room back to the disk."""
    days = kept_days(Settings())
    with open_store(database_url) as store:
        removed = prune(store, days, dry_run=dry_run, who=user())
    headers = ("kind", "older than days", "would go" if dry_run else "went")
    rows = ((kind, f"{days[kind]:g}", count) for kind, count in removed.items())
    print_list({"dry_run": dry_run, "removed": removed}, as_json, headers, rows)


def back_up_database(
    file: Annotated[
        Path, typer.Argument(help="The backup to write; one that is there is replaced.", dir_okay=False)
    ],
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Write a backup of the database, which may be in use, and check it; a SQLite file, of PostgreSQL too."""
    with open_store(database_url, any_schema=True) as store:
        written = back_up(store, file)
    print_result({"file": printable(file), "bytes": written}, as_json, f"{file}: {written / 1e6:.1f} MB")


def restore_database(
    file: Annotated[
        Path, typer.Argument(help="What 'tilewright backup' wrote.", exists=True, dir_okay=False)
    ],
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Fill an empty database from a backup, SQLite or PostgreSQL, whichever of them it was made of."""
    url = database_url or Settings().database_url
    restore(file, url, user())
    shown = without_secrets(url)
    print_result({"file": printable(file), "database_url": shown}, as_json, f"{shown} holds what {file} held")
    with open_store(url, any_schema=True) as store, store.read() as session:
        valid = keys.count_valid(session)
    if valid:
        echo(
            f"keys that are valid in the backup: {valid}; look at 'tilewright keys ls' and 'tilewright trust"
            " ls', and revoke again what was revoked since",
            err=True,
        )


_MOST_NAME = 100
_BREAKS = ("Cc", "Zl", "Zp")  # Unicode's categories of control characters and of line and paragraph ends


def owner(name: str) -> str:
    """The name of a key's owner.

    Raises:
        typer.BadParameter: it is too long for a list, or has characters that break one.
    """
    if len(name) > _MOST_NAME or any(unicodedata.category(one) in _BREAKS for one in name):
        raise typer.BadParameter(
            f"a name must have at most {_MOST_NAME} characters, without line breaks and control characters"
        )
    return name


keys_app = typer.Typer(no_args_is_help=True, help="API keys.")
KeyId = Annotated[str, typer.Argument(help="Id of the key, or its first characters.")]
_HEADER = ("id", "name", "scopes", "created", "expires", "state", "max queued", "priority")


@keys_app.command()
def create(
    name: Annotated[str, typer.Argument(help="Whose key it is.", callback=owner)],
    scope: Annotated[
        list[Scope] | None, typer.Option(help="What it may do; repeat for several. read by default.")
    ] = None,
    days: Annotated[
        int | None, typer.Option(help="Days until it expires; never by default.", min=1, max=36_500)
    ] = None,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Make a key and show it, this once: the database keeps a salted digest."""
    if not name.strip():
        raise typer.BadParameter("give a name to know the key by", param_hint="name")
    expires = utc_now() + timedelta(days=days) if days else None
    with open_store(database_url, create=True) as store, store.begin() as session:
        first = not keys.any_made(session)
        record, text = keys.create(session, name, frozenset(scope or [Scope.READ]), expires)
        audit.note(session, user(), Action.CREATE_KEY, record.id, name=name, scopes=list(record.scopes))
    if as_json:
        print_json(_plain(record) | {"key": text})
        return
    echo(text)
    echo(f"key {record.id} of {name}: {', '.join(record.scopes)}; it is not shown again", err=True)
    if first:
        echo(
            "the service now refuses requests without a key; the command line sends TILEWRIGHT_KEY", err=True
        )


@keys_app.command("set")
def set_quota(
    key_id: KeyId,
    max_queued: Annotated[
        int | None,
        typer.Option(help="Most queued jobs of it; -1: what the settings say.", min=-1, max=2**31 - 1),
    ] = None,
    priority: Annotated[
        int | None, typer.Option(help="Its jobs go before those of a lower one; 0.", min=-1000, max=1000)
    ] = None,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Set how many jobs of a key may wait, and which go first; at once, also for jobs that wait.

    What is not given stays.
    """
    with open_store(database_url) as store, store.begin() as session:
        whole = _whole_id(session, key_id)
        keys.set_quota(session, whole, max_queued, priority)
        audit.note(session, user(), Action.SET_KEY, whole, max_queued=max_queued, priority=priority)
        [record] = [record for record in keys.listing(session) if record.id == whole]
    print_list(_plain(record), as_json, _HEADER, [_row(record)])


@keys_app.command("ls")
def list_keys(database_url: DatabaseUrl = None, as_json: AsJson = False) -> None:
    """List the keys without their secrets, the oldest first."""
    with open_store(database_url) as store, store.read() as session:
        found = keys.listing(session)
    print_list([_plain(record) for record in found], as_json, _HEADER, map(_row, found))


@keys_app.command()
def revoke(
    key_id: KeyId,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Close a key for good; a running service refuses it within two seconds."""
    with open_store(database_url) as store, store.begin() as session:
        whole = _whole_id(session, key_id)
        if keys.revoke(session, whole):
            audit.note(session, user(), Action.REVOKE_KEY, whole)
        [record] = [record for record in keys.listing(session) if record.id == whole]
    print_result(_plain(record), as_json, f"key {whole} of {record.name} is revoked")


def list_audit(
    limit: NewestFirst = 50,
    url: Service = None,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show who changed what, the last change first."""
    if asks_service(url, database_url):
        with connect(url) as client:
            page = client.audit(limit=limit)
        found, full = page.items, bool(page.next)
    else:
        with open_store(database_url) as store, store.read() as session:
            entries = audit.listing(session, limit + 1)
        found = [AuditEntry(**gathered(AuditEntry, entry)) for entry in entries[:limit]]
        full = len(entries) > limit
    print_list(found, as_json, ("when", "who", "did", "to", "with"), map(_audit_row, found))
    tell_end(limit, full)


def _audit_row(entry: AuditEntry) -> tuple[object, ...]:
    when = f"{entry.created:%Y-%m-%d %H:%M:%S}"
    data = json.dumps(entry.data) if entry.data else ""
    return when, entry.who, entry.action, entry.target, data


def _whole_id(session: Session, start: str) -> str:
    """The id of the key that begins so."""
    ids = [record.id for record in keys.listing(session) if record.id.startswith(start)]
    return only_one(start, ids, "key", "tilewright keys ls")


def _plain(record: KeyRecord) -> dict[str, Any]:
    return dataclasses.asdict(record) | {"active": record.active}


def _row(record: KeyRecord) -> tuple[object, ...]:
    ended = "revoked" if record.revoked else "expired"
    expires = f"{record.expires:%Y-%m-%d}" if record.expires else "never"
    state = "active" if record.active else ended
    queued = "as set" if record.max_queued is None else record.max_queued
    scopes, created = " ".join(record.scopes), f"{record.created:%Y-%m-%d}"
    return record.id, record.name, scopes, created, expires, state, queued, record.priority
