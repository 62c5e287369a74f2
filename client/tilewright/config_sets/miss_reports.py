"""Reports to a service the problems that ran here without a kernel tuned for them."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
from collections.abc import Callable, Iterable, Iterator

from tilewright.config_sets.counters import LaunchCounter
from tilewright.errors import ServiceError, TilewrightError
from tilewright.http.arguments import Miss
from tilewright.http.fetch import Fetcher

_MOST_MISSES = 250
_PASSING = {401, 403, 408, 409, 429}  # refusals that may end: because of the key, a timeout or the rate


@dataclasses.dataclass(frozen=True, slots=True)
class _Report:
    """A request, and the count of each counter that it includes."""

    misses: list[Miss]
    key: str
    counts: list[tuple[LaunchCounter, int]]


class MissReports:
    """Reports the misses of one device. NOTE: not for two threads at once.

    Args:
        fetcher: to the service.
        device_class: of the device.
        missed: returns the counters of what ran on it without a kernel tuned for it.
    """

    def __init__(
        self, fetcher: Fetcher, device_class: str, missed: Callable[[], Iterable[LaunchCounter]]
    ) -> None:
        self._fetcher, self._device_class, self._missed = fetcher, device_class, missed
        self._unanswered: list[_Report] = []

    def send(self) -> None:
        """Report the new misses; if the service does not answer, the rest waits for the next call. A
        published tree gets no reports."""
        if self._fetcher.published:
            return
        with contextlib.suppress(TilewrightError):
            # NOTE: what was not answered may have been counted, and is sent again as it was, under its key:
            # the service counts it once. What is new since then goes with the time after.
            self._unanswered = self._unanswered or list(self._new_reports())
            while self._unanswered:
                self._send(self._unanswered[0])
                for counter, count in self._unanswered.pop(0).counts:
                    counter.reported = max(counter.reported, count)  # a fork meanwhile may have set it

    def _send(self, report: _Report) -> None:
        try:
            self._fetcher.report_misses(self._device_class, report.misses, report.key)
        except ServiceError as error:
            # NOTE: what is refused for good would be refused again, and newer misses would wait for ever.
            if not 400 <= error.status < 500 or error.status in _PASSING:
                raise

    def _new_reports(self) -> Iterator[_Report]:
        counts = [(counter, counter.count) for counter in self._missed() if counter.count > counter.reported]
        for start in range(0, len(counts), _MOST_MISSES):
            part = counts[start : start + _MOST_MISSES]
            misses = [
                Miss(counter.problem, count - counter.reported)
                for counter, count in part
                if counter.problem is not None
            ]
            yield _Report(misses, secrets.token_hex(16), part)
