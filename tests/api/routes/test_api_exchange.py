"""Results from one service to another: all of them, once, and nothing damaged."""

from __future__ import annotations

import asyncio
import io
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from api_server import TUNED, Server, finish, start

from tilewright import AsyncClient, Client, wire
from tilewright.errors import ServiceError
from tilewright.launch import load

NDJSON = "application/x-ndjson"
INVALIDITIES = ("timeout", "compile", "runtime", "correctness", "constraints", "correct")
_NONE = wire.Counts().model_dump()


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = start(tmp_path_factory.mktemp("target"))
    yield running
    finish(running)


@pytest.fixture(scope="module")
def target(empty: Server) -> Iterator[Client]:
    with Client(empty.url, timeout=60.0) as client:
        yield client


@pytest.fixture(scope="module")
def exported(tuned: wire.JobView, client: Client) -> bytes:
    assert tuned.best is not None
    return export(client)


def export(client: Client, **options: Any) -> bytes:
    file = io.BytesIO()
    assert client.export(file, **options) == file.tell()
    return file.getvalue()


def lines(content: bytes, *kinds: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in content.splitlines()]
    return [line for line in found if line["kind"] in kinds] if kinds else found


def post(server: Server, content: bytes | str, kind: str = NDJSON) -> httpx2.Response:
    return httpx2.post(f"{server.url}/trials", content=content, headers={"Content-Type": kind}, timeout=60.0)


def test_everything_of_a_job_leaves(tuned: wire.JobView, client: Client, exported: bytes) -> None:
    (job,) = [line for line in lines(exported, "job") if line["id"] == tuned.id]
    assert job["problem"] == tuned.problem.to_dict()
    mine = [line for line in lines(exported, "trial") if line["job"] == tuned.id]
    there = client.trials(tuned.id, limit=1000).items
    assert [line["number"] for line in mine] == [trial.number for trial in there]
    timed = [(line, trial) for line, trial in zip(mine, there, strict=True) if trial.timing]
    assert timed
    assert all(line["timing"]["samples_us"] == list(trial.timing.samples_us) for line, trial in timed)


def test_another_service_has_the_same_after_the_import(
    tuned: wire.JobView, client: Client, target: Client, exported: bytes
) -> None:
    answer = target.import_results(io.BytesIO(exported))
    counted = {name: len(lines(exported, name.removesuffix("s"))) for name in ("jobs", "trials", "artifacts")}
    assert answer.added.jobs == counted["jobs"]
    assert answer.added.trials == counted["trials"]
    assert answer.added.best == len(lines(exported, "best"))
    assert answer.added.artifacts + answer.known.artifacts == counted["artifacts"]
    assert target.trials(tuned.id, limit=1000) == client.trials(tuned.id, limit=1000)
    there = target.best_config(TUNED, device_class=tuned.device_class)
    assert there == client.best_config(TUNED, device_class=tuned.device_class)
    load(target.artifact(there.artifact.digest)).close()
    again = target.import_results(io.BytesIO(exported))
    assert again.added == wire.Counts()
    assert again.known == answer.added + answer.known
    kept = ("job", "trial", "best")
    assert lines(export(target), *kept) == lines(exported, *kept)


def test_both_have_the_same_config_set_by_content(
    tuned: wire.JobView, client: Client, target: Client, exported: bytes
) -> None:
    target.import_results(io.BytesIO(exported))
    ours, theirs = (c.current_set(tuned.device_class) for c in (client, target))
    assert ours is not None
    assert theirs is not None
    assert ours.config_set.digest == theirs.config_set.digest


def test_a_choice_leaves_the_rest_out(tuned: wire.JobView, client: Client, exported: bytes) -> None:
    assert lines(export(client, artifacts=False)) == [
        line for line in lines(exported) if line["kind"] != "artifact"
    ]
    assert export(client, device_class="sm_90") == b""
    assert export(client, family="simt") == b""
    since = max(line["finished"] for line in lines(exported, "job"))
    assert len(lines(export(client, since=since), "job")) == 1
    assert tuned.finished is not None


