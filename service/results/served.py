"""The config sets that device classes are served, and the selection of a result for a problem from them."""

from __future__ import annotations

import dataclasses
import functools
import logging
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from sqlalchemy.orm import Session

from service.engine.retune import StaleResult, StaleResults
from service.errors import Kind, Refusal
from service.results.quality import ResultQuality
from service.results.snapshots import ClassWinners, LoadedSet, made_from
from tilewright.config_sets.lookup import Catalog
from tilewright.schema.config_set import ConfigSet
from tilewright.schema.match import LookupResult, MatchLimits
from tilewright.schema.problem import GemmProblem
from tuner.store import exchange, sets
from tuner.store.database import Store
from tuner.store.engines.sqlite_engine import Changes

_MOST_LOADED = 8
_NOTED_AT_ONCE = 100  # stale results
_NOTE_AFTER_S = 0.2  # each time
_ORDER = ("exact", "ladder", "nearest", "vendor")
_Classes = Mapping[str, tuple[str, sets.ServedSetRecord]]  # by name, with their architecture
_NOTHING = LookupResult("vendor", "no tuned kernel", miss=True)
T = TypeVar("T")
log = logging.getLogger("tilewright.sets")


@dataclasses.dataclass(frozen=True, slots=True)
class Selection:
    """What answers for a problem on a device class or architecture.

    Attributes:
        result: the kernel, or the vendor library with the reason.
        device_class: whose config set answered; None if no class has a winner.
        pinned: whether that set is pinned, so that the winner may be another one since.
    """

    result: LookupResult
    device_class: str | None
    pinned: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Version:
    """Of the winners of a target: equal versions mean the same winners of the same quality, and that near
    matches cost the same.

    Attributes:
        winners: which they are, and what near matches cost.
        judged_by: how results are judged.
    """

    winners: Hashable
    judged_by: tuple[str, ...]


