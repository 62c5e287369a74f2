"""Memory for the bodies and results of GEMMs on request: counted in bytes, shared out to callers, kept from
one request to the next."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from service.errors import Kind, Refusal
from tilewright.errors import InvalidProblem
from tuner.workers.shared_memory import Pages

_RETRY_S = 2


@dataclasses.dataclass(slots=True)
class _Caller:
    """Requests of one caller that are in flight, and the bytes that they hold."""

    requests: int = 0
    held: int = 0


@dataclasses.dataclass(slots=True)
class _Loan:
    """The bytes that were counted for pages that a caller has, or is about to have."""

    caller: _Caller
    counted: int = 0


class GemmMemory:
    """Lends at most ``most_bytes`` in all, and at most half of them to one caller with several requests.
    Keeps up to a quarter of them for reuse.

    A request is in flight from its first byte until its answer was sent. Pages that were used before need no
    page faults, and a device's process has them mapped and pinned. Safe to share between threads.
    """

    def __init__(self, most_bytes: int, most_of_caller: int, on_refusal: Callable[[], None]) -> None:
        """``most_of_caller`` bounds how many requests of one caller may be in flight."""
        self._most_bytes = most_bytes
        self._most_of_caller = most_of_caller
        self._on_refusal = on_refusal
        self._lock = threading.Lock()
        self._free: list[Pages] = []  # the smallest first
        self._callers: dict[str, _Caller] = {}

    @contextmanager
    def request(self, name: str, body_bytes: int) -> Iterator[tuple[Pages, Pages]]:
        """Empty pages for a body of ``body_bytes``, as far as that is known, and for the result of a request
        of the caller ``name``.

        Raises:
            Refusal: this caller has too many requests, or no bytes are left for another one; growing the
                pages can raise it too.
        """
        caller = self._enter(name)
        try:
            with self._lent(caller, body_bytes) as body, self._lent(caller, 0) as result:
                yield body, result
        finally:
            self._leave(name, caller)

    def close(self) -> None:
        """Give back what is kept."""
        with self._lock:
            self._shrink(0)

    def _enter(self, name: str) -> _Caller:
        with self._lock:
            caller = self._callers.setdefault(name, _Caller())
            if caller.requests >= self._most_of_caller:
                raise self._later(f"this caller has {caller.requests} GEMMs in flight (max_caller_gemms)")
            caller.requests += 1
            return caller

    def _leave(self, name: str, caller: _Caller) -> None:
        with self._lock:
            caller.requests -= 1
            if not caller.requests:
                del self._callers[name]

    @contextmanager
    def _lent(self, caller: _Caller, wanted: int) -> Iterator[Pages]:
        loan = _Loan(caller)
        try:
            with self._lock:
                lent = self._pick(loan, wanted)
            lent.reserve = functools.partial(self._reserve, loan)
            lent.resize(0)
            try:
                yield lent
            except BaseException as error:
                # NOTE: a device's process that could not be killed may still read and write them.
                self._take_back(lent, keep=_is_refusal(error))
                raise
            self._take_back(lent, keep=True)
        finally:
            with self._lock:
                caller.held -= loan.counted

    def _pick(self, loan: _Loan, wanted: int) -> Pages:
        """The smallest free pages that hold ``wanted`` bytes, else the largest, else new ones."""
        lent = next((one for one in self._free if one.held >= wanted), self._free[-1] if self._free else None)
        if lent is None:
            self._take(loan, Pages.LEAST_BYTES)
            return Pages()
        self._free.remove(lent)
        try:
            self._take(loan, lent.held)
        except Refusal:
            lent.close()
            raise
        return lent

    def _reserve(self, loan: _Loan, more: int) -> None:
        with self._lock:
            self._take(loan, more)

    def _take(self, loan: _Loan, more: int) -> None:
        caller = loan.caller
        lent = sum(one.held for one in self._callers.values()) + more
        if lent > self._most_bytes:
            raise self._later(f"GEMMs in flight hold all of {self._most_bytes} bytes (max_buffer_bytes)")
        if caller.requests > 1 and caller.held + more > self._most_bytes // 2:
            raise self._later(f"this caller's GEMMs hold half of {self._most_bytes} bytes (max_buffer_bytes)")
        caller.held += more
        loan.counted += more
        self._shrink(self._most_bytes - lent)

    def _take_back(self, pages: Pages, keep: bool) -> None:
        with self._lock:
            if not keep:
                pages.close()
                return
            self._free.append(pages)
            self._free.sort(key=lambda one: one.held)
            self._shrink(self._most_bytes // 4)

    def _shrink(self, most: int) -> None:
        """Free the smallest pages that are kept until the others take at most ``most`` bytes."""
        while self._free and sum(one.held for one in self._free) > most:
            self._free.pop(0).close()

    def _later(self, reason: str) -> Refusal:
        self._on_refusal()
        # NOTE: the rest of a body that is refused half-way would be read for nothing.
        headers = {"Connection": "close"}
        detail = f"{reason}; read the answers, or try again in a few seconds"
        return Refusal(Kind.TOO_MANY_GEMMS, detail, retry_after=_RETRY_S, headers=headers)


def _is_refusal(error: BaseException) -> bool:
    """Whether an error ended a request before a device began with it, or is the device's own answer."""
    if isinstance(error, Refusal):
        return error.kind is not Kind.DEVICE_FAILED
    return isinstance(error, InvalidProblem)
