"""Config sets made from the winners of a device class; making one again costs what changed since."""

from __future__ import annotations

import dataclasses

from sqlalchemy.orm import Session

from service.engine.retune import StaleResult
from service.errors import Kind, Refusal
from service.results.quality import ResultQuality
from tilewright.schema.codec import encode, gathered
from tilewright.schema.config_set import FORMAT, ConfigSet, RegretBand, SetEntry, digest_of
from tilewright.wire.results import speedup_of
from tuner.job import neighbours
from tuner.store import best, sets
from tuner.store.records import StoredBest, StoredKernel, canonical, utc_now
from tuner.store.sets import Snapshot

_ENTRIES = '"entries":['
_ESTIMATE_PERCENT = 1  # of the winners must have changed before their regret is estimated anew


@dataclasses.dataclass(frozen=True, slots=True)
class Made:
    """A config set, as it is kept, and those of its results that are stale."""

    config_set: ConfigSet
    snapshot: Snapshot
    stale: list[StaleResult]


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """What a winner contributes to sets.

    Attributes:
        row: of the database, as it was when the winner was read.
        order: entries are sorted by it.
        text: the entry as canonical JSON.
        stale: the result if it is stale.
    """

    row: object
    order: str
    entry: SetEntry
    text: bytes
    stale: StaleResult | None


class SnapshotMaker:
    """Makes the config sets of one device class. NOTE: for one thread at a time."""

    def __init__(self, device_class: str, quality: ResultQuality) -> None:
        self._device_class, self._quality = device_class, quality
        self._parts: dict[int, _Part] = {}
        self._judged_by = ""
        self._near: list[RegretBand] | None = None
        self._changes = 0  # of winners since the regret was estimated

    def make(self, session: Session) -> Made:
        """The set of the winners as they stand; an empty one if all were deleted or are quarantined.

        Raises:
            Refusal: there never was a winner.
        """
        self._read_changes(session)
        parts = sorted(self._parts.values(), key=lambda part: part.order)
        if not parts and not self._had_winners(session):
            detail = f"nothing was tuned on {self._device_class} yet; POST /tune or report misses"
            raise Refusal(Kind.NOT_FOUND, detail)
        near, arch = self._regret(session), self._device_class.partition("-")[0]
        head = {"format": FORMAT, "device_class": self._device_class, "arch": arch, "near": encode(near)}
        # NOTE: put together from the texts of the entries, as encoding them all takes most of the time.
        empty = canonical({**head, "entries": []}).partition(_ENTRIES)
        before, key, after = (text.encode() for text in empty)
        texts = b",".join([part.text for part in parts])
        digest, now = digest_of(before, key, texts, after), utc_now()
        named = f'{{"digest":"{digest}","created_at":"{now.isoformat()}",'.encode()
        packed = sets.pack(named, before[1:], key, texts, after)
        entries = tuple(part.entry for part in parts)
        made = ConfigSet(digest, self._device_class, arch, now, entries, tuple(near), FORMAT)
        snapshot = Snapshot(digest, self._device_class, arch, len(entries), packed, now)
        return Made(made, snapshot, [part.stale for part in parts if part.stale])

    def _had_winners(self, session: Session) -> bool:
        had_set = sets.served(session, self._device_class).latest is not None
        return had_set or bool(best.classes(session, self._device_class))

    def _read_changes(self, session: Session) -> None:
        """Read the winners that are new, changed or judged by another source, compiler or driver."""
        judged_by = self._quality.state(self._device_class)
        rows = best.rows(session, self._device_class)
        before = self._parts if judged_by == self._judged_by else {}
        self._parts = {number: part for number, part in before.items() if rows.get(number) == part.row}
        missing = [number for number in rows if number not in self._parts]
        self._changes += max(len(missing), len(before) - len(self._parts))
        winners = best.of_ids(session, missing)
        kernels = best.kernels(session, list({winner.best.artifact for winner in winners}))
        for winner in winners:
            if kernel := kernels.get(winner.best.artifact):
                self._parts[winner.id] = self._part(rows[winner.id], winner, kernel)
        self._judged_by = judged_by

    def _part(self, row: object, winner: StoredBest, kernel: StoredKernel) -> _Part:
        quality, speedup = self._quality.view(winner.best, winner.drifted), speedup_of(winner.best)
        sources = (winner.best, winner.best.timing, quality, kernel, winner)
        entry = SetEntry(**gathered(SetEntry, *sources, speedup=speedup))
        order = canonical(entry.problem.to_dict())
        stale = None if quality.staleness == "fresh" else StaleResult.of(winner)
        return _Part(row, order, entry, canonical(encode(entry)).encode(), stale)

    def _regret(self, session: Session) -> list[RegretBand]:
        """What near matches cost, estimated anew once enough winners have changed."""
        if self._near is None or 100 * self._changes >= _ESTIMATE_PERCENT * len(self._parts):
            winners = ((part.entry.problem, part.entry.config) for part in self._parts.values())
            self._near = neighbours.estimate(session, self._device_class, winners)
            self._changes = 0
        return self._near
