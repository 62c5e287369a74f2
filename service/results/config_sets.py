"""Config sets compared, and packed with their kernels."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

from service.errors import Kind, Refusal
from service.results.snapshots import LoadedSet
from tilewright import wire
from tilewright.artifact import bundle
from tilewright.schema.config_set import ConfigSet
from tilewright.schema.kernel import Preconditions
from tilewright.schema.problem import GemmProblem
from tuner.measure.between_races import Figure
from tuner.store import entities
from tuner.store.database import Store

_PART = 32  # artifacts that are in memory at once


def difference(a: ConfigSet, b: ConfigSet) -> wire.SetDiff:
    """What set ``b`` has other than set ``a``, problem by problem."""
    before, after = _by_problem(a), _by_problem(b)
    changes = [_change(before[key], after[key]) for key in before if key in after]
    changed = [change for change in changes if _raced(change.before) != _raced(change.after)]
    return wire.SetDiff(
        a=a.digest,
        b=b.digest,
        added=[_change(None, after[key]) for key in after if key not in before],
        removed=[_change(before[key], None) for key in before if key not in after],
        changed=changed,
        unchanged=len(changes) - len(changed),
    )


def wanted(found: LoadedSet, want: Sequence[str]) -> dict[str, int]:
    """Digests and lengths of those artifacts of a set that are wanted.

    Raises:
        Refusal: one of them is not of this set.
    """
    foreign = [digest for digest in want if digest not in found.artifacts]
    if foreign:
        detail = f"{found.digest} has no artifact {foreign[0]}; ask for one that its entries name"
        raise Refusal(Kind.NOT_FOUND, detail)
    return {digest: found.artifacts[digest] for digest in want}


def packed(store: Store, sizes: Mapping[str, int]) -> Iterator[bytes]:
    """The bundle of these artifacts, piece by piece."""
    digests = iter(sizes)
    while part := list(itertools.islice(digests, _PART)):
        with store.read() as session:
            found = entities.get_artifacts(session, part)
        # NOTE: joined, since each piece that a generator gives costs a change of threads.
        each = ((digest, found.get(digest, b"")) for digest in part)
        yield b"".join(bundle.head(digest, len(data)) + data for digest, data in each)


def _by_problem(config_set: ConfigSet) -> dict[GemmProblem, wire.SetEntry]:
    return {entry.problem: entry for entry in config_set.entries}


def _raced(entry: wire.SetEntry | None) -> wire.SetEntry | None:
    """An entry without what follows from its artifact, which sets of earlier formats do not tell."""
    return entry and dataclasses.replace(entry, preconditions=Preconditions())


def _change(before: wire.SetEntry | None, after: wire.SetEntry | None) -> wire.SetChange:
    either = after or before
    assert either is not None
    if before is None or after is None:
        return wire.SetChange(problem=either.problem, before=before, after=after)
    times = [Figure(one.median_us, one.low_us, one.high_us) for one in (before, after)]
    ratio, low, high = times[0].over(times[1])
    decided = not low <= 1.0 <= high
    return wire.SetChange(
        problem=after.problem, before=before, after=after, time_ratio=ratio, decided=decided
    )
