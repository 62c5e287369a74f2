"""Answers of ``GET /best-config`` from memory: the same as those of the store, at once after any change."""

from __future__ import annotations

import dataclasses
import gc
import json
import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

import pytest
from databases import Databases, migrate, opened
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import event
from store_samples import HOST, HOST_CLASS, artifact, best, problem, request

from service.http.deps import Service
from service.http.routes import best as best_routes
from service.results import answer_cache, snapshots
from service.server.app import create_app
from service.settings import Settings
from tilewright import trust
from tilewright.schema.config_set import RegretBand, SetEntry
from tilewright.schema.problem import GemmProblem
from tuner.job import neighbours
from tuner.store import best as winners
from tuner.store import entities, imports, jobs, sets
from tuner.store.access import keys
from tuner.store.database import Store
from tuner.store.records import StoredBest

PATH = "/best-config"
OF_64 = {"device_class": HOST_CLASS, "m": 64, "n": 64, "k": 64, "dtype": "float32", "layout": "nn"}


def put(store: Store, m: int, **changes: Any) -> None:
    with store.begin() as session:
        entities.put_artifact(session, artifact())
        winners.put(session, dataclasses.replace(best(problem(m)), **changes))


def fill(url: str) -> None:
    migrate(url)
    with opened(url) as store:
        with store.begin() as session:
            job, _ = jobs.submit(session, request(), HOST)
        put(store, 64, job_id=job.id)
        put(store, 65)


@pytest.fixture
def url(databases: Databases) -> str:
    return databases.copy(fill)


@pytest.fixture
def app(url: str) -> Iterator[FastAPI]:
    made = create_app(Settings(database_url=url))
    yield made
    made.state.service.served.close()
    made.state.service.store.close()


@pytest.fixture
def http(app: FastAPI) -> TestClient:
    return TestClient(app, base_url="http://localhost")


@pytest.fixture
def other(url: str) -> Iterator[Store]:
    """The same database by connections of another service."""
    with opened(url) as made:
        yield made


def speedup(http: TestClient, **changes: Any) -> float:
    answer = http.get(PATH, params=OF_64 | changes)
    assert answer.status_code == 200, answer.text
    value: float = answer.json()["speedup"]["value"]
    return value


def statements(app: FastAPI) -> list[str]:
    """The statements of the service from now on, but for those of its background."""
    service: Service = app.state.service
    seen = list[str]()
    event.listen(
        service.store.engine, "before_cursor_execute", lambda *given: seen.append(given[2]), retval=False
    )
    return seen


def test_what_did_not_change_is_not_asked_again(app: FastAPI, http: TestClient) -> None:
    first = http.get(PATH, params=OF_64)
    http.get(PATH, params=OF_64)  # once its staleness was noted
    seen = statements(app)
    for _ in range(5):
        again = http.get(PATH, params=OF_64)
        assert (again.content, again.headers["etag"]) == (first.content, first.headers["etag"])
    held = http.get(PATH, params=OF_64, headers={"If-None-Match": first.headers["etag"]})
    assert (held.status_code, held.content, held.headers["etag"]) == (304, b"", first.headers["etag"])
    if app.state.service.store.engine.dialect.name == "sqlite":
        assert seen == []
    else:
        assert len(seen) < 40, "a look at the versions each"


