"""Manners: idempotency keys, links, problem documents everywhere, request ids, logs, metrics, slow bodies."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Barrier
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from api_server import Server
from fastapi import Depends, FastAPI, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent
from fastapi.testclient import TestClient
from starlette.types import Message

from service.errors import Refusal
from service.http import conditional, deps, errors, openapi
from service.http.routes import routers
from service.server import middleware
from service.settings import Settings
from tilewright import Client, GemmProblem, wire

BODY = {"m": 8, "n": 8, "k": 8, "dtype": "float32", "layout": "nn", "max_trials": 1}
PROBLEM = "application/problem+json"


def test_a_hundred_requests_with_one_key_make_one_job(http: httpx2.Client, client: Client) -> None:
    def post(_: int) -> httpx2.Response:
        return http.post("/tune", json=BODY | {"k": 9}, headers={"Idempotency-Key": "hundred"})

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(post, range(100)))
    assert {answer.status_code for answer in answers} <= {202, 409}
    assert len({answer.json()["id"] for answer in answers if answer.status_code == 202}) == 1
    for refused in (answer for answer in answers if answer.status_code == 409):
        assert refused.json()["type"] == "urn:tilewright:problem:idempotency-in-flight"
        assert int(refused.headers["retry-after"]) > 0
    client.wait(answers[0].json()["id"] if answers[0].status_code == 202 else post(0).json()["id"])


def test_a_key_in_flight_is_refused_until_its_request_ends() -> None:
    keys = conditional.InFlight()
    with keys.claim("one"):
        with keys.claim("other"):
            pass
        with pytest.raises(Refusal) as refused, keys.claim("one"):
            pass
        assert refused.value.status_code == 409
    with keys.claim("one"):
        pass


@pytest.mark.parametrize(
    ("scope", "prefix"),
    [
        ({"client": ("10.0.0.1", 5)}, "10.0.0.1"),
        ({"client": ("fd00::1", 5)}, "fd00--1"),
        ({"client": ("10.0.0.1", 5), "key_id": "abc"}, "abc"),
        ({"client": ("127.9.9.9", 5)}, "127.0.0.1"),
        ({"client": ("::1", 5)}, "127.0.0.1"),
        ({"client": ("::ffff:127.0.0.2", 5)}, "127.0.0.1"),
        ({"client": None}, ""),
    ],
)
def test_callers_push_out_no_keys_of_others(scope: dict[str, Any], prefix: str) -> None:
    request, service = Request({"type": "http", **scope}), SimpleNamespace(in_flight=conditional.InFlight())
    assert list(deps._idempotency_key(request, service, "k:1")) == [f"{prefix}:k:1"]  # type: ignore[arg-type]


def test_links_lead_through_a_list_with_its_filters(
    tuned: wire.JobView, http: httpx2.Client, client: Client
) -> None:
    client.tune(GemmProblem(27, 16, 16, "float32"), max_trials=1)
    seen: list[str] = []
    answer = http.get("/jobs", params={"limit": 1, "status": "succeeded"})
    while True:
        assert [job["status"] for job in answer.json()["items"]] == ["succeeded"] * len(
            answer.json()["items"]
        )
        seen += [job["id"] for job in answer.json()["items"]]
        link = re.fullmatch(r'<(/jobs\?[^>]*)>; rel="next"', answer.headers.get("link", ""))
        if link is None:
            break
        assert f"cursor={answer.json()['next']}" in link[1]
        answer = http.get(link[1])
    assert seen == [job.id for job in client.jobs(wire.JobStatus.SUCCEEDED, limit=1000).items]
    assert 'rel="next"' in http.get(f"/jobs/{tuned.id}/trials", params={"limit": 1}).headers["link"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/jobs/x/y/z", 404),
        ("DELETE", "/tune", 405),
        ("PATCH", "/jobs", 405),
        ("POST", "/tune", 422),
        ("GET", "/jobs?limit=0", 422),
        ("GET", "/jobs?cursor=@", 422),
        ("GET", "/jobs/none", 422),
        ("POST", "/gemm", 415),
    ],
)
def test_every_refusal_is_a_problem_document(
    http: httpx2.Client, method: str, path: str, status: int
) -> None:
    answer = http.request(method, path, headers={"X-Request-ID": "mine-1"})
    assert (answer.status_code, answer.headers["content-type"]) == (status, PROBLEM)
    document = answer.json()
    assert document["type"].startswith("urn:tilewright:problem:")
    assert (document["status"], document["instance"]) == (status, path.partition("?")[0])
    assert document["request_id"] == answer.headers["x-request-id"] == "mine-1"
    if status == 405:
        assert answer.headers["allow"]


@pytest.mark.parametrize("path", ["/tune", "/misses", "/best-config/lookup", "/gemm/shared"])
def test_a_body_that_is_no_json_is_told_what_to_send(http: httpx2.Client, path: str) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}  # as curl -d sends it
    for headers, sent in ((form, "application/x-www-form-urlencoded"), ({}, "no Content-Type")):
        (rule,) = http.post(path, content=b'{"m": 8}', headers=headers).json()["errors"]
        assert rule["detail"] == f"sent as {sent}; send JSON with the header 'Content-Type: application/json'"
    answer = http.post(path, content=b'{"m": 8,', headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "#")
    assert re.search(r"not JSON: .* at character \d+; send one JSON object", answer.json()["detail"])


@pytest.mark.parametrize("path", ["/tune", "/misses", "/best-config/lookup", "/gemm/shared"])
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"[]", "#: must be a JSON object"),
        (b'"m"', "#: must be a JSON object"),
        (b"null", "#: must be a JSON object"),
        (b"", "#: the body is empty; send one JSON object"),
    ],
)
def test_a_body_that_is_no_object_is_told_so(
    http: httpx2.Client, path: str, content: bytes, says: str
) -> None:
    answer = http.post(path, content=content, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["detail"]) == (422, says)


def test_a_number_of_too_many_digits_is_told_so(http: httpx2.Client) -> None:
    answer = http.post(
        "/tune", content=b'{"m": ' + b"9" * 5000 + b"}", headers={"Content-Type": "application/json"}
    )
    told = "the body has a number of more than 4300 digits; send a smaller one"
    assert (answer.status_code, answer.json()["detail"]) == (400, told)


def test_head_is_among_the_methods_where_get_is(http: httpx2.Client) -> None:
    assert http.patch("/jobs").headers["allow"] == "DELETE, GET, HEAD"
    assert http.put("/tune").headers["allow"] == "POST"


def test_a_gemm_sent_as_a_form_is_told_what_to_send(http: httpx2.Client) -> None:
    answer = http.post("/gemm", content=b"x", headers={"Content-Type": "application/x-www-form-urlencoded"})
    assert "send 'Content-Type: application/vnd.safetensors' or" in answer.json()["detail"]


def test_a_path_with_a_slash_at_its_end_redirects_nowhere(http: httpx2.Client) -> None:
    """A redirect would lead to whatever name the Host header gives."""
    answer = http.get("/jobs/", headers={"Host": "localhost"})
    assert (answer.status_code, answer.headers.get("location")) == (404, None)


def test_a_request_id_is_made_where_the_given_one_is_unfit(http: httpx2.Client) -> None:
    for given in ("", "x" * 65, "a b", '"}{'):
        made = http.get("/health/live", headers={"X-Request-ID": given}).headers["x-request-id"]
        assert re.fullmatch("[0-9a-f]{16}", made)


def logged(server: Server, request_id: str) -> list[dict[str, Any]]:
    """The log's lines of a request, which are written after its answer went out."""
    until = time.monotonic() + 10.0
    found: list[dict[str, Any]] = []
    while not found and time.monotonic() < until:
        lines = [json.loads(line) for line in server.log().splitlines(keepends=True) if line.endswith("\n")]
        found = [line for line in lines if line.get("request_id") == request_id]
    return found


