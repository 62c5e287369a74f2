"""The regret of near matches, estimated by leaving one shape out.

For each tuned shape S of a device class, and each other tuned shape N of the same signature whose winner
was also measured on S, the regret of answering S from N is median(winner of N on S) over
median(winner of S on S), less 1. Both medians are from trials of S, taken by the same method; searches
start from the winners of near shapes, so that most such pairs were measured. Pairs are pooled by distance in
octaves of (m, n, k). A band includes all nearer pairs, and the expected regret never falls with distance.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
from sqlalchemy import Text, cast, func, select
from sqlalchemy.orm import Session

from tilewright.schema.config import Config
from tilewright.schema.config_set import RegretBand
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import Outcome
from tuner.job.first_configs import promising
from tuner.store import best, records
from tuner.store.best import nearest
from tuner.store.database import Store
from tuner.store.imports import has_entered, is_trusted
from tuner.store.models import BestConfigRow, JobRow, ProblemRow, TrialRow
from tuner.store.queue import imported

MOST_WINNERS = 10_000
MOST_SHAPES = 1000  # of a signature: pairs grow with their square
DISTANCES = (0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
FEWEST_PAIRS = 3


Winners = Iterable[tuple[GemmProblem, Config]]
Pairs = npt.NDArray[np.float64]  # a row of two for each pair
_NO_PAIRS = np.empty((0, 2))
_Tried = tuple[str, str | None]  # the digest of a config, and the method by which it was measured


@dataclasses.dataclass(frozen=True, slots=True)
class _Winner:
    """A tuned shape, its canonical text, and the digest of its config."""

    problem: GemmProblem
    name: str
    digest: str


def estimate(session: Session, device_class: str, winners: Winners) -> list[RegretBand]:
    """The regret of near matches on a device class; empty if fewer than three pairs were measured."""
    return bands(pairs(session, device_class, winners))


def bands(found: Pairs) -> list[RegretBand]:
    """Pairs pooled by distance; bands that add no pair to the one before are left out."""
    made, floor = list[RegretBand](), 0.0
    for reach in DISTANCES:
        within = np.sort(found[found[:, 0] <= reach, 1])
        if len(within) < FEWEST_PAIRS or (made and len(within) == made[-1].pairs):
            continue
        floor = max(floor, float(within.mean()))
        p90 = float(within[math.ceil(0.9 * len(within)) - 1])
        made.append(RegretBand(reach, floor, max(p90, made[-1].p90 if made else 0.0), len(within)))
    return made


def pairs(session: Session, device_class: str, winners: Winners) -> Pairs:
    """One pair for each shape and each other shape whose winner was measured on it, by each method that
    measured both winners there: how far apart they are in octaves, and the regret."""
    alike = defaultdict[tuple[object, ...], list[_Winner]](list)
    for problem, config in list(winners)[-MOST_WINNERS:]:
        name = records.canonical(problem.to_dict())
        alike[best.signature(problem)].append(_Winner(problem, name, config.digest))
    digests = {winner.digest for group in alike.values() for winner in group}
    medians = _medians(session, device_class, digests)
    each = (_pairs_of(group[-MOST_SHAPES:], medians) for group in alike.values())
    return np.concatenate([_NO_PAIRS, *each])


def _pairs_of(group: Sequence[_Winner], medians: dict[str, dict[_Tried, float]]) -> Pairs:
    # NOTE: a thousand shapes make up to a million pairs, so they are kept as numbers, and numpy computes with
    # them without holding up other threads.
    places: dict[str, array[int]] = defaultdict(lambda: array("q"))
    for place, winner in enumerate(group):
        places[winner.digest].append(place)
    left_out, others, regrets = array("q"), array("q"), array("d")
    for place, winner in enumerate(group):
        measured = medians.get(winner.name, {})
        for (digest, method), lent in measured.items():
            own, lenders = measured.get((winner.digest, method)), places.get(digest)
            if own is not None and lenders is not None:
                left_out.extend(array("q", [place]) * len(lenders))
                others.extend(lenders)
                regrets.extend(array("d", [max(0.0, lent / own - 1.0)]) * len(lenders))
    points = np.log2([(one.problem.m, one.problem.n, one.problem.k) for one in group])
    a, b = np.asarray(left_out), np.asarray(others)
    distances = np.linalg.norm(points[a] - points[b], axis=1)
    found: Pairs = np.column_stack((distances, np.asarray(regrets)))
    return np.compress(a != b, found, axis=0)


def _medians(session: Session, device_class: str, digests: set[str]) -> dict[str, dict[_Tried, float]]:
    """By shape, then by config and method: the best median in microseconds."""
    # NOTE: as text, since SQLite fails a query that reads damaged JSON.
    same = (ProblemRow.canonical, TrialRow.m, TrialRow.config_digest, cast(TrialRow.provenance, Text))
    query = (
        select(*same, func.min(TrialRow.median_us))
        .join(JobRow, JobRow.id == TrialRow.job_id)
        .join(ProblemRow, ProblemRow.id == JobRow.problem_id)
        .where(
            JobRow.device_class == device_class,
            TrialRow.config_digest.in_(digests),
            is_trusted(),
            has_entered(),
        )
        .where(TrialRow.outcome.in_((Outcome.OK, Outcome.PRUNED)), TrialRow.median_us > 0)
        .group_by(*same)
    )
    found = defaultdict[str, dict[_Tried, float]](dict)
    for job_problem, m, digest, provenance, micros in session.execute(query):
        by = _method(provenance)
        try:
            name = job_problem if m is None else records.canonical(json.loads(job_problem) | {"m": m})
        except (ValueError, TypeError):  # damaged, so no shape's
            continue
        before = found[name].get((digest, by), math.inf)
        found[name][digest, by] = min(before, float(micros or 0.0))
    return found


@functools.lru_cache
def _method(provenance: str | None) -> str | None:
    """The method in a provenance, as the database has it; one that is damaged is of no other's method."""
    try:
        return str(json.loads(provenance)["method"]) if provenance else None
    except (ValueError, KeyError, TypeError):
        return provenance


HERE = 3
ELSEWHERE = 8
_ALIKE = ("dtype", "layout", "acc_dtype")


def first_tries(store: Store, device: DeviceSpec, problem: GemmProblem) -> list[Config]:
    """Initial configs from the database, each once: imported configs that wait to be raced here; then, if
    they are promising, the winners of the nearest problems on this device class, and those on other classes
    and their ties.

    What wins on one device is a good start on another, seldom the winner there.
    """
    device_class = device.device_class.id
    with store.read() as session:
        waiting = imported.waiting(session, device_class, problem, HERE)
        near = [stored.best.config for stored in nearest(session, device_class, problem, HERE)]
        others = list(_elsewhere(session, device_class, problem))[:ELSEWHERE]
    return list(dict.fromkeys([*waiting, *promising([*near, *others], problem, device)]))


def _elsewhere(session: Session, device_class: str, problem: GemmProblem) -> Iterator[Config]:
    query = (
        select(BestConfigRow.config, BestConfigRow.ties)
        .join(ProblemRow, ProblemRow.id == BestConfigRow.problem_id)
        .where(BestConfigRow.device_class != device_class)
        .where(*(getattr(ProblemRow, name) == problem.to_dict()[name] for name in _ALIKE))
        .order_by(best.distance(problem), BestConfigRow.id)
        .limit(ELSEWHERE)
    )
    for config, ties in session.execute(query):
        yield from (Config.from_dict(one) for one in (config, *ties))
