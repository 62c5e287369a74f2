"""Memory for the bodies and results of GEMMs on request, kept from one to the next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from service.errors import Kind, Refusal
from tilewright.errors import InvalidProblem
from tuner.workers.shared_memory import Pages


class GemmMemory:
    """Lends pages, and keeps those that come back while they take at most ``most_bytes`` together.

    Pages that were used before need no page faults, and a device's process has them mapped and pinned.
    For the event loop alone.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._free: list[Pages] = []

    @contextmanager
    def pages(self) -> Iterator[Pages]:
        """Empty pages for one request, the largest that are free."""
        lent = self._free.pop() if self._free else Pages()
        lent.resize(0)
        try:
            yield lent
        except BaseException as error:
            # NOTE: a device's process that could not be killed may still read and write them.
            if _is_refusal(error):
                self._keep(lent)
            else:
                lent.close()
            raise
        self._keep(lent)

    def close(self) -> None:
        """Give back what is kept."""
        while self._free:
            self._free.pop().close()

    def _keep(self, lent: Pages) -> None:
        self._free.append(lent)
        self._free.sort(key=lambda pages: pages.held)
        while sum(pages.held for pages in self._free) > self._most_bytes:
            self._free.pop().close()


def _is_refusal(error: BaseException) -> bool:
    """Whether a request ended before a device had begun with it, or by the device's own answer."""
    if isinstance(error, Refusal):
        return error.kind is not Kind.DEVICE_FAILED
    return isinstance(error, InvalidProblem)
