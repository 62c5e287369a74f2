"""Answers of ``GET /best-config`` that are kept in memory for as long as the store would give them again."""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from collections.abc import Callable

from service.engine.retune import StaleResult
from service.results.served import Selection, ServedSets, Version
from tilewright.wire import BestConfigView
from tuner.store.records import StoredBest

_MOST_BYTES = 16 * 2**20
# Bytes of an entry besides its query and content, about: two thirds of them are those of the entry of a set,
# which nothing else keeps once its winner was replaced.
_BESIDE = 3 * 1024
_LONGEST_QUERY = 512  # bytes; one of all members with the longest values has half as many


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """The winner that answers a query.

    Attributes:
        content: as JSON.
        tag: SHA-256 of the content.
        match, device_class, regret: what the metrics count.
        stale: the winner's result, where it is stale.
    """

    content: bytes
    tag: str
    match: str
    device_class: str
    regret: float | None
    stale: StaleResult | None

    @classmethod
    def of(cls, view: BestConfigView, winner: StoredBest) -> Answer:
        """The answer with a winner."""
        content = view.model_dump_json().encode()
        counted = (view.match.kind, view.device_class, view.expected_regret)
        stale = None if view.staleness == "fresh" else StaleResult.of(winner)
        return cls(content, hashlib.sha256(content).hexdigest(), *counted, stale)


@dataclasses.dataclass(frozen=True, slots=True)
class _Kept:
    """An answer for a version of the target's winners, see :meth:`service.results.served.ServedSets.version`;
    of another version while the same entry is selected."""

    target: str
    version: Version
    selection: Selection
    answer: Answer

    def stands(self, now: Selection) -> bool:
        """Whether the answer to another selection would be the same."""
        # NOTE: the very entry: a winner that was read again may tell more than its entry shows. What a pinned
        # set names says nothing of the winner today.
        same = self.selection == now and self.selection.result.entry is now.result.entry
        return same and not now.pinned


class AnswerCache:
    """The answers to the latest queries, some megabytes of them; safe to share."""

    def __init__(self, served: ServedSets) -> None:
        self._served = served
        self._kept: dict[bytes, _Kept] = {}  # the one that was kept first comes first
        self._bytes = 0
        self._lock = threading.Lock()

    def known(self, query: bytes) -> Answer | None:
        """The answer to a query string without a look at the database; None if only the database tells."""
        kept = self._kept.get(query)
        return kept.answer if kept and self._served.version(kept.target) == kept.version else None

    def find(
        self, query: bytes, target: str, select: Callable[[], Selection], work: Callable[[Selection], Answer]
    ) -> Answer:
        """The answer to a query string about a target by a look at the database; ``work`` gives it for what
        ``select`` selects."""
        version, kept = self._served.look_at_version(target), self._kept.get(query)
        if kept and kept.version == version:
            return kept.answer
        selection = select()
        answer = kept.answer if kept and kept.stands(selection) else work(selection)
        after = self._served.look_at_version(target)
        # NOTE: results may be judged otherwise during the work, and as before later: that answer is not kept.
        judged_alike = version and after and version.judged_by == after.judged_by
        if version and judged_alike and len(query) <= _LONGEST_QUERY:
            # NOTE: of the version before the work: what changed meanwhile has another one.
            self._keep(query, _Kept(target, version, selection, answer))
        return answer

    def _keep(self, query: bytes, one: _Kept) -> None:
        with self._lock:
            self._drop(query)
            self._kept[query] = one
            self._bytes += _size(query, one.answer)
            while self._bytes > _MOST_BYTES:
                self._drop(next(iter(self._kept)))

    def _drop(self, query: bytes) -> None:
        if kept := self._kept.pop(query, None):
            self._bytes -= _size(query, kept.answer)


def _size(query: bytes, answer: Answer) -> int:
    return len(query) + len(answer.content) + _BESIDE
