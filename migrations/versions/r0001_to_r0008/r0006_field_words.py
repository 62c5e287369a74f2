"""Stored results in today's names of families, knobs, samplers, device fields and origins of trials.

Revision: 0006_field_words, after 0005_retunes.

Rows are rewritten, not translated whenever they are read, because configs and requests are compared by digest
and devices by text. Config sets stay as they were made, since their names are digests of their bytes; the
latest one of each device class is made anew when it is asked for.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from alembic import op

from kernels.registry import FAMILIES, RENAMED
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.job import TuneRequest
from tilewright.schema.problem import GemmProblem
from tuner.store import exchange
from tuner.store.records import canonical, digest

revision = "0006_field_words"
down_revision = "0005_retunes"
branch_labels = None
depends_on = None

Data = dict[str, Any]
Change = Callable[[sa.Row[Any]], Data]

_PAGE = 500
_JSON = sa.JSON(none_as_null=True)
_FAMILIES_BEFORE = {today: before for before, today in RENAMED.items()}
# Knobs that went whatever their value was, with the one that did as well as any.
_DROPPED_BEFORE = {
    "wgmma": {"l2_promotion": 256},
    "wgmma_ws": {"l2_promotion": 128, "even_waves": 0, "beat": 0},
}
# Knobs that came later: a config that differs in none of them is one that earlier releases know.
_ADDED_SINCE = {"mma_sync": ("copy_step", "repack")}
_DEVICE_BEFORE = {"sm_count": "units", "smem_per_sm": "smem_per_unit"}


# NOTE: no dataclass: alembic runs this file without entering it into sys.modules, where one is looked up.
class _Words(NamedTuple):
    """What one release calls what another one stored.

    Attributes:
        families: names of families that differ.
        origins: origins of trials that differ.
        config: a config.
        device: the fields of a device.
        options: the options of a job, from its problem and its options.
    """

    families: Mapping[str, str]
    origins: Mapping[str, str]
    config: Callable[[Config], Config]
    device: Callable[[Data], Data]
    options: Callable[[Data, Data], Data]


def upgrade() -> None:
    """Apply."""
    origins = {"seed": "initial"}
    _rewrite_all(_Words(RENAMED, origins, exchange.current_config, _device_today, _options_today))


def downgrade() -> None:
    """Take back: knobs of the GEMV families that no longer exist stay lost, so that earlier releases take the
    configs of these families for invalid; those of wgmma_ws get one value for all configs."""
    origins = {"initial": "seed"}
    _rewrite_all(_Words(_FAMILIES_BEFORE, origins, _config_before, _device_before, _options_before))


def _options_today(problem: Data, options: Data) -> Data:
    return exchange.current_request(TuneRequest.of(GemmProblem.from_dict(problem), options)).options


def _device_today(device: Data) -> Data:
    return DeviceSpec.from_dict(device).to_dict()


def _options_before(_problem: Data, options: Data) -> Data:
    found = {name: value for name, value in options.items() if name not in ("sampler", "level")}
    families = sorted(_FAMILIES_BEFORE.get(name, name) for name in options["families"])
    return found | {"policy": options["sampler"], "families": families}


def _device_before(device: Data) -> Data:
    return {_DEVICE_BEFORE.get(name, name): value for name, value in device.items()}


def _config_before(config: Config) -> Config:
    name = _FAMILIES_BEFORE.get(config.family, config.family)
    family = FAMILIES.get(config.family)
    if family is None or set(config) != {knob.name for knob in family.knobs}:
        return dataclasses.replace(config, family=name)
    found = dict(family.removed) | _DROPPED_BEFORE.get(config.family, {})
    for knob in family.knobs:
        value = config[knob.name]
        if knob.name in _ADDED_SINCE.get(config.family, ()) and value == knob.absent:
            continue
        if knob.replaces:
            several = next(before for before, today in knob.combined.items() if today == value)
            found |= dict(zip(knob.replaces, several, strict=True))
        else:
            values = {today: before for before, today in knob.values_were.items()}
            found[knob.was or knob.name] = values.get(str(value), value)
    return Config.of(name, found)


def _rewrite_all(words: _Words) -> None:
    words = words._replace(config=functools.lru_cache(10_000)(words.config))
    _rewrite_devices(words)
    _rewrite_jobs(words)
    _rewrite_trials(words)
    _rewrite_winners(words)
    _rewrite_events(words)
    op.execute("UPDATE served_set SET made_from = NULL")


def _rewrite_devices(words: _Words) -> None:
    """Devices are known by their text: two rows of one device become one."""
    connection = op.get_bind()
    device = sa.table("device", sa.column("id"), sa.column("spec"))
    job = sa.table("job", sa.column("device_id"))
    rows = connection.execute(sa.select(device).order_by(device.c.id)).all()
    known = {row.spec: row.id for row in rows}
    for row in rows:
        spec = canonical(words.device(json.loads(row.spec)))
        kept = known.setdefault(spec, row.id)
        if kept == row.id:
            connection.execute(sa.update(device).where(device.c.id == row.id).values(spec=spec))
        else:
            connection.execute(sa.update(job).where(job.c.device_id == row.id).values(device_id=kept))
            connection.execute(sa.delete(device).where(device.c.id == row.id))


def _rewrite_jobs(words: _Words) -> None:
    """Options and progress, and the digests of requests that follow from the options."""
    job = _table("job", ["id"], "problem_id", "device_class", options=_JSON, progress=_JSON)
    problem = sa.table("problem", sa.column("id"), sa.column("canonical"))
    digests: dict[str, str] = {}

    def change(row: sa.Row[Any]) -> Data:
        of = json.loads(row.canonical)
        options = words.options(of, row.options)
        same = {"problem": of, "device_class": row.device_class}
        digests[digest(same | row.options)] = digest(same | options)
        return {"options": options, "progress": _progress(row.progress, words)}

    joined = job.join(problem, problem.c.id == job.c.problem_id)
    _rewrite(job, change, sa.select(job, problem.c.canonical).select_from(joined))
    _rewrite_digests(digests)


def _rewrite_digests(today: Mapping[str, str]) -> None:
    """Requests that waiting jobs are joined by, and those that idempotency keys came with.

    If two jobs wait for what is one request today, only the older one is joined.
    """
    connection = op.get_bind()
    job = _table("job", ["id"], "active_key")
    active = connection.execute(sa.select(job).where(job.c.active_key.is_not(None)).order_by(job.c.id)).all()
    oldest: dict[str, str] = {}
    for row in active:
        oldest.setdefault(today.get(row.active_key, row.active_key), row.id)
    connection.execute(sa.update(job).where(job.c.active_key.is_not(None)).values(active_key=None))
    for key, job_id in oldest.items():
        connection.execute(sa.update(job).where(job.c.id == job_id).values(active_key=key))
    _rewrite(
        _table("submission", ["key"], "request_digest"),
        lambda row: {"request_digest": today.get(row.request_digest, row.request_digest)},
    )


def _rewrite_trials(words: _Words) -> None:
    """Two trials of a job stay two configs: the later one keeps its recorded knobs if only knobs that no
    longer exist told them apart, since a job that resumes proposes no config twice."""
    trial = _table(
        "trial", ["job_id", "number"], "family", "source_digest", "config_digest", "origin", config=_JSON
    )
    taken: dict[str, set[Config]] = {}

    def change(row: sa.Row[Any]) -> Data:
        if row.job_id not in taken:
            taken.clear()
        configs = taken.setdefault(row.job_id, set())
        recorded = Config.from_dict(row.config)
        config = words.config(recorded)
        if config in configs:
            config = dataclasses.replace(recorded, family=config.family)
        configs.add(config)
        return {
            "family": config.family,
            "config": config.to_dict(),
            "config_digest": config.digest,
            "origin": words.origins.get(row.origin, row.origin),
        }

    earlier = _copy_sources(words)
    _rewrite(trial, change)
    for source in earlier:
        op.get_bind().execute(source)


def _copy_sources(words: _Words) -> list[sa.Delete]:
    """Enter the sources of renamed families under their other names; gives what deletes the first ones."""
    connection = op.get_bind()
    source = sa.table("family_source", *map(sa.column, ("family", "source_digest", "first_seen")))
    rows = connection.execute(sa.select(source)).all()
    there = {(row.family, row.source_digest) for row in rows}
    deletes = []
    for row in rows:
        name = words.families.get(row.family, row.family)
        if name == row.family:
            continue
        if (name, row.source_digest) not in there:
            connection.execute(sa.insert(source).values({**row._mapping, "family": name}))
        deletes.append(
            sa.delete(source).where(
                source.c.family == row.family, source.c.source_digest == row.source_digest
            )
        )
    return deletes


def _rewrite_winners(words: _Words) -> None:
    def change(row: sa.Row[Any]) -> Data:
        return {
            "config": _config(row.config, words),
            "ties": [_config(config, words) for config in row.ties],
        }

    _rewrite(_table("best_config", ["id"], config=_JSON, ties=_JSON), change)


def _rewrite_events(words: _Words) -> None:
    event = _table("event", ["id"], "kind", data=_JSON)

    def change(row: sa.Row[Any]) -> Data:
        if row.kind == "progress":
            return {"data": _progress(row.data, words)}
        data = row.data | {"config": _config(row.data["config"], words)}
        if "origin" in data:
            data["origin"] = words.origins.get(data["origin"], data["origin"])
        return {"data": data}

    _rewrite(event, change, sa.select(event).where(event.c.kind.in_(("progress", "trial", "best"))))


def _config(data: Data, words: _Words) -> Data:
    return words.config(Config.from_dict(data)).to_dict()


def _progress(data: Data | None, words: _Words) -> Data | None:
    """Progress names its best config by a text: ``family(knob=value, knob=value)``."""
    found = re.fullmatch(r"(\w+)\((.*)\)", (data or {}).get("best_config") or "")
    if data is None or found is None:
        return data
    pairs = (pair.split("=", 1) for pair in found[2].split(", "))
    knobs = {name: int(value) if re.fullmatch(r"-?\d+", value) else value for name, value in pairs}
    return data | {"best_config": str(words.config(Config.of(found[1], knobs)))}


def _table(name: str, key: Sequence[str], *columns: str, **typed: sa.types.TypeEngine[Any]) -> sa.Table:
    """A table by its primary key and the columns that are read or written."""
    return sa.Table(
        name,
        sa.MetaData(),
        *(sa.Column(column, primary_key=True) for column in key),
        *(sa.Column(column) for column in columns),
        *(sa.Column(column, kind) for column, kind in typed.items()),
    )


def _rewrite(table: sa.Table, change: Change, query: sa.Select[Any] | None = None) -> None:
    """Give the rows of a table, or those of a query over it, the values that ``change`` finds for them."""
    key = table.primary_key.columns
    same = (column == sa.bindparam(f"of_{column.name}") for column in key)
    statement = sa.update(table).where(*same)
    for page in _pages(sa.select(table) if query is None else query, list(key)):
        found = [(row._mapping, change(row)) for row in page]
        changed = [
            values | {f"of_{column.name}": old[column] for column in key}
            for old, values in found
            if any(old[name] != value for name, value in values.items())
        ]
        if changed:
            op.get_bind().execute(statement, changed)


def _pages(query: sa.Select[Any], key: list[sa.Column[Any]]) -> Iterator[Sequence[sa.Row[Any]]]:
    """The rows of a query in the order of a key, some hundred at a time."""
    page = op.get_bind().execute(query.order_by(*key).limit(_PAGE)).all()
    while page:
        yield page
        last = sa.tuple_(*(sa.literal(page[-1]._mapping[column]) for column in key))
        later = query.where(sa.tuple_(*key) > last)
        page = op.get_bind().execute(later.order_by(*key).limit(_PAGE)).all()
