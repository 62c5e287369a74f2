"""Upkeep in the background: a thread that prunes the database, and settles lost imports, once an hour."""

from __future__ import annotations

import logging
import threading

from sqlalchemy.exc import SQLAlchemyError

from service.settings import Settings
from tilewright.errors import TilewrightError
from tuner.store.database import Store
from tuner.store.upkeep.retention import Kind, prune
from tuner.store.upkeep.staging import settle_lost

_FIRST_S = 60.0
_PAUSE_S = 3600.0
_STOP_S = 10.0
log = logging.getLogger("tilewright.upkeep")


def kept_days(settings: Settings) -> dict[Kind, float]:
    """After how many days each kind of row is pruned; 0: never."""
    return {kind: getattr(settings, f"keep_{kind}_days") for kind in Kind}


class Upkeep:
    """Prunes the database as the settings say, a minute after its start and then once an hour."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="upkeep", daemon=True)

    def start(self) -> None:
        """Prune from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after the step at work; the next start goes on."""
        self._stopping.set()
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        pause = _FIRST_S
        while not self._stopping.wait(pause):
            self.prune()
            pause = _PAUSE_S

    def prune(self) -> None:
        """Settle lost imports and prune, once."""
        try:
            settle_lost(self._store, stopping=self._stopping)
            removed = prune(self._store, kept_days(self._settings), stopping=self._stopping)
        except (SQLAlchemyError, TilewrightError) as error:
            log.warning("pruning stopped early and goes on within an hour: %s", error)
        except Exception:
            # NOTE: the boundary of the thread: without it nothing would be pruned until the next start.
            log.exception("pruning failed and is tried again within an hour")
        else:
            if any(removed.values()):
                log.info("pruned", extra={kind.value: count for kind, count in removed.items()})
