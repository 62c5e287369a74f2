"""A changed config set is made once for all who wait, of what changed; an unchanged one costs nothing."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NoReturn

import httpx2
import pytest
from databases import Databases, migrate, opened
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sqlalchemy import event, update
from sqlalchemy.orm import Session
from store_samples import (
    ENTERED,
    HOST,
    HOST_CLASS,
    OTHER_CLASS,
    OTHER_HOST,
    PROVENANCE,
    TRUSTED,
    artifact,
    best,
    config,
    failed_trial,
    problem,
)

from service.engine.retune import StaleResults
from service.http.deps import Service
from service.results import served, snapshots
from service.results.quality import ResultQuality
from service.results.served import ServedSets
from service.results.snapshots import ClassWinners, LoadedSet
from service.server.app import create_app
from service.settings import Settings
from tilewright.config_sets.lookup import Catalog
from tilewright.errors import ArtifactError
from tilewright.schema.config_set import ConfigSet, RegretBand
from tilewright.schema.entries import RecordCounts
from tilewright.schema.match import MatchLimits
from tuner.job import neighbours
from tuner.store import best as winners
from tuner.store import entities, imports, sets
from tuner.store.access import audit
from tuner.store.database import Store, StoreError, lock_results
from tuner.store.faults import quarantine
from tuner.store.models import BestConfigRow, ConfigSetRow
from tuner.store.reports import winners as lists
from tuner.store.upkeep import staging

ASKING = 20
CURRENT = "/config-sets/current"
WHERE = {"device_class": HOST_CLASS}
NEAR = MatchLimits(max_regret=10.0)


def put(store: Store, m: int, **changes: Any) -> None:
    with store.begin() as session:
        winners.put(session, dataclasses.replace(best(problem(m)), **changes))


def fill(url: str) -> None:
    """Three winners."""
    migrate(url)
    with opened(url) as store:
        with store.begin() as session:
            entities.put_artifact(session, artifact())
        for m in (64, 65, 66):
            put(store, m)


@pytest.fixture
def app(databases: Databases) -> Iterator[FastAPI]:
    made = create_app(Settings(database_url=databases.copy(fill)))
    yield made
    made.state.service.served.close()
    made.state.service.store.close()


@pytest.fixture
def service(app: FastAPI) -> Service:
    made: Service = app.state.service
    return made


def shapes(found: ConfigSet) -> list[int]:
    return sorted(entry.problem.m for entry in found.entries)


def at_once(ask: Callable[[int], Any]) -> list[Any]:
    barrier = threading.Barrier(ASKING)

    def together(number: int) -> Any:
        barrier.wait()
        return ask(number)

    with ThreadPoolExecutor(ASKING) as pool:
        return list(pool.map(together, range(ASKING)))


def test_a_set_is_made_once_for_all_who_ask_at_once(
    app: FastAPI, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, keep = [], sets.keep

    def slowly(*given: Any) -> Any:
        kept.append(given)
        time.sleep(0.3)
        return keep(*given)

    monkeypatch.setattr(sets, "keep", slowly)
    http = TestClient(app, "http://localhost")
    for m in (67, 68):
        put(service.store, m)
        lookup = {**WHERE, "problems": [problem(m).to_dict()]}
        asked: list[Callable[[], Any]] = [
            lambda: http.get(CURRENT, params=WHERE).json()["entries"][-1]["problem"]["m"],
            lambda lookup=lookup: http.post("/best-config/lookup", json=lookup).json()["items"][0]["kind"],
        ]
        found = at_once(lambda number, asked=asked: asked[number % 2]())
        assert found == [m, "exact"] * (ASKING // 2)
    assert len(kept) == 2


def test_clients_that_wait_for_a_set_leave_the_threads_to_others(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    making, answered, keep = threading.Event(), threading.Event(), sets.keep

    def held_up(*given: Any) -> Any:
        making.set()
        assert answered.wait(20)
        return keep(*given)

    monkeypatch.setattr(sets, "keep", held_up)

    async def ask() -> list[int]:
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
            waiting = [asyncio.create_task(http.get(CURRENT, params=WHERE)) for _ in range(100)]
            await asyncio.to_thread(making.wait, 20)
            listed = await asyncio.wait_for(http.get("/best-config", params=WHERE), 10)
            answered.set()
            return [reply.status_code for reply in (listed, *await asyncio.gather(*waiting))]

    assert asyncio.run(ask()) == [200] * 101


def test_others_are_answered_between_those_who_waited_for_a_set(
    app: FastAPI, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, made = service.served.current(HOST_CLASS), Future[LoadedSet]()
    monkeypatch.setattr(ServedSets, "look", lambda *_: made)
    monkeypatch.setattr(ServedSets, "known", lambda *_: None)

    async def ask() -> int:
        """How many are answered between two moments at which others are."""
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
            waiting = [asyncio.create_task(http.get(CURRENT, params=WHERE)) for _ in range(100)]
            await asyncio.sleep(0.5)
            made.set_result(loaded)
            answered = [0]
            while answered[-1] < len(waiting):
                await asyncio.sleep(0)
                answered.append(sum(one.done() for one in waiting))
            assert {one.result().status_code for one in waiting} == {200}
            return max(after - before for before, after in itertools.pairwise(answered))

    assert asyncio.run(ask()) < 10


def test_a_look_that_began_before_a_change_is_not_shared(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, served = threading.Event(), threading.Event(), sets.served

    def held_up(*given: Any) -> Any:
        found = served(*given)
        begun.set()
        assert go_on.wait(20)
        return found

    monkeypatch.setattr(sets, "served", held_up)
    first = service.served.look(HOST_CLASS)
    assert begun.wait(20)
    put(service.store, 67)
    second, third = (service.served.look(HOST_CLASS) for _ in range(2))
    go_on.set()
    assert first.result() is not second.result() is third.result()
    assert shapes(second.result().config_set) == [64, 65, 66, 67]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many winners each look has read."""
    read, of_ids = list[int](), winners.of_ids

    def told(session: Any, ids: Any) -> Any:
        read.append(len(ids))
        return of_ids(session, ids)

    monkeypatch.setattr(winners, "of_ids", told)
    return read


