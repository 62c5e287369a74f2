"""A network that is cut and mended: a request that its caller gave up and repeated arrives three times."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from api_server import Server, finish, start
from cut_proxy import CutProxy

BODY = {"m": 24, "n": 24, "k": 24, "dtype": "float32", "layout": "nn", "max_trials": 1}
MISS = {"m": 40, "n": 8, "k": 64, "dtype": "float32", "count": 7}
COPIES = 3


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    running = start(tmp_path, retune_stale=False)
    yield running
    finish(running)


def handled(server: Server, path: str) -> int:
    """How many requests to a path have ended."""
    lines = httpx2.get(f"{server.url}/metrics", timeout=60).text.splitlines()
    found = [one for one in lines if "_request_duration_seconds_count{" in one and f'"{path}"' in one]
    return sum(int(float(one.rpartition(" ")[2])) for one in found)


def lost(server: Server, proxy: CutProxy, path: str, body: dict[str, Any], key: str) -> httpx2.Response:
    """What the caller is told who asks again when the network is mended, which delivers all that it lost."""
    port = urlsplit(server.url).port
    url = server.url.replace(f":{port}", f":{proxy.port}")
    before = handled(server, path)
    headers = {"Idempotency-Key": key}
    proxy.cut(os.getpid())
    for _ in range(COPIES):
        with pytest.raises(httpx2.TimeoutException):
            httpx2.post(f"{url}{path}", json=body, headers=headers, timeout=0.3)
    assert handled(server, path) == before
    proxy.mend()
    deadline = time.monotonic() + 30
    while handled(server, path) < before + COPIES:
        assert time.monotonic() < deadline, "the copies do not arrive"
        time.sleep(0.05)
    return httpx2.post(f"{url}{path}", json=body, headers=headers, timeout=60)


def test_a_request_that_comes_three_times_through_a_cut_network_is_done_once(server: Server) -> None:
    with closing(CutProxy(urlsplit(server.url).port or 0)) as proxy:
        tuned = lost(server, proxy, "/tune", BODY, "tune")
        assert tuned.status_code == 202
        (job,) = httpx2.get(f"{server.url}/jobs").json()["items"]
        assert tuned.json()["id"] == job["id"]
        report = {"device_class": job["device_class"], "misses": [MISS]}
        assert lost(server, proxy, "/misses", report, "misses").status_code == 202
        misses = httpx2.get(f"{server.url}/misses?device_class={job['device_class']}").json()["items"]
        assert [one["count"] for one in misses] == [MISS["count"]]
