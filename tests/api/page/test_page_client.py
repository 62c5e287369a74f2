"""``tw.explain(a, b)``, and tuning from the coverage view, on a service that tunes on the host."""

from __future__ import annotations

import re
from typing import Any

import httpx2
import numpy as np
import pytest
from api_server import TUNED, Server

from tilewright import Client, GemmProblem, wire
from tilewright.errors import InvalidProblem
from tilewright.http.arguments import Miss


def test_the_client_explains_what_a_call_would_run(server: Server, tuned: wire.JobView) -> None:
    a, b = np.zeros((TUNED.m, TUNED.k), "float32"), np.zeros((TUNED.k, TUNED.n), "float32")
    with Client(server.url, timeout=60.0) as client:
        found = client.explain(a, b)
        assert client.matmul.describe(a, b).problem == found.result.problem == TUNED == tuned.problem
        assert found.runs in ("exact", "vendor")
        assert found.explanation.traffic.needed == TUNED.total_bytes
        assert found.explanation.occupancy is None, "the host has no SMs"
        assert any(not one.valid for one in found.explanation.alternatives)
        with pytest.raises(InvalidProblem):
            client.explain(a, b[1:])


@pytest.mark.parametrize(
    ("limits", "asked"),
    [
        ({}, {"match": "nearest", "max_regret": 0.1, "deterministic": False}),
        (
            {"max_regret": 0.5, "deterministic": True},
            {"match": "nearest", "max_regret": 0.5, "deterministic": True},
        ),
        ({"max_regret": None}, {"deterministic": False}),
    ],
)
def test_it_explains_within_its_limits(
    limits: dict[str, Any], asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    got: dict[str, Any] = {}
    with Client("http://127.0.0.1:9", **limits) as client:
        monkeypatch.setattr(client, "explain_result", lambda _problem, **options: got.update(options))
        client.explain(np.zeros((4, 4), "float32"), np.zeros((4, 4), "float32"))
    assert got.pop("device_class")
    assert got == asked


def test_coverage_shows_a_miss_and_starts_its_tuning(
    http: httpx2.Client, client: Client, tuned: wire.JobView
) -> None:
    missed = GemmProblem(40, 56, 24, "float32", "nn")
    client.report_misses(tuned.device_class, [Miss(missed, 7)])
    page = http.get(f"/view/coverage?device_class={tuned.device_class}").text
    (row,) = (one for one in page.split("<tr>") if f"<td>{missed}</td>" in one and "<form" in one)
    assert "missing" in row
    assert "ran 7 times" in row
    fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', row))
    answer = http.post("/view/jobs", data=fields | {"max_trials": "2"})
    assert answer.status_code == 303, answer.text
    job = client.wait(answer.headers["location"].rpartition("/")[2])
    assert job.problem == missed
