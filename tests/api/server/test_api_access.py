"""Access: every operation of the OpenAPI document with every kind of key, and who may listen where."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from api_server import OPERATIONS, Server, environment, finish, start
from fastapi import FastAPI
from typer.testing import CliRunner

from service.cli.main import app
from service.http import middleware
from service.settings import Settings
from tilewright import Client
from tilewright.errors import ServiceError
from tuner.store import keys
from tuner.store.database import Store
from tuner.store.records import utc_now

MAY = {
    "read": {"read"},
    "run": {"read", "run"},
    "tune": {"read", "tune"},
    "admin": {"read", "run", "tune", "admin"},
}
CLOSED = ("none", "unknown", "basic", "expired", "revoked")
CALLERS = (*CLOSED, *MAY)
PLACEHOLDERS = {"job_id": "0" * 32, "digest": "0" * 64}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = start(tmp_path_factory.mktemp("guarded"), shared_memory=1)
    yield running
    finish(running)


def cli(server: Server, *arguments: str) -> dict[str, str]:
    done = CliRunner().invoke(app, ["keys", *arguments, "--json"], env=environment(server.folder))
    assert done.exit_code == 0, done.output
    answer: dict[str, str] = json.loads(done.stdout)
    return answer


@pytest.fixture(scope="module")
def headers(guarded: Server) -> dict[str, dict[str, str]]:
    """The Authorization header of each kind of caller."""
    made = {scope: cli(guarded, "create", scope, "--scope", scope)["key"] for scope in MAY}
    revoked = cli(guarded, "create", "gone", "--scope", "admin")
    cli(guarded, "revoke", revoked["id"])
    store = Store.open(f"sqlite:///{guarded.folder / 'tilewright.db'}")
    with store.begin() as session:
        _, late = keys.create(session, "late", frozenset({"admin"}), utc_now() - timedelta(seconds=1))
    store.close()
    texts = made | {"expired": late, "revoked": revoked["key"], "unknown": f"tw_{'0' * 12}_{'f' * 64}"}
    found = {name: {"Authorization": f"Bearer {text}"} for name, text in texts.items()}
    return found | {"none": {}, "basic": {"Authorization": f"Basic {made['admin']}"}}


@pytest.fixture(scope="module")
def operations(guarded: Server) -> dict[str, tuple[str, str, dict[str, object]]]:
    """Method, path and description of each operation."""
    document = httpx2.get(f"{guarded.url}/openapi.json").json()
    return {
        operation["operationId"]: (method.upper(), _filled(path), operation)
        for path, item in document["paths"].items()
        for method, operation in item.items()
    }


def _filled(path: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: PLACEHOLDERS.get(match[1], "sha256:" + "0" * 64), path)


def test_every_operation_is_in_the_matrix_and_documents_its_scope(
    operations: dict[str, tuple[str, str, dict[str, object]]],
) -> None:
    assert set(operations) == set(OPERATIONS), "write down which scope a new operation asks for"
    for name, scope in OPERATIONS.items():
        security = operations[name][2].get("security")
        assert security == ([{"key": [scope]}, {}] if scope else None), name


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_who_may_do_what(
    guarded: Server,
    headers: dict[str, dict[str, str]],
    operations: dict[str, tuple[str, str, dict[str, object]]],
    name: str,
    caller: str,
) -> None:
    scope = OPERATIONS[name]
    method, path, _ = operations[name]
    answer = httpx2.request(method, guarded.url + path, headers=headers[caller], timeout=30)
    if scope is None or (caller in MAY and scope in MAY[caller]):
        assert answer.status_code not in (401, 403), answer.text
        return
    assert answer.status_code == (401 if caller in CLOSED else 403)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert answer.json()["type"].endswith(":unauthenticated" if caller in CLOSED else ":forbidden")
    secret = headers[caller].get("Authorization", "none").rpartition("_")[2]
    assert secret not in answer.text or secret == "none"


def test_no_secret_is_logged(guarded: Server, headers: dict[str, dict[str, str]]) -> None:
    httpx2.post(f"{guarded.url}/tune", headers=headers["read"])
    log = guarded.log()
    assert '"status": 403' in log
    for header in headers.values():
        secret = header.get("Authorization", "").rpartition("_")[2]
        assert not secret or secret not in log


def test_the_clients_send_their_key(guarded: Server, headers: dict[str, dict[str, str]]) -> None:
    with Client(guarded.url) as closed, pytest.raises(ServiceError) as refused:
        closed.devices()
    assert refused.value.status == 401
    with Client(guarded.url, key=headers["read"]["Authorization"].split()[1]) as opened:
        assert opened.devices()


def test_a_revoked_key_closes_within_seconds(guarded: Server, headers: dict[str, dict[str, str]]) -> None:
    made = cli(guarded, "create", "short", "--scope", "read")
    mine = {"Authorization": f"Bearer {made['key']}"}
    assert httpx2.get(f"{guarded.url}/devices", headers=mine).status_code == 200
    cli(guarded, "revoke", made["id"])
    transport = httpx2.HTTPTransport(retries=0)
    with httpx2.Client(transport=transport) as http:
        codes = []
        deadline = utc_now() + timedelta(seconds=5)
        while utc_now() < deadline and codes[-1:] != [401]:
            codes.append(http.get(f"{guarded.url}/devices", headers=mine).status_code)
    assert codes[-1] == 401
    assert httpx2.get(f"{guarded.url}/devices", headers=headers["read"]).status_code == 200


def test_without_a_key_only_loopback_is_listened_at(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "service.cli.main", "serve", "--host", "0.0.0.0", "--port", "0"]
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "keys create" in done.stderr
    assert "Traceback" not in done.stderr


def test_with_a_key_every_address_is_listened_at(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path / 'tilewright.db'}")
    store.migrate()
    with store.begin() as session:
        _, key = keys.create(session, "me", frozenset({"read"}))
    store.close()
    server = start(tmp_path, host="0.0.0.0")
    try:
        here = server.url.replace("0.0.0.0", "127.0.0.1")
        assert httpx2.get(f"{here}/devices").status_code == 401
        assert httpx2.get(f"{here}/devices", headers={"Authorization": f"Bearer {key}"}).status_code == 200
        assert httpx2.get(f"{here}/health/live").status_code == 200
    finally:
        finish(server)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.com"}, 421),
        ({"Host": "evil.com", "Origin": "http://evil.com"}, 421),
        ({"Host": "localhost.evil.com"}, 421),
        ({"Host": "evil.com:80@localhost"}, 421),
        ({"Host": ""}, 421),
        ({"Host": "[::1"}, 421),
        ({"Origin": "http://evil.com"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "localhost", "Origin": "http://localhost:81"}, 403),
        ({"Host": "LOCALHOST:8080", "Origin": "http://LOCALHOST:8080"}, 202),
        ({"Host": "[::1]:8080"}, 202),
        ({"Host": "192.168.0.7"}, 202),
    ],
)
def test_no_page_of_another_site_changes_anything(
    http: httpx2.Client, headers: dict[str, str], status: int
) -> None:
    body = {"m": 8, "n": 8, "k": 8, "dtype": "float32", "layout": "nn", "max_trials": 1}
    answer = http.post("/tune", json=body, headers=headers)
    assert answer.status_code == status, answer.text
    if status == 421:
        assert http.get("/devices", headers=headers).status_code == status
        assert "TILEWRIGHT_ALLOWED_HOSTS" in answer.json()["detail"]
    if status == 403:
        assert http.get("/devices", headers=headers).status_code == 200, "a browser lets no page read it"


@pytest.mark.parametrize(
    ("settings", "host", "status"),
    [
        ({"allowed_hosts": ("gpu-box",)}, "gpu-box:8080", 200),
        ({"allowed_hosts": ("gpu-box",)}, "gpu-box.evil.com", 421),
        ({"allowed_hosts": ("*",)}, "anything", 200),
        ({"url": "http://tuner.lan:8080"}, "tuner.lan:8080", 200),
        ({"host": "gpu-box"}, "GPU-box", 200),
        ({}, "gpu-box", 421),
    ],
)
def test_the_service_answers_to_its_own_names(settings: dict[str, Any], host: str, status: int) -> None:
    site = FastAPI()
    site.add_middleware(middleware.SameSite, settings=Settings(**settings))
    site.get("/")(lambda: None)

    async def ask() -> int:
        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=site), base_url="http://x"
        ) as client:
            return (await client.get("/", headers={"Host": host})).status_code

    assert asyncio.run(ask()) == status
