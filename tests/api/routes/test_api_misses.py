"""Misses over HTTP: reported, ranked, tuned."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace

import httpx2
import pytest
from api_server import Server, opened_database
from sqlalchemy import delete
from store_samples import HOST, HOST_CLASS

from service.server.app import create_app
from service.settings import Settings
from tilewright import AsyncClient, Client, GemmProblem, wire
from tilewright.errors import InvalidProblem, ServiceError
from tilewright.http.arguments import Miss
from tuner.store import misses
from tuner.store.misses import OpenMiss
from tuner.store.models import MissRow

OTHER = "sm_90-132sm-150gb-700w"
SMALL = GemmProblem(21, 16, 16, "float32", "nn")
LARGE = GemmProblem(22, 1600, 1600, "float32", "nn")


def test_misses_are_ranked_by_the_time_at_stake(client: Client) -> None:
    answer = client.report_misses(OTHER, [Miss(SMALL, 1000, 2.0), Miss(LARGE, 10, 100.0), Miss(SMALL, 500)])
    assert (answer.noted, answer.dropped) == (3, 0)
    small, large = client.misses(OTHER)
    # 1500 x 2 us against 10 x 100 us.
    assert (small.problem, small.count, small.measured) == (SMALL, 1500, True)
    assert (small.stake_s, large.stake_s) == (pytest.approx(3e-3), pytest.approx(1e-3))
    assert client.misses(OTHER, limit=1) == [small]
    assert small in client.misses(limit=1000)


def test_without_a_measured_time_the_larger_problem_has_more_at_stake(
    client: Client, tuned: wire.JobView
) -> None:
    place = tuned.device_class
    client.report_misses(place, [Miss(SMALL, 3), Miss(LARGE, 3)])
    found = [item for item in client.misses(place) if item.problem in (LARGE, SMALL)]
    assert [item.problem for item in found] == [LARGE, SMALL]
    assert not any(item.measured for item in found)
    assert all(item.time_us > 0 for item in found)


def test_the_top_misses_become_jobs_and_then_no_misses(client: Client, tuned: wire.JobView) -> None:
    place = tuned.device_class
    client.report_misses(place, [Miss(SMALL, 100, 1e6)])
    jobs = client.tune_misses(place, 1, max_trials=2)
    assert [job.problem for job in jobs] == [SMALL]
    client.wait(jobs[0].id)
    assert SMALL not in [item.problem for item in client.misses(place)]


def test_a_miss_is_not_listed_nor_tuned_twice_while_a_job_is_at_it(
    client: Client, tuned: wire.JobView, long_job: wire.JobView
) -> None:
    place = tuned.device_class
    busy = long_job.problem
    waiting = GemmProblem(23, 16, 16, "float32", "nn")
    client.report_misses(place, [Miss(busy, 1, 2e10), Miss(waiting, 1, 1e10)])
    assert client.misses(place)[0].problem == waiting
    (job,) = client.tune_misses(place, 1, max_trials=2)
    assert job.problem == waiting
    assert waiting not in [item.problem for item in client.misses(place)]
    assert waiting not in [found.problem for found in client.tune_misses(place, 1, max_trials=2)]
    cancel_all(client)
    assert waiting in [item.problem for item in client.misses(place)]


def cancel_all(client: Client) -> None:
    for job in (one for one in client.jobs().items if not one.status.final):
        client.cancel(job.id)
        client.wait(job.id)


def test_a_list_of_misses_has_pages(client: Client, http: httpx2.Client) -> None:
    place = "pages"
    client.report_misses(place, [Miss(GemmProblem(m, 8, 8), 1, 1 / 3) for m in range(1, 6)])
    whole = [item.problem.m for item in client.misses(place)]
    seen: list[int] = []
    answer = http.get("/misses", params={"device_class": place, "limit": 2})
    while True:
        seen += [item["problem"]["m"] for item in answer.json()["items"]]
        if not (cursor := answer.json()["next"]):
            break
        assert f"cursor={cursor}" in answer.headers["link"]
        answer = http.get("/misses", params={"device_class": place, "limit": 2, "cursor": cursor})
    assert seen == whole == [1, 2, 3, 4, 5]
    for cursor in ("abcd", "MQ", "bmFuIDE"):  # "1" and "nan 1" among them
        assert http.get("/misses", params={"cursor": cursor}).status_code == 422


def test_a_report_counts_once_under_one_key(client: Client, http: httpx2.Client) -> None:
    body = {"device_class": "keys", "misses": [{"m": 8, "n": 8, "k": 8, "count": 5}]}
    key = {"Idempotency-Key": "report"}
    answers = [http.post("/misses", json=body, headers=key) for _ in range(3)]
    assert [answer.json() for answer in answers] == [{"noted": 1, "dropped": 0}] * 3
    assert [item.count for item in client.misses("keys")] == [5]
    http.post("/misses", json=body)
    assert [item.count for item in client.misses("keys")] == [10]
    other = http.post("/misses", json=body | {"device_class": "others"}, headers=key)
    assert other.json()["type"] == "urn:tilewright:problem:idempotency-mismatch"


def test_the_top_misses_start_once_under_one_key(
    client: Client, http: httpx2.Client, tuned: wire.JobView
) -> None:
    place = tuned.device_class
    first, second = (GemmProblem(m, 16, 16, "float32", "nn") for m in (24, 25))
    client.report_misses(place, [Miss(first, 2, 1e11), Miss(second, 1, 1e11)])
    body = {"from_misses": {"device_class": place, "top": 1}, "max_trials": 1}

    def started(**headers: str) -> list[str]:
        answer = http.post("/tune", json=body, headers=headers)
        assert answer.status_code == 202
        return [job["id"] for job in answer.json()["items"]]

    key = {"Idempotency-Key": "top"}
    (one,) = started(**key)
    assert started(**key) == [one]
    client.wait(one)
    assert started(**key) == [one], "also after its end"
    (two,) = started()
    assert client.wait(two).problem == second
    refused = http.post("/tune", json=body | {"max_trials": 2}, headers=key)
    assert refused.json()["type"] == "urn:tilewright:problem:idempotency-mismatch"


def test_every_option_of_tune_holds_for_misses(client: Client, tuned: wire.JobView) -> None:
    place = tuned.device_class
    client.report_misses(place, [Miss(GemmProblem(26, 17, 16, "float32", "nn"), 10**9, 10**12)])
    (top,) = client.misses(place, limit=1)
    options = {"sampler": "tpe", "min_gain_per_s": 0.05, "max_trials": 2, "seed": 7, "max_seconds": 30.0}
    where = {"families": ["host"], "device": "host", "idempotency_key": "every-option"}
    (job,) = client.tune_misses(place, 1, **where, **options)
    (again,) = client.tune_misses(place, 1, **where, **options)
    assert again.id == job.id
    assert {name: getattr(job, name) for name in options} == options
    assert client.wait(job.id).problem == top.problem
    with pytest.raises(ServiceError, match="cuda:7 is not of class"):
        client.tune_misses(place, 1, device="cuda:7")


def test_misses_of_another_device_cannot_be_tuned_here(client: Client) -> None:
    with pytest.raises(ServiceError, match="no device of class") as refused:
        client.tune_misses(OTHER)
    assert refused.value.status == 422
    with pytest.raises(InvalidProblem, match="top"):
        client.tune_misses(OTHER, 0)


@pytest.mark.parametrize(
    ("family", "told"),
    [("nonsense", "there is no family nonsense; GET /families lists"), ("wgmma", "use family host, or name")],
)
def test_families_that_compute_nothing_here_are_refused_for_misses_too(
    http: httpx2.Client, tuned: wire.JobView, family: str, told: str
) -> None:
    top = {"from_misses": {"device_class": tuned.device_class, "top": 5}}
    named = {"m": 29, "n": 16, "k": 16, "dtype": "float32", "layout": "nn"}
    for body in (top, named):
        refused = http.post("/tune", json=body | {"families": ["host", family]})
        assert (refused.status_code, refused.json()["type"].rpartition(":")[2]) == (422, "unsupported")
        assert told in refused.json()["detail"]


def test_those_who_ask_for_the_top_misses_hold_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 60 each read 10,000 misses, in all threads that requests run in."""
    app = create_app(Settings(database_url=f"sqlite:///{tmp_path / 'x.db'}", cache_dir=tmp_path))
    service, go_on, begun = app.state.service, threading.Event(), list[int]()
    bench = SimpleNamespace(name="host", spec=HOST)
    service.engine.queues["host"] = SimpleNamespace(bench=bench, wake=lambda: None)

    def slow(*_: object) -> list[OpenMiss]:
        begun.append(threading.get_ident())
        assert go_on.wait(20)
        return []

    monkeypatch.setattr(misses, "top_of", slow)
    body = {"from_misses": {"device_class": HOST_CLASS}}

    async def ask() -> list[int]:
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
            waiting = [asyncio.create_task(http.post("/tune", json=body)) for _ in range(60)]
            try:
                while not begun:
                    await asyncio.sleep(0.01)
                other = await asyncio.wait_for(http.get("/jobs"), 10)
                assert len(begun) == 1, "one at a time"
            finally:
                go_on.set()
            return [answer.status_code for answer in (other, *await asyncio.gather(*waiting))]

    try:
        assert asyncio.run(ask()) == [200, *[202] * 60]
        assert len(begun) == 60
    finally:
        service.served.close()
        service.shared.close()
        service.store.close()


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
    reports = [{"m": 1, "n": 1, "k": 1}, {"m": 1, "n": 1, "k": 1, "dtype": "int32"}]
    response = http.post("/misses", json={"device_class": "nowhere", "misses": reports})
    assert response.json()["type"].endswith("invalid-problem")
    assert http.get("/misses", params={"device_class": "nowhere"}).json()["items"] == []


