"""The start page: what is tuned, what that gained, and what to do next."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from sqlalchemy.orm import Session

from service.results.quality import ResultQuality
from tuner.store import misses
from tuner.store.misses import MissRecord
from tuner.store.reports import winners
from tuner.store.reports.winners import Headline

_SHOWN_MISSES = 5


@dataclasses.dataclass(frozen=True, slots=True)
class Gain:
    """What tuning gained on one device class.

    Attributes:
        device_class: the class.
        winners, faster, ties, slower, disturbed: how many results, by the verdict of their races.
        mean: geometric mean of the speed-ups over the vendor library of what is run: 1 where the vendor
            library is faster, as it runs then.
        newest: the latest result.
        stale: how many results something changed for since.
    """

    device_class: str
    winners: int
    faster: int
    ties: int
    slower: int
    disturbed: int
    mean: float
    newest: Headline
    stale: int


@dataclasses.dataclass(frozen=True, slots=True)
class Overview:
    """What the start page shows: gains by device class, and untuned problems with most time at stake."""

    gains: list[Gain]
    misses: list[MissRecord]
    more_misses: bool


def overview(session: Session, quality: ResultQuality) -> Overview:
    """The store in a few numbers."""
    found = winners.everywhere(session)
    classes = sorted({one.device_class for one in found})
    each = ([one for one in found if one.device_class == name] for name in classes)
    top = misses.ranked(session, None, _SHOWN_MISSES + 1)
    gains = [_gain(mine, quality) for mine in each]
    return Overview(gains, top[:_SHOWN_MISSES], len(top) > _SHOWN_MISSES)


def _gain(found: Sequence[Headline], quality: ResultQuality) -> Gain:
    verdicts = [one.verdict for one in found]
    states = {(one.family, one.provenance) for one in found}
    stale = {one for one in states if quality.staleness_of(*one) != "fresh"}
    return Gain(
        found[0].device_class,
        len(found),
        verdicts.count("kernel"),
        verdicts.count("tie"),
        verdicts.count("vendor"),
        verdicts.count("disturbed"),
        mean(found),
        max(found, key=lambda one: one.created),
        sum((one.family, one.provenance) in stale for one in found),
    )


def mean(found: Sequence[Headline]) -> float:
    """Geometric mean of the speed-ups of what is run for these problems."""
    logs = [0.0 if one.disturbed or one.stands_in else max(0.0, math.log(one.speedup)) for one in found]
    return math.exp(sum(logs) / len(logs)) if logs else 1.0
