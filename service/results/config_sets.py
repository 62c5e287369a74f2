"""Config sets: made on demand from the winners of a device class, compared, and packed with their kernels."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence

from sqlalchemy.orm import Session

from service.errors import Kind, Refusal
from service.http.deps import Service
from service.http.views import set_entry
from tilewright import wire
from tilewright.artifact import bundle
from tilewright.schema.codec import encode
from tilewright.schema.config_set import FORMAT, ConfigSet, content_digest
from tilewright.schema.problem import GemmProblem
from tuner.store import best, entities, exchange, records, sets
from tuner.store.records import StoredBest, utc_now
from tuner.store.sets import Snapshot

_PART = 32  # artifacts that are in memory at once


def current(service: Service, device_class: str) -> tuple[str, list[StoredBest]]:
    """The digest of what a device class is served, the pinned set, else one of the winners as they stand;
    and, where that was just made, what in it is stale.

    Raises:
        Refusal: the device class has no winner.
    """
    state = service.served.state(device_class)
    digest, stale = _current(service, device_class)
    service.served.remember(device_class, state, digest)
    return digest, stale


def _current(service: Service, device_class: str) -> tuple[str, list[StoredBest]]:
    judged = service.quality.state(device_class)
    with service.store.read() as session:
        served = sets.served(session, device_class)
        made_from = f"{served.revision} {judged} {FORMAT}"
        if served.pinned:
            return served.pinned, []
        if served.latest and served.made_from == made_from:
            return served.latest, []
        winners = best.for_arch(session, device_class)
        snapshot = _snapshot(service, session, winners, device_class)
    with service.store.begin() as session:
        sets.keep(session, snapshot, made_from)
    stale = [stored for stored in winners if service.quality.staleness(stored.best) != "fresh"]
    return snapshot.digest, stale


def content(service: Service, digest: str) -> bytes:
    """The bytes of a set.

    Raises:
        Refusal: there is none of this digest.
    """
    with service.store.read() as session:
        found = sets.content(session, digest)
    if found is None:
        raise unknown_set(digest)
    return found


def parsed(service: Service, digest: str) -> ConfigSet:
    """A set, its configs in today's words.

    Raises:
        Refusal: there is none of this digest.
    """
    return exchange.current_set(ConfigSet.from_dict(json.loads(content(service, digest))))


def unknown_set(digest: str) -> Refusal:
    """The refusal for a set that does not exist."""
    return Refusal(Kind.NOT_FOUND, f"there is no config set {digest}; GET /config-sets lists those there are")


def difference(a: ConfigSet, b: ConfigSet) -> wire.SetDiff:
    """What set ``b`` has other than set ``a``, problem by problem."""
    before, after = _by_problem(a), _by_problem(b)
    changes = [_change(before[key], after[key]) for key in before if key in after]
    changed = [change for change in changes if change.before != change.after]
    return wire.SetDiff(
        a=a.digest,
        b=b.digest,
        added=[_change(None, after[key]) for key in after if key not in before],
        removed=[_change(before[key], None) for key in before if key not in after],
        changed=changed,
        unchanged=len(changes) - len(changed),
    )


def wanted(config_set: ConfigSet, want: Sequence[str] | None) -> dict[str, int]:
    """Digests and sizes of a set's artifacts, all or those wanted.

    Raises:
        Refusal: one that is wanted is not of this set.
    """
    sizes = {entry.artifact: entry.artifact_bytes for entry in config_set.entries}
    if want is None:
        return sizes
    foreign = [digest for digest in want if digest not in sizes]
    if foreign:
        raise Refusal(
            Kind.NOT_FOUND, f"{config_set.digest} has no artifact {foreign[0]}; its entries name what it has"
        )
    return {digest: sizes[digest] for digest in want}


def packed(service: Service, sizes: dict[str, int]) -> Iterator[bytes]:
    """The bundle of these artifacts, piece by piece."""
    digests = iter(sizes)
    while part := list(itertools.islice(digests, _PART)):
        with service.store.read() as session:
            found = entities.get_artifacts(session, part)
        # NOTE: joined, since each piece that a generator gives costs a change of threads.
        yield b"".join(_framed(digest, found.get(digest, b"")) for digest in part)


def _framed(digest: str, data: bytes) -> bytes:
    return bundle.head(digest, len(data)) + data


def _snapshot(service: Service, session: Session, winners: list[StoredBest], device_class: str) -> Snapshot:
    if not winners or winners[0].best.device_class != device_class:
        raise Refusal(Kind.NOT_FOUND, f"nothing was tuned on {device_class} yet; POST /tune or report misses")
    sizes = best.artifact_sizes(session, device_class)
    entries = [
        set_entry(stored, service.quality.view(stored.best), sizes[stored.best.artifact])
        for stored in sorted(winners, key=_canonical)
    ]
    body = {
        "format": FORMAT,
        "device_class": device_class,
        "arch": winners[0].best.arch,
        "entries": encode(entries),
        "near": encode(service.quality.bands(session, device_class)),
    }
    digest, now = content_digest(body), utc_now()
    whole = {"digest": digest, "created_at": now.isoformat(), **body}
    text = json.dumps(whole, separators=(",", ":"), ensure_ascii=False)
    return Snapshot(digest, device_class, winners[0].best.arch, len(entries), text.encode(), now)


def _canonical(stored: StoredBest) -> str:
    return records.canonical(stored.best.problem.to_dict())


def _by_problem(config_set: ConfigSet) -> dict[GemmProblem, wire.SetEntry]:
    return {entry.problem: entry for entry in config_set.entries}


def _change(before: wire.SetEntry | None, after: wire.SetEntry | None) -> wire.SetChange:
    either = after or before
    assert either is not None
    if before is None or after is None:
        return wire.SetChange(problem=either.problem, before=before, after=after)
    apart = after.high_us < before.low_us or before.high_us < after.low_us
    ratio = before.median_us / after.median_us
    return wire.SetChange(problem=after.problem, before=before, after=after, time_ratio=ratio, decided=apart)