def test_an_answer_stands_while_other_winners_change(
    http: TestClient, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, exact = list[GemmProblem](), winners.exact

    def told(session: Any, target: str, of: GemmProblem) -> list[StoredBest]:
        read.append(of)
        return exact(session, target, of)

    assert [speedup(http) for _ in range(2)] == [1.25] * 2  # the first one reads the winners
    put(other, 65, speedup=9.0)
    monkeypatch.setattr(winners, "exact", told)
    assert speedup(http) == 1.25
    assert read == []
    monkeypatch.undo()
    put(other, 64, speedup=1.5, speedup_low=1.4, speedup_high=1.6)
    assert speedup(http) == 1.5


def test_each_change_shows_at_once(http: TestClient, other: Store) -> None:
    assert speedup(http) == speedup(http) == 1.25
    put(other, 64, speedup=1.5, speedup_low=1.4, speedup_high=1.6)
    assert speedup(http) == speedup(http) == 1.5
    put(other, 65, speedup=9.0)  # of another problem
    assert speedup(http) == 1.5
    pinned = http.get("/config-sets/current", params={"device_class": HOST_CLASS}).json()["digest"]
    with other.begin() as session:
        sets.pin(session, HOST_CLASS, pinned)
    assert speedup(http) == 1.5
    with other.begin() as session:
        sets.pin(session, HOST_CLASS, None)
        imports.remove_best(session, HOST_CLASS, problem())
    for _ in range(2):
        assert http.get(PATH, params=OF_64).status_code == 404
    put(other, 64, speedup=1.75)
    assert speedup(http) == 1.75


def test_a_pinned_set_whose_winner_was_replaced_is_not_answered_with_another_kernel(
    http: TestClient, other: Store
) -> None:
    served = http.get("/config-sets/current", params={"device_class": HOST_CLASS}).json()
    later = artifact(b"\x7fELF\0later")
    with other.begin() as session:
        sets.pin(session, HOST_CLASS, served["digest"])
        entities.put_artifact(session, later)
    put(other, 65, artifact=later.digest)
    assert speedup(http) == 1.25, "of the problem whose winner stands"
    problems = [OF_64 | {"m": 65}]
    for one in problems:
        del one["device_class"]
    body = {"device_class": HOST_CLASS, "problems": problems}
    (looked_up,) = http.post(f"{PATH}/lookup", json=body).json()["items"]
    assert looked_up["entry"]["artifact"] == artifact().digest
    answer = http.get(PATH, params=OF_64 | {"m": 65})
    assert answer.status_code == 404
    assert "the winner of the pinned set was replaced or deleted" in answer.json()["detail"]
    with other.begin() as session:
        sets.pin(session, HOST_CLASS, None)
    assert http.get(PATH, params=OF_64 | {"m": 65}).json()["artifact"]["digest"] == later.digest


def test_a_winner_whose_job_was_deleted_names_it_no_more(http: TestClient, other: Store) -> None:
    job_id = http.get(PATH, params=OF_64).json()["job_id"]
    assert job_id
    with other.begin() as session:
        imports.remove_jobs(session, [job_id])
    assert http.get(PATH, params=OF_64).json()["job_id"] == ""


def test_what_is_worth_another_thing_today_is_answered_anew(
    app: FastAPI, http: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert http.get(PATH, params=OF_64).json()["staleness"] == "source-changed"
    quality = app.state.service.quality
    monkeypatch.setattr(quality, "state", lambda _class: "another state")
    monkeypatch.setattr(quality, "staleness_of", lambda *_: "driver-changed")
    assert http.get(PATH, params=OF_64).json()["staleness"] == "driver-changed"


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, 200),
        ({"m": 100, "match": "nearest", "deterministic": "true"}, 404),
        ({"layout": "zz"}, 422),
        ({"dtype": "int8", "activation": "gelu"}, 422),
        ({"unknown": 1}, 422),
        ({"m": ["65", "64"]}, 422),
    ],
)
def test_an_answer_is_the_same_however_its_query_is_read(
    app: FastAPI, http: TestClient, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], status: int
) -> None:
    """The route reads a plain query for one problem itself, and leaves any other to FastAPI."""
    read, plain = list[bool](), best_routes._read

    def noted(text: bytes) -> Any:
        read.append((found := plain(text)) is not None)
        return found

    def told() -> tuple[Any, ...]:
        app.state.service.answer_cache._kept.clear()
        found = http.get(PATH, params=OF_64 | changes)
        return found.status_code, found.headers.get("etag"), found.json() | {"request_id": ""}

    with monkeypatch.context() as patched:
        patched.setattr(best_routes, "_read", noted)
        mine = told()
    monkeypatch.setattr(best_routes, "_read", lambda _: None)
    assert (mine, mine[0]) == (told(), status)
    assert read == [status != 422 and changes.get("m") != ["65", "64"]]


CURRENT = "/config-sets/current"


def test_the_current_set_is_the_same_however_its_query_is_read(http: TestClient) -> None:
    """The route reads a plain query itself, and leaves any other to FastAPI."""

    def told(device_class: str, more: str, **headers: str) -> tuple[Any, ...]:
        found = http.get(f"{CURRENT}?device_class={device_class}{more}", headers=headers)
        same = {name: text for name, text in found.headers.items() if name != "x-request-id"}
        return found.status_code, same, found.content

    def both(device_class: str, **headers: str) -> tuple[Any, ...]:
        plain, other = (told(device_class, more, **headers) for more in ("", "&"))
        assert plain[:2] == other[:2]
        assert plain[0] >= 400 or plain[2] == other[2]
        return plain

    status, headers, content = both(HOST_CLASS, **{"Accept-Encoding": "identity"})
    assert (status, [one["problem"]["m"] for one in json.loads(content)["entries"]]) == (200, [64, 65])
    assert {trust.HEADER, trust.SERVED_HEADER} <= {name.title() for name in headers}
    assert both(HOST_CLASS, **{"Accept-Encoding": "deflate"})[1]["content-encoding"] == "deflate"
    assert both(HOST_CLASS, **{"If-None-Match": headers["etag"]})[0] == 304
    assert [both(wrong)[0] for wrong in ("sm_90-none", "a" * 129, "")] == [404, 422, 422]


