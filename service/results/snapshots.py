"""The winners of a device class in memory, read as they change, and the config sets made from them."""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence

from sqlalchemy.orm import Session

from service.engine.retune import AGAIN_S, StaleResult
from service.errors import Kind, Refusal
from service.results.quality import ResultQuality
from tilewright.config_sets.lookup import Catalog
from tilewright.errors import ArtifactError
from tilewright.schema.codec import encode, gathered
from tilewright.schema.config_set import FORMAT, ConfigSet, RegretBand, SetEntry, digest_of
from tilewright.wire.results import speedup_of
from tuner.job import neighbours
from tuner.store import best, sets
from tuner.store.database import Store
from tuner.store.records import StoredBest, StoredKernel, canonical, utc_now
from tuner.store.sets import Snapshot

_ENTRIES = '"entries":['
# How many percent of the winners must have changed before a set, or a lookup, estimates regret anew.
_SET_PERCENT, _LOOKUP_PERCENT = 1, 10
State = tuple[int, str]  # the revision of a device class, and how its results are judged
log = logging.getLogger("tilewright.sets")


@dataclasses.dataclass(frozen=True, slots=True)
class LoadedSet:
    """A config set in memory.

    Attributes:
        packed: its bytes, see :func:`tuner.store.sets.pack`.
        serial: under which its device class is served it; 0 for a set that was asked for by its digest.
    """

    config_set: ConfigSet
    packed: bytes
    serial: int = 0

    @property
    def digest(self) -> str:
        """Of the set."""
        return self.config_set.digest

    @property
    def artifacts(self) -> dict[str, int]:
        """The length of each of its kernels by digest."""
        return {entry.artifact: entry.artifact_bytes for entry in self.config_set.entries}


