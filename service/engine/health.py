"""Reasons why a device cannot work, and waiting until they have passed."""

from __future__ import annotations

import dataclasses
import enum
import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from service.engine.database_health import outage
from tilewright.errors import TilewrightError

R = TypeVar("R")
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
log = logging.getLogger("tilewright.device_queue")


class Trouble(enum.StrEnum):
    """What keeps a device from its work.

    Attributes:
        WAITING: the database takes no writes: the disk is full, another process holds its lock, it is down.
        IN_USE: another service of this machine works on the device.
        SHARED: other processes use the device, and the next job waits until they do not.
        SET_ASIDE: the GPU did not come back after a process on it was killed.
        FAILED: an error outside of any job; the device tries again.
    """

    WAITING = "waiting"
    IN_USE = "in-use"
    SHARED = "shared"
    SET_ASIDE = "set-aside"
    FAILED = "failed"


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceHealth:
    """How a device is.

    Attributes:
        alive: its thread runs.
        job_id: the job that it tunes; None while it tunes none.
        trouble: what keeps it from its work; None if nothing does.
        reason: the trouble in words, or why the thread ended; empty if nothing is wrong.
    """

    alive: bool
    job_id: str | None = None
    trouble: Trouble | None = None
    reason: str = ""

    @property
    def ok(self) -> bool:
        """Waiting for a database, another service or other processes is no fault of the device."""
        return self.alive and self.trouble not in (Trouble.FAILED, Trouble.SET_ASIDE)


class Backoff:
    """Pauses of a thread that tries again: each twice as long as the one before, half a minute at most."""

    def __init__(self, stop: threading.Event) -> None:
        """``stop`` ends a pause."""
        self._stop = stop
        self._next_s = _FIRST_PAUSE_S

    @property
    def seconds(self) -> float:
        """How long the next pause is."""
        return self._next_s

    def pause(self) -> bool:
        """Wait; False if the thread is to stop."""
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, _LONGEST_PAUSE_S)
        return not self._stop.wait(pause_s)

    def reset(self) -> None:
        """What was tried works again."""
        self._next_s = _FIRST_PAUSE_S


class Patience:
    """Tries work on the database again until it takes it, however long that is."""

    def __init__(self, stop: threading.Event, tell: Callable[[Trouble | None, str], None]) -> None:
        """``stop`` ends the waiting; ``tell`` is called with the reason for waiting, and with None once that
        has passed."""
        self._stop = stop
        self._tell = tell

    def __call__(self, work: Callable[[], R]) -> R:
        """What ``work`` gives.

        Raises:
            SQLAlchemyError: it failed for good, or is to stop.
        """
        backoff = Backoff(self._stop)
        while True:
            try:
                result = work()
            except Exception as error:
                if outage(error) is None:
                    raise
                reason = why(error, backoff.seconds)
                log.warning("%s (%s)", reason, getattr(error, "orig", None) or error)
                self._tell(Trouble.WAITING, reason)
                if not backoff.pause():
                    raise
            else:
                self._tell(None, "")
                return result


def why(error: Exception, pause_s: float) -> str:
    """An error in words for callers, without paths of this machine, and with the time of the next attempt."""
    later = f"trying again in {pause_s:g} s"
    if found := outage(error):
        return f"the database takes no writes: {found}; {later}"
    reason = str(error) if isinstance(error, TilewrightError) else f"internal error ({type(error).__name__})"
    return f"{reason}; {later}"
