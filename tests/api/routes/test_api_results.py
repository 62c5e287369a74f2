"""Winners, artifacts, families, devices, health and the manners of errors."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import httpx2
import pytest
from api_server import TUNED

from tilewright import Artifact, Client, GemmProblem, wire
from tilewright.errors import ServiceError
from tilewright.launch import load
from tilewright.schema.codec import in_words


def test_one_winner_by_arch_and_by_device_class(tuned: wire.JobView, client: Client) -> None:
    assert tuned.best is not None
    by_class = client.best_config(TUNED, device_class=tuned.device_class)
    by_arch = client.best_config(TUNED, arch=by_class.arch)
    assert by_class == by_arch == tuned.best
    assert by_class.match == wire.MatchView(kind="exact")


def test_what_was_not_tuned_has_no_exact_answer(tuned: wire.JobView, client: Client) -> None:
    wanted = GemmProblem(128, 48, 32, "float32", "nn")
    with pytest.raises(ServiceError, match="ask with match=nearest") as refused:
        client.best_config(wanted, device_class=tuned.device_class)
    assert refused.value.status == 404


def test_a_missing_result_says_how_to_get_it(
    tuned: wire.JobView, client: Client, http: httpx2.Client
) -> None:
    problem = GemmProblem(40, 40, 40, "float64", "tn")
    with pytest.raises(ServiceError, match="POST the member 'tune'") as refused:
        client.best_config(problem, device_class=tuned.device_class)
    hint = refused.value.problem["tune"]
    assert hint == {"m": 40, "n": 40, "k": 40, "dtype": "float64", "layout": "tn"}
    job = http.post("/tune", json=hint | {"max_trials": 1})
    assert job.status_code == 202
    client.wait(job.json()["id"])
    assert client.best_config(problem, device_class=tuned.device_class).problem == problem


def test_winners_are_listed_in_pages(tuned: wire.JobView, client: Client, http: httpx2.Client) -> None:
    client.tune(GemmProblem(18, 16, 16, "float32"), max_trials=1)
    assert tuned.best is not None
    every = client.configs(arch=tuned.best.arch)
    assert tuned.best in every
    assert len(every) >= 2
    first = http.get("/best-config", params={"arch": tuned.best.arch, "limit": 1}).json()
    second = http.get(
        "/best-config", params={"arch": tuned.best.arch, "limit": 1, "cursor": first["next"]}
    ).json()
    ids = [page["items"][0]["job_id"] for page in (first, second)]
    assert ids == [item.job_id for item in every[:2]]
    assert client.configs(arch="sm_90") == []


def test_a_list_is_narrowed_by_what_is_given(
    tuned: wire.JobView, client: Client, http: httpx2.Client
) -> None:
    client.tune(GemmProblem(18, 16, 16, "float32"), max_trials=1)
    client.tune(GemmProblem(18, 16, 16, "float64", "nn"), max_trials=1)
    place = {"device_class": tuned.device_class}

    def listed(**given: str) -> list[dict[str, Any]]:
        page = http.get("/best-config", params={**place, "limit": "1000", **given}).raise_for_status().json()
        return [item["problem"] for item in page["items"]]

    def of(**given: object) -> list[dict[str, Any]]:
        return [problem for problem in whole if problem.items() >= given.items()]

    whole = listed()
    pairs = {(problem["dtype"], problem["layout"]) for problem in whole}
    assert {("float32", "nn"), ("float32", "nt"), ("float64", "nn")} <= pairs
    assert listed(dtype="float64") == of(dtype="float64")
    assert listed(layout="nn") == of(layout="nn")
    assert listed(dtype="float32", layout="nt") == of(dtype="float32", layout="nt")
    assert listed(has_bias="true") == of(has_bias=True)
    assert listed(dtype="float16") == listed(batch="7") == []
    assert listed(deterministic="true") == whole


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ({}, "give arch or device_class"),
        ({"arch": "x", "m": "1"}, "give all of m, n and k"),
        ({"arch": "x", "m": "0", "n": "1", "k": "1"}, "greater than or equal to 1"),
        ({"arch": "x", "m": "9" * 30, "n": "1", "k": "1"}, "less than or equal to"),
        ({"arch": "x", "nonsense": "1"}, "nonsense"),
        ({"arch": "x", "cursor": "!!"}, "cursor"),
        ({"arch": "x", "cursor": "abcd"}, "cursor"),
        ({"arch": "x", "limit": "1001"}, "limit"),
        ({"arch": "x", "match": "nearest"}, "match: for one problem only"),
        (
            {"arch": "x", "match": "exact", "max_regret": "0.1"},
            "match and max_regret: for one problem only",
        ),
        (
            {"arch": "x", "m": "1", "n": "1", "k": "1", "dtype": "float32", "acc_dtype": "float16"},
            "accumulates",
        ),
    ],
)
def test_a_wrong_query_is_told(http: httpx2.Client, query: dict[str, str], says: str) -> None:
    response = http.get("/best-config", params=query)
    assert response.status_code == 422
    assert response.headers["content-type"] == "application/problem+json"
    assert says in response.text


def test_an_artifact_is_its_digest_and_runs(tuned: wire.JobView, client: Client, http: httpx2.Client) -> None:
    assert tuned.best is not None
    link = tuned.best.artifact
    response = http.get(link.href)
    assert hashlib.sha256(response.content).hexdigest() == link.digest
    assert response.headers["etag"] == f'"{link.digest}"'
    assert "immutable" in response.headers["cache-control"]
    artifact = client.artifact(link.digest)
    assert isinstance(artifact, Artifact)
    assert artifact.plan.why_not(TUNED) is None
    load(artifact).close()
    again = http.get(link.href, headers={"If-None-Match": response.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_an_unknown_artifact_is_not_found(http: httpx2.Client) -> None:
    assert http.get(f"/artifacts/{'0' * 64}").status_code == 404
    assert http.get("/artifacts/..%2f..%2fetc").status_code in (404, 422)


def test_families_tell_knobs_and_support(client: Client) -> None:
    families = {family.name: family for family in client.families()}
    assert {"host", "mma_sync", "simt"} <= set(families)
    host = families["host"]
    assert all(knob.doc and set(knob.searched) <= set(knob.legal) for knob in host.knobs)
    support = {item.dtype: item for item in host.support if item.device == "host"}
    assert support["float32"].layouts == ["nn", "nt", "tn", "tt"]
    assert support["float16"].layouts == []
    assert support["float16"].why_not


def test_devices_and_health(client: Client, http: httpx2.Client) -> None:
    (device,) = client.devices()
    assert (device.name, device.kind) == ("host", "host")
    assert device.device_class.startswith(device.arch)
    assert client.ready().checks == {"database": "ok", "host": "ok"}
    assert http.get("/health/live").json()["status"] == "ok"
    assert http.get("/health/startup").json()["checks"] == {"database": "migrated", "host": "open"}
    assert http.get("/docs").status_code == 200
    document = http.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    assert "503" not in document["paths"]["/health/startup"]["get"]["responses"], "nothing listens before"


def test_what_breaks_a_pattern_is_told_in_words(http: httpx2.Client) -> None:
    answer = http.get("/jobs/latest")
    told = "must be 32 lower-case hexadecimal digits, such as 0123456789abcdef0123456789abcdef"
    assert (answer.status_code, answer.json()["errors"]) == (422, [{"detail": told, "parameter": "job_id"}])
    answer = http.post("/tune", json={**TUNED.to_dict(), "device": "the second one"})
    told = "must be host or cuda:NUMBER, in a fleet after NODE/, such as node1/cuda:0"
    assert (answer.status_code, answer.json()["errors"]) == (422, [{"detail": told, "pointer": "#/device"}])
    used = set[str]()

    def collect(one: dict[str, Any]) -> None:
        used.update(value for name, value in one.items() if name == "pattern" and isinstance(value, str))

    json.loads(http.get("/openapi.json").text, object_hook=collect)
    assert {one for one in used if "must match" in in_words(one)} == {r"^1\."}, "the version of a T4 file"
    assert len(used) > 8


def test_errors_outside_the_routes_are_problem_documents_too(http: httpx2.Client) -> None:
    missing = http.get("/nothing")
    assert missing.status_code == 404
    assert missing.json()["type"] == "urn:tilewright:problem:not-found"
    wrong = http.put("/tune")
    assert wrong.status_code == 405
    assert wrong.headers["allow"] == "POST"
    assert wrong.json()["type"] == "urn:tilewright:problem:method-not-allowed"
    of_several_routes = http.put("/config-sets/current")
    assert of_several_routes.headers["allow"] == "DELETE, GET, HEAD, POST"
    assert of_several_routes.json()["detail"].endswith("use DELETE, GET, HEAD, POST")


def test_every_answer_has_a_request_id(http: httpx2.Client) -> None:
    given = http.get("/nothing", headers={"X-Request-ID": "mine-1"})
    assert given.headers["x-request-id"] == given.json()["request_id"] == "mine-1"
    forged = http.get("/health/live", headers={"X-Request-ID": "a b<script>"})
    assert forged.headers["x-request-id"] != "a b<script>"


def test_a_large_body_is_refused_before_it_is_read(http: httpx2.Client) -> None:
    response = http.post("/tune", content=b"x" * 70_000, headers={"Content-Type": "application/json"})
    assert response.status_code == 413
    assert "max_json_bytes" in response.json()["detail"]


def test_a_large_body_without_a_length_is_refused_while_read(http: httpx2.Client) -> None:
    chunks = iter([b"x" * 1000] * 100)
    response = http.post("/tune", content=chunks, headers={"Content-Type": "application/json"})
    assert response.status_code == 413
    assert response.headers["content-type"] == "application/problem+json"