def test_only_winners_that_changed_are_read_again(service: Service, read: list[int]) -> None:
    service.served.current(HOST_CLASS)
    put(service.store, 65, speedup=3.0, speedup_low=2.5, speedup_high=3.5)
    put(service.store, 67)
    assert service.served.catalog(HOST_CLASS).lookup(problem(67), MatchLimits()).kind == "exact"
    assert shapes(service.served.current(HOST_CLASS).config_set) == [64, 65, 66, 67]
    assert read == [3, 2]
    change(service, "delete", 64, 0.0)
    assert service.served.catalog(HOST_CLASS).lookup(problem(64), MatchLimits()).kind != "exact"
    assert read == [3, 2, 0]


def test_a_winner_that_cannot_be_read_is_not_read_again_and_again(service: Service, read: list[int]) -> None:
    with service.store.begin() as session:
        (found,) = winners.exact(session, HOST_CLASS, problem(64))
        session.execute(update(BestConfigRow).where(BestConfigRow.id == found.id).values(config={}))
    assert shapes(service.served.current(HOST_CLASS).config_set) == [65, 66]
    put(service.store, 67)
    assert shapes(service.served.current(HOST_CLASS).config_set) == [65, 66, 67]
    assert read == [3, 1]


def test_a_service_that_starts_reads_what_changed_since_the_latest_set(
    databases: Databases, read: list[int]
) -> None:
    url = databases.copy(fill)
    for m, expected in ((67, [3]), (68, [3, 1, 1])):
        app = create_app(Settings(database_url=url))
        service: Service = app.state.service
        if m == 68:
            put(service.store, 67)
        assert service.served.catalog(HOST_CLASS).lookup(problem(m - 1), MatchLimits()).kind == "exact"
        if m == 68:
            put(service.store, 68)
            assert shapes(service.served.current(HOST_CLASS).config_set) == [64, 65, 66, 67, 68]
        else:
            service.served.current(HOST_CLASS)
        assert read == expected
        service.served.close()
        service.store.close()


def test_a_service_starts_where_the_latest_set_was_just_pruned(service: Service) -> None:
    service.served.current(HOST_CLASS)
    with service.store.read() as session:
        served = sets.served(session, HOST_CLASS)
    pruned = dataclasses.replace(served, latest=f"sha256:{'0' * 64}")
    started = ClassWinners(service.store, service.quality, HOST_CLASS, service.served.loaded)
    assert started.catalog(pruned).lookup(problem(64), MatchLimits()).kind == "exact"


