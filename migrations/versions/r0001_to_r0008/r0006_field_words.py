"""Stored results in today's names of families, knobs, samplers, device fields and origins of trials.

Revision: 0006_field_words, after 0005_retunes.

Rows are rewritten, not translated whenever they are read, because configs and requests are compared by digest
and devices by text. Config sets stay as they were made, since their names are digests of their bytes; the
latest one of each device class is made anew when it is asked for.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from alembic import op

revision = "0006_field_words"
down_revision = "0005_retunes"
branch_labels = None
depends_on = None

Data = dict[str, Any]
Value = int | str
Change = Callable[[sa.Row[Any]], Data]

_PAGE = 500
_JSON = sa.JSON(none_as_null=True)


# NOTE: no dataclass: alembic runs this file without entering it into sys.modules, where one is looked up.
class _Config(NamedTuple):
    """A config: the name of its family, and (name, value) pairs of its knobs, sorted by name."""

    family: str
    knobs: tuple[tuple[str, Value], ...]

    @classmethod
    def of(cls, family: str, knobs: Mapping[str, Value]) -> _Config:
        return cls(family, tuple(sorted(knobs.items())))

    def to_dict(self) -> Data:
        return {"family": self.family, "knobs": dict(self.knobs)}

    @property
    def digest(self) -> str:
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return f"{self.family}(" + ", ".join(f"{name}={value}" for name, value in self.knobs) + ")"


class _Family(NamedTuple):
    """The knobs of a family, and what earlier releases stored for them.

    Attributes:
        knobs: their names.
        was: earlier names of knobs.
        absent: the values of configs that were stored before a knob existed.
        values_were: earlier values of knobs, with those of today.
        removed: knobs that no longer exist, each with the one value whose behaviour remains.
        dropped: knobs that went with any value, each with the one that did as well as any.
        added: knobs that releases with the names of before do not know: a config that has the values of
            ``absent`` for them is one that those releases know.
    """

    knobs: str
    was: Mapping[str, str] = {}
    absent: Mapping[str, Value] = {}
    values_were: Mapping[str, Mapping[Value, str]] = {}
    removed: Mapping[str, int] = {}
    dropped: Mapping[str, int] = {}
    added: tuple[str, ...] = ()


# NOTE: these tables follow no later change of the application: this revision gives the same rows for ever.
_RENAMED = {"skinny": "gemv", "stream": "gemv_tma"}  # codespell:ignore skinny
_FAMILIES_BEFORE = {today: before for before, today in _RENAMED.items()}
_FAMILIES = {
    "wgmma_ws": _Family(
        "schedule swap_ab tile_m tile_n consumers_m consumers_n tile_k cluster_m cluster_n cluster_k split_k"
        " reduction epilogue store_stages sector_aligned_store promote stages raster swizzle_size snake"
        " l2_hints prefetch cta_order reverse_k",
        was={
            "sector_aligned_store": "whole_sectors",
            "swizzle_size": "group",
            "cta_order": "placement",
            "reverse_k": "snake_k",
        },
        absent={"sector_aligned_store": 0, "prefetch": 0, "cta_order": "free", "reverse_k": 0},
        values_were={
            "reduction": {"last_cta": "none", "block": "none", "shares": "reduce_scatter"},
            "epilogue": {"deferred": "overlapped"},  # codespell:ignore deferred
        },
        removed={"stream_k": 0, "in_flight": 1},
        dropped={"l2_promotion": 128, "even_waves": 0, "beat": 0},
    ),
    "wgmma": _Family(
        "tile_m tile_n warpgroups tile_k stages epilogue box_lines arrivals raster swizzle_size",
        was={"swizzle_size": "group"},
        absent={"box_lines": 0, "arrivals": "warps"},
        removed={"in_flight": 1},
        dropped={"l2_promotion": 256},
    ),
    "mma_sync": _Family(
        "tile_m tile_n warps_m warps_n tile_k warps_k stages smem_layout fragment_load copy_step"
        " double_buffer mma_k accumulate epilogue min_ctas_per_sm repack copy_bytes snake split_k raster"
        " swizzle_size",
        was={"min_ctas_per_sm": "min_blocks", "swizzle_size": "group"},
        absent={"copy_step": 0, "repack": 0},
        added=("copy_step", "repack"),
    ),
    "wmma": _Family(
        "tile_m tile_n warps_m warps_n tile_k stages smem_layout accumulate copy_bytes snake split_k raster"
        " swizzle_size",
        was={"swizzle_size": "group"},
    ),
    "gemv_tma": _Family(
        "warp_tiles warps k_chunks stages cluster_k prefetch",
        was={"k_chunks": "panels"},
        absent={"cluster_k": 1},
        removed={"split_k": 1},
    ),
    "gemv": _Family(
        "math warps_k steps stages min_ctas_per_sm split_k prefetch release",
        was={"stages": "slots", "min_ctas_per_sm": "min_blocks"},
        absent={"prefetch": 0, "release": "started"},
        removed={"warp_tiles": 1, "warps_rows": 1, "warps_wide": 1},
    ),
    "simt": _Family(
        "tile_m tile_n thread_m thread_n tile_k stages split_k raster swizzle_size",
        was={"swizzle_size": "group"},
    ),
    "host": _Family("threads mr nv kc mc nc swizzle snake stream unroll prefetch"),
}
# The knob l2_hints of wgmma_ws by the values of the knobs that it replaced: hint_a, hint_b and hint_d.
_HINTS = ("hint_a", "hint_b", "hint_d")
_L2_HINTS = {
    ("normal", "normal", "normal"): "normal",
    ("evict_first", "normal", "normal"): "stream_a",
    ("normal", "evict_first", "normal"): "stream_b",
    ("evict_first", "evict_first", "normal"): "stream_ab",
    ("normal", "normal", "evict_first"): "stream_d",
    ("evict_last", "normal", "evict_first"): "keep_a",
    ("normal", "evict_last", "evict_first"): "keep_b",
    ("evict_last", "normal", "normal"): "keep_a",
    ("normal", "evict_last", "normal"): "keep_b",
}
_DEVICE_BEFORE = {"sm_count": "units", "smem_per_sm": "smem_per_unit"}
_OPTIONS = {
    "families": (),
    "max_trials": 40,
    "max_seconds": 0.0,
    "seed": 0,
    "sampler": "staged",
    "min_gain_per_s": 0.0,
}


class _Words(NamedTuple):
    """What one release calls what another one stored.

    Attributes:
        families: names of families that differ.
        origins: origins of trials that differ.
        config: a config.
        device: the fields of a device.
        options: the options of a job.
    """

    families: Mapping[str, str]
    origins: Mapping[str, str]
    config: Callable[[_Config], _Config]
    device: Callable[[Data], Data]
    options: Callable[[Data], Data]


def upgrade() -> None:
    """Apply."""
    _rewrite_all(_Words(_RENAMED, {"seed": "initial"}, _config_today, _device_today, _options_today))


def downgrade() -> None:
    """Take back: knobs of the GEMV families that no longer exist stay lost, so that earlier releases take the
    configs of these families for invalid; those of wgmma_ws get one value for all configs."""
    origins = {"initial": "seed"}
    _rewrite_all(_Words(_FAMILIES_BEFORE, origins, _config_before, _device_before, _options_before))


def _options_today(options: Data) -> Data:
    found = {name: options.get(name, default) for name, default in _OPTIONS.items()}
    sampler = options.get("sampler", options.get("policy", found["sampler"]))
    return found | {
        "families": sorted({_RENAMED.get(name, name) for name in found["families"]}),
        "max_seconds": float(found["max_seconds"]),
        "sampler": "random" if sampler == "brute" else sampler,
        "min_gain_per_s": float(found["min_gain_per_s"]),
    }


def _options_before(options: Data) -> Data:
    found = {name: value for name, value in options.items() if name not in ("sampler", "level")}
    families = sorted(_FAMILIES_BEFORE.get(name, name) for name in options["families"])
    return found | {"policy": options["sampler"], "families": families}


def _device_today(device: Data) -> Data:
    today = {before: name for name, before in _DEVICE_BEFORE.items()}
    return {today.get(name, name): value for name, value in device.items()}


def _device_before(device: Data) -> Data:
    return {_DEVICE_BEFORE.get(name, name): value for name, value in device.items()}


def _config_today(config: _Config) -> _Config:
    """One that cannot be completed, because a knob is unknown or its value was removed, keeps its knobs."""
    config = config._replace(family=_RENAMED.get(config.family, config.family))
    family, stored = _FAMILIES.get(config.family), dict(config.knobs)
    if family is None or any(stored.get(name, value) != value for name, value in family.removed.items()):
        return config
    found = {name: _value_today(family, name, stored) for name in family.knobs.split()}
    known = {name: value for name, value in found.items() if value is not None}
    return _Config.of(config.family, known) if known == found else config


def _value_today(family: _Family, name: str, stored: Mapping[str, Value]) -> Value | None:
    if name == "l2_hints" and name not in stored and any(hint in stored for hint in _HINTS):
        a, b, d = (str(stored.get(hint, "normal")) for hint in _HINTS)
        return _L2_HINTS.get((a, b, d))
    value = stored.get(name, stored.get(family.was.get(name, ""), family.absent.get(name)))
    return None if value is None else family.values_were.get(name, {}).get(value, value)


def _config_before(config: _Config) -> _Config:
    name = _FAMILIES_BEFORE.get(config.family, config.family)
    family = _FAMILIES.get(config.family)
    if family is None or {knob for knob, _ in config.knobs} != set(family.knobs.split()):
        return config._replace(family=name)
    found: dict[str, Value] = {**family.removed, **family.dropped}
    for knob, value in config.knobs:
        if knob in family.added and value == family.absent[knob]:
            continue
        if knob == "l2_hints":
            hints = next(before for before, today in _L2_HINTS.items() if today == value)
            found |= dict(zip(_HINTS, hints, strict=True))
        else:
            before = {today: was for was, today in family.values_were.get(knob, {}).items()}
            found[family.was.get(knob, knob)] = before.get(str(value), value)
    return _Config.of(name, found)


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
        spec = _canonical(words.device(json.loads(row.spec)))
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
        options = words.options(row.options)
        same = {"problem": json.loads(row.canonical), "device_class": row.device_class}
        digests[_digest(same | row.options)] = _digest(same | options)
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
    taken: dict[str, set[_Config]] = {}

    def change(row: sa.Row[Any]) -> Data:
        if row.job_id not in taken:
            taken.clear()
        configs = taken.setdefault(row.job_id, set())
        recorded = _Config.of(**row.config)
        config = words.config(recorded)
        if config in configs:
            config = recorded._replace(family=config.family)
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
    return words.config(_Config.of(**data)).to_dict()


def _progress(data: Data | None, words: _Words) -> Data | None:
    """Progress names its best config by a text: ``family(knob=value, knob=value)``."""
    found = re.fullmatch(r"(\w+)\((.*)\)", (data or {}).get("best_config") or "")
    if data is None or found is None:
        return data
    pairs = (pair.split("=", 1) for pair in found[2].split(", "))
    knobs = {name: int(value) if re.fullmatch(r"-?\d+", value) else value for name, value in pairs}
    return data | {"best_config": str(words.config(_Config.of(found[1], knobs)))}


def _canonical(data: Data) -> str:
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _digest(data: Data) -> str:
    return hashlib.sha256(_canonical(data).encode()).hexdigest()


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
