"""PostgreSQL: connections that notice a lost network, and the notices of new events."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, text
from sqlalchemy.exc import SQLAlchemyError

from tuner.store.engines import READ, WAIT_S

EVENTS = "tilewright_events"  # the channel that tells of new events
# NOTE: a network that drops packets would hold a connection for hours, and what waits for it.
ALIVE = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}
# NOTE: a transaction of its own, which does not wait for the disk: those that notify commit one at a time.
_NOTIFY = text(
    "SELECT set_config('synchronous_commit', 'off', true), pg_notify(:channel, job)"
    " FROM unnest(CAST(:jobs AS text[])) AS job"
)
_log = logging.getLogger("tilewright.database")


def of(url: URL) -> Engine:
    """The engine of a database on a server."""
    options = {name: value for name, value in ALIVE.items() if name not in url.query}
    engine = create_engine(url, pool_pre_ping=True, connect_args=options)
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "begin", _begin)
    return engine


def _prepare(connection: Any, _: object) -> None:
    """Have the server, too, notice a client that is gone: its transaction would keep its locks. And have it
    write times as the driver can read them, which takes no year 0 or 10000 of another time zone."""
    with connection.cursor() as cursor:
        cursor.execute("SET TIME ZONE 'UTC'")
        cursor.execute("SET DateStyle = 'ISO'")
        for name in ("idle", "interval", "count"):
            cursor.execute(f"SET tcp_keepalives_{name} = {ALIVE[f'keepalives_{name}']}")
        cursor.execute(f"SET tcp_user_timeout = {ALIVE['tcp_user_timeout']}")
    connection.commit()


def _begin(connection: Connection) -> None:
    """Bound how long a writer waits for locks, and how long a process that is stopped keeps its own: the
    system goes on answering for it, so that keepalives do not tell."""
    options = connection.get_execution_options()
    if options.get(READ) or options.get("isolation_level") == "AUTOCOMMIT":  # which has no transaction
        return
    settings = {"idle_in_transaction_session_timeout": ALIVE["tcp_user_timeout"]}
    if (wait_s := options.get(WAIT_S)) is not None:
        settings["lock_timeout"] = round(1e3 * wait_s)
    # NOTE: an error of the driver itself would not tell that the server is lost; a cursor of the server would
    # set nothing until its rows are read.
    shown = ", ".join(f"set_config('{name}', '{ms}', true)" for name, ms in settings.items())
    connection.exec_driver_sql(f"SELECT {shown}", execution_options={"stream_results": False}).close()


def notify(engine: Engine, job_ids: Collection[str]) -> None:
    """Notify readers that these jobs have new events; if that fails, readers find the events at a later
    look."""
    options: dict[str, Any] = {READ: True, "isolation_level": "AUTOCOMMIT"}
    try:
        with engine.connect().execution_options(**options) as connection:
            connection.execute(_NOTIFY, {"channel": EVENTS, "jobs": list(job_ids)})
    except SQLAlchemyError as error:  # also of a pool in use: the transaction is committed
        _log.info("followers hear later of new events: %s", error)
