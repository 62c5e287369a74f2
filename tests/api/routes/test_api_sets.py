"""Config sets over HTTP: content addressing, 304, pins, differences, bundles, and both clients."""

from __future__ import annotations

import asyncio
import hashlib
import json

import httpx2
import pytest
from api_server import TUNED, Server, environment
from typer.testing import CliRunner

from service.cli.main import app
from tilewright import AsyncClient, Client, GemmProblem, trust, wire
from tilewright.artifact import bundle
from tilewright.errors import ArtifactError, InvalidProblem, ServiceError, TrustError
from tilewright.schema.config_set import ConfigSet

NOWHERE = "sm_90-1sm-1gb"
UNKNOWN = f"sha256:{'0' * 64}"


def current(client: Client, tuned: wire.JobView) -> ConfigSet:
    answer = client.current_set(tuned.device_class)
    assert answer is not None
    return answer.config_set


def tune_another(client: Client, m: int) -> None:
    client.tune(GemmProblem(m, 24, 24, "float32", "nn"), max_trials=2)


def test_a_set_has_the_winners_with_what_they_are_worth(tuned: wire.JobView, client: Client) -> None:
    found = current(client, tuned)
    assert (found.device_class, found.arch) == (tuned.device_class, tuned.best.arch)
    (entry,) = [entry for entry in found.entries if entry.problem == TUNED]
    best = client.best_config(TUNED, device_class=tuned.device_class)
    assert (entry.artifact, entry.median_us, entry.verdict) == (
        best.artifact.digest,
        best.timing.median_us,
        best.verdict,
    )
    assert (entry.numerics, entry.deterministic, entry.staleness) == ("ieee", True, "fresh")
    assert entry.use_vendor is best.use_vendor
    assert entry.artifact_bytes == len(client.artifact(entry.artifact).to_bytes())


def test_the_digest_is_that_of_the_content(tuned: wire.JobView, http: httpx2.Client) -> None:
    response = http.get("/config-sets/current", params={"device_class": tuned.device_class})
    body = response.json()
    content = {name: value for name, value in body.items() if name not in ("digest", "created_at")}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert body["digest"] == f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    assert response.headers["etag"] == f'"{body["digest"]}"'
    assert "immutable" not in response.headers["cache-control"]
    same = http.get(f"/config-sets/{body['digest']}")
    assert same.content == response.content
    assert same.headers[trust.HEADER] == response.headers[trust.HEADER]
    assert "immutable" in same.headers["cache-control"]


def test_sets_and_kernels_are_signed_by_the_service(
    tuned: wire.JobView, client: Client, http: httpx2.Client, server: Server
) -> None:
    response = http.get("/config-sets/current", params={"device_class": tuned.device_class})
    of_set = trust.Signature.parse(response.headers[trust.HEADER])
    digest = client.best_config(TUNED, device_class=tuned.device_class).artifact.digest
    of_kernel = trust.Signature.parse(http.get(f"/artifacts/{digest}").headers[trust.HEADER])
    assert of_set.covers(
        trust.statement(trust.About.CONFIG_SET, tuned.device_class, response.json()["digest"])
    )
    assert of_kernel.covers(trust.statement(trust.About.ARTIFACT, digest))
    shown = CliRunner().invoke(app, ["trust", "show", "--json"], env=environment(server.folder))
    (key,) = {of_set.key, of_kernel.key, client.trust().key, json.loads(shown.stdout)["key"]}
    assert (server.folder / "signing.key").stat().st_mode & 0o777 == 0o600
    assert key.startswith("ed25519:")


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [("gzip, Deflate", "deflate"), ("deflate;q=0.5", "deflate"), ("deflate; q=0", None), ("identity", None)],
)
def test_a_set_comes_packed_to_those_who_take_it(
    tuned: wire.JobView, http: httpx2.Client, client: Client, accepted: str, coding: str | None
) -> None:
    found = current(client, tuned)
    for path in ("current", found.digest):
        where = {"device_class": tuned.device_class} if path == "current" else {}
        request = http.build_request(
            "GET", f"/config-sets/{path}", params=where, headers={"Accept-Encoding": accepted}
        )
        response = http.send(request)
        assert (response.headers.get("content-encoding"), response.headers["vary"]) == (
            coding,
            "Accept-Encoding",
        )
        assert ConfigSet.from_bytes(response.content, found.digest) == found