@pytest.mark.usefixtures("tuned")
def test_the_log_is_json_with_the_request_id_and_without_queries(server: Server, http: httpx2.Client) -> None:
    http.get("/jobs/none", params={"secret": "in-a-query"}, headers={"X-Request-ID": "find-me"})
    [found] = logged(server, "find-me")
    assert found["event"] == "request"
    assert (found["method"], found["path"], found["status"]) == ("GET", "/jobs/none", 422)
    assert found["ms"] > 0
    log = server.log()
    assert "in-a-query" not in log
    events = [json.loads(line)["event"] for line in log.splitlines()]
    assert any("tuning" in event for event in events), "the engine's own lines are JSON too"


@pytest.mark.usefixtures("tuned")
def test_the_log_has_the_beginning_of_a_long_path_and_method(server: Server, http: httpx2.Client) -> None:
    http.request("M" * 5000, f"/{'x' * 50_000}", headers={"X-Request-ID": "long-path"})
    [found] = logged(server, "long-path")
    assert (found["path"], found["method"]) == (f"/{'x' * 199}", "M" * 20)


def test_head_has_the_headers_of_get_and_no_body(tuned: wire.JobView, http: httpx2.Client) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    assert not [path for path, item in paths.items() if "head" in item]
    views = ["/", "/docs", "/openapi.json", "/nothing", "/jobs/none", f"/jobs/{tuned.id}", "/trials"]
    for path in [*(path for path, item in paths.items() if "get" in item and "{" not in path), *views]:
        get, head = http.get(path), http.head(path)
        assert (head.status_code, head.content) == (get.status_code, b""), path
        assert head.headers["content-type"] == get.headers["content-type"], path
        if path not in ("/metrics", "/"):
            assert head.headers.get("etag") == get.headers.get("etag"), path
    assert http.head("/tune").status_code == 405