@pytest.mark.parametrize(("path", "query"), [(PATH, OF_64), (CURRENT, {"device_class": HOST_CLASS})])
def test_what_is_remembered_needs_its_key_too(
    http: TestClient, other: Store, path: str, query: dict[str, Any]
) -> None:
    assert http.get(path, params=query).status_code == 200
    with other.begin() as session:
        record, key = keys.create(session, "me", frozenset({"read"}))
    http.app.state.gate._open_until = 0.0  # type: ignore[attr-defined]
    assert http.get(path, params=query).status_code == 401
    held = {"Authorization": f"Bearer {key}"}
    assert http.get(path, params=query, headers=held).status_code == 200
    assert http.get(path, params=query, headers={"Host": "evil.example"}).status_code == 421
    with other.begin() as session:
        keys.revoke(session, record.id)
    http.app.state.gate._known.clear()  # type: ignore[attr-defined]
    assert http.get(path, params=query, headers=held).status_code == 401


def test_as_many_answers_are_kept_as_may(
    app: FastAPI, http: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = app.state.service.answer_cache
    assert [speedup(http, max_regret=0.0) for _ in range(2)] == [1.25] * 2  # the first one reads the winners
    monkeypatch.setattr(answer_cache, "_MOST_BYTES", 3 * kept._bytes + 100)
    for number in range(8):
        assert speedup(http, max_regret=number / 100) == 1.25
        assert len(kept._kept) == min(3, number + 1)
        assert b"max_regret=%s" % str(number / 100).encode() in list(kept._kept)[-1], "the oldest one went"
    assert kept._bytes == sum(answer_cache._size(query, one.answer) for query, one in kept._kept.items())
    known = set(kept._kept)
    assert http.get(PATH, params=OF_64 | {"max_regret": f"0.{'0' * 512}"}).status_code == 200
    assert set(kept._kept) == known, "a long query is not kept"
    for number in range(8):
        http.get(PATH, params=OF_64 | {"device_class": f"nowhere{number}"})
    assert set(app.state.service.served._winners) == {HOST_CLASS}


def test_kept_answers_and_sets_do_not_keep_the_winners(app: FastAPI, http: TestClient) -> None:
    """A winner has all its samples: with those of stale results, answers took four times what was counted."""
    for number in range(8):
        assert http.get(PATH, params=OF_64 | {"max_regret": number / 100}).json()["staleness"] != "fresh"
    assert all(one.answer.stale for one in app.state.service.answer_cache._kept.values())
    assert http.get("/config-sets/current", params={"device_class": HOST_CLASS}).status_code == 200
    gc.collect()
    assert [one for one in gc.get_objects() if isinstance(one, StoredBest)] == []


def test_an_answer_counts_as_much_as_it_takes(http: TestClient, app: FastAPI, other: Store) -> None:
    """With what was served for its problem then: that is kept for as long as nobody asks again."""
    for _ in range(2):  # the first one reads the winners
        speedup(http)
    put(other, 64, speedup=1.5)
    speedup(http, m=65)
    service: Service = app.state.service
    (query, one), (_, last) = service.answer_cache._kept.items()
    used = {id(each) for each in reached(service.served._winners, last)}
    alone = [each for each in reached(query, one) if id(each) not in used]
    assert any(isinstance(each, SetEntry) for each in alone)
    assert sum(map(sys.getsizeof, alone)) < answer_cache._size(query, one.answer)


def reached(*roots: object) -> list[object]:
    """Data and what it refers to, but for modules, classes and functions."""
    found, left = dict[int, object](), list[object](roots)
    while left:
        one = left.pop()
        if id(one) not in found and not isinstance(one, type | ModuleType | FunctionType):
            found[id(one)] = one
            left += gc.get_referents(one)
    return list(found.values())


def test_both_ways_are_counted(http: TestClient) -> None:
    for _ in range(4):
        speedup(http)
    text = http.get("/metrics").text
    (line,) = [one for one in text.splitlines() if one.startswith('tilewright_lookup_total{arch="x86_64_v3"')]
    assert line.endswith(" 4.0")


def test_an_answer_goes_as_near_matches_cost_more(http: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a set that is made estimates it, without a change of a winner."""
    monkeypatch.setattr(snapshots, "_LOOKUP_PERCENT", 60)
    figures = iter([0.01, 0.02])

    def estimate(*_: object) -> list[RegretBand]:
        figure = next(figures)
        return [RegretBand(4.0, figure, figure, 3)]

    monkeypatch.setattr(neighbours, "estimate", estimate)
    asked = OF_64 | {"m": 100, "match": "nearest", "max_regret": 0.015}
    assert http.get(PATH, params=asked).json()["expected_regret"] == 0.01
    put(http.app.state.service.store, 65)  # type: ignore[attr-defined]
    assert http.get(PATH, params=asked).json()["expected_regret"] == 0.01
    assert http.get("/config-sets/current", params={"device_class": HOST_CLASS}).json()["near"]
    assert http.get(PATH, params=asked).status_code == 404