class ServedSets:
    """What device classes are served; safe to share.

    Lookups read the winners that changed since the last one, and never wait for a set: one thread makes each
    set once, however many callers wait for it. What was found is valid until the next commit; until then a
    caller costs no transaction and no thread.

    Attributes:
        store: where the sets lie.
    """

    def __init__(self, store: Store, quality: ResultQuality, stale: StaleResults) -> None:
        self.store, self._quality, self._stale = store, quality, stale
        self._changes = Changes(store.engine)
        self._classes: tuple[int | None, _Classes] = None, {}
        self._winners: dict[str, ClassWinners] = {}
        self._found: dict[str, tuple[Hashable, LoadedSet]] = {}
        self._looks: dict[str, Future[LoadedSet]] = {}  # those that have not begun
        self._lock = threading.Lock()
        self._looking = ThreadPoolExecutor(1, "tilewright-sets")
        self._noting = ThreadPoolExecutor(1, "tilewright-stale")
        self._closed = threading.Event()
        self._loading = threading.Lock()
        self._cached = functools.lru_cache(_MOST_LOADED)(self._load)
        self._catalogs = functools.lru_cache(_MOST_LOADED)(self._catalog_of)

    def select(self, target: str, problems: Sequence[GemmProblem], limits: MatchLimits) -> list[Selection]:
        """The selection for each problem, from what is served and by the function that clients use. ``GET
        /best-config``, ``POST /best-config/lookup`` and ``POST /gemm`` all use it.

        Args:
            target: a device class, or an architecture; of its classes the closest match answers.
        """
        classes = self._of(target, self._known_classes() or self._look_at_classes())
        catalogs = {name: (self._catalog(name, served), bool(served.pinned)) for name, served in classes}
        return [_closest(catalogs, problem, limits) for problem in problems]

    def catalog(self, device_class: str) -> Catalog:
        """What a device class is served, for lookups."""
        with self.store.read() as session:
            served = sets.served(session, device_class)
        return self._catalog(device_class, served)

    def version(self, target: str) -> Version | None:
        """The version of a target's winners; None if only :meth:`look_at_version` can tell, or as there."""
        classes = self._known_classes()
        return None if classes is None else self._version(target, classes)

    def look_at_version(self, target: str) -> Version | None:
        """The same by a look at the database if there was a commit since the last one. None while lookups
        have winners that were judged otherwise than results are now."""
        return self._version(target, self._known_classes() or self._look_at_classes())

    def derived(self, derive: Callable[[Session, str], T]) -> Callable[[str], T]:
        """What ``derive`` gives for the winners of a device class, kept until they change. For each class one
        thread at a time derives it."""
        kept: dict[str, tuple[int, T]] = {}
        turns: dict[str, threading.Lock] = {}

        def anew(device_class: str) -> T:
            with self.store.read() as session:
                return derive(session, device_class)

        def of(device_class: str) -> T:
            # NOTE: the revision before the wait and the look: what changed meanwhile has a later one.
            revision = self._revision(device_class)
            if revision is None:  # NOTE: callers may name any class, so nothing is kept of it
                return anew(device_class)
            with turns.setdefault(device_class, threading.Lock()):
                if device_class not in kept or kept[device_class][0] < revision:
                    kept[device_class] = revision, anew(device_class)
                return kept[device_class][1]

        return of

    def _revision(self, device_class: str) -> int | None:
        """That of the winners of a device class; None if it has none."""
        classes = self._known_classes() or self._look_at_classes()
        return classes[device_class][1].revision if device_class in classes else None

    def _version(self, target: str, classes: _Classes) -> Version | None:
        found = self._of(target, classes)
        states = [self._judged_by(name, served) for name, served in found]
        judged_by = tuple(state for state in states if state is not None)
        there = tuple((name, served.revision, served.pinned, self._near(name)) for name, served in found)
        return Version(there, judged_by) if len(judged_by) == len(found) else None

    def _judged_by(self, device_class: str, served: sets.ServedSetRecord) -> str | None:
        """How results are judged; None while lookups have winners that were judged otherwise."""
        state, winners = self._quality.state(device_class), self._winners.get(device_class)
        is_current = served.pinned is not None or (winners is not None and winners.judged_by == state)
        return state if is_current else None

    def _near(self, device_class: str) -> Hashable:
        winners = self._winners.get(device_class)
        return winners and winners.near

    def _of(self, target: str, classes: _Classes) -> list[tuple[str, sets.ServedSetRecord]]:
        return [(name, served) for name, (arch, served) in classes.items() if target in (name, arch)]

    def _known_classes(self) -> _Classes | None:
        stamp, classes = self._classes
        return classes if stamp is not None and stamp == self._changes.stamp() else None

    def _look_at_classes(self) -> _Classes:
        stamp = self._changes.stamp()
        with self.store.read() as session:
            classes = sets.classes(session)
        self._classes = stamp, classes
        return classes

    def _catalog(self, device_class: str, served: sets.ServedSetRecord) -> Catalog:
        if served.pinned is not None:
            return self._catalogs(served.pinned)
        return self._winners_of(device_class).catalog(served)

    def _catalog_of(self, digest: str) -> Catalog:
        return Catalog.of(self.loaded(digest).config_set)

    def _winners_of(self, device_class: str) -> ClassWinners:
        with self._lock:
            if device_class not in self._winners:
                self._winners[device_class] = ClassWinners(
                    self.store, self._quality, device_class, self.loaded
                )
            return self._winners[device_class]

    def current(self, device_class: str) -> LoadedSet:
        """What a device class is served: the pinned set, else one of the winners as they stand.

        Raises:
            Refusal: the device class has no winner.
        """
        return self.known(device_class) or self.look(device_class).result()

    def known(self, device_class: str) -> LoadedSet | None:
        """The same without a look at the database; None if it may have changed since the last one."""
        state, found = self._found.get(device_class, (None, None))
        return found if state is not None and state == self._state(device_class) else None

    def look(self, device_class: str) -> Future[LoadedSet]:
        """The same by a look at the database that begins after this call, shared by all who wait for it."""
        with self._lock:
            if device_class not in self._looks:
                self._looks[device_class] = self._looking.submit(self._look, device_class)
            return self._looks[device_class]

    def loaded(self, digest: str) -> LoadedSet:
        """Any set.

        Raises:
            Refusal: there is none of this digest.
        """
        for _, found in list(self._found.values()):
            if found.digest == digest:
                return found
        with self._loading:
            return self._cached(digest)

    def close(self) -> None:
        """Let go of the database."""
        self._closed.set()
        self._looking.shutdown(cancel_futures=True)
        self._noting.shutdown(cancel_futures=True)
        self._changes.close()

    def _look(self, device_class: str) -> LoadedSet:
        with self._lock:
            del self._looks[device_class]
        if known := self.known(device_class):
            return known
        state = self._state(device_class)
        found = self._read(device_class)
        self._found[device_class] = state, found
        return found

    def _state(self, device_class: str) -> Hashable | None:
        """A state of a device class: equal states mean that it is served the same. None if the database
        cannot tell."""
        stamp = self._changes.stamp()
        return None if stamp is None else (stamp, self._quality.state(device_class))

    def _read(self, device_class: str) -> LoadedSet:
        """The set that the database names, which is made first if winners have changed."""
        state = self._quality.state(device_class)
        with self.store.read() as session:
            served = sets.served(session, device_class)
        is_latest = served.made_from == made_from((served.revision, state))
        digest = served.pinned or (served.latest if is_latest else None)
        if digest is not None:
            return dataclasses.replace(self.loaded(digest), serial=served.serial)
        try:
            made = self._winners_of(device_class).make()
        except Refusal:  # NOTE: callers may name any class, and few have winners
            with self._lock:
                del self._winners[device_class]
            raise
        snapshot = made.snapshot()
        with self.store.begin() as session:
            packed = sets.keep(session, snapshot, made_from(made.state))
        if made.stale:
            self._noting.submit(self._note, made.stale)
        return LoadedSet(made.config_set, packed, sets.ServedSetRecord(made.state[0]).serial)

    def _load(self, digest: str) -> LoadedSet:
        with self.store.read() as session:
            packed = sets.packed(session, digest)
        if packed is None:
            raise unknown_set(digest)
        content = sets.unpack(packed)
        return LoadedSet(exchange.current_set(ConfigSet.from_bytes(content, digest)), packed)

    def _note(self, stale: list[StaleResult]) -> None:
        """Note stale results of a new set, some at a time: its callers, and lookups, come first."""
        for start in range(0, len(stale), _NOTED_AT_ONCE):
            if self._closed.wait(_NOTE_AFTER_S):
                return
            some = stale[start : start + _NOTED_AT_ONCE]
            try:
                self._stale.served(some)
            except Exception:  # NOTE: they are noted when they are served again
                log.exception("%d stale results of a new config set were not noted", len(some))


def unknown_set(digest: str) -> Refusal:
    """The refusal for a set that does not exist."""
    return Refusal(Kind.NOT_FOUND, f"there is no config set {digest}; GET /config-sets lists those there are")


def _closest(
    catalogs: Mapping[str, tuple[Catalog, bool]], problem: GemmProblem, limits: MatchLimits
) -> Selection:
    results = [
        Selection(catalog.lookup(problem, limits), name, pinned)
        for name, (catalog, pinned) in catalogs.items()
    ]
    return min(results, key=_rank, default=Selection(_NOTHING, None))


def _rank(answer: Selection) -> tuple[int, bool, float]:
    result = answer.result
    # Of two classes with the vendor library the one that raced it tells more than one without a result.
    return _ORDER.index(result.kind), result.miss, result.distance
