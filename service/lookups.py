"""Many lookups at once, answered from config sets as a client answers them by itself."""

from __future__ import annotations

import dataclasses

from service import snapshots
from service.deps import Service
from service.problems import Kind, Problem
from tilewright import wire
from tilewright.catalog import Catalog, Pick, Policy
from tilewright.errors import InvalidProblem
from tilewright.problem import GemmProblem
from tuner.store import best
from tuner.store.records import StoredBest

_ORDER = ("exact", "nearest", "vendor")
_NOTHING = Pick("vendor", "no tuned kernel", miss=True)


def answers(service: Service, body: wire.LookupBody) -> tuple[wire.LookupAnswer, list[StoredBest]]:
    """One answer for each problem, and stale results that were found on the way.

    Raises:
        Problem: the types of a problem do not go together.
    """
    problems = _problems(body)
    with service.store.read() as session:
        classes = best.classes(session, body.device_class or body.arch or "")
    regret = body.max_regret if body.policy is wire.Policy.NEAREST else None
    policy, stale = Policy(regret, body.deterministic), list[StoredBest]()
    catalogs: dict[str, Catalog] = {}
    for name in classes:
        digest, found = snapshots.current(service, name)
        catalogs[name] = service.served.catalog(digest)
        stale += found
    return wire.LookupAnswer(items=[_answer(catalogs, problem, policy) for problem in problems]), stale


def count(
    service: Service, match: str, device_class: str | None, asked: str = "", regret: float | None = None
) -> None:
    """Tell the metrics of one lookup: whose result answered, else what was ``asked`` for."""
    here = {lane.bench.spec.arch for lane in service.engine.lanes.values()}
    arch = (device_class or asked).partition("-")[0]
    # NOTE: callers may ask for anything, and no name that they made up may become a label.
    service.metrics.lookups.labels(match, arch if device_class or arch in here else "other").inc()
    if regret is not None:
        service.metrics.regret.observe(regret)


def _problems(body: wire.LookupBody) -> list[GemmProblem]:
    found = []
    for number, fields in enumerate(body.problems):
        try:
            found.append(fields.to_problem())
        except InvalidProblem as error:
            raise Problem(Kind.INVALID_PROBLEM, f"#/problems/{number}: {error}") from error
    return found


def _answer(catalogs: dict[str, Catalog], problem: GemmProblem, policy: Policy) -> wire.LookupView:
    """Of several classes of an architecture the closest match."""
    picks = [(catalog.pick(problem, policy), name) for name, catalog in catalogs.items()]
    pick, name = min(picks, key=_rank, default=(_NOTHING, None))
    fields = {field.name: getattr(pick, field.name) for field in dataclasses.fields(Pick)}
    return wire.LookupView(device_class=name, **fields)


def _rank(answer: tuple[Pick, str]) -> tuple[int, bool, float]:
    pick, _ = answer
    # Of two classes with the vendor library the one that raced it tells more than one without a result.
    return _ORDER.index(pick.kind), pick.miss, pick.distance
