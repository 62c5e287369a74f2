"""Upkeep in the background: a thread takes back lost jobs every few seconds, another one prunes the database
and settles lost imports once an hour."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta

from sqlalchemy.exc import SQLAlchemyError

from service.engine.device_queue import LOOK_S
from service.settings import Settings
from tilewright.errors import TilewrightError
from tuner.store.database import Store
from tuner.store.queue import claims
from tuner.store.records import utc_now
from tuner.store.upkeep.retention import Kind, last_work, prune
from tuner.store.upkeep.staging import settle_lost

_FIRST_S = 60.0
_PAUSE_S = 3600.0
_LOOK_S = 5.0  # from one look for lost jobs to the next
_STOP_S = 10.0
_STEADY = timedelta(hours=1)
_JUMP = timedelta(hours=1)
_PROVEN, _RECENT = timedelta(days=1), timedelta(days=7)  # how long ago work proves the clock
log = logging.getLogger("tilewright.upkeep")


def kept_days(settings: Settings) -> dict[Kind, float]:
    """After how many days each kind of row is pruned; 0: never."""
    return {kind: getattr(settings, f"keep_{kind}_days") for kind in Kind}


class SteadyClock:
    """The clock, as far as history may be deleted by it: one that is ahead would make all of it old.

    It must have kept pace for an hour with the time since the machine's start, which nobody can set. And
    there must be work from a day to a week before, so that the clock goes on from where it stood on another
    day; after a longer pause it does so a day after the next work. So a clock that stays wrong for days of
    work is believed at last. One that is behind needs no rule: it finds less to be old.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._started, self._steady_since = _look()
        self._warned = False

    def now(self) -> datetime | None:
        """The time; None if it is not to be believed yet."""
        started, up = _look()
        if abs(started - self._started) > _JUMP:
            log.warning("the clock was set by %s; pruning waits for an hour", started - self._started)
            self._started, self._steady_since = started, up
        if up - self._steady_since < _STEADY:
            return None
        now = started + up
        last = last_work(self._store, now - _PROVEN)
        if last is not None and last >= now - _RECENT:
            self._warned = False
            return now
        if last is not None and not self._warned:
            self._warned = True
            log.warning(
                "nothing is pruned: the clock says %s, and before today the last work was of %s; if the clock"
                " is right, pruning begins a day after the next job, or use 'tilewright db prune'",
                now.date(),
                last.date(),
            )
        return None


def _look() -> tuple[datetime, timedelta]:
    """When the machine started by its clock as it stands, and how long ago that was."""
    up = timedelta(seconds=time.clock_gettime(time.CLOCK_BOOTTIME))
    return utc_now() - up, up


class Upkeep:
    """Prunes the database as the settings say, once an hour as soon as the clock may be believed. Meanwhile
    it takes back lost jobs of any device class: there may be no queue of theirs any more, as where the power
    limit of the only device was changed."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._clock = SteadyClock(store)
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
        """Settle lost imports, and prune if the clock may be believed, once."""
        try:
            settle_lost(self._store, stopping=self._stopping)
            now = self._clock.now()
            days = kept_days(self._settings) if now else {}
            removed = prune(self._store, days, stopping=self._stopping, now=now)
        except (SQLAlchemyError, TilewrightError) as error:
            log.warning("pruning stopped early and goes on within an hour: %s", error)
        except Exception:
            # NOTE: the boundary of the thread: without it nothing would be pruned until the next start.
            log.exception("pruning failed and is tried again within an hour")
        else:
            if any(removed.values()):
                log.info("pruned", extra={kind.value: count for kind, count in removed.items()})