def test_nothing_is_sent_that_the_caller_has(
    tuned: wire.JobView, http: httpx2.Client, client: Client
) -> None:
    digest = current(client, tuned).digest
    for path, params in (
        ("/config-sets/current", {"device_class": tuned.device_class}),
        (f"/config-sets/{digest}", {}),
    ):
        again = http.get(path, params=params, headers={"If-None-Match": f'"x", W/"{digest}"'})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == f'"{digest}"'
        assert again.headers["vary"] == "Accept-Encoding"
    assert client.current_set(tuned.device_class, f'"{digest}"') is None
    assert client.current_set(tuned.device_class, '"sha256:other"') is not None


def test_a_set_changes_with_the_winners_and_earlier_ones_stay(tuned: wire.JobView, client: Client) -> None:
    before = current(client, tuned)
    assert current(client, tuned) == before
    tune_another(client, 25)
    after = current(client, tuned)
    assert after.digest != before.digest
    assert client.config_set(before.digest).config_set == before
    difference = client.diff(before.digest, after.digest)
    assert [change.problem.m for change in difference.added] == [25]
    assert (difference.removed, difference.changed) == ([], [])
    assert difference.unchanged == len(before.entries)
    back = client.diff(after.digest, before.digest)
    assert [change.problem.m for change in back.removed] == [25]
    listed = client.config_sets(tuned.device_class, limit=2).items
    assert [item.digest for item in listed] == [after.digest, before.digest]
    assert [item.serving for item in listed] == ["latest", None]


def test_a_pinned_set_is_served_until_it_is_unpinned(
    tuned: wire.JobView, client: Client, http: httpx2.Client
) -> None:
    """The client has seen a newer one by then, whose answer it takes no more."""
    pinned = current(client, tuned)
    tune_another(client, 26)
    latest = current(client, tuned)
    assert latest.digest != pinned.digest
    asked = http.get("/config-sets/current", params={"device_class": tuned.device_class})
    old_header = asked.headers[trust.SERVED_HEADER]
    info = client.pin(tuned.device_class, pinned.digest)
    assert (info.serving, info.entries) == ("pinned", len(pinned.entries))
    try:
        assert current(client, tuned) == pinned
        tune_another(client, 27)
        assert current(client, tuned) == pinned
        replayed = client.service_key
        with pytest.raises(TrustError, match="earlier config set"):
            replayed.check_served(
                old_header, tuned.device_class, latest.digest, replayed.newest_served(tuned.device_class)
            )
    finally:
        client.unpin(tuned.device_class)
    assert {entry.problem.m for entry in current(client, tuned).entries} >= {26, 27}
    client.unpin(tuned.device_class)


def test_a_set_is_pinned_only_while_the_one_that_the_caller_knows_is_served(
    tuned: wire.JobView, client: Client, http: httpx2.Client
) -> None:
    where = {"device_class": tuned.device_class}
    known = http.get("/config-sets/current", params=where).headers["etag"]
    body = where | {"digest": known.strip('"')}
    other = {"If-Match": f'"{UNKNOWN}"'}
    weak = {"If-Match": f"W/{known}"}
    assert http.post("/config-sets/current", json=body, headers=weak).status_code == 412, "it may be another"
    refused = http.post("/config-sets/current", json=body, headers=other)
    assert (refused.status_code, refused.json()["type"]) == (
        412,
        "urn:tilewright:problem:precondition-failed",
    )
    assert (
        http.post("/config-sets/current", json=body, headers={"If-Match": known}).json()["serving"]
        == "pinned"
    )
    try:
        assert http.delete("/config-sets/current", params=where, headers=other).status_code == 412
        assert (
            http.delete("/config-sets/current", params=where, headers={"If-Match": known}).status_code == 204
        )
    finally:
        client.unpin(tuned.device_class)


