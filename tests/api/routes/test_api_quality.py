"""What an answer says about itself, what a caller may ask of it, and what becomes of stale results."""

from __future__ import annotations

import dataclasses
import json
import re
import sqlite3
import time
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx2
import numpy
import pytest
from api_server import Server, finish, start

from tilewright import Client, GemmProblem, wire
from tilewright.config_sets.lookup import Catalog
from tilewright.errors import InvalidProblem, ServiceError
from tilewright.schema.config_set import FORMAT, content_digest, expected_regret
from tilewright.schema.match import MatchLimits

SHAPES = [GemmProblem(m, 32, 32, "float32", "nn") for m in (32, 64, 128)]
FAR = GemmProblem(32 * 2**6, 32, 32, "float32", "nn")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service with three shapes tuned one after the other; six trials a job, also where it tunes again."""
    running = start(tmp_path_factory.mktemp("quality"), max_extent=4096, max_trials=6)
    yield running
    finish(running)


@pytest.fixture(scope="module")
def asked(own: Server) -> Iterator[Client]:
    with Client(own.url, timeout=60.0) as client:
        for shape in SHAPES:
            client.tune(shape, max_trials=6)
        yield client


@pytest.fixture(scope="module")
def place(asked: Client) -> str:
    return asked.devices()[0].device_class


@contextmanager
def database(server: Server) -> Iterator[sqlite3.Connection]:
    """The winners, to be changed behind the service's back."""
    with closing(sqlite3.connect(Path(server.folder) / "tilewright.db", timeout=30)) as connection:
        yield connection
        connection.execute("UPDATE served_set SET revision = revision + 1")
        connection.execute("UPDATE best_config SET revision = (SELECT max(revision) FROM served_set)")
        connection.commit()


def age(server: Server, problem: GemmProblem, **changes: str) -> None:
    """Let a stored winner come from another source, compiler or driver, and from a disturbed race: so the
    next one takes its place on a busy machine too."""
    change = "UPDATE best_config SET provenance = ?, timing = json_set(timing, '$.disturbed', 'by a test')"
    with database(server) as connection:
        rows = connection.execute(
            "SELECT best_config.id, provenance FROM best_config JOIN problem ON problem.id = problem_id"
            " WHERE m = ?",
            [problem.m],
        ).fetchall()
        for row, provenance in rows:
            text = json.dumps(json.loads(provenance) | changes)
            connection.execute(f"{change} WHERE id = ?", [text, row])
        connection.execute("DELETE FROM retune")  # this service never tuned such a result again


@contextmanager
def repeating(server: Server, problem: GemmProblem, measured: bool | None) -> Iterator[None]:
    """Let a stored winner have repeated bit by bit, or not, or let nobody have looked."""
    change = "UPDATE best_config SET repeatable = ? WHERE problem_id IN (SELECT id FROM problem WHERE m = ?)"
    with database(server) as connection:
        connection.execute(change, [measured, problem.m])
    yield
    with database(server) as connection:
        connection.execute(change, [True, problem.m])


def test_an_exact_answer_says_what_it_is_worth(asked: Client, place: str) -> None:
    best = asked.best_config(SHAPES[0], device_class=place)
    assert (best.numerics, best.deterministic, best.staleness) == ("ieee", True, "fresh")
    assert best.use_vendor is (best.speedup.value < 1 or best.verdict == "disturbed")
    assert best.expected_regret is None
    assert asked.best_config(SHAPES[0], device_class=place, deterministic=True, max_regret=0.0) == best


def test_trials_say_whether_their_kernel_was_seen_to_repeat(asked: Client) -> None:
    (job, *_) = asked.jobs().items
    found = {trial.outcome: trial.repeatable for trial in asked.trials(job.id).items}
    assert found["ok"] is True


@pytest.mark.parametrize("measured", [False, None])
def test_only_kernels_that_were_seen_to_repeat_are_deterministic(
    own: Server, asked: Client, place: str, measured: bool | None
) -> None:
    shape, other = SHAPES[1], SHAPES[2]
    wanted = {"device_class": place, "deterministic": True}
    with repeating(own, shape, measured):
        assert not asked.best_config(shape, device_class=place).deterministic
        with pytest.raises(ServiceError, match="has no answer"):
            asked.best_config(shape, **wanted)
        assert [item.problem.m for item in asked.configs(**wanted)] == [SHAPES[0].m, other.m]
        entries = {
            entry.problem: entry.deterministic for entry in asked.current_set(place).config_set.entries
        }
        assert entries == {SHAPES[0]: True, shape: False, other: True}
        (view,) = asked.lookup_many([shape], **wanted)
        assert view.kind == "vendor"
    assert asked.best_config(shape, **wanted).problem == shape


