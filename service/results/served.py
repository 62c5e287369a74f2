"""The config sets that device classes are served, and the selection of a result for a problem from them."""

from __future__ import annotations

import dataclasses
import functools
import logging
import threading
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from service.engine.retune import StaleResult, StaleResults
from service.errors import Kind, Refusal
from service.results.quality import ResultQuality
from service.results.snapshots import SnapshotMaker
from tilewright.config_sets.lookup import Catalog
from tilewright.schema.config_set import FORMAT, ConfigSet
from tilewright.schema.match import LookupResult, MatchLimits
from tilewright.schema.problem import GemmProblem
from tuner.store import best, exchange, sets
from tuner.store.database import Store
from tuner.store.engines.sqlite_engine import Changes

_MOST_LOADED = 8
_ORDER = ("exact", "ladder", "nearest", "vendor")
_Classes = tuple[tuple[str, int, str | None], ...]  # with the revision of their winners and what is pinned
_NOTHING = LookupResult("vendor", "no tuned kernel", miss=True)
log = logging.getLogger("tilewright.sets")


@dataclasses.dataclass(frozen=True, slots=True)
class Selection:
    """What answers for a problem on a device class or architecture.

    Attributes:
        result: the kernel, or the vendor library with the reason.
        device_class: whose config set answered; None if no class has a winner.
    """

    result: LookupResult
    device_class: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class LoadedSet:
    """A config set in memory.

    Attributes:
        catalog: for lookups.
        packed: its bytes, see :func:`tuner.store.sets.pack`.
        artifacts: the length of each of its kernels by digest.
        serial: under which its device class is served it; 0 for a set that was asked for by its digest.
    """

    catalog: Catalog
    packed: bytes
    artifacts: Mapping[str, int]
    serial: int = 0

    @classmethod
    def of(cls, config_set: ConfigSet, packed: bytes) -> LoadedSet:
        """A set ready to be asked."""
        artifacts = {entry.artifact: entry.artifact_bytes for entry in config_set.entries}
        return cls(Catalog(config_set), packed, artifacts)

    @property
    def digest(self) -> str:
        """Of the set."""
        return self.catalog.config_set.digest


class ServedSets:
    """What device classes are served; safe to share.

    One thread looks at the database and makes each set once, however many callers wait for it. What it found
    is valid until the next commit; until then a caller costs no transaction and no thread.

    Attributes:
        store: where the sets lie.
    """

    def __init__(self, store: Store, quality: ResultQuality, stale: StaleResults) -> None:
        self.store, self._quality, self._stale = store, quality, stale
        self._changes = Changes(store.engine)
        self._found: dict[str, tuple[Hashable, LoadedSet]] = {}
        self._versions: dict[str, tuple[int | None, _Classes]] = {}
        self._makers: dict[str, SnapshotMaker] = {}
        self._looks: dict[str, Future[LoadedSet]] = {}  # those that have not begun
        self._lock = threading.Lock()
        self._looking = ThreadPoolExecutor(1, "tilewright-sets")
        self._noting = ThreadPoolExecutor(1, "tilewright-stale")
        self._loading = threading.Lock()
        self._cached = functools.lru_cache(_MOST_LOADED)(self._load)

    def select(self, target: str, problems: Sequence[GemmProblem], limits: MatchLimits) -> list[Selection]:
        """The selection for each problem, from the config sets and by the function that clients use. ``GET
        /best-config``, ``POST /best-config/lookup`` and ``POST /gemm`` all use it.

        Args:
            target: a device class, or an architecture; of its classes the closest match answers.
        """
        with self.store.read() as session:
            classes = best.classes(session, target)
        catalogs = {name: self.current(name).catalog for name in classes}
        return [_closest(catalogs, problem, limits) for problem in problems]

    def version(self, target: str) -> Hashable | None:
        """A version of a target's winners: equal versions mean the same winners of the same quality. None if
        only :meth:`look_at_version` can tell."""
        stamp, classes = self._versions.get(target, (None, ()))
        if stamp is None or stamp != self._changes.stamp():
            return None
        return self._judged(classes)

    def look_at_version(self, target: str) -> Hashable:
        """The same by a look at the database."""
        stamp = self._changes.stamp()
        with self.store.read() as session:
            named = [(name, sets.served(session, name)) for name in best.classes(session, target)]
        classes = tuple((name, served.revision, served.pinned) for name, served in named)
        if classes:  # NOTE: callers may name any target, and few have winners
            self._versions[target] = stamp, classes
        return self._judged(classes)

    def _judged(self, classes: _Classes) -> Hashable:
        return classes, tuple(self._quality.state(name) for name, *_ in classes)

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
        maker = self._makers.get(device_class) or SnapshotMaker(device_class, self._quality)
        judged_by = self._quality.state(device_class)
        with self.store.read() as session:
            served = sets.served(session, device_class)
            made_from = f"{served.revision} {judged_by} {FORMAT}"
            digest = served.pinned or (served.latest if served.made_from == made_from else None)
            if digest is not None:
                return dataclasses.replace(self.loaded(digest), serial=served.serial)
            made = maker.make(session)
        self._makers[device_class] = maker
        with self.store.begin() as session:
            packed = sets.keep(session, made.snapshot, made_from)
        if made.stale:
            self._noting.submit(self._note, made.stale)
        return dataclasses.replace(LoadedSet.of(made.config_set, packed), serial=served.serial)

    def _load(self, digest: str) -> LoadedSet:
        with self.store.read() as session:
            packed = sets.packed(session, digest)
        if packed is None:
            raise unknown_set(digest)
        content = sets.unpack(packed)
        return LoadedSet.of(exchange.current_set(ConfigSet.from_bytes(content, digest)), packed)

    def _note(self, stale: list[StaleResult]) -> None:
        try:
            self._stale.served(stale)
        except Exception:  # NOTE: they are noted when they are served again
            log.exception("%d stale results of a new config set were not noted", len(stale))


def unknown_set(digest: str) -> Refusal:
    """The refusal for a set that does not exist."""
    return Refusal(Kind.NOT_FOUND, f"there is no config set {digest}; GET /config-sets lists those there are")


def _closest(catalogs: Mapping[str, Catalog], problem: GemmProblem, limits: MatchLimits) -> Selection:
    results = [(catalog.lookup(problem, limits), name) for name, catalog in catalogs.items()]
    return Selection(*min(results, key=_rank, default=(_NOTHING, None)))


def _rank(answer: tuple[LookupResult, str]) -> tuple[int, bool, float]:
    result, _ = answer
    # Of two classes with the vendor library the one that raced it tells more than one without a result.
    return _ORDER.index(result.kind), result.miss, result.distance
