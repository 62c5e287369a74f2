"""Every part of the benchmark of several GPUs, on this machine's CPU as two devices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import fleet_cluster
import pytest

COMMAND = [sys.executable, "-m", "benchmarks.service.fleet_gpus", "--devices", "host", "host"]
ONE_KERNEL = fleet_cluster.QUICK_DEVICES["PATH"]
SMALL = ["--jobs", "2", "--trials", "8", "--search-trials", "8", "--fault-seconds", "5"]


def run(out: Path, *arguments: str, path: str = ONE_KERNEL) -> dict[str, list[dict[str, Any]]]:
    """The rows of each file that the benchmark left; its compiler is the first on ``path``."""
    given = [*COMMAND, "--compile-processes", "1", "--out", str(out), *arguments]
    environment = os.environ | {"PATH": path, "RUN_OF_TEST": str(out)}
    ended = subprocess.run(given, env=environment, capture_output=True, text=True, timeout=280, check=False)
    files = sorted(out.glob("fleet-gpus-*.json"))
    found = {path.name.split("-x86_64")[0].removeprefix("fleet-gpus-"): path for path in files}
    print(ended.stdout[-2000:], ended.stderr[-6000:])  # noqa: T201
    return {part: json.loads(path.read_text())["rows"] for part, path in found.items()}


def kinds(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["kind"] for row in rows))


def test_jobs_on_one_device_and_on_two(tmp_path: Path) -> None:
    found = run(tmp_path, *SMALL, "--parts", "jobs", "winners", "elsewhere")
    assert [row["ended"] for row in found["parts"]] == ["well"] * 3
    one, two = (row for row in found["jobs"] if row["kind"] == "jobs")
    assert (one["devices"], two["devices"], one["succeeded"], two["succeeded"]) == (1, 2, 2, 2)
    assert one["trials"] == two["trials"] == 16
    assert kinds(found["winners"]) == ["pair", "winners"]
    assert found["winners"][-1]["pairs"] == 2
    assert kinds(found["elsewhere"]) == ["product", "client", "over vendor"]
    assert [row["wrong"] for row in found["elsewhere"] if row["kind"] == "client"] == [[]]


def test_one_job_on_two_devices_and_beside_a_busy_one(tmp_path: Path) -> None:
    found = run(tmp_path, *SMALL, "--parts", "one-job", "neighbours")
    assert [row["ended"] for row in found["parts"]] == ["well"] * 2
    alone, helped, near = found["one-job"]
    assert (alone["helpers"], helped["helpers"]) == (False, True)
    assert near["alone_s"] or near["helped_s"], "one of them found the best"
    assert kinds(found["neighbours"]) == ["here", "devices", "anchor", "beside"]
    assert [row["repeat"] for row in found["neighbours"] if row["kind"] == "devices"] == [0, 1, 2]
    anchors = [row for row in found["neighbours"] if row["kind"] == "anchor"]
    assert all(row["standard_error"] > 0 for row in anchors)
    beside = [row["busy_neighbours"] for row in found["neighbours"] if row["kind"] == "beside"]
    assert beside[:2] == [0, 1]


def test_one_device_is_struck_in_the_middle_of_a_trial_while_the_other_works(tmp_path: Path) -> None:
    found = run(tmp_path, "--trials", "8", "--strikes", "worker", "actor", "--parts", "strikes")
    assert [row["ended"] for row in found["parts"]] == ["well"]
    assert kinds(found["strikes"])[:1] == ["quiet"]
    assert [row["round"] for row in found["strikes"] if row["kind"] == "quiet"] == [0, 1]
    assert [row["failed"] for row in found["strikes"] if row["kind"] == "beside"]
    worker, actor = (row for row in found["strikes"] if row["kind"] == "strike")
    for row in (worker, actor):
        assert row["met"]
        assert (row["lost"], row["doubled"], row["status"]) == (0, 0, "succeeded")
        assert row["trial"] == row["acknowledged"] < row["of"] / 2
        assert 0 < row["next_trial_s"] <= row["next_measured_s"]
    assert (worker["outcome"], worker["claims"]) == ("launch_error", [1, 1])
    assert "SIGKILL" in worker["message"]
    assert actor["claims"] == [1, 2]


@pytest.mark.long
def test_a_job_meets_a_broken_kernel_while_the_other_device_works(tmp_path: Path) -> None:
    planted = ["--trials", "8", "--planted", "illegal", "--parts", "broken"]
    found = run(tmp_path, *planted, path=os.environ["PATH"])  # NOTE: only some configs have the fault
    assert [row["ended"] for row in found["parts"]] == ["well"]
    assert {"quiet", "beside", "job", "after"} <= set(kinds(found["broken"]))
    (job,) = [row for row in found["broken"] if row["kind"] == "job"]
    assert (job["status"], len(job["failed"])) == ("succeeded", 1)
    assert [row["failed"] for row in found["broken"] if row["kind"] == "beside"]


def test_broken_kernels_beside_jobs_of_the_other_device(tmp_path: Path) -> None:
    found = run(tmp_path, *SMALL, "--parts", "faults")
    assert [row["ended"] for row in found["parts"]] == ["well"]
    assert kinds(found["faults"])[:2] == ["quiet", "beside faults"]
    assert found["faults"][-1]["exit"] == 0


def test_two_fleets_that_offer_one_device_use_it_one_after_the_other(tmp_path: Path) -> None:
    found = run(tmp_path, "--trials", "4", "--parts", "one-device")["one-device"]
    waits, first, second, both = found
    assert (waits["began_early"], both["overlapping"]) == (False, 0)
    assert "in use by another service" in " ".join(waits["told"])
    assert [(row["status"], row["trials"], row["doubled"]) for row in (first, second)] == [
        ("succeeded", 4, 0)
    ] * 2


@pytest.mark.long
def test_both_engines_run_the_same_jobs(tmp_path: Path) -> None:
    found = run(tmp_path, "--trials", "2", "--repeats", "1", "--parts", "overhead")["overhead"]
    assert kinds(found) == ["job", "warm-up", "jobs", "overhead"]
    assert [row["engine"] for row in found if row["kind"] == "jobs"] == ["ray", "local"]
    assert {row["trials"] for row in found if row["kind"] == "jobs"} == {12}
    figures = [row["figure"] for row in found if row["kind"] == "overhead"]
    assert figures == ["trials_per_minute", "ms_per_trial", "besides_ms_per_trial", "job_s"]


def test_a_part_that_takes_too_long_leaves_nothing_behind(tmp_path: Path) -> None:
    found = run(tmp_path, "--parts", "jobs", "winners", "--seconds", "26")
    assert [row["ended"][:9] for row in found["parts"]] == ["cut short", "left out:"]
    assert processes(tmp_path) == []


def processes(out: Path) -> list[str]:
    """Those of a run that live."""
    environments = Path("/proc").glob("[0-9]*/environ")
    return [path.parent.name for path in environments if f"RUN_OF_TEST={out}".encode() in (read(path) or b"")]


def read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
