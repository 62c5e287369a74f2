"""``make demo`` with a small budget: the whole main job in one process tree."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest


@pytest.mark.long
def test_the_demo_goes_through_every_step() -> None:
    done = _demo("--device", "host", "--extent", "96", "--max-trials", "4")
    assert done.returncode == 0, done.stdout + done.stderr
    labels = [line.split()[0] for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert labels == [
        *("service", "device", "tune", "searched", "winner", "vendor", "speed-up", "stored", "run", "stopped")
    ]
    assert re.search(r"^searched +4 of [0-9,]+ valid configs measured", done.stdout, re.MULTILINE)
    assert re.search(
        r"^speed-up +[0-9.]+ \[[0-9.]+, [0-9.]+\] at 99% confidence: ", done.stdout, re.MULTILINE
    )
    assert re.search(r"4 of 4, .*GFLOP/s", done.stderr)


@pytest.mark.long
def test_the_demo_fails_where_it_cannot_be_right() -> None:
    done = _demo("--device", "cuda:99")
    assert done.returncode == 1
    assert "demo failed: the service did not start" in done.stderr
    assert "cuda:99" in done.stderr
    assert "stopped" not in done.stdout


def _demo(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "service.cli.demo", *options]
    busy = os.environ | {"TILEWRIGHT_QUIET_WAIT_S": "0"}  # as other tests run beside it
    return subprocess.run(command, env=busy, capture_output=True, text=True, timeout=240, check=False)