@pytest.mark.parametrize("step", ["pack", "keep"])
def test_a_lookup_does_not_wait_for_a_set(
    app: FastAPI, service: Service, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """And shows what was committed since the set was begun."""
    making, go_on, work = threading.Event(), threading.Event(), getattr(sets, step)

    def held_up(*given: Any) -> Any:
        making.set()
        assert go_on.wait(20)
        return work(*given)

    monkeypatch.setattr(sets, step, held_up)
    http, asked = TestClient(app, "http://localhost"), WHERE | problem(67).to_dict()
    made = service.served.look(HOST_CLASS)
    assert making.wait(20)
    assert http.get("/best-config", params=asked).status_code == 404
    put(service.store, 67)
    for median in (10.0, 9.0):
        put(service.store, 67, timing=dataclasses.replace(best(problem(67)).timing, median_us=median))
        assert http.get("/best-config", params=asked).json()["timing"]["median_us"] == median
    looked_up = http.post("/best-config/lookup", json=WHERE | {"problems": [problem(67).to_dict()]})
    assert looked_up.json()["items"][0]["entry"]["median_us"] == 9.0
    go_on.set()
    assert shapes(made.result().config_set) == [64, 65, 66]
    assert shapes(service.served.current(HOST_CLASS).config_set) == [64, 65, 66, 67]


def test_an_estimate_for_a_set_does_not_replace_that_of_a_lookup_of_later_winners(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "_LOOKUP_PERCENT", 60)
    figures = iter([0.01, 0.02, 0.03, 0.04])

    def regret() -> float:
        return service.served.catalog(HOST_CLASS).lookup(problem(100), NEAR).expected_regret

    def estimate(*_: object) -> list[RegretBand]:
        figure = next(figures)
        if figure == 0.02:  # that of the set
            for m in (67, 68):
                put(service.store, m)
            assert regret() == 0.03
        return [RegretBand(4.0, figure, figure, 3)]

    monkeypatch.setattr(neighbours, "estimate", estimate)
    assert regret() == 0.01
    put(service.store, 65)
    assert regret() == 0.01
    assert service.served.current(HOST_CLASS).config_set.near[0].expected == 0.02
    assert regret() == 0.03
    for m in (64, 65, 66):
        put(service.store, m)
    assert regret() == 0.04, "after as many changes as ever"


def test_what_is_derived_from_winners_is_made_again_once_they_change(service: Service) -> None:
    counted = list[str]()

    def count(session: Session, target: str) -> int:
        counted.append(target)
        return winners.count(session, target)

    counts = service.served.derived(count)
    with service.store.begin() as session:
        there = dataclasses.replace(PROVENANCE, device_class=OTHER_CLASS)
        winners.put(session, dataclasses.replace(best(problem(64), OTHER_HOST), provenance=there))
    assert [counts(name) for name in (HOST_CLASS, HOST_CLASS, OTHER_CLASS)] == [3, 3, 1]
    assert counted == [HOST_CLASS, OTHER_CLASS]
    put(service.store, 67)
    assert [counts(name) for name in (HOST_CLASS, HOST_CLASS, OTHER_CLASS)] == [4, 4, 1]
    assert counted == [HOST_CLASS, OTHER_CLASS, HOST_CLASS], "no other class"
    service.served.catalog(HOST_CLASS)
    service.served.current(HOST_CLASS)
    assert counts(HOST_CLASS) == 4
    assert len(counted) == 3, "what a near match costs is no matter"
    with service.store.begin() as session:
        imports.remove_best(session, HOST_CLASS, problem(67))
    assert counts(HOST_CLASS) == 3


def pinned(service: Service) -> str:
    """Pin what is served now; its digest."""
    digest = service.served.current(HOST_CLASS).digest
    with service.store.begin() as session:
        sets.pin(session, HOST_CLASS, digest)
    return digest


def kind(service: Service, m: int, target: str = HOST_CLASS) -> str:
    (found,) = service.served.select(target, [problem(m)], MatchLimits())
    return found.result.kind


@pytest.mark.parametrize(
    "remove",
    [
        lambda session, of: imports.remove_best(session, HOST_CLASS, of),
        lambda session, of: imports.remove_best(session, HOST.arch, of),
        imports.remove_served,
    ],
)
def test_a_pinned_set_does_not_serve_what_was_deleted_after_its_winner_was_replaced(
    service: Service, remove: Callable[[Session, Any], object]
) -> None:
    pinned(service)
    later = artifact(b"\x7fELF\0later")
    with service.store.begin() as session:
        entities.put_artifact(session, later)
    put(service.store, 65, artifact=later.digest)
    assert kind(service, 65) == "exact"
    with service.store.begin() as session:
        remove(session, problem(65))
    assert kind(service, 65) == "vendor"
    assert shapes(service.served.current(HOST_CLASS).config_set) == [64, 66]
    with service.store.read() as session:
        (told,) = [one for one in audit.listing(session) if one.action == audit.Action.UNPIN_SET]
    assert (told.who, told.target) == (audit.SERVICE, HOST_CLASS)


def test_a_delete_leaves_pins_of_other_problems_and_classes(service: Service) -> None:
    digest = pinned(service)
    later = artifact(b"\x7fELF\0later")
    with service.store.begin() as session:
        entities.put_artifact(session, later)
        winners.put(session, dataclasses.replace(best(problem(65), OTHER_HOST), artifact=later.digest))
    put(service.store, 67, artifact=later.digest)
    with service.store.begin() as session:
        imports.remove_best(session, HOST_CLASS, problem(67))
        imports.remove_best(session, OTHER_CLASS, problem(65))
        assert sets.served(session, HOST_CLASS).pinned == digest


def test_what_only_a_pinned_set_serves_can_be_deleted(service: Service) -> None:
    digest = pinned(service)
    with service.store.begin() as session:
        imports.remove_best(session, HOST_CLASS, problem(65))
        sets.pin(session, HOST_CLASS, digest)
    assert kind(service, 65) == "exact"
    with service.store.begin() as session:
        assert imports.remove_best(session, HOST_CLASS, problem(65)).best == 0
    assert kind(service, 65) == "vendor"
    with service.store.begin() as session, pytest.raises(StoreError, match="has no winner"):
        imports.remove_best(session, HOST_CLASS, problem(65))


def test_a_problem_that_only_a_pinned_set_serves_can_be_deleted(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "_NOTE_AFTER_S", 60.0)  # what is noted as stale names the problem again
    digest, of = pinned(service), problem(65)
    assert staging.remove_problem(service.store, of, "me") == RecordCounts(best=1)
    with service.store.begin() as session:
        sets.pin(session, HOST_CLASS, digest)
        assert entities.find_problem(session, of) is None
    assert kind(service, 65) == "exact"
    assert staging.remove_problem(service.store, of, "me") == RecordCounts()
    assert kind(service, 65) == "vendor"
    with pytest.raises(StoreError, match="has no results here"):
        staging.remove_problem(service.store, of, "me")


def test_a_pinned_set_whose_trials_and_winners_were_deleted_is_unpinned_by_its_configs(
    service: Service,
) -> None:
    digest = pinned(service)
    for m in (64, 65, 66):
        staging.remove_problem(service.store, problem(m), "me")
    with service.store.begin() as session:
        sets.pin(session, HOST_CLASS, digest)
    other = dataclasses.replace(PROVENANCE, source_digest="c" * 64)
    for of, was, served_on in ((99, PROVENANCE, True), (16, other, True), (16, PROVENANCE, False)):
        broken = dataclasses.replace(
            failed_trial(0), config=config(of), provenance=was, artifact="b" * 64, own_fault=True
        )
        with service.store.begin() as session:
            assert quarantine.put(session, broken, quarantine.Evidence(problem(128), None, "host"))
            assert (sets.served(session, HOST_CLASS).pinned == digest) is served_on
    assert kind(service, 65) == "vendor"


@pytest.mark.parametrize("content", [b"{}", b"no JSON", None])
def test_a_damaged_pinned_set_does_not_keep_a_config_out_of_quarantine(
    service: Service, content: bytes | None
) -> None:
    digest = pinned(service)
    packed = b"no zlib" if content is None else sets.pack(content)
    broken = dataclasses.replace(failed_trial(0), config=config(99), provenance=PROVENANCE)
    with service.store.begin() as session:
        session.execute(update(ConfigSetRow).values(content=packed))
        assert quarantine.put(session, broken, quarantine.Evidence(problem(128), None, "host"))
        assert sets.served(session, HOST_CLASS).pinned == digest


def test_a_pinned_set_answers_also_once_its_class_has_no_winner(app: FastAPI, service: Service) -> None:
    digest = service.served.current(HOST_CLASS).digest
    for m in (64, 65, 66):
        with service.store.begin() as session:
            imports.remove_best(session, HOST_CLASS, problem(m))
    assert [kind(service, 64, target) for target in (HOST_CLASS, HOST.arch)] == ["vendor"] * 2
    with service.store.begin() as session:
        sets.pin(session, HOST_CLASS, digest)
    assert TestClient(app, "http://localhost").get(CURRENT, params=WHERE).json()["digest"] == digest
    assert [kind(service, 64, target) for target in (HOST_CLASS, HOST.arch)] == ["exact"] * 2
    with service.store.begin() as session:
        assert sets.classes(session)[HOST_CLASS][0] == HOST.arch
        sets.pin(session, HOST_CLASS, None)
        assert HOST_CLASS not in sets.classes(session)
    assert kind(service, 64) == "vendor"


def test_nothing_that_is_derived_is_lost_to_made_up_classes(service: Service) -> None:
    derived = list[str]()
    lengths = service.served.derived(lambda _, target: derived.append(target) or len(target))
    for name in (HOST_CLASS, *(f"sm_90-{number}" for number in range(100)), HOST_CLASS):
        assert lengths(name) == len(name)
    assert derived.count(HOST_CLASS) == 1


def test_what_is_derived_is_kept_of_all_classes(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    there = {f"sm_90-{number}": ("sm_90", sets.ServedSetRecord(1)) for number in range(100)}
    monkeypatch.setattr(sets, "classes", lambda _: there)
    derived = list[str]()
    lengths = service.served.derived(lambda _, target: derived.append(target) or len(target))
    for _ in range(2):
        assert [lengths(name) for name in there] == [len(name) for name in there]
    assert derived == list(there)


def test_what_many_want_derived_at_once_is_derived_once(service: Service) -> None:
    derived = list[str]()

    def slowly(session: Session, target: str) -> int:
        derived.append(target)
        time.sleep(0.2)
        return winners.count(session, target)

    counts = service.served.derived(slowly)
    for times, m in ((1, 67), (2, 68)):
        put(service.store, m)
        assert at_once(lambda _: counts(HOST_CLASS)) == [times + 3] * ASKING
        assert derived == [HOST_CLASS] * times


def test_reports_of_misses_read_winners_only_for_an_estimate_after_they_changed(
    app: FastAPI, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, headlines = list[Any](), lists.headlines
    monkeypatch.setattr(lists, "headlines", lambda *given: looks.append(given) or headlines(*given))
    http = TestClient(app, "http://localhost")

    def report(m: int, **measured: float) -> None:
        body = {**WHERE, "misses": [{"m": m, "n": 8, "k": 8, "dtype": "float32", **measured}]}
        assert http.post("/misses", json=body).status_code == 202

    report(1, vendor_us=2.0)
    assert looks == []
    for m in (2, 3, 4):
        report(m)
    assert len(looks) == 1
    twice = dataclasses.replace(best(problem(65)).baseline, median_us=1.25)
    put(service.store, 65, baseline=twice)
    for m in (5, 6):
        report(m)
    assert len(looks) == 2
    listed = {one["problem"]["m"]: one["time_us"] for one in http.get("/misses").json()["items"]}
    assert listed[5] / 5 == pytest.approx(listed[4] / 4 / 2, rel=0.1), "as fast as the latest winner tells"


def test_a_scrape_reads_winners_only_after_they_changed(
    app: FastAPI, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, asked, health = list[str](), list[object](), type(service.engine).health

    def reads(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "best_config.provenance" in statement:
            read.append(statement)

    event.listen(service.store.engine, "before_cursor_execute", reads)
    monkeypatch.setattr(type(service.engine), "health", lambda self: asked.append(1) or health(self))
    http = TestClient(app, "http://localhost")
    for m, times in ((66, 1), (67, 2)):
        put(service.store, m)
        read.clear()
        for _ in range(2):
            told = http.get("/metrics").text
            assert f'tilewright_stale_entries{{reason="source-changed"}} {m - 63}.0' in told
        assert len(read) == 1
        assert len(asked) == 2 * times, "once a scrape"


def test_the_first_lookups_read_the_winners_once(service: Service, read: list[int]) -> None:
    found = at_once(lambda _: service.served.catalog(HOST_CLASS).lookup(problem(64), MatchLimits()).kind)
    assert found == ["exact"] * ASKING
    assert read == [3]


def fails(*_: object) -> Any:
    raise StoreError("the database is gone")


class Held:
    """Work that waits to be let go on."""

    def __init__(self, work: Callable[..., Any], which: Callable[..., bool] = lambda *_: True) -> None:
        self.begun, self.go_on, self._work, self._which = threading.Event(), threading.Event(), work, which

    def __call__(self, *given: Any) -> Any:
        if self._which(*given):
            self.begun.set()
            assert self.go_on.wait(20)
        return self._work(*given)


def test_lookups_go_on_while_winners_are_judged_anew(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(m: int) -> str:
        entry = service.served.catalog(HOST_CLASS).lookup(problem(m), MatchLimits()).entry
        return entry.staleness if entry else "none"

    assert told(64) == "source-changed"
    monkeypatch.setattr(ResultQuality, "state", lambda *_: "another driver")
    monkeypatch.setattr(ResultQuality, "staleness_of", lambda *_: "driver-changed")
    held = Held(winners.of_ids, lambda _session, ids: len(ids) > 1)
    monkeypatch.setattr(winners, "of_ids", held)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(told, 64)
        assert held.begun.wait(20)
        assert told(64) == "source-changed"
        put(service.store, 67)
        assert told(67) == "driver-changed", "also what was committed since"
        held.go_on.set()
        assert reading.result(20) == "driver-changed"
    assert [told(m) for m in (64, 65, 66, 67)] == ["driver-changed"] * 4


def test_lookups_go_on_while_the_regret_is_estimated(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kind(m: int) -> str:
        return service.served.catalog(HOST_CLASS).lookup(problem(m), MatchLimits()).kind

    assert kind(64) == "exact"
    held = Held(neighbours.estimate)
    monkeypatch.setattr(neighbours, "estimate", held)
    put(service.store, 67)
    with ThreadPoolExecutor(1) as pool:
        estimating = pool.submit(kind, 67)
        assert held.begun.wait(20)
        put(service.store, 68)
        assert [kind(m) for m in (67, 68)] == ["exact", "exact"]
        held.go_on.set()
        assert estimating.result(20) == "exact"


@pytest.fixture
def told(app: FastAPI) -> Callable[[int], str]:
    """The staleness that a lookup by HTTP tells of the winner of an m."""
    http = TestClient(app, "http://localhost")

    def of(m: int) -> str:
        staleness: str = http.get("/best-config", params=WHERE | problem(m).to_dict()).json()["staleness"]
        return staleness

    return of


@pytest.mark.parametrize("work", [winners.of_ids, fails])
def test_no_answer_stays_from_before_winners_were_judged_anew(
    told: Callable[[int], str], monkeypatch: pytest.MonkeyPatch, work: Callable[..., Any]
) -> None:
    assert [told(m) for m in (64, 65, 64)] == ["source-changed"] * 3
    with monkeypatch.context() as patched, ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(ResultQuality, "state", lambda *_: "another driver")
        monkeypatch.setattr(ResultQuality, "staleness_of", lambda *_: "driver-changed")
        held = Held(work, lambda _session, ids: len(ids) > 1)
        patched.setattr(winners, "of_ids", held)
        reading = pool.submit(told, 65)
        assert held.begun.wait(20)
        assert [told(64), told(64)] == ["source-changed"] * 2
        held.go_on.set()
        assert (reading.exception(20) is None) == (work is not fails)
    assert [told(m) for m in (64, 65, 64)] == ["driver-changed"] * 3


@pytest.fixture
def regret(service: Service, monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    """What lookups expect a near match to cost; it is estimated at a percent for each winner."""

    def estimate(_session: Session, _device_class: str, found: Iterable[object]) -> list[RegretBand]:
        figure = len(list(found)) / 100
        return [RegretBand(4.0, figure, figure, 3)]

    monkeypatch.setattr(neighbours, "estimate", estimate)
    return lambda: service.served.catalog(HOST_CLASS).lookup(problem(100), NEAR).expected_regret


def test_winners_that_change_during_an_estimate_are_estimated_after_it(
    service: Service, regret: Callable[[], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert regret() == 0.03
    held = Held(neighbours.estimate)
    monkeypatch.setattr(neighbours, "estimate", held)
    put(service.store, 67)
    with ThreadPoolExecutor(1) as pool:
        estimating = pool.submit(regret)
        assert held.begun.wait(20)
        put(service.store, 68)
        assert regret() == 0.03
        held.go_on.set()
        assert estimating.result(20) == regret() == 0.05


def test_lookups_go_on_after_an_estimate_that_failed_and_make_it_a_minute_later(
    service: Service, regret: Callable[[], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert regret() == 0.03
    put(service.store, 67)
    tried = list[object]()

    def failing(*given: object) -> NoReturn:
        tried.append(given)
        raise StoreError("damaged")

    with monkeypatch.context() as patched:
        patched.setattr(neighbours, "estimate", failing)
        assert [regret() for _ in range(3)] == [0.03] * 3
        assert len(tried) == 1
    assert regret() == 0.03
    now = time.monotonic()
    monkeypatch.setattr("service.results.snapshots.time.monotonic", lambda: now + 61.0)
    assert regret() == 0.04


def test_no_answer_of_another_judgement_is_left_when_the_first_one_is_back(
    app: FastAPI, told: Callable[[int], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [told(m) for m in (65, 66, 65)] == ["source-changed"] * 3
    TestClient(app, "http://localhost").get(CURRENT, params=WHERE)  # which makes the set
    held = Held(winners.of_ids, lambda _session, ids: len(ids) > 1)
    with monkeypatch.context() as patched, ThreadPoolExecutor(1) as pool:
        patched.setattr(ResultQuality, "state", lambda *_: "another driver")
        patched.setattr(ResultQuality, "staleness_of", lambda *_: "driver-changed")
        patched.setattr(winners, "of_ids", held)
        reading = pool.submit(told, 65)
        assert held.begun.wait(20)
        assert told(64) == "driver-changed"
        held.go_on.set()
        assert reading.result(20) == "driver-changed"
    assert [told(m) for m in (64, 65, 64)] == ["source-changed"] * 3


def test_nothing_is_kept_of_a_class_that_a_caller_made_up(app: FastAPI, service: Service) -> None:
    for name in ("sm_90-1", "sm_90-2"):
        answer = TestClient(app, "http://localhost").get(CURRENT, params={"device_class": name})
        assert answer.status_code == 404
    assert service.served._winners == {}


@pytest.mark.parametrize("tag", ["known", "other"])
def test_an_unchanged_set_costs_no_transaction(
    sqlite_databases: Databases, monkeypatch: pytest.MonkeyPatch, tag: str
) -> None:
    """On SQLite, which tells cheaply that nothing was committed."""
    monkeypatch.setattr(
        ResultQuality, "staleness_of", lambda *_: "fresh"
    )  # else stale winners are noted meanwhile
    app = create_app(Settings(database_url=sqlite_databases.copy(fill)))
    service: Service = app.state.service
    http = TestClient(app, "http://localhost")
    for _ in range(2):  # the first one commits the set
        digest = http.get(CURRENT, params=WHERE).json()["digest"]
    begun: list[object] = []
    event.listen(service.store.engine, "begin", begun.append)
    held = {"If-None-Match": f'"{digest}"' if tag == "known" else '"other"'}
    assert http.get(CURRENT, params=WHERE, headers=held).status_code == (304 if tag == "known" else 200)
    assert begun == []
    service.served.close()
    service.store.close()


def test_stale_results_of_a_set_are_noted_later_and_some_at_a_time(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, that held up those who waited for the set, and lookups."""
    seen = list[object]()
    monkeypatch.setattr(served, "_NOTED_AT_ONCE", 2)
    monkeypatch.setattr(service.served._closed, "wait", lambda _: seen.append("a pause"))
    monkeypatch.setattr(StaleResults, "served", lambda _, stale: seen.append(len(stale)))
    service.served.current(HOST_CLASS)
    service.served._noting.shutdown()
    assert seen == ["a pause", 2, "a pause", 1]


def test_a_service_that_stops_does_not_wait_for_what_is_noted_later(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "_NOTE_AFTER_S", 60.0)
    service.served.current(HOST_CLASS)
    started = time.monotonic()
    service.served.close()
    assert time.monotonic() - started < 30.0


CHANGES = st.one_of(
    st.tuples(st.just("put"), st.integers(64, 70), st.sampled_from([1.0, 1.5, 2.0])),
    st.tuples(st.just("delete"), st.integers(64, 70), st.just(0.0)),
    st.tuples(st.just("repeat"), st.integers(64, 70), st.sampled_from([0.0, 1.0])),
    st.tuples(st.just("damage"), st.integers(64, 70), st.just(0.0)),
    st.tuples(st.sampled_from(["withdraw", "release"]), st.sampled_from([64, 65]), st.just(0.0)),
    st.tuples(st.sampled_from(["look up", "restart"]), st.just(0), st.just(0.0)),
)


def change(service: Service, kind: str, m: int, value: float) -> None:
    if kind == "put":
        low, high = value - 0.1, value + 0.1
        of = {"speedup": value, "speedup_low": low, "speedup_high": high, "config": config(m % 2)}
        put(service.store, m, **of)
    elif kind == "look up":
        service.served.catalog(HOST_CLASS)
    elif kind == "restart":
        service.served._winners.clear()
    else:
        with service.store.begin() as session:
            _change(session, kind, m, value)


def _change(session: Session, kind: str, m: int, value: float) -> None:
    lock_results(session)
    broken = dataclasses.replace(failed_trial(0), config=config(m % 2), provenance=PROVENANCE)
    if kind == "delete":
        with contextlib.suppress(StoreError):  # there is none
            imports.remove_best(session, HOST_CLASS, problem(m))
    elif kind == "withdraw":
        quarantine.put(session, broken, quarantine.Evidence(problem(64), None, "host"))
    elif kind == "release":
        for entry in quarantine.listing(session):
            if entry.config == broken.config:
                quarantine.release(session, entry.id)
    else:
        mine = BestConfigRow.id.in_([one.id for one in winners.exact(session, HOST_CLASS, problem(m))])
        values: dict[str, Any] = {"config": {}} if kind == "damage" else {"repeatable": bool(value)}
        session.execute(update(BestConfigRow).where(mine).values(values))
        sets.changed(session, HOST_CLASS, mine)


@pytest.fixture(scope="module")
def lasting(sqlite_databases: Databases) -> Iterator[Service]:
    app = create_app(Settings(database_url=sqlite_databases.copy(fill)))
    put(app.state.service.store, 1)  # is never deleted
    yield app.state.service
    app.state.service.served.close()
    app.state.service.store.close()


def damaged(digest: str) -> LoadedSet:
    """Has all winners be read, none taken from a set."""
    raise ArtifactError(digest)


@pytest.mark.long
@settings(max_examples=50, deadline=None)
@given(rounds=st.lists(st.lists(CHANGES, min_size=1, max_size=3), min_size=1, max_size=6))
@example(rounds=[[("damage", 64, 0.0)], [("restart", 0, 0.0), ("look up", 0, 0.0), ("delete", 66, 0.0)]])
def test_a_set_made_of_what_changed_is_the_one_made_of_everything(
    lasting: Service, rounds: list[list[tuple[str, int, float]]]
) -> None:
    quality: ResultQuality = lasting.quality
    for changes in rounds:
        for one in changes:
            change(lasting, *one)
        found = lasting.served.current(HOST_CLASS)
        afresh = ClassWinners(lasting.store, quality, HOST_CLASS, damaged)
        assert found.digest == afresh.make().config_set.digest
        live, of_set = lasting.served.catalog(HOST_CLASS), Catalog.of(found.config_set)
        for m in range(63, 72):
            assert live.lookup(problem(m), NEAR) == of_set.lookup(problem(m), NEAR)
        sent = ConfigSet.from_bytes(sets.unpack(found.packed), found.digest)
        assert sent == dataclasses.replace(found.config_set, created_at=sent.created_at)


def test_a_set_whose_kernels_were_deleted_is_neither_pinned_nor_sent_in_part(
    app: FastAPI, service: Service
) -> None:
    """Clients would be served a set that they cannot load."""
    kernel, http = artifact(b"of an import"), TestClient(app, "http://localhost")
    with service.store.begin() as session:
        imports.enter(session, TRUSTED)
        entities.put_artifact_bytes(session, kernel.to_bytes(), TRUSTED.id)
        won = dataclasses.replace(best(problem(67)), artifact=kernel.digest)
        assert winners.merge(session, won, ENTERED, TRUSTED) == "in use"
    digest = http.get(CURRENT, params=WHERE).json()["digest"]
    pin, bundle = WHERE | {"digest": digest}, f"/config-sets/{digest}/bundle"
    assert (http.post(CURRENT, json=pin).status_code, http.get(bundle).status_code) == (200, 200)
    with service.store.begin() as session:
        imports.remove(session, TRUSTED.id)
    refused = (
        http.post(CURRENT, json=pin),
        http.get(bundle),
        http.post(bundle, json={"want": [artifact().digest, kernel.digest]}),
    )
    for answer in refused:
        assert answer.status_code == 404
        assert f"kernel {kernel.digest} of {digest} was deleted" in answer.json()["detail"]
    assert http.post(bundle, json={"want": [artifact().digest]}).status_code == 200
    assert shapes(service.served.current(HOST_CLASS).config_set) == [64, 65, 66]


def test_a_set_that_names_a_quarantined_kernel_is_not_pinned(app: FastAPI, service: Service) -> None:
    http = TestClient(app, "http://localhost")

    def pin(digest: str) -> httpx2.Response:
        return http.post(CURRENT, json=WHERE | {"digest": digest})

    before = http.get(CURRENT, params=WHERE).json()["digest"]
    broken = dataclasses.replace(failed_trial(0), config=best(problem(64)).config, provenance=PROVENANCE)
    with service.store.begin() as session:
        assert quarantine.put(session, broken, quarantine.Evidence(problem(64), None, "host"))
        (entry,) = quarantine.listing(session)
    refused = pin(before)
    assert refused.status_code == 404
    assert f"of {before} is quarantined; use another one" in refused.json()["detail"]
    assert f"'tilewright quarantine release {entry.id}'" in refused.json()["detail"]
    put(service.store, 64, provenance=dataclasses.replace(PROVENANCE, driver="linux 7"))
    assert pin(http.get(CURRENT, params=WHERE).json()["digest"]).status_code == 200, "a new driver is trusted"
    with service.store.begin() as session:
        assert quarantine.release(session, entry.id)
    assert pin(before).status_code == 200


def test_a_class_whose_winners_are_quarantined_leaves_the_others_alone(
    app: FastAPI, service: Service
) -> None:
    """Also where nobody was served a set of it before."""
    there = dataclasses.replace(PROVENANCE, device_class=OTHER_CLASS)
    only = dataclasses.replace(best(problem(64), OTHER_HOST), provenance=there)
    broken = dataclasses.replace(failed_trial(0), config=only.config, provenance=there)
    with service.store.begin() as session:
        winners.put(session, only)
        assert quarantine.put(session, broken, quarantine.Evidence(problem(64), None, "host"))
    http, of_64 = TestClient(app, "http://localhost"), problem(64).to_dict()
    looked_up = http.post("/best-config/lookup", json={"arch": HOST.arch, "problems": [of_64]})
    assert looked_up.status_code == 200, looked_up.text
    (found,) = looked_up.json()["items"]
    assert (found["kind"], found["device_class"]) == ("exact", HOST_CLASS)
    (alone,) = service.served.select(OTHER_CLASS, [problem(64)], MatchLimits())
    assert alone.result.kind == "vendor"
    assert http.get(CURRENT, params={"device_class": OTHER_CLASS}).json()["entries"] == []
