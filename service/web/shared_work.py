"""Slow results that many callers may ask for at once: made once, by few threads, and cached for a moment."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, TypeVar

from service.errors import Kind, Refusal
from tuner.store.database import Store
from tuner.store.engines.sqlite_engine import Changes

T = TypeVar("T")
_AT_WORK = 2  # at once
_MOST_CALLERS = 8  # NOTE: a fifth of the threads that requests run in
_MOST_KEPT = 8
_PATIENCE_S = 10.0
_FRESH_S = 30.0  # NOTE: also for as long an age that was told may be wrong


@dataclasses.dataclass(frozen=True, slots=True)
class _Kept:
    value: Any
    stamp: int
    until: float


class SharedWork:
    """Results by name; safe to share. A result is kept until something is committed, thirty seconds at most;
    PostgreSQL does not tell of commits, there only callers at the same time share one."""

    def __init__(self, store: Store) -> None:
        self._changes = Changes(store.engine)
        self._callers = threading.BoundedSemaphore(_MOST_CALLERS)
        self._places = threading.BoundedSemaphore(_AT_WORK)
        self._lock = threading.Lock()
        self._flights: dict[Hashable, Future[Any]] = {}
        self._kept: dict[Hashable, _Kept] = {}

    def get(self, name: Hashable, work: Callable[[], T]) -> T:
        """What ``work`` gives, now or for another caller who asked for the same a moment ago.

        Raises:
            Refusal: too many callers wait, or this one waited for ten seconds.
        """
        stamp = self._changes.stamp()
        kept = self._kept.get(name)
        if kept and kept.stamp == stamp and time.monotonic() < kept.until:
            value: T = kept.value
            return value
        if not self._callers.acquire(blocking=False):
            raise _busy(f"{_MOST_CALLERS} requests wait for such pages")
        try:
            return self._made(name, stamp, work)
        finally:
            self._callers.release()

    def _made(self, name: Hashable, stamp: int | None, work: Callable[[], T]) -> T:
        with self._lock:
            other = self._flights.get(name)
            flight: Future[T] = other or self._flights.setdefault(name, Future())
        if other is None:
            self._make(name, stamp, work, flight)
        try:
            return flight.result(_PATIENCE_S)
        except TimeoutError as error:
            raise _busy(f"this page was not made within {_PATIENCE_S:.0f} s") from error

    def _make(self, name: Hashable, stamp: int | None, work: Callable[[], T], flight: Future[T]) -> None:
        try:
            flight.set_result(self._worked(name, stamp, work))
        except Exception as error:
            flight.set_exception(error)
        finally:
            with self._lock:
                del self._flights[name]

    def _worked(self, name: Hashable, stamp: int | None, work: Callable[[], T]) -> T:
        if not self._places.acquire(timeout=_PATIENCE_S):
            raise _busy(f"{_AT_WORK} such pages are being made")
        try:
            value = work()
        finally:
            self._places.release()
        if stamp is not None:
            with self._lock:
                self._kept.pop(name, None)
                while len(self._kept) >= _MOST_KEPT:
                    del self._kept[next(iter(self._kept))]
                self._kept[name] = _Kept(value, stamp, time.monotonic() + _FRESH_S)
        return value

    def close(self) -> None:
        """Let go of the database."""
        self._changes.close()


def _busy(reason: str) -> Refusal:
    detail = f"{reason}, and each reads many results; try again in a few seconds"
    return Refusal(Kind.PAGES_BUSY, detail, retry_after=3)
