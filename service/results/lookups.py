"""Which kernel answers for a problem, selected from config sets as a client selects by itself."""

from __future__ import annotations

import dataclasses

from service.errors import Kind, Refusal
from service.http.deps import Service
from service.results import config_sets
from tilewright import wire
from tilewright.config_sets.lookup import Catalog, LookupResult, MatchLimits
from tilewright.errors import InvalidProblem
from tilewright.schema.problem import GemmProblem
from tuner.store import best
from tuner.store.records import StoredBest

_ORDER = ("exact", "nearest", "vendor")
_NOTHING = LookupResult("vendor", "no tuned kernel", miss=True)


@dataclasses.dataclass(frozen=True, slots=True)
class Selection:
    """What answers for a problem on a device class or architecture.

    Attributes:
        result: the kernel, or the vendor library with the reason.
        device_class: whose config set answered; None if no class has a winner.
    """

    result: LookupResult
    device_class: str | None


def limits(match: wire.Match, max_regret: float, deterministic: bool) -> MatchLimits:
    """What a caller allows an answer to cost, from the options that every route takes."""
    return MatchLimits(max_regret if match is wire.Match.NEAREST else None, deterministic)


def select(service: Service, target: str, problem: GemmProblem, allowed: MatchLimits) -> Selection:
    """What answers for a problem: the one selection of ``GET /best-config``, ``POST /best-config/lookup`` and
    ``POST /gemm``, by the config sets and the function that clients use.

    Args:
        target: a device class, or an architecture; of its classes the closest match answers.
    """
    catalogs, _ = _catalogs(service, target)
    return _closest(catalogs, problem, allowed)


def answers(service: Service, body: wire.LookupBody) -> tuple[wire.LookupAnswer, list[StoredBest]]:
    """One answer for each problem, and stale results that were found on the way.

    Raises:
        Refusal: the types of a problem do not go together.
    """
    problems = _problems(body)
    catalogs, stale = _catalogs(service, body.device_class or body.arch or "")
    allowed = limits(body.match, body.max_regret, body.deterministic)
    return wire.LookupAnswer(items=[_view(_closest(catalogs, one, allowed)) for one in problems]), stale


def count(
    service: Service, match: str, device_class: str | None, asked: str = "", regret: float | None = None
) -> None:
    """Tell the metrics of one lookup: whose result answered, else what was ``asked`` for."""
    here = {queue.bench.spec.arch for queue in service.engine.queues.values()}
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
            raise Refusal(Kind.INVALID_PROBLEM, f"#/problems/{number}: {error}") from error
    return found


def _catalogs(service: Service, target: str) -> tuple[dict[str, Catalog], list[StoredBest]]:
    """The served config set of each device class of a target, and what in new ones is stale."""
    with service.store.read() as session:
        classes = best.classes(session, target)
    found: dict[str, Catalog] = {}
    stale: list[StoredBest] = []
    for name in classes:
        digest, fresh = service.served.known(name), list[StoredBest]()
        if digest is None:
            digest, fresh = config_sets.current(service, name)
        found[name] = service.served.catalog(digest)
        stale += fresh
    return found, stale


def _closest(catalogs: dict[str, Catalog], problem: GemmProblem, allowed: MatchLimits) -> Selection:
    results = [(catalog.lookup(problem, allowed), name) for name, catalog in catalogs.items()]
    return Selection(*min(results, key=_rank, default=(_NOTHING, None)))


def _view(selection: Selection) -> wire.LookupView:
    fields = {field.name: getattr(selection.result, field.name) for field in dataclasses.fields(LookupResult)}
    return wire.LookupView(device_class=selection.device_class, **fields)


def _rank(answer: tuple[LookupResult, str]) -> tuple[int, bool, float]:
    result, _ = answer
    # Of two classes with the vendor library the one that raced it tells more than one without a result.
    return _ORDER.index(result.kind), result.miss, result.distance
