"""Limits of a small service: defaults follow them, whole numbers pass as JSON writes them, queries and ids
have their bounds, numbers and members of a query have one form, and a queue without places and an import that
cannot be kept say why."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx2
import numpy as np
import pytest
from api_server import Server, admin_key, finish, start

from service.http.views import cursor
from tilewright.http.tensors import MEDIA_TYPE, from_array, pieces

PROBLEM = {"m": 16, "n": 8, "k": 8, "dtype": "float32", "layout": "nn"}
ONES = b"".join(pieces({name: from_array(name, np.ones((2, 2), "f4")) for name in "ab"}))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = start(tmp_path_factory.mktemp("small"), max_trials=3)
    yield running
    finish(running)


@pytest.fixture(scope="module")
def http(small: Server) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=small.url, timeout=60.0) as plain:
        yield plain


def test_a_job_that_names_no_trials_has_as_many_as_it_may(http: httpx2.Client) -> None:
    answer = http.post("/tune", json=PROBLEM)
    assert (answer.status_code, answer.json()["max_trials"]) == (202, 3)
    refused = http.post("/tune", json=PROBLEM | {"max_trials": 4})
    assert (refused.status_code, refused.json()["type"]) == (422, "urn:tilewright:problem:over-limit")
    place = http.get("/devices").json()["items"][0]["device_class"]
    report = {"device_class": place, "misses": [{"problem": PROBLEM | {"m": 17}, "count": 1}]}
    http.post("/misses", json=report)
    started = http.post("/tune", json={"from_misses": {"device_class": place, "top": 1}})
    assert started.status_code == 202, started.text


@pytest.mark.parametrize(
    ("m", "status"), [("8.0", 202), ("8e0", 202), ("8.5", 422), ('"8"', 422), ("true", 422)]
)
def test_whole_numbers_pass_as_json_writes_them(http: httpx2.Client, m: str, status: int) -> None:
    body = f'{{"m": {m}, "n": 8, "k": 8, "dtype": "float32", "layout": "nn", "max_trials": 1.0}}'
    answer = http.post("/tune", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status, answer.text
    if status == 202:
        assert answer.json()["problem"]["m"] == 8


@pytest.mark.parametrize("m", ["1e300", "-1e300", "9007199254740993.0", "1e16", "NaN", "Infinity", "1e999"])
def test_numbers_that_are_no_extent_are_refused(http: httpx2.Client, m: str) -> None:
    body = f'{{"m": {m}, "n": 8, "k": 8, "dtype": "float32", "layout": "nn"}}'
    answer = http.post("/tune", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422), answer.text


def test_a_query_of_many_fields_is_refused_before_it_is_read(http: httpx2.Client) -> None:
    answer = http.get("/best-config?" + "&".join(f"a{number}=1" for number in range(101)))
    assert (answer.status_code, answer.json()["type"]) == (400, "urn:tilewright:problem:bad-request")
    assert "more than 100 fields" in answer.json()["detail"]


def test_a_refusal_lists_twenty_rules_and_counts_the_others(http: httpx2.Client) -> None:
    query = http.get("/jobs?" + "&".join(f"{'a' * 300}{number}=1" for number in range(100)))
    body = http.post("/tune", json=PROBLEM | {f"a{number}": 1 for number in range(5000)})
    for answer, more in ((query, 80), (body, 4980)):
        assert (answer.status_code, len(answer.json()["errors"])) == (422, 20)
        assert answer.json()["detail"].endswith(f"; and {more} more")
    one = http.get("/jobs?a=1").json()
    assert (len(one["errors"]), "more" in one["detail"]) == (1, False)


@pytest.mark.parametrize("number", [2**31, 10**18 - 1])
@pytest.mark.parametrize(
    "path",
    ["/config-sets", "/quarantine", "/best-config", "/misses", f"/jobs/{'0' * 32}/trials"],
)
def test_a_cursor_is_no_greater_than_the_ids_of_a_database(
    http: httpx2.Client, path: str, number: int
) -> None:
    """PostgreSQL takes no greater one for most columns."""
    place, given = "1.5 {}" if path == "/misses" else "{}", {"arch": "sm_90"} if "best" in path else {}
    answer = http.get(path, params=given | {"cursor": cursor(place.format(number))})
    assert answer.status_code == 422, answer.text
    assert "cursor is not one of this list" in answer.json()["detail"]
    known = http.get(path, params=given | {"cursor": cursor(place.format(2**31 - 1))})
    assert known.status_code == (404 if "/trials" in path else 200), known.text


def test_a_cursor_of_the_audit_log_may_be_greater(http: httpx2.Client) -> None:
    answer = http.get("/audit", params={"cursor": cursor(2**31)})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    "path",
    [
        f"/view/results/{2**31}",
        f"/view/results/{2**31}/why",
        "/view/compare?what=jobs&left=%00&right=y",
        "/view/compare?what=classes&left=x&right=y%00",
        "/view/compare?what=sets&left=y%0A&right=y",
    ],
)
def test_a_page_refuses_what_no_id_or_name_is(http: httpx2.Client, path: str) -> None:
    answer = http.get(path)
    assert answer.status_code == 422, answer.text


def test_an_import_that_cannot_be_kept_says_why(tmp_path: Path) -> None:
    folder = tmp_path / "service"
    folder.mkdir()
    server = start(folder, cache_dir=tmp_path / "cache", retune_stale=False)
    try:
        headers = {"Authorization": f"Bearer {admin_key(server)}", "Content-Type": "application/x-ndjson"}
        first = httpx2.post(f"{server.url}/trials", content=b"", headers=headers, timeout=30)
        assert first.status_code == 200, first.text
        (tmp_path / "cache").rename(tmp_path / "moved")
        (tmp_path / "cache").write_bytes(b"not a folder")
        answer = httpx2.post(f"{server.url}/trials", content=b"", headers=headers, timeout=30)
        assert (answer.status_code, answer.json()["type"]) == (503, "urn:tilewright:problem:not-ready")
        assert "TILEWRIGHT_CACHE_DIR" in answer.json()["detail"]
        assert str(tmp_path) not in answer.text
        assert str(tmp_path / "cache") in server.log()
        assert int(answer.headers["retry-after"]) > 0
    finally:
        finish(server)


@pytest.mark.parametrize(
    ("method", "path", "twice"),
    [
        ("DELETE", "/jobs?status=queued&status=running", "status"),
        ("DELETE", "/jobs?mine=false&mine=true", "mine"),
        ("POST", "/gemm?alpha=7&alpha=1", "alpha"),
        ("GET", "/best-config?arch=x&m=1&m=48&n=48&k=48", "m"),
        ("GET", "/best-config?arch=x&arch=x", "arch"),
        ("GET", "/explain?arch=x&m=8&n=8&k=8&k=8", "k"),
        ("GET", "/trials?format=t4&format=ndjson", "format"),
        ("GET", "/config-sets/current?device_class=a&device_class=b", "device_class"),
    ],
)
def test_a_member_that_comes_twice_is_refused(
    http: httpx2.Client, method: str, path: str, twice: str
) -> None:
    answer = http.request(method, path, content=ONES, headers={"Content-Type": MEDIA_TYPE})
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"] == [{"detail": "is given 2 times; give it once", "parameter": twice}]


@pytest.mark.parametrize("text", ["4_8", "%2B70", "+70", "70%20", "%D9%A1"])
@pytest.mark.parametrize(
    ("method", "path", "name"),
    [
        ("GET", "/best-config?arch=x&n=8&k=8&m=", "m"),
        ("GET", "/jobs?limit=", "limit"),
        ("POST", "/gemm?alpha=", "alpha"),
        ("GET", "/explain?arch=x&n=8&k=8&m=8&max_regret=", "max_regret"),
        ("DELETE", "/jobs?m=", "m"),
        ("DELETE", "/quarantine/", "entry_id"),
    ],
)
def test_a_number_is_written_in_digits(
    http: httpx2.Client, method: str, path: str, name: str, text: str
) -> None:
    # NOTE: a plus is a blank in a query alone.
    text = text if "?" in path or text != "+70" else "%2B7"
    answer = http.request(method, path + text, content=ONES, headers={"Content-Type": MEDIA_TYPE})
    assert answer.status_code == 422, answer.text
    (error,) = answer.json()["errors"]
    assert error["parameter"] == name
    assert error["detail"].startswith("write the number in digits")


@pytest.mark.parametrize("query", ["alpha=-2.5e%2B0", "alpha=1e-3&beta=0", "alpha=.5", "alpha=007"])
def test_numbers_of_json_and_more_digits_pass(http: httpx2.Client, query: str) -> None:
    answer = http.post(f"/gemm?{query}", content=ONES, headers={"Content-Type": MEDIA_TYPE})
    assert answer.status_code == 200, answer.text


def test_text_may_read_as_a_number(http: httpx2.Client) -> None:
    assert http.get("/jobs", params={"prefix": "1e5"}).status_code == 200
    assert http.get("/best-config", params={"arch": "1_0"}).status_code == 200


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/view/compare?what=jobs&what=sets", "is given 2 times"),
        ("/view/results/4_8", "write the number in digits"),
    ],
)
def test_the_page_refuses_the_same(http: httpx2.Client, path: str, says: str) -> None:
    answer = http.get(path)
    assert (answer.status_code, says in answer.text) == (422, True), answer.text


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        (
            "max_queue",
            "0 jobs are queued, all that max_queue allows; raise TILEWRIGHT_MAX_QUEUE to take some",
        ),
        (
            "max_caller_queue",
            "0 jobs of this caller are queued, all that max_caller_queue allows; have the limit raised with "
            "TILEWRIGHT_MAX_CALLER_QUEUE",
        ),
    ],
)
def test_a_queue_of_no_places_names_its_setting(
    tmp_path_factory: pytest.TempPathFactory, setting: str, told: str
) -> None:
    server = start(tmp_path_factory.mktemp("closed"), **{setting: 0})
    try:
        answer = httpx2.post(f"{server.url}/tune", json=PROBLEM, timeout=30)
        assert (answer.status_code, answer.json()["detail"]) == (429, told)
    finally:
        finish(server)


def test_a_repeated_request_is_answered_as_before_under_lower_limits(tmp_path: Path) -> None:
    """A limit that changed since says nothing of a job that was started."""
    key, other, third = ({"Idempotency-Key": one} for one in ("tune", "misses", "named"))
    before = start(tmp_path, retune_stale=False)
    try:
        with httpx2.Client(base_url=before.url, timeout=60.0) as http:
            place = http.get("/devices").json()["items"][0]["device_class"]
            misses = [PROBLEM | {"m": 17, "count": 9, "vendor_us": 9.0}]
            http.post("/misses", json={"device_class": place, "misses": misses}).raise_for_status()
            top = {"from_misses": {"device_class": place, "top": 1}}
            named = PROBLEM | {"m": 18, "max_trials": 7}
            first = http.post("/tune", json=PROBLEM, headers=key).json()["id"]
            (second,) = http.post("/tune", json=top, headers=other).json()["items"]
            last = http.post("/tune", json=named, headers=third).json()["id"]
            http.delete("/jobs", params={"mine": "true"}).raise_for_status()
    finally:
        finish(before)
    after = start(tmp_path, retune_stale=False, max_trials=3, max_extent=15, max_queue=0)
    try:
        with httpx2.Client(base_url=after.url, timeout=60.0) as http:
            again = http.post("/tune", json=PROBLEM, headers=key)
            assert (again.status_code, again.json()["id"]) == (202, first), again.text
            tops = http.post("/tune", json=top, headers=other)
            assert [job["id"] for job in tops.json()["items"]] == [second["id"]], tops.text
            assert http.post("/tune", json=named, headers=third).json()["id"] == last
            assert http.post("/tune", json=named).json()["type"].endswith("over-limit")
            changed = http.post("/tune", json=named, headers=key)
            assert changed.json()["type"].endswith("idempotency-mismatch")
            unknown = http.post("/tune", json=named, headers={"Idempotency-Key": "unknown"})
            assert unknown.json()["type"].endswith("over-limit")
    finally:
        finish(after)
