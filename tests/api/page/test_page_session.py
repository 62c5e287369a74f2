"""Signing in and out of the page, forms, and what its pages forbid browsers to do."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx2
import pytest
from api_server import Server, admin_key, finish, opened_database, start

from tuner.store import keys

PAGES = ("/", "/view/now", "/view/jobs")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = start(tmp_path_factory.mktemp("guarded"))
    admin_key(running)
    yield running
    finish(running)


@pytest.fixture
def reader(guarded: Server) -> str:
    return made(guarded, "read")


def made(server: Server, scope: str) -> str:
    with opened_database(server) as store, store.begin() as session:
        return keys.create(session, scope, frozenset({scope}))[1]


@pytest.fixture
def visitor(guarded: Server) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=guarded.url, timeout=60.0) as browser:
        yield browser


def token(page: str) -> str:
    return re.findall(r'name="token" value="([0-9a-f]{64})"', page)[0]


def signed_in(visitor: httpx2.Client, key: str) -> httpx2.Response:
    form = {"token": token(visitor.get("/sign-in").text), "key": key, "next": "/view/jobs"}
    return visitor.post("/sign-in", data=form)


def test_a_visitor_without_a_key_is_led_to_the_form(visitor: httpx2.Client) -> None:
    answer = visitor.get("/view/jobs?status=failed")
    assert (answer.status_code, answer.headers["location"]) == (
        303,
        "/sign-in?next=%2Fview%2Fjobs%3Fstatus%3Dfailed",
    )
    page = visitor.get(answer.headers["location"])
    assert page.status_code == 200
    assert 'name="next" value="/view/jobs?status=failed"' in page.text


def test_a_key_opens_the_page_and_not_the_api(visitor: httpx2.Client, reader: str) -> None:
    answer = signed_in(visitor, reader)
    assert (answer.status_code, answer.headers["location"]) == (303, "/view/jobs")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    for page in (*PAGES, "/docs", "/openapi.json"):
        assert visitor.get(page).status_code == 200, page
    assert reader not in visitor.get("/").text
    assert visitor.get("/jobs").status_code == 401, "only pages take a cookie"


def test_signing_out_forgets_the_key(visitor: httpx2.Client, reader: str) -> None:
    signed_in(visitor, reader)
    assert visitor.post("/sign-out", data={"token": token(visitor.get("/").text)}).status_code == 303
    assert visitor.get("/").status_code == 303


@pytest.mark.parametrize("key", ["tw_0000000000000000_nothing", "", "\x00", "kéy"])
def test_a_wrong_key_is_refused_and_sets_no_cookie(visitor: httpx2.Client, key: str) -> None:
    answer = signed_in(visitor, key)
    assert answer.status_code == 401
    assert 'role="alert"' in answer.text
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("elsewhere", ["https://elsewhere.test", "//elsewhere.test", "/\\elsewhere.test"])
def test_signing_in_leads_nowhere_else(visitor: httpx2.Client, reader: str, elsewhere: str) -> None:
    form = {"token": token(visitor.get("/sign-in").text), "key": reader, "next": elsewhere}
    assert visitor.post("/sign-in", data=form).headers["location"] == "/"


@pytest.mark.parametrize("forged", [None, "0" * 64, "é"])
def test_a_form_without_its_token_changes_nothing(
    visitor: httpx2.Client, guarded: Server, forged: str | None
) -> None:
    signed_in(visitor, made(guarded, "tune"))
    fields = {"m": "64", "n": "64", "k": "64", "dtype": "float32", "layout": "nn"}
    answer = visitor.post("/view/jobs", data=fields | ({"token": forged} if forged else {}))
    assert answer.status_code == 403
    assert "load the page again" in answer.text
    assert "no such job" in visitor.get("/view/jobs").text.lower()


def test_the_token_of_one_key_serves_no_other(visitor: httpx2.Client, guarded: Server) -> None:
    foreign = token(visitor.get("/sign-in").text)
    signed_in(visitor, made(guarded, "tune"))
    assert visitor.post("/sign-out", data={"token": foreign}).status_code == 403


def test_a_key_that_only_reads_starts_no_job(visitor: httpx2.Client, reader: str) -> None:
    signed_in(visitor, reader)
    fields = {"m": "64", "n": "64", "k": "64", "token": token(visitor.get("/").text)}
    answer = visitor.post("/view/jobs", data=fields)
    assert answer.status_code == 403
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "a key with scope tune" in answer.text


@pytest.mark.parametrize("page", [*PAGES, "/sign-in", "/view/jobs/unknown"])
def test_pages_run_no_script_but_the_service_s_own(http: httpx2.Client, page: str) -> None:
    answer = http.get(page)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "style-src 'self';" in policy
    assert "unsafe" not in policy
    assert "style=" not in answer.text
    assert not re.search(r"<script(?![^>]*(\bsrc=|application/json))", answer.text)
    assert not re.search(r"\son[a-z]+=", answer.text)
    for name in re.findall(r'(?:src|href)="(/static/[^"]+)"', answer.text):
        found = http.get(name)
        assert found.status_code == 200, name
        assert "immutable" in found.headers["cache-control"]
        assert found.headers["content-encoding"] == "gzip"
