"""One selector: every route and the client answer a problem with the same kernel, from random stores.

Below it, what it selects from: winners of several device classes, expected regret, initial configs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from databases import Databases, migrate, opened
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, select, text, true
from sqlalchemy.orm import Session
from store_samples import (
    HOST,
    HOST_CLASS,
    OTHER_CLASS,
    OTHER_HOST,
    PROVENANCE,
    artifact,
    best,
    config,
    problem,
    request,
    trial,
)

from service.gemm import choice
from service.http.deps import Service
from service.server.app import create_app
from service.settings import Settings
from tilewright import wire
from tilewright.config_sets.lookup import Catalog, octaves
from tilewright.schema.codec import decode
from tilewright.schema.config import Config
from tilewright.schema.config_set import ConfigSet, RegretBand, SetEntry
from tilewright.schema.job import Sampler, TuneRequest
from tilewright.schema.kernel import Preconditions
from tilewright.schema.match import LookupResult, MatchLimits
from tilewright.schema.problem import GemmProblem, Layout
from tilewright.schema.trial import BestConfig, LadderKernel, Outcome
from tuner.job import neighbours
from tuner.job.neighbours import first_tries
from tuner.store import best as winners
from tuner.store import entities, imports, jobs, sets, trials
from tuner.store.database import Store
from tuner.store.models import BestConfigRow

# What near matches cost, by distance in octaves: what a store with enough trials would have learned.
BANDS = [RegretBand(0.6, 0.02, 0.1, 9), RegretBand(2.1, 0.15, 0.3, 30)]
PROBLEMS = st.builds(
    problem,
    st.sampled_from([48, 64, 96, 128, 512]),
    st.sampled_from([64, 66, 96]),
    st.sampled_from([64, 65, 96]),
)
ALIGNMENTS = st.sampled_from([1, 4, 8, 16])
BOUNDS = st.sampled_from([0, 0, 64, 100])
NEEDS = st.builds(
    Preconditions, ALIGNMENTS, ALIGNMENTS, ALIGNMENTS, st.just(0), max_extent=BOUNDS, max_k=BOUNDS
)
SPEEDUPS = st.sampled_from([0.8, 1.0, 1.1, 1.5])
# What each kernel of a ladder did on a row, by its number in the store; None for a problem tuned alone.
ON_ROW = st.none() | st.lists(st.tuples(st.sampled_from([0.0, 0.01, 0.2]), SPEEDUPS), min_size=8, max_size=8)
WINNERS = st.lists(
    st.tuples(PROBLEMS, SPEEDUPS, st.booleans(), NEEDS, ON_ROW),
    unique_by=lambda winner: winner[0],
    max_size=8,
)
QUERIES = st.fixed_dictionaries(
    {
        "match": st.sampled_from(list(wire.Match)),
        "max_regret": st.sampled_from([0.0, 0.02, 0.1, 1000.0]),
        "deterministic": st.booleans(),
    }
)


Found = tuple[GemmProblem, float, bool, Preconditions, list[tuple[float, float]] | None]


@pytest.fixture(scope="module")
def serving(sqlite_databases: Databases) -> Iterator[tuple[TestClient, Service]]:
    """A service, and a way to ask it."""
    app = create_app(Settings(database_url=sqlite_databases.copy(migrate)))
    service: Service = app.state.service
    yield TestClient(app, "http://localhost"), service
    service.served.close()
    service.store.close()


def hold(store: Store, found: list[Found]) -> None:
    """Have a winner for each (problem, speed-up, repeatable, preconditions), and no other."""
    with store.begin() as session:
        session.execute(delete(BestConfigRow))
        sets.changed(session, HOST_CLASS, true())
        # NOTE: some have the same needs, and so share an artifact.
        digests = [entities.put_artifact(session, artifact(needs=needs)) for _, _, _, needs, _ in found]
        for number, (of, speedup, repeatable, _, on_row) in enumerate(found):
            plain = best(of, HOST, speedup)
            each = dict(zip(digests, on_row or (), strict=False)) | {digests[number]: (0.0, speedup)}
            kernels = tuple(LadderKernel(digest, *of_kernel) for digest, of_kernel in each.items())
            won = dataclasses.replace(
                plain,
                artifact=digests[number],
                timing=dataclasses.replace(plain.timing, median_us=number + 1.0),  # tells them apart
                repeatable=repeatable,
                kernels=None if on_row is None else kernels,
            )
            winners.put(session, won)


def by_the_client(http: TestClient, asked: GemmProblem, query: dict[str, Any]) -> LookupResult:
    """What a process that fetched the config set takes by itself; the vendor library without one."""
    reply = http.get("/config-sets/current", params={"device_class": HOST_CLASS})
    if reply.status_code == 404:
        return LookupResult("vendor", "no tuned kernel", miss=True)
    regret = query["max_regret"] if query["match"] is wire.Match.NEAREST else None
    return Catalog.of(ConfigSet.from_bytes(reply.content)).lookup(
        asked, MatchLimits(regret, query["deterministic"])
    )


@settings(max_examples=60, deadline=None)
@given(found=WINNERS, asked=PROBLEMS, query=QUERIES)
def test_all_four_agree(
    serving: tuple[TestClient, Service], found: list[Found], asked: GemmProblem, query: dict[str, Any]
) -> None:
    http, service = serving
    hold(service.store, found)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(neighbours, "estimate", lambda *_: BANDS)
        expected = by_the_client(http, asked, query)
    body = {"device_class": HOST_CLASS, "problems": [asked.to_dict()], **query}
    (view,) = http.post("/best-config/lookup", json=body).json()["items"]
    assert (view["kind"], view["reason"], view["distance"]) == (
        expected.kind,
        expected.reason,
        expected.distance,
    )
    assert (decode(SetEntry, view["entry"]) if view["entry"] else None) == expected.entry

    chosen = choice.choose(service.served, HOST_CLASS, asked, wire.GemmQuery(**query))
    assert chosen.match.partition(";")[0] == expected.kind
    assert (chosen.artifact is None) == (expected.kind == "vendor")
    if chosen.artifact and expected.entry:
        assert chosen.artifact.digest == expected.entry.artifact
        assert chosen.artifact.plan.why_not(asked) is None

    reply = http.get("/best-config", params=asked.to_dict() | query | {"device_class": HOST_CLASS})
    agrees(expected, reply.status_code, reply.json())


def agrees(expected: LookupResult, status: int, answer: dict[str, Any]) -> None:
    """``GET /best-config`` shows the winner that the selection names, also one that lost to the vendor."""
    entry = expected.entry
    if entry is None:
        assert status == 404
        return
    assert status == 200
    assert answer["timing"]["median_us"] == entry.median_us
    assert answer["use_vendor"] == entry.use_vendor
    if expected.kind in ("ladder", "nearest"):
        assert answer["match"] == {"kind": expected.kind, "distance": expected.distance}
        assert answer["expected_regret"] == expected.expected_regret


SHARED, FIRST_ALONE = problem(64), problem(4096)


@pytest.fixture
def service(url: str) -> Iterator[Service]:
    """Two classes of one architecture: in the later one by name the vendor library was faster in a race."""
    made: Service = create_app(Settings(database_url=url)).state.service
    first, last = sorted((HOST, OTHER_HOST), key=lambda device: device.device_class.id)
    lost = dataclasses.replace(best(SHARED, last, 0.8), speedup_low=0.7, speedup_high=0.9)
    with made.store.begin() as session:
        entities.put_artifact(session, artifact())
        winners.put(session, best(FIRST_ALONE, first))
        winners.put(session, lost)
    yield made
    made.served.close()
    made.store.close()


def test_a_race_that_favours_the_vendor_answers_before_a_class_without_one(service: Service) -> None:
    lost, won = service.served.select(HOST.arch, [SHARED, FIRST_ALONE], MatchLimits())
    first, last = sorted((HOST_CLASS, OTHER_CLASS))
    assert (lost.result.kind, lost.device_class, lost.result.miss) == ("vendor", last, False)
    assert lost.result.reason == "the vendor library was faster in the race"
    assert lost.result.entry is not None
    assert (won.result.kind, won.device_class) == ("exact", first)


def test_distance_is_in_octaves() -> None:
    # 64 -> 128 in m is 1, 64 -> 1024 in k is 4: sqrt(1 + 16).
    assert octaves(problem(64), problem(128, k=1024)) == pytest.approx(17**0.5)
    assert octaves(problem(64), problem(64)) == 0.0


def test_bands_pool_all_nearer_pairs_and_never_fall() -> None:
    pairs = np.array([(0.4, 0.0), (0.5, 0.1), (0.9, 0.2), (1.5, 0.0), (1.6, 0.0)])
    # Up to 0.5 there are two pairs: too few. Up to 1 three, mean 0.1; up to 2 five, mean 0.06: held at 0.1.
    # Nine in ten of three is the third of 0, 0.1, 0.2; of five the fifth.
    assert neighbours.bands(pairs) == [
        RegretBand(1.0, pytest.approx(0.1), 0.2, 3),
        RegretBand(2.0, pytest.approx(0.1), 0.2, 5),
    ]
    assert neighbours.bands(pairs[:0]) == []
    assert neighbours.bands(pairs[:2]) == []


def tune(
    store: Store, of: GemmProblem, chosen: Config, medians: dict[Config, float | None], later: Any = ()
) -> None:
    """A finished job whose trials took these microseconds (None: failed), won by ``chosen``; the configs in
    ``later`` by the method of a later release."""
    with store.begin() as session:
        entities.put_artifact(session, artifact())
        job, _ = jobs.submit(session, dataclasses.replace(request(), problem=of), HOST)
        for number, (tried, median) in enumerate(medians.items()):
            made = trial(number, median or 1.0, Outcome.OK if median else Outcome.LAUNCH_ERROR)
            method = "later" if tried in later else PROVENANCE.method
            made = dataclasses.replace(made, provenance=dataclasses.replace(PROVENANCE, method=method))
            made = dataclasses.replace(made, config=tried, timing=made.timing if median else None)
            trials.add(session, job.id, made)
        winners.put(session, dataclasses.replace(best(of), config=chosen, job_id=job.id))


def stored(session: Session) -> list[tuple[GemmProblem, Config]]:
    return [(one.best.problem, one.best.config) for one in winners.for_arch(session, HOST_CLASS)]


def test_each_shape_is_answered_from_each_other_one(store: Store) -> None:
    a, b, c = config(1), config(2), config(3)
    tune(store, problem(64), a, {a: 10.0, b: 12.0, c: 15.0})
    tune(store, problem(128), b, {a: 22.0, b: 20.0})
    tune(store, problem(256), c, {a: 40.0, b: None, c: 44.0})
    with store.read() as session:
        found = neighbours.pairs(session, HOST_CLASS, stored(session))
    # 64 from 128: 12/10; 64 from 256: 15/10; 128 from 64: 22/20; 128 from 256: not measured;
    # 256 from 64: 40/44 is no gain; 256 from 128: did not run.
    assert sorted((distance, round(regret, 9)) for distance, regret in found) == [
        (1.0, 0.1),
        (1.0, 0.2),
        (2.0, 0.0),
        (2.0, 0.5),
    ]
    with store.read() as session:
        (band,) = neighbours.estimate(session, HOST_CLASS, stored(session))
    assert (band.max_distance, band.pairs) == (2.0, 4)
    assert band.expected == pytest.approx(0.2)


def test_times_of_two_methods_make_no_pair(store: Store) -> None:
    a, b = config(1), config(2)
    tune(store, problem(64), a, {a: 10.0, b: 15.0}, later=[b])
    tune(store, problem(128), b, {a: 22.0, b: 20.0}, later=[a, b])
    with store.read() as session:
        ((_, regret),) = neighbours.pairs(session, HOST_CLASS, stored(session))
    assert regret == pytest.approx(0.1)  # 22/20, and not 15/10


def test_a_trial_whose_provenance_is_damaged_makes_no_pair(sqlite_databases: Databases) -> None:
    """PostgreSQL checks JSON by itself."""
    a, b = config(1), config(2)
    with opened(sqlite_databases.copy(migrate)) as store:
        tune(store, problem(64), a, {a: 10.0, b: 15.0})
        tune(store, problem(128), b, {a: 22.0, b: 20.0})
        with store.begin() as session:
            session.execute(text("UPDATE trial SET provenance = '{\"meth' WHERE median_us = 15"))
        with store.read() as session:
            ((_, regret),) = neighbours.pairs(session, HOST_CLASS, stored(session))
    assert regret == pytest.approx(0.1)


def test_signatures_and_classes_do_not_mix(store: Store) -> None:
    a, b = config(1), config(2)
    tune(store, problem(64), a, {a: 10.0, b: 12.0})
    tune(store, dataclasses.replace(problem(128), has_bias=True), b, {a: 22.0, b: 20.0})
    with store.read() as session:
        assert len(neighbours.pairs(session, HOST_CLASS, stored(session))) == 0
        assert neighbours.estimate(session, "sm_90-132sm-150gb-700w", []) == []


def won(of: GemmProblem, tile: int, ties: tuple[Config, ...] = (), device=HOST) -> BestConfig:
    return dataclasses.replace(best(of, device), config=config(tile), ties=ties)


def put(store: Store, *found: BestConfig) -> None:
    with store.begin() as session:
        entities.put_artifact(session, artifact())
        for item in found:
            winners.put(session, item)


def tries(store: Store) -> list[Config]:
    return first_tries(store, HOST, problem())


def test_near_problems_come_before_other_devices_and_each_config_once(store: Store) -> None:
    put(store, won(problem(1024), 1), won(problem(128), 2))
    put(store, won(problem(), 3, (config(4), config(2)), OTHER_HOST), won(problem(256), 5, device=OTHER_HOST))
    assert tries(store) == [config(tile) for tile in (2, 1, 3, 4, 5)]


def test_few_are_taken_from_here_and_from_elsewhere(store: Store) -> None:
    put(store, *(won(problem(64 * i), i) for i in range(1, 6)))
    put(store, won(problem(), 10, tuple(config(10 + i) for i in range(1, 12)), OTHER_HOST))
    assert tries(store) == [config(tile) for tile in (1, 2, 3, *range(10, 18))]


def test_another_type_or_layout_says_nothing(store: Store) -> None:
    other = GemmProblem(64, 64, 64, dtype="float64", layout="nn")
    put(store, won(problem(layout=Layout.NT), 1, device=OTHER_HOST), won(other, 2, device=OTHER_HOST))
    assert tries(store) == []


def test_a_request_of_an_earlier_release_has_defaults_and_its_policy_is_a_sampler() -> None:
    asked = dataclasses.replace(request(), sampler=Sampler.TPE, min_gain_per_s=0.01)
    data = asked.options
    assert TuneRequest.of(asked.problem, data) == asked
    del data["sampler"], data["min_gain_per_s"]
    assert TuneRequest.of(asked.problem, data).sampler is Sampler.STAGED
    assert TuneRequest.of(asked.problem, data | {"policy": "cmaes"}).sampler is Sampler.CMAES


FAST, SLOW = artifact(), artifact(b"\x7fELF\0slow")


def ladder_rows(store: Store, won: dict[int, bool]) -> None:
    """Rows of a ladder, each with the times of two kernels; of which ``FAST`` won where ``won`` says so."""
    with store.begin() as session:
        for kernel in (FAST, SLOW):
            entities.put_artifact(session, kernel)
        for m, fast_won in won.items():
            first, second = (FAST.digest, SLOW.digest) if fast_won else (SLOW.digest, FAST.digest)
            kernels = LadderKernel(first, 0.0, 1.5), LadderKernel(second, 0.02, 1.4)
            row = dataclasses.replace(best(problem(m), HOST, 1.5), artifact=first, kernels=kernels)
            assert winners.put(session, row)


def between(service: Service, *asked: int) -> list[tuple[str, bool]]:
    found = service.served.select(HOST_CLASS, [problem(m) for m in asked], MatchLimits())
    return [(one.result.kind, one.result.miss) for one in found]


@pytest.mark.parametrize("remove", ["best", "problem"])
@pytest.mark.parametrize(
    ("won", "answer"),
    [
        ({160: True, 192: True, 224: False, 256: False, 288: False}, (168, 180, 264, 280)),
        ({160: True, 192: True, 224: True, 256: True}, (168, 180)),
        ({192: True, 224: True, 256: True, 288: True}, (264, 280)),
        ({160: False, 192: True, 224: False, 256: True, 288: False}, (168, 180, 264, 280)),
        ({160: False, 192: True, 224: True, 256: True, 288: True}, (168, 180, 264, 280)),
    ],
)
def test_rows_of_a_ladder_do_not_answer_for_one_between_them_that_was_deleted(
    service: Service, remove: str, won: dict[int, bool], answer: tuple[int, ...]
) -> None:
    ladder_rows(service.store, won)
    rows = [m for m in won if m != 224]
    assert set(between(service, 200, 240, *answer)) == {("ladder", False)}
    with service.store.begin() as session:
        if remove == "best":
            imports.remove_best(session, HOST_CLASS, problem(224))
        else:
            imports.remove_served(session, problem(224))
    assert between(service, 200, 224, 240) == [("vendor", True)] * 3
    assert set(between(service, *rows)) == {("exact", False)}
    assert set(between(service, *answer)) == {("ladder", False)}


def test_rows_that_all_have_one_kernel_answer_for_no_row_that_was_deleted(service: Service) -> None:
    ladder_rows(service.store, dict.fromkeys((128, 160, 192, 224, 256, 288), True))
    with service.store.begin() as session:
        for row in session.scalars(select(BestConfigRow).where(BestConfigRow.kernels.is_not(None))):
            row.kernels = row.kernels[:1] if row.kernels else None
        imports.remove_best(session, HOST_CLASS, problem(224))
    assert between(service, 200, 224, 240) == [("vendor", True)] * 3
    assert between(service, 256, 272) == [("exact", False), ("ladder", False)]
