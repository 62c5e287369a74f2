"""A real recording on this machine's CPU: killed, resumed, and replayed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from host_samples import EIGHT_CONFIGS

from tilewright.schema.trial import Outcome
from tuner.replay.formats import read_space

ROOT = Path(__file__).parents[2]
WAIT_S = 120.0


def command(tmp_path: Path, *more: str) -> list[str]:
    verb = [sys.executable, "-m", "service.cli.main", "record", "host", *EIGHT_CONFIGS, "--device", "host"]
    return [*verb, "--out", str(tmp_path / "host.t4.json.gz"), *more]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return os.environ | {
        "TILEWRIGHT_CACHE_DIR": str(tmp_path / "cache"),
        "TILEWRIGHT_COMPILE_PROCESSES": "1",
    }


def killed_after_some_results(tmp_path: Path, env: dict[str, str]) -> str:
    """The journal of a recording that was killed when at least two results stood in it."""
    journal = tmp_path / "host.t4.json.gz.journal"
    with subprocess.Popen(command(tmp_path), env=env, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + WAIT_S
        # The head, the provenance and two results.
        while not (journal.exists() and journal.read_text().count("\n") >= 4):
            assert process.poll() is None, "it ended before it was killed"
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.kill()
        assert process.wait() == -signal.SIGKILL
    return journal.read_text()


def run(words: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, env=env, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S, check=False
    )


@pytest.mark.long
def test_a_killed_recording_is_resumed_and_replayed(tmp_path: Path, env: dict[str, str]) -> None:
    before = killed_after_some_results(tmp_path, env)
    refused = run(command(tmp_path), env)
    assert refused.returncode == 1
    assert "--resume" in refused.stderr
    resumed = run(command(tmp_path, "--resume", "--json"), env)
    assert resumed.returncode == 0, resumed.stderr
    counts = json.loads(resumed.stdout)
    assert (counts["done"], counts["planned"], counts["failed"]) == (8, 8, 0)
    assert not (tmp_path / "host.t4.json.gz.journal").exists()

    space = read_space(tmp_path / "host.t4.json.gz")
    assert (len(space), space.family, space.device.kind) == (8, "host", "host")
    assert all(entry.outcome is Outcome.OK and len(entry.samples_us) >= 3 for entry in space.entries)
    assert space.provenance["planned"] == 8
    assert counts["best_us"] == pytest.approx(space.optimum_us, rel=1e-5)
    for line in before.splitlines()[:4]:
        result = json.loads(line)
        if "configuration" in result:
            kept = next(
                entry
                for row, entry in enumerate(space.entries)
                if dict(space.index.config(row).knobs) == result["configuration"]
            )
            assert kept.samples_us == pytest.approx([1000 * one for one in result["times"]["runtimes"]])

    again = run(command(tmp_path, "--resume"), env)
    assert again.returncode == 1
    assert "holds a complete recording" in again.stderr
    replayed = [
        sys.executable,
        "-m",
        "service.cli.main",
        "replay",
        str(tmp_path / "host.t4.json.gz"),
        "--json",
    ]
    done = run([*replayed, "--runs", "3", "--budget", "8", "--out", str(tmp_path)], env)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["summary"]["runs"] == len(report["runs"]) == 3
    assert all(one["measured"] == 8 for one in report["runs"])
    stored = json.loads((tmp_path / "replay-host-staged.json").read_text())
    assert stored == report
