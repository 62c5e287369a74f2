"""Misses over HTTP: reported, ranked, tuned."""

from __future__ import annotations

import asyncio

import httpx2
import pytest

from tilewright import AsyncClient, Client, GemmProblem, wire
from tilewright.errors import InvalidProblem, ServiceError
from tilewright.store_requests import Miss

OTHER = "sm_90-132sm-150gb-700w"
SMALL = GemmProblem(21, 16, 16, "float32", "nn")
LARGE = GemmProblem(22, 1600, 1600, "float32", "nn")


def test_misses_are_ranked_by_the_time_at_stake(client: Client) -> None:
    answer = client.report_misses(OTHER, [Miss(SMALL, 1000, 2.0), Miss(LARGE, 10, 100.0), Miss(SMALL, 500)])
    assert (answer.noted, answer.dropped) == (3, 0)
    small, large = client.misses(OTHER)
    # 1500 x 2 us against 10 x 100 us.
    assert (small.problem.to_problem(), small.count, small.measured) == (SMALL, 1500, True)
    assert (small.stake_s, large.stake_s) == (pytest.approx(3e-3), pytest.approx(1e-3))
    assert client.misses(OTHER, limit=1) == [small]
    assert small in client.misses(limit=1000)


def test_without_a_measured_time_the_larger_problem_has_more_at_stake(
    client: Client, tuned: wire.JobView
) -> None:
    place = tuned.device_class
    client.report_misses(place, [Miss(SMALL, 3), Miss(LARGE, 3)])
    found = client.misses(place)
    assert [item.problem.to_problem() for item in found] == [LARGE, SMALL]
    assert not any(item.measured for item in found)
    assert all(item.time_us > 0 for item in found)


def test_the_top_misses_become_jobs_and_then_no_misses(client: Client, tuned: wire.JobView) -> None:
    place = tuned.device_class
    client.report_misses(place, [Miss(SMALL, 100, 1e6), Miss(GemmProblem(1, 1, 2**30, "float64"), 1, 1e9)])
    jobs = client.tune_misses(place, 2, max_trials=2)
    assert [job.problem.to_problem() for job in jobs] == [SMALL], "what no device here computes is left out"
    again = client.tune_misses(place, 2, max_trials=2)
    assert {job.id for job in again} <= {jobs[0].id}
    client.wait(jobs[0].id)
    assert SMALL not in [item.problem.to_problem() for item in client.misses(place)]


def test_misses_of_another_device_cannot_be_tuned_here(client: Client) -> None:
    with pytest.raises(ServiceError, match="no device of class") as refused:
        client.tune_misses(OTHER)
    assert refused.value.status == 422
    with pytest.raises(InvalidProblem, match="top"):
        client.tune_misses(OTHER, 0)


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"from_misses": {}}, "#/from_misses/device_class"),
        ({"from_misses": {"device_class": "x", "top": 0}}, "#/from_misses/top"),
        ({"from_misses": {"device_class": "x"}, "m": 3}, "#/m"),
        ({"m": 0, "n": 1, "k": 1}, "#/m"),
    ],
)
def test_broken_rules_are_told_for_the_kind_of_body_meant(
    http: httpx2.Client, body: dict[str, object], pointer: str
) -> None:
    response = http.post("/tune", json=body)
    assert response.status_code == 422
    assert [item["pointer"] for item in response.json()["errors"]] == [pointer]


@pytest.mark.parametrize(
    "change",
    [{"count": 0}, {"count": 10**10}, {"vendor_us": 0}, {"vendor_us": -1}, {"nonsense": 1}, {"m": 0}],
)
def test_a_wrong_report_is_refused(http: httpx2.Client, change: dict[str, object]) -> None:
    miss = {"m": 1, "n": 1, "k": 1} | change
    response = http.post("/misses", json={"device_class": OTHER, "misses": [miss]})
    assert response.status_code == 422
    assert response.json()["errors"][0]["pointer"].startswith("#/misses/0/")


def test_impossible_types_are_refused_whole(http: httpx2.Client) -> None:
    misses = [{"m": 1, "n": 1, "k": 1}, {"m": 1, "n": 1, "k": 1, "dtype": "int32"}]
    response = http.post("/misses", json={"device_class": "nowhere", "misses": misses})
    assert response.json()["type"].endswith("invalid-problem")
    assert http.get("/misses", params={"device_class": "nowhere"}).json()["items"] == []


def test_the_async_client_does_the_same(client: Client) -> None:
    async def use() -> None:
        async with AsyncClient(str(client._http.base_url), timeout=60.0) as other:
            assert (await other.report_misses("elsewhere", [Miss(SMALL)])).noted == 1
            assert await other.misses("elsewhere") == client.misses("elsewhere")
            with pytest.raises(ServiceError):
                await other.tune_misses("elsewhere")

    asyncio.run(use())
