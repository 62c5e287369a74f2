"""Calls a service as a user's program does, with the client of the release on ``PYTHONPATH``; prints JSON.

    python release_calls.py URL KEY

Only what every release since 8332e9c has is called. A wrong answer ends the program with its assertion.
"""

from __future__ import annotations

import io
import json
import sys

import numpy as np

import tilewright
from tilewright import Client, GemmProblem

PROBLEM = GemmProblem(64, 48, 32, "float32", "nn")
UNTUNED = GemmProblem(24, 16, 8, "float32", "nn")
SHAPES = ((PROBLEM.m, PROBLEM.k), (PROBLEM.k, PROBLEM.n))


def main(url: str, key: str) -> dict[str, object]:
    a, b = (
        np.arange(rows * columns, dtype=np.float32).reshape(rows, columns) % 7 for rows, columns in SHAPES
    )
    with Client(url, timeout=60.0, key=key) as client:
        assert client.ready().status == "ok"
        job = client.tune(PROBLEM, max_trials=2, seed=1, sampler="random")
        assert job.status == client.job(job.id).status == "succeeded"
        assert job.id in {one.id for one in client.jobs().items}
        assert len(client.trials(job.id).items) == 2
        (device,) = {one.device_class for one in client.devices()}
        best = client.best_config(PROBLEM, device_class=device)
        assert best.config.family == "host"
        assert [one.problem for one in client.configs(device_class=device)] == [PROBLEM]
        found = client.lookup_many([PROBLEM, UNTUNED], device_class=device)
        assert found[0].entry.problem == PROBLEM
        assert client.artifact(best.artifact.digest).plan.entry == "host_gemm"
        assert np.array_equal(client.gemm(a, b).d, a @ b)
        shared = client.shared_empty(a.shape, "float32")
        shared[:] = a
        assert np.array_equal(client.gemm(shared, b).d, a @ b)
        latest = client.current_set(device)
        digest = json.loads(latest.content)["digest"]
        assert client.config_set(digest).content == latest.content
        assert client.diff(digest, digest).a == digest
        assert client.pin(device, digest).digest == digest
        client.unpin(device)
        client.start()
        assert client.refresh()
        assert client.lookup(PROBLEM).entry.problem == PROBLEM
        assert np.array_equal(client.matmul(a, b), a @ b)
        exported = io.BytesIO()
        client.export(exported)
        exported.seek(0)
        client.import_results(exported)
        assert client.cancel(job.id).status == "succeeded"
    return {
        "client": tilewright.__file__,
        "job": job.id,
        "set": digest,
        "lines": exported.getvalue().count(b"\n"),
    }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))  # noqa: T201