def test_t4_is_what_its_schema_asks_and_comes_back(
    tuned: wire.JobView, client: Client, exported: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = export(client, format="t4")
    document = json.loads(content)
    assert document["schema_version"] == "1.0.0"
    assert len(document["results"]) == len(lines(exported, "trial"))
    for result in document["results"]:
        assert {"configuration", "times", "invalidity", "correctness"} <= set(result)
        assert result["invalidity"] in INVALIDITIES
        assert (result["correctness"] == 1.0) is (result["invalidity"] == "correct")
        assert all(isinstance(value, float) for value in result["times"]["runtimes"])
        assert all(isinstance(value, str | int) for value in result["configuration"].values())
    mine = [r for r in document["results"] if r["tilewright"]["job"]["id"] == tuned.id]
    first = client.trials(tuned.id).items[0]
    assert mine[0]["configuration"] == {"family": first.config.family, **dict(first.config.knobs)}
    assert first.timing is not None
    assert mine[0]["times"]["runtimes"] == pytest.approx([us / 1e3 for us in first.timing.samples_us])
    fresh = start(tmp_path_factory.mktemp("t4"))
    try:
        with Client(fresh.url, timeout=60.0) as other:
            answer = other.import_results(io.BytesIO(content), "t4")
            assert answer.added.trials == len(document["results"])
            assert other.import_results(io.BytesIO(content), "t4").added == wire.Counts()
            assert lines(export(other), "trial") == lines(exported, "trial")
    finally:
        finish(fresh)


def damage(line: dict[str, Any], **changes: Any) -> str:
    return json.dumps(line | changes)


def test_what_is_damaged_is_refused_whole_and_by_line(empty: Server, target: Client, exported: bytes) -> None:
    target.import_results(io.BytesIO(exported))
    job, trial = lines(exported, "job")[0], lines(exported, "trial")[0]
    kernel, best = lines(exported, "artifact")[0], lines(exported, "best")[0]
    fresh_job = damage(job, id="f" * 32)
    cases = {
        "{": "line 2: not JSON",
        "[]": "line 2",
        '{"kind":"spell"}': "line 2",
        damage(job, status="running"): "status",
        damage(job, id="x"): "id",
        damage(job, device=job["device"] | {"name": "a\0b"}): "NUL",
        damage(job, device=job["device"] | {"name": "\ud800"}): "not JSON that a database can keep",
        damage(job, seed=-1): "seed",
        damage(trial, job="e" * 32): "line 2: there is no job",
        damage(trial, number=2**40): "number",
        damage(trial, outcome="fine"): "outcome",
        damage(trial, compile_s=float("inf")): "not JSON",
        damage(trial, compile_s="@").replace('"@"', "1e999"): "beyond float64",
        damage(kernel, digest="d" * 64): "does not match its digest",
        damage(kernel, digest="d" * 64, data="%%%"): "not base64",
        damage(best, artifact="d" * 64): "store it first",
        damage(best, job_id="e" * 32): "there is no job",
        damage(best, problem=best["problem"] | {"dtype": "int32"}): "results only",
        damage(best, speedup=0): "speedup",
    }
    for text, says in cases.items():
        response = post(empty, f"{fresh_job}\n{text}\n".encode("utf-8", "surrogatepass"))
        assert response.status_code == 422, text
        assert says in response.json()["detail"], text
    listed = httpx2.get(f"{empty.url}/jobs/{'f' * 32}")
    assert listed.status_code == 404, "nothing of a refused body is kept"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"[]", "list 'results'"),
        (b'{"results":[{"configuration":{},"times":{}}]}', "no member 'tilewright'"),
        (b'{"results":[{"tilewright":{}}]}', "result 0"),
        (b'{"results":[{"tilewright":{"job":{"kind":"job"},"trial":{}}}]}', "result 0"),
        (b"nonsense", "not JSON"),
        (b'{"schema_version":[],"results":[]}', "schema_version"),
        (b'{"schema_version":"2.0.0","results":[]}', "schema_version"),
    ],
)
def test_a_foreign_t4_file_is_refused(empty: Server, content: bytes, says: str) -> None:
    response = post(empty, content, "application/json")
    assert response.status_code == 422
    assert says in response.json()["detail"]


def test_other_media_types_are_refused(empty: Server) -> None:
    assert post(empty, b"", "text/csv").status_code == 415


def test_empty_lines_and_empty_files_are_nothing(empty: Server, target: Client) -> None:
    assert post(empty, b"\n\n").json() == {"added": _NONE, "known": _NONE}
    assert target.import_results(io.BytesIO(b"")).added == wire.Counts()


def test_a_wrong_choice_is_told(http: httpx2.Client, client: Client) -> None:
    assert http.get("/trials", params={"format": "xml"}).status_code == 422
    for since in ("2026-01-01T00:00:00", "2026-01-01", "6", "-1.5", "9999-12-31T23:59:59-14:00"):
        refusal = http.get("/trials", params={"since": since})
        assert refusal.status_code == 422, since
        assert re.search("zone|of UTC", refusal.json()["errors"][0]["detail"])
    with pytest.raises(ServiceError) as refused:
        client.import_results(io.BytesIO(b"nonsense"))
    assert refused.value.status == 422


def test_the_async_client_does_the_same(client: Client, target: Client, exported: bytes) -> None:
    async def use() -> None:
        async with AsyncClient(client.url, timeout=60.0) as other:
            file = io.BytesIO()
            await other.export(file)
            assert lines(file.getvalue(), "trial") == lines(exported, "trial")
        async with AsyncClient(target.url, timeout=60.0) as other:
            assert (await other.import_results(io.BytesIO(exported))).added.jobs == 0

    target.import_results(io.BytesIO(exported))
    asyncio.run(use())
