"""The client's start-up and ``matmul`` against the real service."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from api_server import TUNED, Server

from tilewright import Client, GemmProblem
from tilewright.launch import local_device
from tilewright.wire import JobView


@pytest.mark.usefixtures("tuned")
def test_a_tuned_problem_is_at_hand_online_pinned_and_offline(server: Server, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(shape).astype("float32") for shape in (TUNED.a_shape, TUNED.b_shape))
    with Client(server.url, cache_dir=tmp_path, start_timeout=30.0) as tw:
        found = tw.start(local_device.HOST).lookup(TUNED, local_device.HOST)
        assert found.entry is not None
        assert found.entry.use_vendor == (found.kind == "vendor")
        np.testing.assert_allclose(tw.matmul(a, b), a @ b, rtol=1e-4, atol=1e-4)
        assert sum(tw.stats.values()) == 1
        answer = tw.current_set(local_device.device_class(local_device.HOST).id)
        assert answer is not None
    pin = answer.config_set.digest
    with Client(server.url, cache_dir=tmp_path / "pinned", start_timeout=30.0, pin=pin) as tw:
        assert tw.start(local_device.HOST).lookup(TUNED, local_device.HOST).entry == found.entry
    with Client("http://127.0.0.1:9", cache_dir=tmp_path, offline=True) as tw:
        assert not tw.start(local_device.HOST).refresh()  # another service's cache is not this one's
        assert tw.lookup(TUNED, local_device.HOST).reason == "no config set yet"
    with Client(server.url, cache_dir=tmp_path, offline=True) as tw:
        assert tw.start(local_device.HOST).lookup(TUNED, local_device.HOST).entry == found.entry


@pytest.mark.usefixtures("tuned")
def test_misses_reach_the_service(server: Server, tmp_path: Path) -> None:
    a = np.ones((19, 23), "float32")
    with Client(server.url, cache_dir=tmp_path, start_timeout=30.0, max_regret=None) as tw:
        for _ in range(4):
            tw.start(local_device.HOST).matmul(a, a.T)
        assert tw.refresh(30.0)
        until = time.monotonic() + 10.0
        wanted = GemmProblem(19, 19, 23, "float32", "nt")
        while time.monotonic() < until:
            found = [miss for miss in tw.misses(limit=1000) if miss.problem == wanted]
            if found:
                break
        assert [miss.count for miss in found] == [4]


def test_a_finished_job_is_taken_without_waiting_for_the_next_look(server: Server, tmp_path: Path) -> None:
    problem = GemmProblem(40, 48, 32, "float32", "nn")
    with Client(server.url, cache_dir=tmp_path, start_timeout=30.0, timeout=60.0) as tw:
        tw.start(local_device.HOST)
        job: JobView = tw.tune(problem, max_trials=2)
        assert job.best is not None
        assert tw.refresh(30.0)
        assert tw.lookup(problem, local_device.HOST).entry is not None