def test_an_unknown_class_is_not_unpinned(tuned: wire.JobView, client: Client) -> None:
    client.unpin(tuned.device_class)
    with pytest.raises(
        ServiceError, match=r"404 .* nothing was ever served to sm_12; GET /config-sets lists"
    ):
        client.unpin("sm_12")


def test_a_bundle_has_every_kernel_or_those_wanted(
    tuned: wire.JobView, client: Client, http: httpx2.Client
) -> None:
    found = current(client, tuned)
    digests = {entry.artifact for entry in found.entries}
    everything = client.artifacts(found.digest)
    assert set(everything) == digests
    assert all(artifact.digest == digest for digest, artifact in everything.items())
    one = next(iter(digests))
    assert list(client.artifacts(found.digest, [one])) == [one]
    response = http.get(f"/config-sets/{found.digest}/bundle")
    assert int(response.headers["content-length"]) == len(response.content)
    damaged = bytearray(response.content)
    damaged[-1] ^= 1
    with pytest.raises(ArtifactError, match="does not match"):
        bundle.unpack(bytes(damaged))
    with pytest.raises(ArtifactError, match="ends"):
        bundle.unpack(response.content[:-1])


def test_what_does_not_exist_is_told(tuned: wire.JobView, client: Client, http: httpx2.Client) -> None:
    known = current(client, tuned).digest
    for call in (
        lambda: client.current_set(NOWHERE),
        lambda: client.config_set(UNKNOWN),
        lambda: client.diff(known, UNKNOWN),
        lambda: client.artifacts(UNKNOWN),
        lambda: client.artifacts(known, ["0" * 64]),
        lambda: client.pin(tuned.device_class, UNKNOWN),
        lambda: client.pin(NOWHERE, known),
    ):
        with pytest.raises(ServiceError) as refused:
            call()
        assert refused.value.status == 404
    assert http.get("/config-sets/current").status_code == 422
    assert http.get("/config-sets/sha256:xyz").status_code == 422
    with pytest.raises(InvalidProblem, match="digest"):
        client.pin(tuned.device_class, "latest")


def test_lists_have_pages(tuned: wire.JobView, client: Client, http: httpx2.Client) -> None:
    current(client, tuned)
    tune_another(client, 28)
    current(client, tuned)
    query = {"device_class": tuned.device_class, "limit": "1"}
    first = http.get("/config-sets", params=query)
    assert f"cursor={first.json()['next']}" in first.headers["link"]
    second = http.get("/config-sets", params=query | {"cursor": first.json()["next"]}).json()
    every = client.config_sets(limit=1000).items
    digests = [page["items"][0]["digest"] for page in (first.json(), second)]
    assert digests == [item.digest for item in every[:2]]
    assert client.config_sets(NOWHERE).items == []


def test_the_async_client_does_the_same(tuned: wire.JobView, client: Client) -> None:
    async def use() -> None:
        async with AsyncClient(client.url, timeout=60.0) as other:
            answer = await other.current_set(tuned.device_class)
            assert answer is not None
            digest = answer.config_set.digest
            assert answer.config_set == current(client, tuned)
            assert (await other.config_set(digest)).content == answer.content
            assert (await other.config_sets(tuned.device_class, limit=1)).items[0].digest == digest
            assert (await other.diff(digest, digest)).unchanged == len(answer.config_set.entries)
            assert await other.artifacts(digest) == client.artifacts(digest)
            assert (await other.pin(tuned.device_class, digest)).serving == "pinned"
            await other.unpin(tuned.device_class)

    asyncio.run(use())