@pytest.fixture
def unmeasured(own: Server, asked: Client, place: str) -> Iterator[str]:
    """The digest of a set that is pinned, as services made them before they measured who repeats."""
    raw = json.loads(asked.current_set(place).content)
    assert raw.pop("format") == FORMAT
    raw["digest"] = content_digest(raw)
    content = zlib.compress(json.dumps(raw).encode())
    columns = "digest, device_class, arch, entries, content, created"
    values = [raw["digest"], place, raw["arch"], len(raw["entries"]), content, "2026-01-01 00:00:00.000000"]
    with database(own) as connection:
        connection.execute(f"INSERT INTO config_set ({columns}) VALUES (?, ?, ?, ?, ?, ?)", values)
    asked.pin(place, raw["digest"])
    yield raw["digest"]
    asked.unpin(place)


def test_sets_made_before_it_was_measured_have_nothing_deterministic(
    asked: Client, place: str, unmeasured: str
) -> None:
    now = asked.current_set(place)
    assert now.config_set.digest == unmeasured
    assert all(entry["deterministic"] for entry in json.loads(now.content)["entries"]), "that is what it says"
    assert not any(entry.deterministic for entry in now.config_set.entries)
    (view,) = asked.lookup_many([SHAPES[0]], device_class=place, deterministic=True)
    assert view.kind == "vendor"
    (view,) = asked.lookup_many([SHAPES[0]], device_class=place)
    assert view.entry is None or not view.entry.deterministic
    a, b = numpy.ones((33, 32), "f4"), numpy.ones((32, 32), "f4")
    near = {"match": "nearest", "max_regret": 1000.0}
    assert "nearest" not in asked.gemm(a, b, deterministic=True, **near).match
    asked.unpin(place)
    fresh = asked.current_set(place).config_set
    assert any(entry.deterministic for entry in fresh.entries)
    for change in asked.diff(unmeasured, fresh.digest).changed:
        assert change.before.deterministic is False


def test_what_near_answers_cost_is_learned_from_the_trials(asked: Client, place: str) -> None:
    # Each search starts from the winners before it: 64 from 32, 128 from 32 and from 64 were measured.
    config_set = asked.current_set(place).config_set
    assert config_set.near[-1].pairs >= 3
    assert (expected_regret(config_set.near, 0.1) or 0.0) >= 0.0
    assert expected_regret(config_set.near, 100.0) is None


@contextmanager
def only_to_k(server: Server, asked: Client, place: str, problem: GemmProblem) -> Iterator[None]:
    """Let all winners be far ahead of the vendor library, and one kernel take no larger k than its own."""
    real = asked.artifact(asked.best_config(problem, device_class=place).artifact.digest)
    needs = dataclasses.replace(real.plan.preconditions, max_k=problem.k)
    limited = dataclasses.replace(real, plan=dataclasses.replace(real.plan, preconditions=needs))
    header = json.dumps({"plan": limited.plan.to_dict()})
    values = [limited.digest, limited.to_bytes(), header, "2026-01-01 00:00:00.000000"]
    far = "speedup = 3000, speedup_low = 2000, speedup_high = 4000"
    ahead = f"UPDATE best_config SET {far}, timing = json_set(timing, '$.disturbed', '')"
    change = "UPDATE best_config SET artifact = ? WHERE problem_id IN (SELECT id FROM problem WHERE m = ?)"
    columns = "speedup, speedup_low, speedup_high, timing"
    with database(server) as connection:
        before = connection.execute(f"SELECT {columns}, id FROM best_config").fetchall()
        connection.execute("INSERT INTO artifact (digest, data, header, created) VALUES (?, ?, ?, ?)", values)
        connection.execute(ahead)
        connection.execute(change, [limited.digest, problem.m])
    yield
    with database(server) as connection:
        connection.executemany(f"UPDATE best_config SET ({columns}) = (?, ?, ?, ?) WHERE id = ?", before)
        connection.execute(change, [real.digest, problem.m])


def near_matches_counted(server: Server) -> int:
    (count,) = re.findall(
        r"^tilewright_lookup_regret_ratio_count (\d+)", httpx2.get(f"{server.url}/metrics").text, re.MULTILINE
    )
    return int(count)


