"""A Ray cluster that asks for a token: a service that has it tunes, others are refused in one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.service.ray_services import head, service, wait
from tilewright import GemmProblem

# NOTE: Ray reads its environment at the import, and :mod:`fleet_cluster` sets it before.
pytestmark = pytest.mark.skipif(not find_spec("ray"), reason="'make test-fleet' installs Ray")
PROBLEM = GemmProblem(64, 48, 32, "float32", "nn")
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4}
JOIN = "from service.fleet import cluster; cluster.join({!r}, 'test')"


def test_only_who_has_the_token_joins(tmp_path: Path) -> None:
    given = TOKEN | {"TILEWRIGHT_CACHE_DIR": str(tmp_path / "cache"), "TILEWRIGHT_LOCK_DIR": str(tmp_path)}
    with head(0, **given) as address:
        wrong = ({}, TOKEN | {"RAY_AUTH_TOKEN": "f" * 64})
        with ThreadPoolExecutor(len(wrong)) as pool:
            said = list(pool.map(lambda environment: refused(address, environment), wrong))
        assert all("set RAY_AUTH_MODE=token and its RAY_AUTH_TOKEN" in line for line in said), said
        with service(tmp_path / "service", address, **given) as client:
            wait(lambda: bool(client.devices()))
            assert client.tune(PROBLEM, level="quick", max_trials=2).best


def refused(address: str, environment: dict[str, str]) -> str:
    """What a service that may not join says last."""
    given = {name: text for name, text in os.environ.items() if not name.startswith("RAY_AUTH")}
    given |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", **environment}
    command = [sys.executable, "-c", JOIN.format(address)]
    ended = subprocess.run(command, env=given, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode != 0
    return ended.stderr.strip().splitlines()[-1]
