"""The start page: what is tuned, what that gained, and what to do next."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

from service.results.quality import ResultQuality
from service.web import results
from tilewright.schema.entries import MissRecord
from tuner.store import misses
from tuner.store.database import Store
from tuner.store.reports import winners
from tuner.store.reports.winners import Headline

_SHOWN_MISSES = 5


@dataclasses.dataclass(frozen=True, slots=True)
class Gain:
    """What tuning gained on one device class.

    Attributes:
        device_class: the class.
        winners: how many results.
        verdicts: how many of each verdict, see :func:`service.web.results.verdict_of`.
        mean: geometric mean of the speed-ups over the vendor library of what is run.
        confidence: of the intervals that the verdicts follow from.
        newest: the latest result.
        stale: how many results something changed for since.
    """

    device_class: str
    winners: int
    verdicts: Counter[str]
    mean: float
    confidence: str
    newest: Headline
    stale: int


@dataclasses.dataclass(frozen=True, slots=True)
class Overview:
    """What the start page shows: gains by device class, and untuned problems with most time at stake."""

    gains: list[Gain]
    misses: Sequence[MissRecord]
    more_misses: bool


def overview(store: Store, quality: ResultQuality) -> Overview:
    """The store in a few numbers."""
    with store.read() as session:
        found = winners.everywhere(session)
        top = misses.ranked(session, None, _SHOWN_MISSES + 1)
    classes = sorted({one.device_class for one in found})
    each = ([one for one in found if one.device_class == name] for name in classes)
    gains = [_gain(mine, quality) for mine in each]
    return Overview(gains, top[:_SHOWN_MISSES], len(top) > _SHOWN_MISSES)


def _gain(found: Sequence[Headline], quality: ResultQuality) -> Gain:
    states = {(one.family, one.provenance, one.drifted) for one in found}
    stale = {one for one in states if quality.staleness_of(*one) != "fresh"}
    return Gain(
        found[0].device_class,
        len(found),
        Counter(results.verdict_of(one) for one in found),
        results.mean(found),
        results.confidence(found),
        max(found, key=lambda one: one.created),
        sum((one.family, one.provenance, one.drifted) in stale for one in found),
    )