def test_a_near_kernel_that_cannot_run_is_passed_over_by_every_route(
    own: Server, asked: Client, place: str
) -> None:
    nearest, second, _ = SHAPES
    wanted = GemmProblem(36, 32, 33, "float32", "nn")
    allowed = {"match": "nearest", "max_regret": 1000.0}
    with only_to_k(own, asked, place, nearest):
        counted = near_matches_counted(own)
        best = asked.best_config(wanted, device_class=place, **allowed)
        assert (best.match.kind, best.problem) == ("nearest", second)
        assert near_matches_counted(own) == counted + 1
        (view,) = asked.lookup_many([wanted], device_class=place, **allowed)
        assert (view.kind, view.distance) == ("nearest", best.match.distance)
        a, b = numpy.ones(wanted.a_shape, "f4"), numpy.ones(wanted.b_shape, "f4")
        assert asked.gemm(a, b, **allowed).match.startswith(f"nearest; distance={best.match.distance:.3f};")
        here = Catalog.of(asked.current_set(place).config_set).lookup(wanted, MatchLimits(1000.0))
        assert here.entry == view.entry


def test_a_near_answer_of_unknown_cost_is_refused(asked: Client, place: str) -> None:
    # 4 octaves away, from 128 to 2048: nobody measured what that costs.
    with pytest.raises(ServiceError, match="no tuned kernel") as refused:
        asked.best_config(FAR, device_class=place, match="nearest", max_regret=1000.0)
    assert refused.value.status == 404
    assert refused.value.problem["tune"]["m"] == FAR.m
    with pytest.raises(InvalidProblem, match="max_regret"):
        asked.best_config(FAR, device_class=place, max_regret=-1.0)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"driver": "another"}, "driver-changed"),
        ({"method": "interleaved, sustained, quick"}, "quick"),
        ({"compiler": "another", "driver": "another"}, "toolchain-changed"),
        ({"source_digest": "0" * 64, "compiler": "another", "driver": "another"}, "source-changed"),
    ],
)
def test_a_stale_answer_is_served_marked_and_queued(
    own: Server, asked: Client, place: str, changes: dict[str, str], says: str
) -> None:
    shape = SHAPES[2]
    before = {job.id for job in asked.jobs().items}
    age(own, shape, **changes)
    best = asked.best_config(shape, device_class=place)
    assert best.staleness == says
    assert f'tilewright_stale_entries{{reason="{says}"}} 1.0' in httpx2.get(f"{own.url}/metrics").text
    deadline = time.monotonic() + 10
    while not (new := [job for job in asked.jobs().items if job.id not in before]):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    (job,) = new
    assert job.problem == shape
    assert asked.misses(place) == [], "a job is at it"
    assert asked.best_config(shape, device_class=place).staleness == says
    assert asked.wait(job.id).status is wire.JobStatus.SUCCEEDED
    assert asked.best_config(shape, device_class=place).staleness == "fresh"
    assert asked.misses(place) == []
    assert len(asked.jobs().items) == len(before) + 1, "tuned once"


@pytest.mark.long
def test_a_stale_answer_whose_job_was_cancelled_stays_to_be_tuned(
    own: Server, asked: Client, place: str
) -> None:
    shape = SHAPES[0]
    age(own, shape, driver="another")
    asked.best_config(shape, device_class=place)
    deadline = time.monotonic() + 10
    while (job := asked.jobs().items[0]).status != "running":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    asked.cancel(job.id)
    assert asked.wait(job.id).status is wire.JobStatus.CANCELLED
    (miss,) = asked.misses(place)
    assert (miss.reason, miss.problem) == (wire.MissReason.STALE, shape)
    time.sleep(1.2)  # longer than an idle device waits before it looks again
    assert asked.jobs().items[0].id == job.id, "a cancelled job does not come back"
    asked.tune(shape, max_trials=6)
    assert asked.misses(place) == []


def test_a_set_marks_what_is_stale(own: Server, asked: Client, place: str) -> None:
    fresh = asked.current_set(place).config_set
    age(own, SHAPES[1], compiler="another")
    stale = asked.current_set(place).config_set
    assert stale.digest != fresh.digest
    difference = asked.diff(fresh.digest, stale.digest)
    (change,) = difference.changed
    assert (change.before.staleness, change.after.staleness) == ("fresh", "toolchain-changed")
    assert (change.time_ratio, change.decided) == (1.0, False)
    deadline = time.monotonic() + 60
    while asked.best_config(SHAPES[1], device_class=place).staleness != "fresh":
        assert time.monotonic() < deadline, "an entry of a set that was fetched is tuned again, too"
        time.sleep(0.1)