def test_head_of_a_stream_without_end_ends(
    server: Server, long_job: wire.JobView, http: httpx2.Client
) -> None:
    for path in (f"/jobs/{long_job.id}/events", f"/view/jobs/{long_job.id}/live"):
        answer = http.head(path, timeout=5, headers={"X-Request-ID": f"head-{path[1:5]}"})
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert http.get("/health/live").status_code == 200
    text = http.get("/metrics").text
    seen = {"method": "HEAD", "route": "/jobs/{job_id}/events", "status": "200"}
    assert metric(text, "tilewright_http_request_duration_seconds_count", **seen) == 1
    assert "Traceback" not in server.log()


def metric(text: str, name: str, **labels: str) -> float:
    found = 0.0
    for line in text.splitlines():
        match = re.fullmatch(rf"{name}(\{{(.*)\}})? (\S+)", line)
        if match and all(f'{key}="{value}"' in (match[2] or "") for key, value in labels.items()):
            found += float(match[3])
    return found


def test_metrics_count_what_happened(tuned: wire.JobView, http: httpx2.Client, client: Client) -> None:
    http.get(f"/jobs/{tuned.id}")
    client.best_config(tuned.problem, device_class=tuned.device_class)
    arch = tuned.device_class.partition("-")[0]
    for asked in (arch, "made_up-by-a-caller"):
        http.get("/best-config", params={"arch": asked, "m": 3, "n": 3, "k": 3, "dtype": "float64"})
    text = http.get("/metrics").text
    assert metric(text, "tilewright_lookup_total", match="exact", arch=arch) >= 1
    assert metric(text, "tilewright_lookup_total", match="none", arch=arch) >= 1
    assert metric(text, "tilewright_lookup_total", match="none", arch="other") >= 1
    assert "made_up" not in text
    assert metric(text, "tilewright_db_lock_wait_seconds_count") > 4
    assert 'tilewright_stale_entries{reason="source-changed"} 0.0' in text
    assert metric(text, "tilewright_trials_total", device="host") >= 4
    assert metric(text, "tilewright_trial_device_seconds_total", device="host") > 0
    assert metric(text, "tilewright_jobs", status="succeeded") >= 1
    assert metric(text, "tilewright_job_duration_seconds_count", status="succeeded") >= 1
    assert metric(text, "tilewright_worker_up", device="host") == 1
    assert metric(text, "tilewright_database_up") == 1
    assert metric(text, "tilewright_http_request_duration_seconds_count", status="200", method="GET") > 0
    assert metric(text, "process_resident_memory_bytes") > 0
    assert 'route="/jobs/{job_id}"' in text
    assert tuned.id not in text
    missed = {"route": "none", "status": "404"}
    before = metric(text, "tilewright_http_request_duration_seconds_count", **missed)
    http.get("/a/path/that/must/not/become/a/label")
    text = http.get("/metrics").text
    assert metric(text, "tilewright_http_request_duration_seconds_count", **missed) == before + 1
    assert "must/not" not in text


