"""Access: every operation of the OpenAPI document with every kind of key, and who may listen where."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import httpx2
import pytest
from api_server import OPERATIONS, Server, environment, finish, start
from typer.testing import CliRunner

from service.cli.main import app
from tilewright import Client
from tilewright.errors import ServiceError
from tuner.store.access import keys
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
def plain(guarded: Server) -> Iterator[httpx2.Client]:
    """Asks with the key that a request brings."""
    with httpx2.Client(base_url=guarded.url, timeout=30.0) as asking:
        yield asking


@pytest.fixture(scope="module")
def operations(
    plain: httpx2.Client, headers: dict[str, dict[str, str]]
) -> dict[str, tuple[str, str, dict[str, object]]]:
    """Method, path and description of each operation."""
    document = plain.get("/openapi.json", headers=headers["read"]).json()
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
    plain: httpx2.Client,
    headers: dict[str, dict[str, str]],
    operations: dict[str, tuple[str, str, dict[str, object]]],
    name: str,
    caller: str,
) -> None:
    scope = OPERATIONS[name]
    method, path, _ = operations[name]
    answer = plain.request(method, path, headers=headers[caller])
    if method == "GET":
        assert plain.head(path, headers=headers[caller]).status_code == answer.status_code
    if scope is None or (caller in MAY and scope in MAY[caller]):
        assert answer.status_code not in (401, 403), answer.text
        return
    assert answer.status_code == (401 if caller in CLOSED else 403)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert answer.json()["type"].endswith(":unauthenticated" if caller in CLOSED else ":forbidden")
    secret = headers[caller].get("Authorization", "none").rpartition("_")[2]
    assert secret not in answer.text or secret == "none"


@pytest.mark.parametrize(
    "path",
    ["/docs", "/docs/start.js", "/docs/swagger-ui.css", "/redoc", "/openapi.json"],
)
def test_the_description_of_the_api_needs_a_key_too(
    plain: httpx2.Client, headers: dict[str, dict[str, str]], path: str
) -> None:
    codes = {caller: plain.get(path, headers=headers[caller]).status_code for caller in CALLERS}
    assert codes == dict.fromkeys(CLOSED, 401) | dict.fromkeys(MAY, 200)


def test_no_secret_is_logged(
    guarded: Server, plain: httpx2.Client, headers: dict[str, dict[str, str]]
) -> None:
    plain.post("/tune", headers=headers["read"])
    log = guarded.log()
    assert '"status": 403' in log
    for header in headers.values():
        secret = header.get("Authorization", "").rpartition("_")[2]
        assert not secret or secret not in log


def test_the_clients_send_their_key(guarded: Server, headers: dict[str, dict[str, str]]) -> None:
    with Client(guarded.url) as closed, pytest.raises(ServiceError) as refused:
        closed.devices()
    told = "401 A key is needed: send 'Authorization: Bearer tw_...'; 'tilewright keys create' makes one"
    assert str(refused.value) == told
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


def test_a_key_that_filled_its_part_of_the_queue_is_told_so_and_others_go_on(
    guarded: Server, headers: dict[str, dict[str, str]]
) -> None:
    made = cli(guarded, "create", "batch", "--scope", "tune")
    shown = cli(guarded, "set", made["id"], "--max-queued", "0", "--priority", "3")
    assert (shown["max_queued"], shown["priority"]) == (0, 3)
    body = {"m": 32, "n": 32, "k": 32, "dtype": "float32", "layout": "nn", "max_trials": 1}
    with httpx2.Client(base_url=guarded.url, timeout=60.0) as http:
        own = {"Authorization": f"Bearer {made['key']}"}
        refused = http.post("/tune", json=body, headers=own)
        assert refused.status_code == 429
        assert int(refused.headers["Retry-After"]) > 0
        assert "its key's max_queued" in refused.json()["detail"]
        assert http.post("/tune", json=body, headers=headers["tune"]).status_code == 202


def test_a_key_of_higher_priority_takes_over_the_waiting_job_that_it_joins(
    guarded: Server, headers: dict[str, dict[str, str]]
) -> None:
    low, high = (cli(guarded, "create", name, "--scope", "tune") for name in ("low", "high"))
    cli(guarded, "set", high["id"], "--priority", "100")
    own = [{"Authorization": f"Bearer {made['key']}"} for made in (low, high)]
    body = {"m": 33, "n": 32, "k": 32, "dtype": "float64", "layout": "nn", "max_trials": 5000}
    with httpx2.Client(base_url=guarded.url, timeout=60.0) as http:
        http.post("/tune", json=body, headers=headers["tune"]).raise_for_status()
        one, two = (http.post("/tune", json=body | {"m": m}, headers=own[0]).json() for m in (34, 35))
        joined = http.post("/tune", json=body | {"m": 35}, headers=own[1]).json()
        assert joined["id"] == two["id"]
        assert http.delete("/jobs", params={"mine": "true"}, headers=own[0]).json()["jobs"] == 1
        shown = [http.get(f"/jobs/{job['id']}", headers=own[0]).json()["status"] for job in (one, two)]
        assert (shown[0], shown[1] in ("queued", "running")) == ("cancelled", True)
        http.delete("/jobs", params={"k": 32}, headers=headers["admin"]).raise_for_status()
