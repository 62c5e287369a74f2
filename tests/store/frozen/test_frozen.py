"""The database of the release of 2026-11-23 migrates, keeps everything, and is read in today's words."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from databases import Databases, migrate, on_both, opened
from device_samples import HOPPER
from frozen_release import FEW_ROWS, H100, H200, ONE_ROW, SQUARE, STREAM_K, fill
from sqlalchemy import Connection, MetaData, Table, event

from kernels.registry import FAMILIES
from tilewright.artifact import Artifact, CtaOrder
from tilewright.artifact.cache import ArtifactStore, DiskCache
from tilewright.config_sets.lookup import Catalog
from tilewright.schema.config import Config
from tilewright.schema.config_set import ConfigSet
from tilewright.schema.device import DeviceSpec
from tilewright.schema.job import OPTIONS, Sampler
from tuner.job import neighbours
from tuner.search.search import open_search
from tuner.store import best, entities, jobs, misses, records, sets, trials
from tuner.store.access import keys
from tuner.store.database import VERSION_TABLE, Store, alembic_config
from tuner.store.records import JobRecord, JobStatus

# What the migration writes anew; all else stays as it was.
REWRITTEN = {
    "device": {"spec"},
    "job": {"options", "active_key", "progress"},
    "submission": {"request_digest"},
    "family_source": {"family"},
    "trial": {"family", "config", "config_digest", "origin"},
    "best_config": {"config", "ties"},
    "event": {"data"},
    "served_set": {"made_from"},
}
Row = dict[str, Any]


@pytest.fixture
def frozen(databases: Databases) -> Iterator[Store]:
    """The database as the old release left it."""
    with opened(databases.copy(fill)) as store:
        yield store


def fill_and_migrate(url: str) -> None:
    fill(url)
    migrate(url)


@pytest.fixture
def store(databases: Databases) -> Iterator[Store]:
    """The database as this release opens it."""
    with opened(databases.copy(fill_and_migrate)) as migrated:
        yield migrated


def tables(store: Store) -> dict[str, list[Row]]:
    """Every row of every table, in an order that the migration does not change."""
    with store.engine.connect() as connection:
        schema = MetaData()
        schema.reflect(connection)
        return {
            name: [dict(row._mapping) for row in connection.execute(table.select().order_by(*_order(table)))]
            for name, table in schema.tables.items()
            if name != VERSION_TABLE
        }


def _order(table: Table) -> list[Any]:
    return [table.c.source_digest] if table.name == "family_source" else list(table.primary_key.columns)


def listed(store: Store) -> list[JobRecord]:
    with store.read() as session:
        return jobs.listing(session, None, 100, None)


def one_job(store: Store, **wanted: object) -> JobRecord:
    (job,) = [job for job in listed(store) if all(getattr(job, name) == wanted[name] for name in wanted)]
    return job


def is_current(config: Config) -> bool:
    """All knobs of today, no other, each with a value of today."""
    family = FAMILIES[config.family]
    return set(config) == {knob.name for knob in family.knobs} and all(
        config[knob.name] in knob.legal for knob in family.knobs
    )


@on_both
def test_every_row_stays_and_only_words_change(frozen: Store) -> None:
    assert frozen.schema_state() == "older"
    before = tables(frozen)
    frozen.migrate()
    assert frozen.schema_state() == "head"
    after = tables(frozen)
    assert min(map(len, before.values())) > 0
    for table, found in before.items():
        for old, new in zip(found, after[table], strict=True):
            changed = {column for column, value in old.items() if new[column] != value}
            assert changed <= REWRITTEN.get(table, set()), (table, old, new)


def test_rows_are_in_the_words_of_today(store: Store) -> None:
    found = tables(store)
    fields = {field.name for field in dataclasses.fields(DeviceSpec)}
    assert all(json.loads(row["spec"]).keys() == fields for row in found["device"])
    assert {row["family"] for row in found["family_source"]} == FAMILIES.keys()
    assert all(row["options"].keys() == set(OPTIONS) - {"level"} for row in found["job"])
    assert {name for row in found["job"] for name in row["options"]["families"]} < FAMILIES.keys()
    for row in [*found["job"], *(row for row in found["event"] if row["kind"] == "progress")]:
        text = (row.get("progress") or row.get("data") or {}).get("best_config")
        assert not text or text.startswith(("host(", "gemv(math=mma, min_ctas_per_sm=2, "))
    named = [row["data"] for row in found["event"] if row["kind"] in ("trial", "best")]
    named += found["best_config"]
    configs = [Config.from_dict(data["config"]) for data in named]
    configs += [Config.from_dict(tie) for row in found["best_config"] for tie in row["ties"]]
    (left,) = [config for config in configs if not is_current(config)]
    assert left["stream_k"] == 1
    origins = {row["origin"] for row in found["trial"]} | {data.get("origin", "search") for data in named}
    assert origins == {"initial", "search"}


def test_trials_are_of_configs_of_today_or_keep_what_was_removed(store: Store) -> None:
    found = tables(store)["trial"]
    configs = [Config.from_dict(row["config"]) for row in found]
    assert [row["family"] for row in found] == [config.family for config in configs]
    assert [row["config_digest"] for row in found] == [config.digest for config in configs]
    kept = [config for config in configs if not is_current(config)]
    removed = [config for config in kept if config.family == "wgmma_ws"]
    assert [(config["stream_k"], config["in_flight"]) for config in removed] == [(0, 0), (1, 1)]
    # Of two trials of a job that only a dropped knob told apart, the later one.
    values = [set(dict(config.knobs).values()) for config in kept if config not in removed]
    assert ["normal" in values[0], *("evict_first" in one for one in values[1:])] == [True] * 4
    for job in listed(store):
        mine = [Config.from_dict(row["config"]) for row in found if row["job_id"] == job.id]
        assert len(set(mine)) == len(mine)


def test_what_was_imported_is_in_use_and_told_apart(store: Store) -> None:
    found = tables(store)
    (entered,) = found["import"]
    assert (entered["id"], entered["trusted"], entered["signer"]) == ("0" * 32, True, None)
    own = _host(store)
    for row in found["best_config"]:
        assert row["import_id"] == (None if row["device_class"] == own else entered["id"])
    # The interrupted job of the H200 was claimed in this database, the others were imported.
    assert [row["device_class"] for row in found["job"] if not row["import_id"]].count(H200) == 1
    built = {row["artifact"] for row in found["trial"] if row["job_id"] in _ran_here(found)}
    assert {row["digest"] for row in found["artifact"] if not row["import_id"]} <= built


def _ran_here(found: dict[str, list[Row]]) -> set[str]:
    return {row["id"] for row in found["job"] if row["import_id"] is None}


def test_values_of_knobs_are_renamed_too(store: Store) -> None:
    with store.read() as session:
        job = next(job for job in listed(store) if job.request.problem == SQUARE)
        first, second, *_ = (trial.config for trial in trials.of_job(session, job.id))
    assert (first["epilogue"], first["reduction"], first["cta_order"]) == ("overlapped", "none", "gpc")
    assert (first["reverse_k"], first["l2_hints"]) == (1, "normal")
    assert (second["reduction"], second["swizzle_size"], second["l2_hints"]) == (
        "reduce_scatter",
        8,
        "keep_a",
    )


def test_jobs_are_listed_with_their_options(store: Store) -> None:
    found = listed(store)
    assert {job.status for job in found} == set(JobStatus)
    (tpe,) = (job for job in found if job.request.sampler is Sampler.TPE)
    assert (tpe.status, tpe.request.min_gain_per_s, tpe.request.seed) == (JobStatus.SUCCEEDED, 0.05, 7)
    assert [job.request.sampler for job in found if job.status is JobStatus.QUEUED] == [Sampler.RANDOM] * 2
    assert {job.request.families for job in found} == {
        (), ("host",), ("wgmma_ws",), ("gemv",), ("gemv", "gemv_tma"),
    }  # fmt: skip
    assert one_job(store, status=JobStatus.FAILED).error == "the device's process ended"


def _host(store: Store) -> str:
    with store.read() as session:
        return next(seen.device_class for seen in entities.list_devices(session) if seen.spec.kind == "host")


def test_a_waiting_job_is_joined_and_a_repeated_request_answered(store: Store) -> None:
    waiting = [job for job in reversed(listed(store)) if job.status is JobStatus.QUEUED]
    with store.begin() as session:
        job, created = jobs.submit(session, waiting[0].request, waiting[0].device)
        assert (job.id, created) == (waiting[0].id, False)
        assert len(entities.list_devices(session)) == 3
    (submission,) = tables(store)["submission"]
    first = next(job for job in listed(store) if [job.id] == submission["answer"]["jobs"])
    assert submission["request_digest"] == records.request_digest(first.request, first.device_class)


def test_a_device_that_is_there_under_both_names_becomes_one(frozen: Store) -> None:
    before = tables(frozen)["device"]
    twin = dict(next(row for row in before if row["device_class"] == H200), id=100)
    twin["spec"] = twin["spec"].replace('"units"', '"sm_count"').replace("smem_per_unit", "smem_per_sm")
    twin["spec"] = records.canonical(json.loads(twin["spec"]))
    with frozen.engine.begin() as connection:
        device = Table("device", MetaData(), autoload_with=connection)
        connection.execute(device.insert().values(twin))
    frozen.migrate()
    of_twin = sum(job.device_class == H200 for job in listed(frozen))
    assert len(tables(frozen)["device"]) == len(before)
    assert [row["device_id"] for row in tables(frozen)["job"]].count(100) == of_twin


def test_winners_answer_in_the_words_of_today(store: Store) -> None:
    with store.read() as session:
        (few,) = best.exact(session, H200, FEW_ROWS)
        (one,) = best.exact(session, H200, ONE_ROW)
        (square,) = best.exact(session, H200, SQUARE)
    assert neighbours.first_tries(store, HOPPER, ONE_ROW)
    assert (few.best.config.family, few.best.config["steps"], few.best.config["stages"]) == (
        "gemv",
        2,
        2,
    )
    assert (one.best.config.family, one.best.config["k_chunks"]) == ("gemv_tma", 2)
    assert square.best.ties[0]["reduction"] == "reduce_scatter"


def test_winners_have_changed_at_the_present_revision_of_their_class(store: Store) -> None:
    """Those of a class that was never served a set, too; a service reads what changed since the latest."""
    with store.read() as session:
        found = sets.classes(session)
        assert sorted(found) == sorted({row["device_class"] for row in tables(store)["best_config"]})
        for name, (arch, served) in found.items():
            assert name.startswith(f"{arch}-")
            assert best.changed_since(session, name, served.revision) == {}
            assert len(best.changed_since(session, name, served.revision - 1)) == best.count(session, name)


def test_kernels_load_with_their_digests(store: Store) -> None:
    found = tables(store)["artifact"]
    kernels = {row["digest"]: Artifact.from_bytes(row["data"], row["digest"]) for row in found}
    with store.read() as session:
        square, stream_k = (best.exact(session, H200, problem)[0].best for problem in (SQUARE, STREAM_K))
    plan = kernels[square.artifact].plan
    assert CtaOrder("where_blocks_run", "block_order") in plan.args
    # 16 x 6144 in tiles of 16 x 64 are 96 work tiles, which stream-K divides among all 132 CTAs.
    assert kernels[stream_k.artifact].plan.grid.ctas(STREAM_K) == (132, 1, 1)


def test_kernels_in_the_cache_of_an_old_client_are_found(store: Store, tmp_path: Path) -> None:
    digests = []
    for row in tables(store)["artifact"]:
        path = tmp_path / "v1" / row["digest"][:2] / row["digest"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(row["data"])
        digests.append(row["digest"])
    cached = ArtifactStore(DiskCache(tmp_path))
    assert cached.missing(digests) == []
    assert all(cached.artifact(digest) for digest in digests)


def test_config_sets_stay_and_the_latest_is_made_anew(store: Store) -> None:
    with store.read() as session:
        for row in tables(store)["config_set"]:
            packed = sets.packed(session, row["digest"])
            assert packed is not None
            Catalog.of(ConfigSet.from_bytes(sets.unpack(packed), row["digest"]))
        assert sets.served(session, H100).pinned
        assert sets.served(session, H200).made_from is None


def test_misses_retunes_and_keys_stay(store: Store) -> None:
    with store.read() as session:
        assert [(miss.reason, miss.count) for miss in misses.ranked(session, H200, 10)] == [("stale", 3)]
        assert [(miss.reason, miss.time_us) for miss in misses.ranked(session, _host(store), 10)] == [
            ("missing", 3.5)
        ]
        assert [key.name for key in keys.listing(session)] == ["ci"]
    assert [row["wanted"] for row in tables(store)["retune"]] == ["0123456789abcdef"]


def test_an_interrupted_search_replays_its_trials(store: Store) -> None:
    job = one_job(store, status=JobStatus.RUNNING, device_class=H200)
    with store.read() as session:
        recorded = trials.of_job(session, job.id)
    families = [FAMILIES[name] for name in job.request.families]
    search = open_search(families, job.request.problem, job.device, budget=20)
    for number, trial in enumerate(recorded):
        proposal = search.propose(trial.config, trial.origin)
        assert (proposal.number, proposal.config) == (number, trial.config)
        search.tell(proposal, trial.outcome, trial.timing.median_us if trial.timing else None)


@on_both
def test_a_migration_that_fails_leaves_everything(frozen: Store) -> None:
    before = tables(frozen)

    def failing(_connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("UPDATE best_config"):  # after the jobs and their trials
            raise RuntimeError("the machine stopped")

    event.listen(frozen.engine, "before_cursor_execute", failing)
    with pytest.raises(RuntimeError, match="stopped"):
        frozen.migrate()
    event.remove(frozen.engine, "before_cursor_execute", failing)
    assert frozen.schema_state() == "older"
    assert tables(frozen) == before
    frozen.migrate()
    assert frozen.schema_state() == "head"


def test_down_and_up_again_loses_what_the_migration_says(frozen: Store) -> None:
    before = tables(frozen)
    frozen.migrate()
    after = tables(frozen)
    with frozen.engine.begin() as connection:
        command.downgrade(alembic_config(connection), "0005_retunes")
    down = tables(frozen)
    for old, new in zip(before["trial"], down["trial"], strict=True):
        dropped = old["config"]["knobs"].keys() - new["config"]["knobs"].keys()
        assert dropped <= {"weight_cache", "l2_fetch", "hint", "l2_promotion"}
        assert not (dropped and new["family"] == "wgmma_ws")
        assert {**old, "config": 0, "config_digest": 0} == {**new, "config": 0, "config_digest": 0}
        kept = old["config"]["knobs"] | new["config"]["knobs"]
        changed = {name for name, value in old["config"]["knobs"].items() if kept[name] != value}
        assert changed <= {"l2_promotion", "hint_d", "even_waves", "beat"}
    for old, new in zip(before["job"], down["job"], strict=True):
        assert old["options"]["policy"].replace("brute", "random") == new["options"].pop("policy")
        assert {name: value for name, value in old["options"].items() if name != "policy"} == new["options"]
    assert [json.loads(row["spec"]) for row in before["device"]] == [
        json.loads(row["spec"]) for row in down["device"]
    ]
    assert before["family_source"] == down["family_source"]
    frozen.migrate()
    assert tables(frozen) == after


def revisions(store: Store) -> list[str]:
    """Every revision, the latest first."""
    with store.engine.connect() as connection:
        revisions = ScriptDirectory.from_config(
            alembic_config(connection)
        ).walk_revisions()  # codespell:ignore walk
        return [script.revision for script in revisions]


def counts(store: Store) -> dict[str, int]:
    return {name: len(rows) for name, rows in tables(store).items() if name != VERSION_TABLE}


@pytest.mark.long
def test_every_downgrade_of_a_populated_database_keeps_the_rows_of_tables_that_stay(store: Store) -> None:
    latest, *earlier = revisions(store)
    before = counts(store)
    assert all(before[name] for name in REWRITTEN), "a table without rows shows nothing"
    for revision in earlier:
        with store.engine.begin() as connection:
            command.downgrade(alembic_config(connection), revision)
        lost = {"submission"} if revision == "0003_sets_and_misses" else set()
        after = counts(store)
        kept = {name: number for name, number in before.items() if name in after and name not in lost}
        assert {name: after[name] for name in kept} == kept
        before = after
    store.migrate()
    after = counts(store)
    assert revisions(store)[0] == latest
    assert {name: after[name] for name in kept} == kept


def test_a_downgrade_to_nothing_leaves_an_empty_database(store: Store) -> None:
    with store.engine.begin() as connection:
        command.downgrade(alembic_config(connection), "base")
    assert store.schema_state() == "empty"
    store.migrate()
    assert not any(counts(store).values())
