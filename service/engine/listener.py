"""Which jobs have new events, as PostgreSQL tells every process at once."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from sqlalchemy import Engine

from tilewright.lazy import LazyModule
from tuner.store.database import ALIVE, EVENTS

if TYPE_CHECKING:
    import psycopg
else:
    psycopg = LazyModule("psycopg")  # an extra: SQLite does without

_RECONNECT_S = 1.0
log = logging.getLogger("tilewright.events")


class Listener:
    """Hears of new events while :meth:`run` runs; belongs to one event loop.

    Attributes:
        on: whether the database tells of new events now.
    """

    def __init__(self, engine: Engine) -> None:
        self.on = False
        self._engine = engine
        self._heard = set[str]()
        self._missed = True
        self._told = asyncio.Event()

    def take(self) -> set[str] | None:
        """The jobs that were told of since the last call; None where some may have been missed."""
        found, self._heard = self._heard, set()
        missed, self._missed = self._missed or not self.on, False
        return None if missed else found

    async def wait(self, seconds: float) -> None:
        """Return once there is something to take, or after so many seconds."""
        try:
            await asyncio.wait_for(self._told.wait(), seconds)
        except TimeoutError:
            return
        self._told.clear()

    async def run(self) -> None:
        """Listen until cancelled; connects again where the connection drops."""
        while True:
            try:
                await self._listen()
            except (psycopg.Error, OSError) as error:
                log.warning("events are polled until the database can be listened to: %s", error)
            finally:
                self.on = False
            await asyncio.sleep(_RECONNECT_S)

    async def _listen(self) -> None:
        arguments, options = self._engine.dialect.create_connect_args(self._engine.url)
        options = {**ALIVE, **options, "autocommit": True}
        connected = await psycopg.AsyncConnection.connect(*arguments, **options)
        async with connected as connection:
            await connection.execute(f"LISTEN {EVENTS}")
            self._missed = self.on = True
            self._told.set()
            async for notice in connection.notifies():
                self._heard.add(notice.payload)
                self._told.set()