def test_large_and_lying_bodies(server: Server, http: httpx2.Client) -> None:
    assert http.post("/tune", content=b" " * (2**16 + 1)).status_code == 413
    chunked = http.post("/tune", content=iter([b" " * 2**15] * 3))
    assert (chunked.status_code, chunked.headers["content-type"]) == (413, PROBLEM)
    nested = http.post("/tune", content=b"[" * 60_000, headers={"Content-Type": "application/json"})
    assert nested.status_code in (400, 422)
    assert nested.headers["content-type"] == PROBLEM
    address = urlsplit(server.url)
    with closing(socket.create_connection((address.hostname, address.port), timeout=20)) as plain:
        plain.sendall(b"POST /tune HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n")
        assert plain.recv(12) in (b"HTTP/1.1 413", b"HTTP/1.1 400")


@pytest.mark.parametrize(
    "codings", [("gzip",), ("identity", "gzip"), ("gzip", "identity"), ("identity, gzip",)]
)
def test_a_packed_body_is_refused_whatever_header_says_so(
    http: httpx2.Client, codings: tuple[str, ...]
) -> None:
    headers = [("Content-Encoding", coding) for coding in codings]
    answer = http.post("/tune", content=b"{}", headers=[("Content-Type", "application/json"), *headers])
    assert (answer.status_code, "gzip" in answer.json()["detail"]) == (415, True)
    plain = http.post("/tune", json=BODY | {"k": 10}, headers=[("Content-Encoding", "Identity")] * 2)
    assert plain.status_code == 202


def test_a_body_that_stops_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "PATIENCE_S", 0.2)
    app = FastAPI()
    app.add_middleware(middleware.BodyLimit, settings=Settings(_env_file=None), larger={})
    errors.install(app)

    async def body(request: Request) -> bytes:
        return await request.body()

    @app.post("/")
    async def take(content: bytes = Depends(body)) -> int:
        return len(content)

    async def ask(pause: float) -> httpx2.Response:
        async def parts():
            yield b"x"
            await asyncio.sleep(pause)
            yield b"y"

        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://test") as http:
            return await http.post("/", content=parts())

    assert asyncio.run(ask(0.0)).json() == 2
    started = time.monotonic()
    stopped = asyncio.run(ask(5.0))
    assert time.monotonic() - started < 4
    assert (stopped.status_code, stopped.headers["content-type"]) == (408, PROBLEM)
    assert "after 1 bytes" in stopped.json()["detail"]


@pytest.mark.parametrize(("sent", "pause"), [(b"x", 0.1), (b"x" * 100_000, 0.1), (b"x" * 100_000, 0.0)])
def test_a_body_that_stops_or_grows_beside_its_answer_ends_it(
    monkeypatch: pytest.MonkeyPatch, sent: bytes, pause: float
) -> None:
    """Nobody can be told a refusal any more once a stream of events began."""
    monkeypatch.setattr(middleware, "PATIENCE_S", 0.2)
    app = FastAPI()
    app.add_middleware(middleware.BodyLimit, settings=Settings(_env_file=None), larger={})
    errors.install(app)

    @app.get("/", response_class=EventSourceResponse)
    async def follow() -> AsyncIterator[ServerSentEvent]:
        while True:
            yield ServerSentEvent(comment="follow")
            await asyncio.sleep(0.05)

    incoming, answers = iter((b"x", sent)), list[Message]()

    async def receive() -> Message:
        if pause:
            await asyncio.sleep(pause)
        if (part := next(incoming, None)) is None:
            await asyncio.sleep(30.0)
        return {"type": "http.request", "body": part, "more_body": True}

    async def send(message: Message) -> None:
        answers.append(message)

    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []}
    started = time.monotonic()
    asyncio.run(app(scope, receive, send))
    assert time.monotonic() - started < 4
    assert answers[0]["status"] == 200


def test_a_fault_of_the_service_says_that_the_connection_ends() -> None:
    """uvicorn closes it, and a request that is sent over it is lost."""
    app = FastAPI()
    errors.install(app)

    @app.get("/fault")
    async def fault() -> None:
        raise KeyError("on purpose")

    answer = TestClient(app, raise_server_exceptions=False).get("/fault")
    assert (answer.status_code, answer.headers["connection"]) == (500, "close")
    assert "on purpose" not in answer.text


def test_the_document_is_made_once_for_all_who_ask_at_once() -> None:
    app, together = FastAPI(), Barrier(8)
    for router in routers():
        app.include_router(router)
    openapi.install(app)

    def ask(_: int) -> Any:
        together.wait()
        return app.openapi()

    with ThreadPoolExecutor(8) as pool:
        first, *others = pool.map(ask, range(8))
    assert all(one is first for one in others)