def test_the_async_client_does_the_same(client: Client) -> None:
    async def use() -> None:
        async with AsyncClient(client.url, timeout=60.0) as other:
            assert (await other.report_misses("elsewhere", [Miss(SMALL)])).noted == 1
            assert await other.misses("elsewhere") == client.misses("elsewhere")
            with pytest.raises(ServiceError):
                await other.tune_misses("elsewhere")

    asyncio.run(use())


def test_a_problem_over_the_limits_of_the_service_is_dropped(client: Client) -> None:
    answer = client.report_misses("limits", [Miss(SMALL), Miss(GemmProblem(2049, 8, 8, "float32", "nn"))])
    assert (answer.noted, answer.dropped) == (1, 1)
    assert [item.problem for item in client.misses("limits")] == [SMALL]


def test_problems_that_no_kernel_computes_keep_no_other_from_being_tuned(
    client: Client, server: Server, tuned: wire.JobView
) -> None:
    place, wanted = tuned.device_class, [GemmProblem(m, 16, 16, "float32", "nn") for m in (27, 28)]
    vain = [Miss(GemmProblem(m, 16, 16, "int8"), 10**9, 1e12) for m in range(1, 102)]
    named = [Miss(problem, 10**9, 1e11) for problem in wanted]
    assert client.report_misses(place, [*vain, *named]).noted == 103
    # As a service with higher limits left it.
    large = misses.Report(GemmProblem(2049, 8, 8, "float32", "nn"), 10**9, 1e12, measured=True)
    with opened_database(server) as store:
        with store.begin() as session:
            misses.note(session, place, [large], 1000)
        try:
            for problem in wanted:
                (job,) = client.tune_misses(place, 1, max_trials=1)
                assert job.problem == problem
                client.wait(job.id)
        finally:
            with store.begin() as session:
                session.execute(delete(MissRow).where(MissRow.time_us > 9e11))
