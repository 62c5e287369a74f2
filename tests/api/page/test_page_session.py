"""Signing in and out of the page, forms, and what its pages forbid browsers to do."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from api_server import Server, admin_key, finish, opened_database, start

from tuner.store.access import keys

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


def as_header(cookies: dict[str, str]) -> dict[str, str]:
    return {"Cookie": "; ".join(f"{name}={value}" for name, value in cookies.items())}


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
    assert cookie.startswith(f"tilewright_{visitor.base_url.port}=")
    for told in ("HttpOnly", "SameSite=strict", "Max-Age=43200", "Path=/"):
        assert told in cookie
    assert "Secure" not in cookie, "the browser came by plain HTTP"
    assert 'tilewright_key=""' in cookie, "the cookie of earlier releases, which held the key, is forgotten"
    assert reader.rpartition("_")[2] not in cookie, "the cookie does not hold the key"
    for page in (*PAGES, "/docs", "/openapi.json"):
        assert visitor.get(page).status_code == 200, page
    assert reader not in visitor.get("/").text
    assert visitor.get("/jobs").status_code == 401, "only pages take a cookie"


def test_signing_out_forgets_the_key(visitor: httpx2.Client, reader: str) -> None:
    signed_in(visitor, reader)
    stolen = dict(visitor.cookies)
    assert visitor.post("/sign-out", data={"token": token(visitor.get("/").text)}).status_code == 303
    assert visitor.get("/").status_code == 303
    assert visitor.get("/", headers=as_header(stolen)).status_code == 303, "the session has ended"


def test_no_page_names_the_key_of_a_session_that_ended(
    visitor: httpx2.Client, guarded: Server, reader: str
) -> None:
    signed_in(visitor, reader)
    shown = f"key {reader.split('_')[1]}"
    kept = dict(visitor.cookies)
    for page in ("/", "/sign-in", "/view/jobs/unknown"):
        assert shown in visitor.get(page).text
    assert visitor.post("/sign-out", data={"token": token(visitor.get("/").text)}).status_code == 303
    for page in ("/sign-in", "/view/jobs/unknown", "/"):
        assert shown not in visitor.get(page, headers=as_header(kept), follow_redirects=True).text
    signed_in(visitor, reader)
    with opened_database(guarded) as store, store.begin() as session:
        keys.revoke(session, reader.split("_")[1])
    end = time.monotonic() + 20
    while shown in visitor.get("/sign-in").text:
        assert time.monotonic() < end, "a revoked key signed nobody in"
        time.sleep(0.2)


def test_signing_in_again_ends_the_session_before(
    visitor: httpx2.Client, guarded: Server, reader: str
) -> None:
    signed_in(visitor, made(guarded, "admin"))
    before = dict(visitor.cookies)
    form = {"token": token(visitor.get("/").text), "key": reader, "next": "/"}
    assert visitor.post("/sign-in", data=form).status_code == 303
    assert dict(visitor.cookies) != before
    assert visitor.get("/").status_code == 200
    visitor.cookies.clear()
    assert visitor.get("/", headers=as_header(before)).status_code == 303


@pytest.mark.long
def test_a_session_ends_at_every_server_of_the_database_and_others_outlive_a_restart(
    guarded: Server, reader: str, tmp_path: Path
) -> None:
    own = {"database_url": f"sqlite:///{guarded.folder / 'tilewright.db'}"}
    own |= {"signing_key": str(guarded.folder / "signing.key")}
    other = start(tmp_path, **own)
    port = int(_port(other))
    try:
        with (
            httpx2.Client(base_url=guarded.url, timeout=60.0) as visitor,
            httpx2.Client(base_url=other.url, timeout=60.0) as staying,
        ):
            signed_in(staying, made(guarded, "tune"))
            kept, form = dict(staying.cookies), token(staying.get("/").text)
            signed_in(visitor, reader)
            there = as_header({f"tilewright_{port}": visitor.cookies[f"tilewright_{_port(guarded)}"]})
            assert httpx2.get(f"{other.url}/view/jobs", headers=there, timeout=60.0).status_code == 200
            assert visitor.post("/sign-out", data={"token": token(visitor.get("/").text)}).status_code == 303
        end = time.monotonic() + 20
        while httpx2.get(f"{other.url}/view/jobs", headers=there, timeout=60.0).status_code != 303:
            assert time.monotonic() < end, "the session has ended"
            time.sleep(0.2)
    finally:
        finish(other)
    again = start(tmp_path, port=port, **own)
    try:
        assert httpx2.get(f"{again.url}/view/jobs", headers=there, timeout=60.0).status_code == 303
        with httpx2.Client(base_url=again.url, cookies=kept, timeout=60.0) as staying:
            assert staying.get("/").status_code == 200
            assert staying.post("/sign-out", data={"token": form}).status_code == 303
    finally:
        finish(again)


def _port(server: Server) -> str:
    return str(httpx2.URL(server.url).port)


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
        plain = http.get(name, headers={"Accept-Encoding": "gzip;q=0, identity"})
        assert "content-encoding" not in plain.headers
        assert plain.content == found.content


@pytest.mark.parametrize(
    ("headers", "secure"),
    [({}, False), ({"X-Forwarded-Proto": "https"}, True), ({"X-Forwarded-Proto": "http"}, False)],
)
def test_the_cookie_is_secure_behind_tls(
    visitor: httpx2.Client, reader: str, headers: dict[str, str], secure: bool
) -> None:
    visitor.headers.update(headers)
    assert ("Secure" in signed_in(visitor, reader).headers["set-cookie"]) is secure


def test_a_session_is_worth_what_its_key_is(visitor: httpx2.Client, guarded: Server, reader: str) -> None:
    signed_in(visitor, reader)
    ((name, text),) = visitor.cookies.items()
    for forged in (text.replace(text[0], "0" if text[0] != "0" else "1"), text[:-1], f"{text}0", "", "é"):
        answer = visitor.get("/", headers={"Cookie": f"{name}={forged}".encode()})
        assert answer.status_code == 303, forged
    elsewhere = {"Cookie": f"tilewright_{(visitor.base_url.port or 0) + 1}={text}"}
    with httpx2.Client(base_url=guarded.url, timeout=60.0) as other:
        assert other.get("/", headers=elsewhere).status_code == 303, "of the service at another port"
        key_id = reader.split("_")[1]
        for header in (f"Session {key_id}", f"Bearer {key_id}", f"None {key_id}"):
            assert other.get("/", headers={"Authorization": header}).status_code == 303
            assert other.get("/jobs", headers={"Authorization": header}).status_code == 401
    with opened_database(guarded) as store, store.begin() as session:
        keys.revoke(session, reader.split("_")[1])
    end = time.monotonic() + 20
    while visitor.get("/").status_code != 303:
        assert time.monotonic() < end, "a revoked key has no session"


def test_a_header_of_a_proxy_does_not_hide_the_session(visitor: httpx2.Client, reader: str) -> None:
    signed_in(visitor, reader)
    proxied = {"Authorization": "Basic bWU6c2VjcmV0"}
    assert visitor.get("/", headers=proxied).status_code == 200
    assert visitor.get("/jobs", headers=proxied).status_code == 401
    with httpx2.Client(base_url=str(visitor.base_url), timeout=60.0) as other:
        assert other.get("/", headers={"Authorization": f"Bearer {reader}"}).status_code == 200


FOREIGN = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
CLICK = {
    "Sec-Fetch-Site": "cross-site",
    "Sec-Fetch-Mode": "navigate",
    "Sec-Fetch-Dest": "document",
    "Sec-Fetch-User": "?1",
}


@pytest.mark.parametrize("path", ["/", "/view/coverage", "/view/roofline", "/view/report", "/report"])
def test_pages_of_other_sites_have_no_view_made(http: httpx2.Client, path: str) -> None:
    frame = CLICK | {"Sec-Fetch-Dest": "iframe"}
    early = CLICK | {"Sec-Purpose": "prefetch;prerender"}
    for headers in (FOREIGN, frame, early, CLICK | {"Sec-Fetch-Site": "same-site"} | FOREIGN):
        answer = http.get(path, headers=headers)
        assert answer.status_code == 403, headers
        assert "use the address itself" in answer.text
    for headers in (CLICK, CLICK | {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}):
        assert http.get(path, headers=headers).status_code == 200, headers


@pytest.mark.parametrize(
    ("path", "status"),
    [("/", 200), ("/view/jobs", 200), ("/view/results", 403), ("/view/roofline", 403), ("/report", 403)],
)
def test_the_script_of_another_site_may_lead_to_light_pages_as_for_signing_in(
    http: httpx2.Client, path: str, status: int
) -> None:
    script = {name: value for name, value in CLICK.items() if name != "Sec-Fetch-User"}
    assert http.get(path, headers=script).status_code == status


def test_a_report_is_kept_nowhere_and_taken_for_nothing_else(http: httpx2.Client) -> None:
    for path in ("/report", "/view/report"):
        headers = http.get(path).headers
        assert (headers["cache-control"], headers["x-content-type-options"]) == ("no-store", "nosniff")
