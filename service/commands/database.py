"""``tilewright db``."""

from __future__ import annotations

from typing import Annotated

import typer
from sqlalchemy import make_url

from service.commands.options import AsJson
from service.commands.output import print_json
from service.settings import Settings
from tuner.store.database import Store

app = typer.Typer(no_args_is_help=True, help="The database.")
DatabaseUrl = Annotated[
    str | None, typer.Option(help="TILEWRIGHT_DATABASE_URL or the user's own by default.")
]


@app.callback()
def db() -> None:
    """The database."""


@app.command()
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
