"""The winners: one for each problem and device class, and those of imports that wait to be raced here.
Winners whose config is quarantined are left out of what is served and of what searches start from.

``target`` is an arch (``sm_90`` means every class of this arch) or the id of one device class.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import BindParameter, ColumnElement, Select, Text, bindparam, cast, delete, func, or_, select
from sqlalchemy.orm import Session

from tilewright.schema.codec import decode
from tilewright.schema.config import Config
from tilewright.schema.entries import Import
from tilewright.schema.job import ladder_of
from tilewright.schema.kernel import Preconditions
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import BestConfig, LadderKernel, Provenance
from tuner.store import entities, exchange, records, sets
from tuner.store.database import StoreError, insert_new, insert_or_update, lock_results, parts
from tuner.store.faults import quarantine
from tuner.store.models import ArtifactRow, Base, BestConfigRow, ImportedBestRow, LadderRow, ProblemRow
from tuner.store.records import RowReader, StoredBest, StoredKernel, Unreadable, utc_now

Merged = Literal["in use", "waiting", "known"]
Origin = tuple[str, Provenance, bool, int]
_IDENTITY = ("device_class", "problem_id")
_SERVED = BestConfigRow.quarantine_id.is_(None)
SIGNATURE = ("dtype", "layout", "batch", "out_dtype", "acc_dtype", "activation", "has_bias", "has_c")


def put(session: Session, best: BestConfig) -> bool:
    """Store the result of a final race that the stored winner took part in; True if it was stored.

    A disturbed race settles nothing: its result only replaces that of another disturbed race, and the result
    of a quick job only replaces that of another quick job. After any other race, imported configs for the
    problem no longer wait to be raced.

    Raises:
        StoreError: its artifact is not stored, so that no client could launch it.
    """
    lock_results(session)
    if not entities.has_artifact(session, best.artifact):
        raise StoreError(f"artifact {best.artifact} of the best config is not stored; store it first")
    stored = [one.best for one in exact(session, best.device_class, best.problem)]
    if best.timing.disturbed and any(not one.timing.disturbed for one in stored):
        return False
    if best.provenance.quick and any(not one.provenance.quick for one in stored):
        return False
    if not best.timing.disturbed and not best.provenance.quick:
        session.execute(delete(ImportedBestRow).where(*_same(session, best)))
    _replace(session, _on_ladder(best, stored), utc_now(), None)
    return True


def _on_ladder(best: BestConfig, stored: Sequence[BestConfig]) -> BestConfig:
    """The winner of a job on one problem, with what is known of the ladder's kernels on it if it is a row of
    one, so that lookups between the rows go on. Their regret grows as the winner is further ahead of the
    vendor library."""
    before = next((one for one in stored if one.kernels and _comparable(one, best)), None)
    if best.kernels is not None or before is None:
        return best
    gain = max(1.0, best.speedup / before.speedup)
    others = [
        LadderKernel(one.artifact, gain * (1.0 + one.regret) - 1.0, min(one.speedup, best.speedup))
        for one in before.kernels or ()
        if one.artifact != best.artifact
    ]
    return dataclasses.replace(best, kernels=(LadderKernel(best.artifact, 0.0, best.speedup), *others))


def merge(session: Session, best: BestConfig, created: datetime, entering: Import) -> Merged:
    """Keep the winner of a race that another store ran.

    A winner of a trusted import whose artifact is stored and computes the problem comes into use if it is
    better than the stored winner by its whole interval, or as a full one is than a quick one, or later and
    not worse so. Stores that merge each other's winners end with the same one where all were raced by one
    method on one driver and no intervals overlap. It never replaces a winner that was raced here, be it
    quarantined, nor one that is served by one that a quarantine holds back. Any other imported winner waits
    to be built and raced here.
    """
    here = exact(session, best.device_class, best.problem)
    if here and quarantine.of_winner(session, best.config, best.provenance, created) is not None:
        return "known"
    canonical = records.canonical(best.problem.to_dict())
    mine = BestConfigRow.device_class == best.device_class, ProblemRow.canonical == canonical
    raced_here = session.scalar(
        _all().with_only_columns(BestConfigRow.id).where(*mine, BestConfigRow.import_id.is_(None))
    )
    usable = entering.trusted and entities.computes(session, best.artifact, best.problem)
    if raced_here is not None or not usable:
        return _wait(session, best, created, entering, here)
    for stored in here:
        older = stored.created >= created and not _outdoes(best, stored.best)
        if older or _outdoes(stored.best, best):
            return "known"
    _replace(session, best, created, entering.id)
    return "in use"


def _wait(
    session: Session, best: BestConfig, created: datetime, entering: Import, here: Sequence[StoredBest]
) -> Merged:
    """Queue a config to be built and raced here, unless it waits already, is the winner here, or a winner
    that was raced here has at least its speed-up."""
    waits = select(ImportedBestRow.config).where(*_same(session, best))
    known = [Config.from_dict(config) for config in session.scalars(waits)]
    known += [stored.best.config for stored in here]
    better = any(stored.import_id is None and stored.best.speedup >= best.speedup for stored in here)
    if better or best.config in known:
        return "known"
    values = _values(ImportedBestRow, session, best) | {"created": created, "import_id": entering.id}
    return "waiting" if insert_new(session, ImportedBestRow, values) else "known"


def stage(session: Session, best: BestConfig, created: datetime, import_id: str) -> None:
    """Keep a winner of an import in progress until :func:`merge_staged`. Of several winners for one problem
    and device class, the first is kept."""
    best = exchange.current_best(best)
    values = _values(ImportedBestRow, session, best) | {"created": created, "import_id": import_id}
    insert_new(session, ImportedBestRow, values)


def merge_staged(session: Session, staged_id: str, entering: Import, limit: int) -> list[Merged]:
    """Merge up to ``limit`` winners that :func:`stage` kept, see :func:`merge`; an empty list if none is
    left."""
    same = ProblemRow.id == ImportedBestRow.problem_id
    query = select(ImportedBestRow, ProblemRow.canonical).join(ProblemRow, same)
    query = query.where(ImportedBestRow.import_id == staged_id).order_by(ImportedBestRow.id).limit(limit)
    found = [
        (row.id, records.winner(row, canonical), row.created) for row, canonical in session.execute(query)
    ]
    ids = [row_id for row_id, _, _ in found]
    session.execute(delete(ImportedBestRow).where(ImportedBestRow.id.in_(ids)))
    return [merge(session, best, created, entering) for _, best, created in found]


def _same(session: Session, best: BestConfig) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    problem_id = entities.find_problem(session, best.problem)
    return ImportedBestRow.device_class == best.device_class, ImportedBestRow.problem_id == problem_id


def _replace(session: Session, best: BestConfig, created: datetime, import_id: str | None) -> None:
    values = _values(BestConfigRow, session, best) | {"created": created, "import_id": import_id}
    values["drifted"] = None
    values["quarantine_id"] = quarantine.of_winner(session, best.config, best.provenance, created)
    before = select(BestConfigRow.artifact).where(
        BestConfigRow.device_class == best.device_class, BestConfigRow.problem_id == values["problem_id"]
    )
    entities.note_need(session, ArtifactRow.digest.in_(before))  # a set may name it a moment later
    insert_or_update(session, BestConfigRow, values, _IDENTITY)
    sets.changed(session, best.device_class, BestConfigRow.problem_id == values["problem_id"])


def _outdoes(earlier: BestConfig, later: BestConfig) -> bool:
    """Whether the earlier winner is better: by its kind of race, or by the whole of its interval. Another
    race might rank them otherwise. On another driver it is not, because its result is stale there."""
    if earlier.timing.disturbed or later.timing.disturbed:
        return not earlier.timing.disturbed
    if earlier.provenance.quick is not later.provenance.quick:
        return later.provenance.quick
    return _comparable(earlier, later) and earlier.speedup_low > later.speedup_high


def _comparable(one: BestConfig, other: BestConfig) -> bool:
    """Whether two results were raced by the same method on the same driver."""
    was, now = one.provenance, other.provenance
    return (was.driver, was.method) == (now.driver, now.method)


def exact(session: Session, target: str, problem: GemmProblem) -> list[StoredBest]:
    """Winners for this very problem, the latest first; at most one for a device class."""
    found = session.execute(_exact(), {"target": target, "canonical": records.canonical(problem.to_dict())})
    return _READER.readable(found)


def for_arch(
    session: Session,
    target: str,
    limit: int | None = None,
    after: int = 0,
    *,
    alike: Mapping[str, Any] | None = None,
    repeatable: bool = False,
) -> list[StoredBest]:
    """All winners, by id, from the one that follows the id ``after``.

    ``alike`` has those values of :data:`SIGNATURE` that their problems must have; ``repeatable`` leaves out
    kernels that were not seen to repeat bit by bit.
    """
    query = _query(target).where(BestConfigRow.id > after, *_alike(alike or {}))
    query = query.where(BestConfigRow.repeatable.is_(True)) if repeatable else query
    return _page(session, query, limit)


def listing(
    session: Session, device_class: str | None, since: datetime | None, limit: int, after: int = 0
) -> list[StoredBest]:
    """Winners of a device class or of all, found ``since`` then, by id from the one after ``after``."""
    query = _all().where(BestConfigRow.id > after, _SERVED)
    query = query if device_class is None else query.where(BestConfigRow.device_class == device_class)
    query = query if since is None else query.where(BestConfigRow.created >= since)
    return _page(session, query, limit)


def _page(session: Session, query: Select[BestConfigRow, str], limit: int | None) -> list[StoredBest]:
    row = BestConfigRow
    return _READER.page(session, query.order_by(row.id), limit, lambda last, _problem: row.id > last.id)


def nearest(session: Session, target: str, problem: GemmProblem, limit: int = 5) -> list[StoredBest]:
    """Winners for problems that differ in m, n and k at most, by distance in (log2 m, log2 n, log2 k).

    For initial configs of a search: what answers a lookup is selected from config sets
    (:class:`tilewright.config_sets.lookup.Catalog`). The problem itself comes first if it has a winner.
    """
    order = (distance(problem), BestConfigRow.id)
    alike = _alike(dict(zip(SIGNATURE, signature(problem), strict=True)))
    # NOTE: ids first, so that the samples of every candidate are not carried through the sort.
    near = _query(target).with_only_columns(BestConfigRow.id).where(*alike).order_by(*order).limit(limit)
    rows = session.execute(_query(target).where(BestConfigRow.id.in_(near)).order_by(*order))
    return _READER.readable(rows)


def signature(problem: GemmProblem) -> tuple[Any, ...]:
    """All fields of a problem except m, n and k; results of one signature may answer for each other."""
    data = problem.to_dict()
    return tuple(data[name] for name in SIGNATURE)


def classes(session: Session, target: str) -> list[str]:
    """The device classes of a target that have a winner, by name."""
    there = or_(BestConfigRow.device_class == target, BestConfigRow.arch == target)
    query = select(BestConfigRow.device_class).where(there).distinct()
    return list(session.scalars(query.order_by(BestConfigRow.device_class)))


def archs(session: Session) -> list[str]:
    """The architectures that have a winner, by name."""
    return list(session.scalars(select(BestConfigRow.arch).distinct().order_by(BestConfigRow.arch)))


def tuned(session: Session, target: str, problems: Iterable[GemmProblem]) -> list[GemmProblem]:
    """The given problems that have a winner."""
    texts = [records.canonical(problem.to_dict()) for problem in problems]
    query = _query(target).where(ProblemRow.canonical.in_(texts)).order_by(BestConfigRow.id)
    found = session.scalars(query.with_only_columns(ProblemRow.canonical))
    return [entities.parse_problem(text) for text in dict.fromkeys(found)]


def unreadable(session: Session) -> list[Unreadable]:
    """The winners that this release cannot read."""
    return _READER.unreadable(session.execute(_all().order_by(BestConfigRow.id)))


def origins(session: Session, device_class: str) -> list[Origin]:
    """Families and provenances of the winners of a device class, also of such as are not served, whether they
    drifted, and how many winners share that."""
    row = BestConfigRow
    # NOTE: no path into the JSON, on which SQLite fails the whole query if one row is damaged.
    query = select(row.id, row.config, cast(row.provenance, Text), row.drifted.is_not(None))
    query = query.where(row.device_class == device_class)
    same = collections.Counter(_ORIGINS.readable(session.execute(query)))
    return [(*origin, winners) for origin, winners in same.items()]


def changed_since(session: Session, device_class: str, revision: int) -> dict[int, bool]:
    """The winners of a device class that changed after a revision, by id: whether each is served."""
    mine = BestConfigRow.device_class == device_class, BestConfigRow.revision > revision
    rows = session.execute(select(BestConfigRow.id, BestConfigRow.quarantine_id).where(*mine))
    return {row_id: quarantine_id is None for row_id, quarantine_id in rows}


def count(session: Session, device_class: str) -> int:
    """How many winners a device class has, also such as are not served."""
    return session.scalars(select(func.count()).where(BestConfigRow.device_class == device_class)).one()


def problems(session: Session, device_class: str, revision: int) -> dict[int, str]:
    """The canonical texts of the problems whose winners did not change after a revision, by id of the winner;
    also such as are not served."""
    mine = BestConfigRow.device_class == device_class, BestConfigRow.revision <= revision
    rows = session.execute(_all().with_only_columns(BestConfigRow.id, ProblemRow.canonical).where(*mine))
    return {row_id: canonical for row_id, canonical in rows}  # noqa: C416


def of_ids(session: Session, ids: Sequence[int]) -> list[StoredBest]:
    """The winners of these ids."""
    each = (_all().where(BestConfigRow.id.in_(part)) for part in parts(ids))
    return [stored for query in each for stored in _READER.readable(session.execute(query))]


def ladder(session: Session, device_class: str, problem: GemmProblem) -> tuple[int, ...]:
    """Every M of the ladder job that found the winner of a problem. Empty if the job was not on a ladder, or
    no other row of it is left."""
    found = exact(session, device_class, problem)
    query = select(LadderRow.m).where(LadderRow.job_id == (found[0].best.job_id if found else ""))
    return ladder_of(session.scalars(query))


def kernels(session: Session, digests: Sequence[str]) -> dict[str, StoredKernel]:
    """What sets tell of artifacts, by digest."""
    query = select(ArtifactRow.digest, func.length(ArtifactRow.data), ArtifactRow.header)
    each = (query.where(ArtifactRow.digest.in_(part)) for part in parts(digests))
    return {name: kernel for one in each for name, kernel in _KERNELS.readable(session.execute(one))}


def _all() -> Select[BestConfigRow, str]:
    same = ProblemRow.id == BestConfigRow.problem_id
    return select(BestConfigRow, ProblemRow.canonical).join(ProblemRow, same)


@functools.cache
def _exact() -> Select[BestConfigRow, str]:
    # NOTE: built once: building it anew costs more than SQLite takes to answer it.
    target: BindParameter[str] = bindparam("target")
    there = or_(BestConfigRow.device_class == target, BestConfigRow.arch == target)
    query = _all().where(there, ProblemRow.canonical == bindparam("canonical"), _SERVED)
    return query.order_by(BestConfigRow.created.desc(), BestConfigRow.id)


def _query(target: str) -> Select[BestConfigRow, str]:
    return _all().where(or_(BestConfigRow.device_class == target, BestConfigRow.arch == target), _SERVED)


def _alike(values: Mapping[str, Any]) -> list[ColumnElement[bool]]:
    return [getattr(ProblemRow, name) == value for name, value in values.items()]


def distance(problem: GemmProblem) -> ColumnElement[float]:
    """The square of how far the problem of a row is from a given one in (log2 m, log2 n, log2 k)."""
    m = ProblemRow.log2_m - math.log2(problem.m)
    n = ProblemRow.log2_n - math.log2(problem.n)
    k = ProblemRow.log2_k - math.log2(problem.k)
    return m * m + n * n + k * k


def _values(table: type[Base], session: Session, best: BestConfig) -> dict[str, Any]:
    problem_id = entities.ensure_problem(session, best.problem)
    return records.row_values(table, best, problem_id=problem_id, job_id=best.job_id or None)


def _stored(row: BestConfigRow, problem: str) -> StoredBest:
    return StoredBest(
        row.id, records.winner(row, problem), row.created, row.import_id, row.drifted is not None
    )


def _origin(_id: int, config: Any, provenance: str, drifted: bool) -> tuple[str, Provenance, bool]:
    return str(config["family"]), _provenance(provenance), bool(drifted)


@functools.lru_cache(maxsize=1000)
def _provenance(text: str) -> Provenance:
    return decode(Provenance, json.loads(text))


def _kernel(digest: str, size: int, header: Any) -> tuple[str, StoredKernel]:
    return digest, StoredKernel(size, decode(Preconditions, header["plan"]["preconditions"]))


_READER = RowReader("winner", lambda row, _problem: row.id, _stored)
_ORIGINS = RowReader("winner", lambda row_id, *_: row_id, _origin)
_KERNELS = RowReader("kernel", lambda digest, *_: digest, _kernel)
