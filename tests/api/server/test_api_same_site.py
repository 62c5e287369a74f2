"""What a page of another site can send through a browser: nothing that this service answers or acts on."""

from __future__ import annotations

import asyncio
import re
import socket
from contextlib import closing
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from service.server import middleware
from service.settings import Settings

UNSAFE = {"POST", "PUT", "PATCH", "DELETE"}
BODY = {"m": 8, "n": 8, "k": 8, "dtype": "float32", "layout": "nn", "max_trials": 1}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.com"}, 421),
        ({"Host": "evil.com", "Origin": "http://evil.com"}, 421),
        ({"Host": "localhost.evil.com"}, 421),
        ({"Host": "evil.com:80@localhost"}, 421),
        ({"Host": ""}, 421),
        ({"Host": "[::1"}, 421),
        ({"Host": "[::1].evil.com"}, 421),
        ({"Host": "::1"}, 421),
        ({"Host": "localhost:"}, 421),
        ({"Host": "localhost:8080:8080"}, 421),
        ({"Host": "localhost:99999"}, 421),
        ({"Host": "ip6-localhost"}, 421),
        ({"Host": "2130706433"}, 421),
        ({"Origin": "http://evil.com"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": ""}, 403),
        ({"Origin": "http://["}, 403),
        ({"Origin": "http://127.0.0.1:99999"}, 403),
        ({"Host": "localhost", "Origin": "http://localhost:81"}, 403),
        ({"Host": "[::1]:8080", "Origin": "http://[::1]:8081"}, 403),
        ({"Host": "[::1]:8080", "Origin": "http://localhost:8080"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 403),
        ({"Host": "localhost", "Origin": "http://localhost", "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "none"}, 202),
        ({"Host": "localhost", "Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}, 202),
        ({"Host": "LOCALHOST:8080", "Origin": "http://localhost:8080"}, 202),
        ({"Host": "localhost:80", "Origin": "http://localhost"}, 202),
        ({"Host": "localhost", "Origin": "https://localhost"}, 202),
        ({"Host": "localhost:443", "Origin": "https://localhost"}, 202),
        ({"Host": "[::1]:8080"}, 202),
        ({"Host": "[::1]:8080", "Origin": "http://[::1]:8080"}, 202),
        ({"Host": "[::ffff:127.0.0.1]"}, 202),
        ({"Host": "192.168.0.7"}, 202),
    ],
)
def test_no_page_of_another_site_changes_anything(
    http: httpx2.Client, headers: dict[str, str], status: int
) -> None:
    answer = http.post("/tune", json=BODY, headers=headers)
    assert answer.status_code == status, answer.text
    if status == 421:
        assert http.get("/devices", headers=headers).status_code == status
        assert "TILEWRIGHT_ALLOWED_HOSTS" in answer.json()["detail"]
    if status == 403:
        assert http.get("/devices", headers=headers).status_code == 200, "a browser lets no page read it"


def test_every_origin_must_be_the_service_itself(http: httpx2.Client) -> None:
    origins = [("Origin", f"http://{http.base_url.netloc.decode()}"), ("Origin", "http://evil.com")]
    assert http.post("/tune", json=BODY, headers=origins).status_code == 403


@pytest.mark.parametrize(("host", "status"), [(b"localhost", 400), (b"evil.com", 421)])
def test_a_whole_url_in_place_of_the_path_is_refused(http: httpx2.Client, host: bytes, status: int) -> None:
    address = http.base_url.host, http.base_url.port
    with closing(socket.create_connection(address, timeout=20)) as plain:
        plain.sendall(b"GET http://localhost/devices HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
        with closing(plain.makefile("rb")) as answer:
            text = answer.read().decode()
    assert text.startswith(f"HTTP/1.1 {status} ")
    assert ("send its path alone" in text) == (status == 400)


def test_no_route_is_left_out(http: httpx2.Client) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    routes = [(method.upper(), path) for path, item in paths.items() for method in item]
    assert len(routes) > 25
    pages = [("GET", "/docs"), ("GET", "/redoc"), ("GET", "/openapi.json"), ("GET", "/nothing")]
    for method, path in [*routes, *pages, ("HEAD", "/docs"), ("OPTIONS", "/tune"), ("DELETE", "/nothing")]:
        filled = re.sub(r"\{\w+\}", "0" * 64, path)
        answer = http.request(method, filled, headers={"Host": "evil.com"})
        assert answer.status_code == 421, (method, path)
        if method in UNSAFE:
            foreign = http.request(method, filled, headers={"Origin": "http://evil.com"})
            assert foreign.json()["type"].endswith(":foreign-origin"), (method, path)


@pytest.mark.parametrize(
    ("settings", "host", "origin", "status"),
    [
        ({"allowed_hosts": ("gpu-box",)}, "gpu-box:8080", None, 200),
        ({"allowed_hosts": ("gpu-box",)}, "gpu-box:8080", "http://gpu-box:8080", 200),
        ({"allowed_hosts": ("gpu-box",)}, "gpu-box:8080", "http://gpu-box", 403),
        ({"allowed_hosts": ("gpu-box",)}, "gpu-box.evil.com", None, 421),
        ({"allowed_hosts": ("*",)}, "anything", None, 200),
        ({"allowed_hosts": ("*",)}, "anything", "http://evil.com", 403),
        ({"url": "http://tuner.lan:8080"}, "tuner.lan:8080", None, 200),
        # A proxy with TLS that names this service's address as the Host, not its own name.
        ({"url": "https://tuner.lan"}, "127.0.0.1:8080", "https://tuner.lan", 200),
        ({"url": "https://tuner.lan"}, "127.0.0.1:8080", "https://tuner.lan:444", 403),
        ({"host": "gpu-box"}, "GPU-box", None, 200),
        ({"host": "::1"}, "[::1]:8080", "http://[::1]:8080", 200),
        ({}, "gpu-box", None, 421),
    ],
)
def test_the_service_answers_to_its_own_names(
    settings: dict[str, Any], host: str, origin: str | None, status: int
) -> None:
    site = FastAPI()
    site.add_middleware(middleware.SameSite, settings=Settings(_env_file=None, **settings))
    site.post("/")(lambda: None)

    async def ask() -> int:
        transport = httpx2.ASGITransport(app=site)
        async with httpx2.AsyncClient(transport=transport, base_url="http://x") as client:
            headers = {"Host": host} | ({"Origin": origin} if origin else {})
            return (await client.post("/", headers=headers)).status_code

    assert asyncio.run(ask()) == status
