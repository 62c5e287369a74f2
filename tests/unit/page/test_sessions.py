"""Sessions of the page: how long they last, who takes them, and when their cookie is for https only."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi import Request, Response

from service.http import sessions
from service.http.sessions import Sessions
from service.settings import Settings
from service.signing import Signer

KEY_ID = "0123456789ab"


def made(folder: Path, **settings: str) -> Sessions:
    return Sessions(Signer.load_or_create(folder / "signing.key"), Settings(**settings))  # type: ignore[arg-type]


def request(cookie: str = "", host: str = "tune.example:8443", **headers: str) -> Request:
    named = {"host": host, **headers} | ({"cookie": cookie} if cookie else {})
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in named.items()]
    return Request({"type": "http", "method": "GET", "scheme": "http", "path": "/", "headers": raw})


def begun(own: Sessions, **headers: str) -> str:
    answer = Response()
    own.begin(request(**headers), answer, KEY_ID)
    return answer.headers["set-cookie"]


def key_of(own: Sessions, cookie: str) -> str | None:
    found = own.signed_in(request(cookie))
    return found.key_id if found else None


def test_a_session_ends_after_half_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = made(tmp_path)
    cookie = begun(own).partition(";")[0]
    assert key_of(own, cookie) == KEY_ID
    now = sessions.time.time()
    monkeypatch.setattr(sessions.time, "time", lambda: now + sessions.LIFE_S + 1)
    assert key_of(own, cookie) is None


def test_every_server_with_the_signing_key_takes_it_and_no_other(tmp_path: Path) -> None:
    cookie = begun(made(tmp_path)).partition(";")[0]
    assert key_of(made(tmp_path), cookie) == KEY_ID
    assert made(tmp_path).token(request(cookie)) == made(tmp_path).token(request(cookie))
    other = made(tmp_path / "other")
    assert key_of(other, cookie) is None
    assert other.token(request(cookie)) != made(tmp_path).token(request(cookie))


def test_no_part_of_it_can_be_changed(tmp_path: Path) -> None:
    own = made(tmp_path)
    cookie = begun(own).partition(";")[0]
    name, _, text = cookie.partition("=")
    key_id, until, *rest = text.split(".")
    for forged in ([f"1{key_id[1:]}", until, *rest], [key_id, str(int(until) + 1), *rest], [key_id, until]):
        assert key_of(own, f"{name}={'.'.join(forged)}") is None


@pytest.mark.parametrize(
    ("url", "headers", "secure"),
    [
        ("", {}, False),
        ("", {"x_forwarded_proto": "https"}, True),
        ("", {"x_forwarded_proto": "HTTPS, http"}, True),
        ("", {"x_forwarded_proto": "http, https"}, False),
        ("https://tune.example:8443", {}, True),
        ("https://tune.example:8443", {"host": "127.0.0.1:8080"}, False),
        ("http://tune.example:8443", {}, False),
    ],
)
def test_the_cookie_is_for_https_only_where_the_browser_came_by_it(
    tmp_path: Path, url: str, headers: dict[str, str], secure: bool
) -> None:
    own = made(tmp_path, **({"url": url} if url else {}))
    assert ("; Secure" in begun(own, **headers)) is secure
