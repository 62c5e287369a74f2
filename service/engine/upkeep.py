"""Upkeep in the background: a thread takes back lost jobs every few seconds, another one prunes the database
and settles lost imports once an hour."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from sqlalchemy.exc import SQLAlchemyError

from service.engine.device_queue import LOOK_S
from service.settings import Settings
from tilewright.errors import TilewrightError
from tuner.store.database import Store
from tuner.store.queue import claims
from tuner.store.upkeep.retention import Kind, prune
from tuner.store.upkeep.staging import settle_lost

_FIRST_S = 60.0
_PAUSE_S = 3600.0
_LOOK_S = 5.0  # from one look for lost jobs to the next
_STOP_S = 10.0
log = logging.getLogger("tilewright.upkeep")


def kept_days(settings: Settings) -> dict[Kind, float]:
    """After how many days each kind of row is pruned; 0: never."""
    return {kind: getattr(settings, f"keep_{kind}_days") for kind in Kind}


class Upkeep:
    """Prunes the database as the settings say, a minute after its start and then once an hour. Meanwhile it
    takes back lost jobs of any device class: there may be no queue of theirs any more, as where the power
    limit of the only device was changed."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._leases = claims.LeaseWatch(settings.lease_s, 2 * LOOK_S)
        self._stopping = threading.Event()
        works = ((self.take_back, _LOOK_S, _LOOK_S), (self.prune, _FIRST_S, _PAUSE_S))
        self._threads = [
            threading.Thread(target=self._repeat, args=work, name="upkeep", daemon=True) for work in works
        ]

    def start(self) -> None:
        """Work from now on."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop after the step at work; the next start goes on."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(_STOP_S)

    def _repeat(self, work: Callable[[], None], first_s: float, pause_s: float) -> None:
        while not self._stopping.wait(first_s):
            work()
            first_s = pause_s

    def take_back(self) -> None:
        """Queue again, or end, the jobs whose server died or does not renew their leases."""
        try:
            with self._store.begin() as session:
                lost = claims.requeue_lost(session, None, self._leases)
        except (SQLAlchemyError, TilewrightError) as error:
            log.warning("lost jobs were not looked for; trying again: %s", error)
        except Exception:
            # NOTE: the boundary of the thread, as below.
            log.exception("the look for lost jobs failed; trying again")
        else:
            for job_id in lost:
                log.info("job %s was interrupted; it waits with its trials", job_id)

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