@dataclasses.dataclass(frozen=True, slots=True)
class Made:
    """A config set that is yet to be packed and kept.

    Attributes:
        content: its JSON, in parts.
        made_from: see :func:`made_from`.
        stale: those of its results that are stale.
    """

    config_set: ConfigSet
    content: Sequence[bytes]
    state: State
    stale: list[StaleResult]

    def snapshot(self) -> Snapshot:
        """The set as it is kept."""
        found = self.config_set
        packed = sets.pack(*self.content)
        return Snapshot(
            found.digest, found.device_class, found.arch, len(found.entries), packed, found.created_at
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """What a winner contributes to sets.

    Attributes:
        order: its problem as canonical JSON; entries are sorted by it.
        text: the entry as canonical JSON.
    """

    order: str
    entry: SetEntry
    text: bytes


_Parts = dict[int, _Part | None]  # by id of the winner; None for one that is not served or cannot be read


def made_from(state: State) -> str:
    """What a set is made from, as the store keeps it with the set."""
    return f"{state[0]} {state[1]} {FORMAT}"


@dataclasses.dataclass(frozen=True, slots=True)
class _Look:
    """The winners as they stood at a look.

    Attributes:
        state: that of the winners; its second item is empty if they were not all judged alike.
        near: what near matches cost.
        changes: of winners since that was estimated.
        catalog: the winners for lookups.
    """

    state: State = (-1, "")
    parts: _Parts = dataclasses.field(default_factory=_Parts)
    near: Sequence[RegretBand] = ()
    changes: int = 0
    catalog: Catalog = dataclasses.field(default_factory=Catalog)

    def changed(self, percent: float) -> bool:
        """Whether as many winners changed since the regret was estimated."""
        return 100 * self.changes >= percent * max(len(self.parts), 1)

    def with_near(self, near: Sequence[RegretBand], changes: int) -> _Look:
        """The same with the regret as it was estimated after ``changes``."""
        catalog = self.catalog.changed((), (), near)
        return dataclasses.replace(self, near=near, changes=self.changes - changes, catalog=catalog)


class ClassWinners:
    """The winners of a device class as they stood at the last look; safe to share.

    A look reads those that changed since: to look up a problem takes no more than that, and to make a set the
    texts of the others. One thread reads all of them if they are judged otherwise than before, and one
    estimates the regret, again if enough winners changed meanwhile. The lookups of others go on, with the
    winners as they were judged before and the last estimate; they wait only for the first look of all.
    """

    def __init__(
        self, store: Store, quality: ResultQuality, device_class: str, load: Callable[[str], LoadedSet]
    ) -> None:
        """``load`` gives the set of a digest."""
        self._store, self._quality, self._device_class, self._load = store, quality, device_class, load
        self._last = _Look()
        self._noted: _Parts = {}  # those of the last set
        self._tell_all = 0.0
        self._lock = threading.Lock()  # for a moment, to read what changed
        self._reading_all = threading.Lock()
        self._estimating = threading.Lock()  # for lookups
        self._next_estimate = 0.0  # after one that failed

    def catalog(self, served: sets.ServedSetRecord) -> Catalog:
        """The winners for lookups, as they stood when ``served`` was read, or later."""
        self._read_all(served, wait=self._last.state[0] < 0)
        if served.revision > self._last.state[0]:
            with self._store.read() as session:
                self._catch_up(session, served.revision)
        return self._estimated().catalog

    @property
    def judged_by(self) -> str:
        """How the winners that lookups choose from now are judged; empty if not all alike."""
        return self._last.state[1]

    @property
    def near(self) -> tuple[RegretBand, ...]:
        """What near matches cost, by which lookups choose now."""
        return tuple(self._last.near)

    def make(self) -> Made:
        """The set of the winners as they stand; an empty one if all were deleted or are quarantined. One
        thread at a time may ask for it.

        Raises:
            Refusal: there never was a winner.
        """
        with self._store.read() as session:
            served = sets.served(session, self._device_class)
            self._read_all(served, wait=True)
            self._catch_up(session, served.revision)
            look = self._estimated()
            if not look.parts and not self._had_winners(session):
                detail = f"nothing was tuned on {self._device_class} yet; POST /tune or report misses"
                raise Refusal(Kind.NOT_FOUND, detail)
            near = look.near
            if look.changed(_SET_PERCENT):
                estimated = self._estimate(session, look.parts)  # while lookups go on
                if estimated is not None:
                    near = estimated
                    self._take(near, look)
        config_set, content = self._set(look.parts, near)
        return Made(config_set, content, look.state, self._stale(look.parts))

    def _read_all(self, served: sets.ServedSetRecord, *, wait: bool) -> None:
        """Read the winners anew if they are judged by another source, compiler or driver than at the last
        look. If another thread does so already, return at once, or ``wait`` for it."""
        if self._judged_by() == self._last.state[1] or not self._reading_all.acquire(blocking=wait):
            return
        try:
            judged_by = self._judged_by()
            if judged_by != self._last.state[1]:
                with self._store.read() as session:
                    look = self._start(session, served, judged_by)
                    look = self._changed(session, look, served.revision)
                    if look.changed(_LOOKUP_PERCENT):
                        near = self._estimate(session, look.parts)
                        look = look if near is None else look.with_near(near, look.changes)
                with self._lock, self._store.read() as session:
                    # NOTE: others looked meanwhile, and nobody may be given earlier winners than before.
                    self._last = self._changed(session, look, self._last.state[0])
        finally:
            self._reading_all.release()

    def _catch_up(self, session: Session, revision: int) -> None:
        """Read the winners that changed since the last look, up to a revision."""
        with self._lock:
            self._last = self._changed(session, self._last, revision)

    def _estimated(self) -> _Look:
        """The last look, after its regret was estimated anew until few winners changed since. If another
        thread does so already, as it is now."""
        # NOTE: a thread that finds the lock taken leaves its changes to the thread that holds it, which looks
        # for them once it has let go.
        while (
            self._last.changed(_LOOKUP_PERCENT)
            and self._next_estimate <= time.monotonic()
            and self._estimating.acquire(blocking=False)
        ):
            try:
                look = self._last
                with self._store.read() as session:
                    near = self._estimate(session, look.parts)
                if near is not None:
                    self._take(near, look)
            finally:
                self._estimating.release()
        return self._last

    def _take(self, near: Sequence[RegretBand], look: _Look) -> None:
        """Give the last look the regret that was estimated for a look, unless it has that of a later one."""
        with self._lock:
            if self._last.near is look.near:
                self._last = self._last.with_near(near, look.changes)

    def _changed(self, session: Session, last: _Look, revision: int) -> _Look:
        """A look that reads the winners that are new or changed since the last one, up to a revision."""
        before, (earlier, judged_by) = last.parts, last.state
        if revision <= earlier:
            return last
        changed = best.changed_since(session, self._device_class, earlier)
        touched = set(changed)
        # NOTE: lookups wait for this, so the others cost no more than a copy of the dict.
        parts = dict(before)
        for number in changed:
            parts.pop(number, None)
        if len(parts) + len(changed) != best.count(session, self._device_class):  # some were deleted
            there = best.changed_since(session, self._device_class, -1)
            parts = {number: part for number, part in parts.items() if number in there}
            changed = {number: is_served for number, is_served in there.items() if number not in parts}
            touched = {*before, *there}
        parts |= self._read(session, changed)
        gone = _only_in({number: before.get(number) for number in touched}, parts)
        new = _only_in({number: parts.get(number) for number in touched}, before)
        changes = last.changes + max(len(gone), len(new))
        catalog = last.catalog.changed(gone, new, last.near)
        alike = judged_by if judged_by == self._judged_by() else ""
        return _Look((revision, alike), parts, last.near, changes, catalog)

    def _start(self, session: Session, served: sets.ServedSetRecord, judged_by: str) -> _Look:
        """Begin with the winners of the latest set if a service that judges alike made it, as reading them
        from it takes a fraction of the time, else with none."""
        found = self._latest(served, judged_by)
        if found is None:
            return _Look((-1, judged_by))
        revision, near = int((served.made_from or "").split()[0]), found.config_set.near
        raw = json.loads(sets.unpack(found.packed))["entries"]
        known = {
            canonical(one["problem"]): (entry, canonical(one).encode())
            for entry, one in zip(found.config_set.entries, raw, strict=True)
        }
        unchanged = best.problems(session, self._device_class, revision)
        parts = _Parts(
            (number, _Part(order, *known[order]) if order in known else None)
            for number, order in unchanged.items()
        )
        catalog = Catalog().changed((), _only_in(parts, {}), near)
        return _Look((revision, judged_by), parts, near, 0, catalog)

    def _latest(self, served: sets.ServedSetRecord, judged_by: str) -> LoadedSet | None:
        alike = (served.made_from or "").partition(" ")[2] == made_from((0, judged_by)).partition(" ")[2]
        if served.latest is None or not alike:
            return None
        try:
            return self._load(served.latest)
        except (ArtifactError, Refusal, zlib.error):  # damaged, which 'tilewright db check' tells, or pruned
            return None

    def _read(self, session: Session, changed: Mapping[int, bool]) -> _Parts:
        winners = best.of_ids(session, [number for number, is_served in changed.items() if is_served])
        kernels = best.kernels(session, list({winner.best.artifact for winner in winners}))
        parts = dict[int, _Part | None].fromkeys(changed)
        for winner in winners:
            if kernel := kernels.get(winner.best.artifact):
                parts[winner.id] = self._part(winner, kernel)
        return parts

    def _judged_by(self) -> str:
        return self._quality.state(self._device_class)

    def _part(self, winner: StoredBest, kernel: StoredKernel) -> _Part:
        quality, speedup = self._quality.view(winner.best, winner.drifted), speedup_of(winner.best)
        sources = (winner.best, winner.best.timing, quality, kernel, winner)
        entry = SetEntry(**gathered(SetEntry, *sources, speedup=speedup))
        return _Part(canonical(entry.problem.to_dict()), entry, canonical(encode(entry)).encode())

    def _estimate(self, session: Session, parts: _Parts) -> list[RegretBand] | None:
        """What near matches cost, estimated anew; None if that fails, and lookups do not soon try again."""
        winners = ((part.entry.problem, part.entry.config) for part in parts.values() if part)
        try:
            return neighbours.estimate(session, self._device_class, winners)
        except Exception:
            # NOTE: a lookup needs no estimate of today, and one that fails may fail for all.
            log.exception("%s: the regret of near matches was not estimated", self._device_class)
            self._next_estimate = time.monotonic() + AGAIN_S
            return None

    def _had_winners(self, session: Session) -> bool:
        had_set = sets.served(session, self._device_class).latest is not None
        return had_set or bool(best.classes(session, self._device_class))

    def _set(self, parts: _Parts, near: Sequence[RegretBand]) -> tuple[ConfigSet, Sequence[bytes]]:
        """The set of these winners, and its JSON in parts."""
        found = sorted(filter(None, parts.values()), key=lambda part: part.order)
        arch = self._device_class.partition("-")[0]
        head = {"format": FORMAT, "device_class": self._device_class, "arch": arch, "near": encode(near)}
        # NOTE: put together from the texts of the entries, as encoding them all takes most of the time.
        empty = canonical({**head, "entries": []}).partition(_ENTRIES)
        before, key, after = (text.encode() for text in empty)
        texts = b",".join([part.text for part in found])
        digest, now = digest_of(before, key, texts, after), utc_now()
        named = f'{{"digest":"{digest}","created_at":"{now.isoformat()}",'.encode()
        entries = tuple(part.entry for part in found)
        config_set = ConfigSet(digest, self._device_class, arch, now, entries, tuple(near), FORMAT)
        return config_set, (named, before[1:], key, texts, after)

    def _stale(self, parts: _Parts) -> list[StaleResult]:
        """The stale results that were not in the set before; all once they may be noted again."""
        now = time.monotonic()
        if now >= self._tell_all:
            self._noted, self._tell_all = {}, now + AGAIN_S
        new, self._noted = _only_in(parts, self._noted), parts
        return [
            StaleResult(self._device_class, entry.problem, entry.median_us, entry.created)
            for entry in new
            if entry.staleness != "fresh"
        ]


def _only_in(some: _Parts, others: _Parts) -> list[SetEntry]:
    return [part.entry for number, part in some.items() if part and others.get(number) is not part]
