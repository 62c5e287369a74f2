"""Results from one service to another: all of them, once, and nothing damaged."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from api_server import TUNED, Server, admin_key, finish, start, trust
from signers import signer

from service.signing import Signer
from tilewright import AsyncClient, Client, wire
from tilewright.errors import ServiceError
from tilewright.http.arguments import signed_parts
from tilewright.launch import load
from tilewright.trust import About

NDJSON = "application/x-ndjson"
INVALIDITIES = ("timeout", "compile", "runtime", "correctness", "constraints", "correct")


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory, server: Server) -> Iterator[Server]:
    """Another service that trusts the first one, and leaves what it imports to the tests."""
    running = start(tmp_path_factory.mktemp("target"), retune_stale=False)
    trust(running, server.signer.public_key)
    yield running
    finish(running)


@pytest.fixture(scope="module")
def key(empty: Server) -> str:
    return admin_key(empty)


@pytest.fixture(scope="module")
def target(empty: Server, key: str) -> Iterator[Client]:
    with Client(empty.url, timeout=60.0, key=key) as client:
        yield client


Post = Callable[..., httpx2.Response]


@pytest.fixture(scope="module")
def post(empty: Server, key: str) -> Post:
    """``post(content, kind)`` imports into the other service."""

    def send(content: bytes | str, kind: str = NDJSON) -> httpx2.Response:
        headers = {"Content-Type": kind, "Authorization": f"Bearer {key}"}
        return httpx2.post(f"{empty.url}/trials", content=content, headers=headers, timeout=60.0)

    return send


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
    assert (answer.trusted, answer.waiting, answer.dropped, answer.reason) == (True, 0, 0, "")
    assert answer.added.artifacts + answer.known.artifacts == counted["artifacts"]
    assert target.trials(tuned.id, limit=1000) == client.trials(tuned.id, limit=1000)
    there = target.best_config(TUNED, device_class=tuned.device_class)
    here = client.best_config(TUNED, device_class=tuned.device_class)
    assert (there.import_id, here.import_id) == (answer.import_id, None)
    assert target.job(tuned.id).import_id == answer.import_id
    assert there.model_copy(update={"import_id": None}) == here
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
    kept = ("job", "trial", "best")
    assert lines(export(client, artifacts=False), *kept, "artifact") == lines(exported, *kept)
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
    timed = (one for one in zip(mine, client.trials(tuned.id).items, strict=True) if one[1].timing)
    result, first = next(timed)
    assert result["configuration"] == {"family": first.config.family, **dict(first.config.knobs)}
    assert first.timing is not None
    assert result["times"]["runtimes"] == pytest.approx([us / 1e3 for us in first.timing.samples_us])
    fresh = start(tmp_path_factory.mktemp("t4"), retune_stale=False)
    try:
        with Client(fresh.url, timeout=60.0, key=admin_key(fresh)) as other:
            answer = other.import_results(io.BytesIO(content), "t4")
            assert answer.added.trials == len(document["results"])
            assert (answer.trusted, answer.reason) == (False, "a T4 file has no signature")
            assert other.import_results(io.BytesIO(content), "t4").added == wire.Counts()
            assert other.trials(tuned.id, limit=1000) == client.trials(tuned.id, limit=1000)
            assert export(other) == b"", "what nobody signed is not passed on"
    finally:
        finish(fresh)


def damage(line: dict[str, Any], **changes: Any) -> str:
    return json.dumps(line | changes)


def signed(signer: Signer, *texts: str) -> bytes:
    """Lines as a service exports them."""
    content = "".join(f"{text}\n" for text in texts).encode("utf-8", "surrogatepass")
    signature = signer.sign(About.EXPORT, hashlib.sha256(content).hexdigest())
    line = json.dumps({"kind": "signature", "signature": signature}, separators=(",", ":"))
    return content + line.encode() + b"\n"


def test_what_is_damaged_is_refused_whole_and_by_line(
    server: Server, target: Client, exported: bytes, post: Post
) -> None:
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
        damage(kernel, digest="d" * 64, data="\u0661\u0662"): "not base64",
        damage(best, job_id="e" * 32): "there is no job",
        damage(best, problem=best["problem"] | {"dtype": "int32"}): "results only",
        damage(best, speedup=0): "speedup",
    }
    for text, says in cases.items():
        response = post(signed(server.signer, fresh_job, text))
        assert response.status_code == 422, text
        assert says in response.json()["detail"], text
    with pytest.raises(ServiceError, match="404"):
        target.job("f" * 32)  # nothing of a refused body is kept


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
def test_a_foreign_t4_file_is_refused(post: Post, content: bytes, says: str) -> None:
    response = post(content, "application/json")
    assert response.status_code == 422
    assert says in response.json()["detail"]


def test_other_media_types_are_refused(post: Post) -> None:
    assert post(b"", "text/csv").status_code == 415


def test_empty_lines_and_empty_files_are_nothing(post: Post, target: Client) -> None:
    entered = target.imports().items
    assert wire.ImportAnswer.model_validate(post(b"\n\n").json()) == wire.ImportAnswer()
    assert target.import_results(io.BytesIO(b"")) == wire.ImportAnswer()
    assert target.imports().items == entered


def test_without_a_key_nothing_is_imported_or_deleted(http: httpx2.Client, exported: bytes) -> None:
    """Also by a service that is open to its machine."""
    assert http.get("/jobs").status_code == 200
    problem = {"m": TUNED.m, "n": TUNED.n, "k": TUNED.k, "dtype": "float32", "layout": "nn"}
    for refused in (
        http.post("/trials", content=exported, headers={"Content-Type": NDJSON}),
        http.delete(f"/imports/{'0' * 32}"),
        http.delete("/best-config", params=problem | {"arch": "sm_90"}),
        http.delete("/problems", params=problem),
    ):
        assert refused.status_code == 401
        assert "'tilewright keys create' makes one" in refused.json()["detail"]
        assert "needs a key with scope admin" in refused.json()["detail"]


def test_a_file_that_was_changed_or_is_of_nobody_known_brings_configs_and_times_only(
    tuned: wire.JobView, exported: bytes, tmp_path_factory: pytest.TempPathFactory, server: Server
) -> None:
    fresh = start(tmp_path_factory.mktemp("untrusting"), retune_stale=False)
    changed = exported.replace(b'"outcome":"ok"', b'"outcome":"timeout"', 1)
    unsigned = b"".join(line + b"\n" for line in exported.splitlines() if b'"kind":"signature"' not in line)
    reasons = {
        exported: f"it is signed by {server.signer.public_key}, which is not trusted here",
        changed: "the lines before it were changed after they were signed",
        unsigned: "not all lines are signed",
        exported + lines_of(exported, "job"): "not all lines are signed",
        exported + signed(signer(7), lines_of(exported, "job").decode().rstrip()): "several keys signed it",
    }
    try:
        with Client(fresh.url, timeout=60.0, key=admin_key(fresh)) as other:
            for content, reason in reasons.items():
                if content is not exported:
                    trust(fresh, server.signer.public_key)
                answer = other.import_results(io.BytesIO(content))
                assert reason in answer.reason
                assert (answer.trusted, answer.added.best, answer.added.artifacts) == (False, 0, 0)
                assert answer.dropped == len(lines(exported, "artifact"))
            with pytest.raises(ServiceError, match="no answer on"):
                other.best_config(TUNED, device_class=tuned.device_class)
            assert other.job(tuned.id).import_id
            # What nobody trusted signed does not make way once its key is trusted.
            with pytest.raises(ServiceError, match="which no trusted key signed; take that out by"):
                other.import_results(io.BytesIO(exported))
            other.delete_import(other.job(tuned.id).import_id or "")
            answer = other.import_results(io.BytesIO(exported))
            assert (answer.trusted, answer.added.jobs, answer.dropped) == (
                True,
                len(lines(exported, "job")),
                0,
            )
            assert other.best_config(TUNED, device_class=tuned.device_class).import_id == answer.import_id
            assert lines(export(other), "job", "trial", "best") == lines(exported, "job", "trial", "best")
    finally:
        finish(fresh)


def lines_of(content: bytes, kind: str) -> bytes:
    """The first line of a kind, as it is written."""
    return next(line for line in content.splitlines(keepends=True) if f'"kind":"{kind}"'.encode() in line)


def test_parts_of_one_file_are_one_import(
    target: Client, exported: bytes, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilewright.http.arguments._PART_BYTES", 500)
    job = lines(exported, "job")[0]
    parts = [signed(server.signer, damage(job, id=digit * 32)) for digit in "456"]
    assert [len(part) for part in signed_parts(io.BytesIO(b"".join(parts)))] == [len(part) for part in parts]
    answer = target.import_results(io.BytesIO(b"".join(parts)))
    assert answer.added == wire.Counts(jobs=3)
    entered = target.get_import(answer.import_id or "")
    assert target.imports().items[0].id == entered.id
    assert (entered.jobs, entered.trusted, entered.signer) == (3, True, server.signer.public_key)
    assert target.delete_import(entered.id) == wire.Counts(jobs=3)
    for call in (target.get_import, target.delete_import):
        with pytest.raises(ServiceError, match="lists those there are"):
            call(entered.id)
    mixed = [parts[0], signed(signer(7), damage(job, id="7" * 32))]
    with pytest.raises(ServiceError, match="began with other signatures"):
        target.import_results(io.BytesIO(b"".join(mixed)))
    target.delete_import(target.imports().items[0].id)


def test_files_without_signatures_are_cut_at_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.http.arguments._PART_BYTES", 10)
    parts = list(signed_parts(io.BytesIO(b"123456789\n" * 5 + b"end")))
    assert [len(part) for part in parts] == [20, 20, 13]


def test_a_file_without_lines_is_not_read_as_a_whole(target: Client) -> None:
    file = io.BytesIO(bytes(40 * 2**20))
    with pytest.raises(ServiceError, match="line 1: a line must have at most 16777215 bytes"):
        target.import_results(file)
    assert file.tell() == 16 * 2**20


def test_a_wrong_choice_is_told(http: httpx2.Client) -> None:
    assert http.get("/trials", params={"format": "xml"}).status_code == 422
    for since in ("2026-01-01T00:00:00", "2026-01-01", "6", "-1.5", "9999-12-31T23:59:59-14:00"):
        refusal = http.get("/trials", params={"since": since})
        assert refusal.status_code == 422, since
        assert re.search("zone|of UTC", refusal.json()["errors"][0]["detail"])


def test_the_async_client_does_the_same(client: Client, target: Client, exported: bytes, key: str) -> None:
    async def use() -> None:
        async with AsyncClient(client.url, timeout=60.0) as other:
            file = io.BytesIO()
            await other.export(file)
            assert lines(file.getvalue(), "trial") == lines(exported, "trial")
        async with AsyncClient(target.url, timeout=60.0, key=key) as other:
            assert (await other.import_results(io.BytesIO(exported))).added.jobs == 0

    target.import_results(io.BytesIO(exported))
    asyncio.run(use())
