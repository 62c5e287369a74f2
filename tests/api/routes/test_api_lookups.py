"""Many lookups in one request, and conditional requests for winners."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest
from api_server import TUNED

from tilewright import AsyncClient, Client, GemmProblem, wire
from tilewright.config_sets.lookup import Catalog
from tilewright.errors import InvalidProblem
from tilewright.schema.match import MatchLimits

OTHER = GemmProblem(20, 24, 24, "float32", "nn")
NEVER = GemmProblem(40, 40, 40, "float64", "tt", has_bias=True)


@pytest.fixture(scope="module")
def place(tuned: wire.JobView, client: Client) -> str:
    client.tune(OTHER, max_trials=2)
    return tuned.device_class


def body(place: str, **fields: Any) -> dict[str, Any]:
    return {"device_class": place, "problems": [{"m": 8, "n": 8, "k": 8}], **fields}


def test_each_problem_has_its_answer_in_order(place: str, client: Client) -> None:
    asked = [NEVER, TUNED, OTHER, TUNED, NEVER]
    found = client.lookup_many(asked, device_class=place)
    assert [view.miss for view in found] == [True, False, False, False, True]
    for problem, view in zip(asked, found, strict=True):
        if problem is NEVER:
            assert (view.kind, view.reason, view.entry) == ("vendor", "no tuned kernel", None)
        else:
            best = client.best_config(problem, device_class=place)
            assert view.entry is not None
            assert view.entry.problem == problem
            assert view.entry.artifact == best.artifact.digest
            assert view.kind == ("vendor" if best.use_vendor else "exact")
            assert view.device_class == place


@pytest.mark.parametrize(
    "options", [{}, {"match": "nearest"}, {"match": "nearest", "max_regret": 9.0, "deterministic": True}]
)
def test_the_answers_are_those_of_a_client_with_the_set(
    place: str, client: Client, options: dict[str, Any]
) -> None:
    current = client.current_set(place)
    assert current is not None
    near = options.get("match") == "nearest"
    limits = MatchLimits(
        options.get("max_regret", 0.1) if near else None, options.get("deterministic", False)
    )
    catalog = Catalog.of(current.config_set)
    asked = [TUNED, OTHER, GemmProblem(80, 48, 32, "float32", "nn"), NEVER]
    found = client.lookup_many(asked, device_class=place, **options)
    for problem, view in zip(asked, found, strict=True):
        result = catalog.lookup(problem, limits)
        assert (view.kind, view.reason, view.entry) == (result.kind, result.reason, result.entry)
        assert (view.distance, view.expected_regret) == (result.distance, result.expected_regret)


def test_a_new_winner_is_found_at_once(place: str, client: Client) -> None:
    problem = GemmProblem(28, 24, 24, "float32", "nn")
    (before,) = client.lookup_many([problem], device_class=place)
    client.tune(problem, max_trials=2)
    (after,) = client.lookup_many([problem], device_class=place)
    assert (before.entry, before.miss) == (None, True)
    assert after.entry is not None
    assert after.entry.problem == problem


def test_an_architecture_answers_with_the_class_it_has(
    tuned: wire.JobView, place: str, client: Client
) -> None:
    assert tuned.best is not None
    by_arch = client.lookup_many([TUNED], arch=tuned.best.arch)
    assert by_arch == client.lookup_many([TUNED], device_class=place)
    (nowhere,) = client.lookup_many([TUNED], arch="sm_1")
    assert (nowhere.kind, nowhere.device_class, nowhere.miss) == ("vendor", None, True)


def test_more_problems_than_one_request_takes(server: Any, place: str) -> None:
    asked = [GemmProblem(m, 48, 32, "float32", "nn") for m in range(1, 301)]

    async def run() -> list[wire.LookupView]:
        async with AsyncClient(server.url, timeout=60.0) as client:
            return await client.lookup_many(asked, device_class=place)

    found = asyncio.run(run())
    tuned = [view.entry.problem.m for view in found if view.entry]
    assert len(found) == 300
    assert TUNED.m in tuned


@pytest.mark.parametrize(
    ("change", "status", "pointer"),
    [
        ({"problems": []}, 422, "#/problems"),
        ({"problems": [{"m": 1, "n": 1, "k": 1}] * 501}, 422, "#/problems"),
        ({"problems": [{"m": 1, "n": 1, "k": 1}, {"m": 0, "n": 1, "k": 1}]}, 422, "#/problems/1/m"),
        ({"problems": [{"m": 1, "n": 1, "k": 1, "x": 1}]}, 422, "#/problems/0/x"),
        ({"device_class": None}, 422, "#"),
        ({"max_regret": -1}, 422, "#/max_regret"),
        ({"match": "guess"}, 422, "#/match"),
        ({"unknown": 1}, 422, "#/unknown"),
    ],
)
def test_broken_bodies_are_refused(
    http: httpx2.Client, place: str, change: dict[str, Any], status: int, pointer: str
) -> None:
    answer = http.post("/best-config/lookup", json=body(place) | change)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert [item["pointer"] for item in answer.json()["errors"]] == [pointer]


def test_types_that_do_not_go_together_and_bodies_over_the_cap(http: httpx2.Client, place: str) -> None:
    wrong = {"m": 8, "n": 8, "k": 8, "dtype": "float64", "acc_dtype": "float16"}
    answer = http.post("/best-config/lookup", json=body(place, problems=[wrong]))
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:tilewright:problem:invalid-problem")
    assert answer.json()["detail"].startswith("#/problems/0: ")
    large = b'{"problems": [' + b" " * 70_000 + b"]}"
    answer = http.post("/best-config/lookup", content=large, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["type"]) == (413, "urn:tilewright:problem:body-too-large")


def test_neither_place_nor_arch_is_refused_before_it_is_sent(client: Client) -> None:
    with pytest.raises(InvalidProblem, match="arch or device_class"):
        client.lookup_many([TUNED])


@pytest.mark.parametrize("one", [True, False])
def test_winners_have_a_tag_and_304(place: str, http: httpx2.Client, one: bool) -> None:
    query: dict[str, Any] = {"device_class": place}
    if one:
        query |= {"m": 64, "n": 48, "k": 32, "dtype": "float32", "layout": "nn"}
    first = http.get("/best-config", params=query)
    tag = first.headers["etag"]
    assert first.status_code == 200
    assert first.headers["content-type"] == "application/json"
    again = http.get("/best-config", params=query, headers={"If-None-Match": tag})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    other = http.get("/best-config", params=query, headers={"If-None-Match": '"0"'})
    assert (other.status_code, other.content) == (200, first.content)


def test_the_tag_of_the_list_changes_with_its_winners(
    place: str, http: httpx2.Client, client: Client
) -> None:
    query = {"device_class": place, "limit": 1000}
    tag = http.get("/best-config", params=query).headers["etag"]
    client.tune(GemmProblem(36, 24, 24, "float32", "nn"), max_trials=2)
    assert http.get("/best-config", params=query, headers={"If-None-Match": tag}).status_code == 200


def test_a_current_set_that_is_remembered_ends_with_a_commit(
    place: str, http: httpx2.Client, client: Client
) -> None:
    """Pinning another set is seen by the very next question, also by one that would be answered 304."""
    query = {"device_class": place}
    first = http.get("/config-sets/current", params=query).headers["etag"]
    client.tune(GemmProblem(44, 24, 24, "float32", "nn"), max_trials=2)
    for _ in range(3):
        second = http.get("/config-sets/current", params=query, headers={"If-None-Match": first})
        assert second.status_code == 200
    tag = second.headers["etag"]
    held = {"If-None-Match": tag}
    for _ in range(3):
        assert http.get("/config-sets/current", params=query, headers=held).status_code == 304
    client.pin(place, first.strip('"'))
    try:
        pinned = http.get("/config-sets/current", params=query, headers=held)
        assert (pinned.status_code, pinned.headers["etag"]) == (200, first)
    finally:
        client.unpin(place)
    assert http.get("/config-sets/current", params=query, headers=held).status_code == 304
