"""What a process holds, and how fast it grows: the arithmetic by hand, and this process."""

from __future__ import annotations

import multiprocessing
import os
import threading
from pathlib import Path

import pytest

from benchmarks.common.growth import descendants, file_bytes, holdings, slope
from benchmarks.service.soak import faults

ROW = {"processes": 1.0, "unexpected": 0}
STEADY = {"per_hour": 0.0, "interval": [0.0, 0.0]}


def test_a_slope_is_the_median_of_those_between_any_two_points() -> None:
    # 0-1: 2, 0-2: 2, 0-3: 12 / 3 = 4, 1-2: 2, 1-3: 10 / 2 = 5, 2-3: 8; their median is (2 + 4) / 2.
    assert slope([0.0, 1.0, 2.0, 3.0], [0.0, 2.0, 4.0, 12.0]).value == pytest.approx(3.0)


def test_the_interval_of_a_slope_leaves_out_pairs_by_kendalls_variance() -> None:
    """10 points have 45 pairs and S the variance 10 * 9 * 25 / 18 = 125: 2.576 times its root is 28.8, so the
    interval begins above the (45 - 28.8) / 2 = 8 lowest slopes and ends below the 8 highest."""
    values = [float(x * x) for x in range(10)]  # the slope of a pair is the sum of its two
    found = slope([float(x) for x in range(10)], values)
    slopes = sorted(a + b for a in range(10) for b in range(a))
    assert (found.low, found.value, found.high) == (slopes[8], slopes[22], slopes[-9]) == (5, 9, 13)


def test_a_count_that_rises_for_a_moment_has_not_grown() -> None:
    values = [50.0] * 40
    values[7] = values[30] = 51.0
    found = slope([float(x) for x in range(40)], values)
    assert (found.low, found.value, found.high) == (0.0, 0.0, 0.0)


def test_a_descriptor_that_leaks_every_half_hour_is_seen() -> None:
    minutes = range(15, 101)
    found = slope([minute / 60 for minute in minutes], [50.0 + minute // 30 for minute in minutes])
    assert found.low > 0


def test_a_slope_needs_two_points() -> None:
    with pytest.raises(ValueError, match="two or more points, got 1"):
        slope([1.0], [1.0])


def test_descriptors_and_threads_of_this_process_are_counted(tmp_path: Path) -> None:
    before, go_on = holdings([os.getpid()]), threading.Event()
    thread = threading.Thread(target=go_on.wait)
    with (tmp_path / "one").open("w"), (tmp_path / "two").open("w"):
        thread.start()
        during = holdings([os.getpid()])
        go_on.set()
    thread.join()
    assert during["fds"] == before["fds"] + 2
    assert during["threads"] == before["threads"] + 1
    assert 0 < during["uss_mb"] <= during["pss_mb"] <= during["rss_mb"]


def test_a_child_is_a_descendant_until_it_ended() -> None:
    spawn = multiprocessing.get_context("spawn")
    go_on = spawn.Event()
    child = spawn.Process(target=go_on.wait)
    child.start()
    assert child.pid in descendants(os.getpid())
    assert holdings([child.pid or 0])["processes"] == 1
    go_on.set()
    child.join()
    assert child.pid not in descendants(os.getpid())
    assert set(holdings([child.pid or 0]).values()) == {0.0}


def test_bytes_of_files_and_folders_are_added(tmp_path: Path) -> None:
    folder = tmp_path / "folder" / "inner"
    folder.mkdir(parents=True)
    (folder / "seven").write_bytes(bytes(7))
    (tmp_path / "three").write_bytes(bytes(3))
    assert file_bytes(tmp_path / "folder", tmp_path / "three", tmp_path / "nowhere") == 10


@pytest.mark.parametrize(
    ("name", "per_hour", "low", "fault"),
    [
        ("fds", 0.9, 0.1, ["fds grow"]),
        ("fds", 0.9, 0.0, []),
        ("threads", 2.0, 1.0, ["threads grow"]),
        ("rss_mb", 1.6, 1.1, ["memory grows by more than 1.0 MB an hour"]),
        ("rss_mb", 1.6, 0.9, []),
    ],
)
def test_what_grows_for_certain_is_a_fault(name: str, per_hour: float, low: float, fault: list[str]) -> None:
    steady = {**dict.fromkeys(("rss_mb", "fds", "threads"), STEADY), "children": {"processes": STEADY}}
    found = faults([ROW], steady | {name: {"per_hour": per_hour, "interval": [low, 9.0]}})
    assert found == fault


def test_unexpected_answers_and_new_processes_are_faults() -> None:
    steady = dict.fromkeys(("rss_mb", "fds", "threads"), STEADY)
    more = {"processes": {"per_hour": 3.0, "interval": [1.0, 4.0]}}
    assert faults([ROW | {"unexpected": 2}], {}) == ["2 answers were unexpected"]
    assert faults([ROW], {**steady, "children": more}) == ["child processes grow"]


def test_a_service_that_ended_is_a_fault() -> None:
    assert faults([ROW | {"processes": 0.0}], {}) == ["the service ended"]
