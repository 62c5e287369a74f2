"""Tells a service what ran here without a kernel tuned for it."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from tilewright import store_requests
from tilewright.bound import Tally
from tilewright.calls import Call
from tilewright.errors import ServiceError, TilewrightError
from tilewright.fetch import Fetcher
from tilewright.store_requests import Miss

if TYPE_CHECKING:
    from tilewright import wire

_MOST_MISSES = 250
_PASSING = {401, 403, 408, 409, 429}  # refusals that may end: of the key, of the time, of the rate


@dataclasses.dataclass(frozen=True, slots=True)
class _Report:
    """A request, and up to which count of each tally it tells."""

    call: Call[wire.MissAnswer]
    counts: list[tuple[Tally, int]]


class MissReports:
    """Reports of what was missed on one device; NOTE: not for two threads at once.

    Args:
        fetcher: to the service.
        device_class: of the device.
        missed: what ran on it without a kernel tuned for it.
    """

    def __init__(self, fetcher: Fetcher, device_class: str, missed: Callable[[], Iterable[Tally]]) -> None:
        self._fetcher, self._device_class, self._missed = fetcher, device_class, missed
        self._unanswered: list[_Report] = []

    def send(self) -> None:
        """Tell the service what is new; where it does not answer, the rest is for the next time."""
        with contextlib.suppress(TilewrightError):
            # NOTE: what was not answered may have been counted, and is sent again as it was, under its key:
            # the service counts it once. What is new since then goes with the time after.
            self._unanswered = self._unanswered or list(self._fresh())
            while self._unanswered:
                self._send(self._unanswered[0])
                for tally, count in self._unanswered.pop(0).counts:
                    tally.reported = count

    def _send(self, report: _Report) -> None:
        try:
            self._fetcher.send(report.call)
        except ServiceError as error:
            # NOTE: what is refused for good would be refused again, and newer misses would wait for ever.
            if not 400 <= error.status < 500 or error.status in _PASSING:
                raise

    def _fresh(self) -> Iterator[_Report]:
        counts = [(tally, tally.count) for tally in self._missed() if tally.count > tally.reported]
        for start in range(0, len(counts), _MOST_MISSES):
            part = counts[start : start + _MOST_MISSES]
            misses = [_miss(tally, count) for tally, count in part]
            key = secrets.token_hex(16)
            yield _Report(store_requests.report_misses(self._device_class, misses, key), part)


def _miss(tally: Tally, count: int) -> Miss:
    assert tally.problem is not None
    return Miss(tally.problem, count - tally.reported)
