"""The figures of the benchmark of several GPUs that are computed from others."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import pytest

from benchmarks.service.fleet.neighbours import anchored
from benchmarks.service.fleet.one_device import overlapping
from benchmarks.service.fleet.overhead import compared
from benchmarks.service.fleet.rounds import Times, middle

START = datetime(2026, 1, 1, tzinfo=UTC)


def test_the_correction_of_an_anchor_has_a_standard_error_pooled_over_devices() -> None:
    # Anchors 0.01 and 0.03, then 0.0 twice: variances 2e-4 and 0, so 1e-4 pooled, over 2 repeats 5e-5.
    logs = {"1": [[0.01, 0.02], [0.03, 0.04]], "2": [[0.0, 0.0], [0.0, 0.0]]}
    one, two, both = anchored(logs)
    assert one["correction"] == pytest.approx(-0.02)
    assert one["standard_error"] == two["standard_error"] == pytest.approx(math.sqrt(5e-5))
    assert one["over_standard_error"] == pytest.approx(0.02 / math.sqrt(5e-5))
    # The other kernel: means 0.03 and 0; 0.01 and 0 without the anchor, each time, so without noise.
    assert both["spread_before"] == pytest.approx(0.03 / math.sqrt(2))
    assert both["noise_before"] == pytest.approx(math.sqrt(5e-5))
    assert both["spread_after"] == pytest.approx(0.01 / math.sqrt(2))
    assert both["noise_after"] == pytest.approx(0.0)


def test_an_anchor_alone_has_no_spread_of_others() -> None:
    assert [row["device"] for row in anchored({"1": [[0.01], [0.03]]})] == ["1"]


def test_engines_are_compared_run_by_run() -> None:
    figures = ("trials_per_minute", "ms_per_trial", "besides_ms_per_trial", "job_s")
    local = [dict.fromkeys(figures, 100.0 + run) for run in range(6)]
    ray = [
        {name: us + (4.0 if run < 5 else 6.0) for name, us in one.items()} for run, one in enumerate(local)
    ]
    rows = {row["figure"]: row for row in compared(local, ray)}
    # Six pairs: the smallest and the largest enclose the median with 1 - 2 / 64.
    trial = rows["ms_per_trial"]
    assert (trial["difference"], trial["low"], trial["high"]) == (4.0, 4.0, 6.0)
    assert trial["confidence"] == pytest.approx(1 - 2 / 64)
    assert (trial["within"], trial["interval_within"]) == (True, False)
    assert not any(row.get("interval_within") for row in compared(local[:5], local[:5])), "too few runs"
    # 4 of the local median 102.5 is more than 2 %.
    assert rows["job_s"]["relative"] == pytest.approx(4 / 102.5)
    assert rows["job_s"]["within"] is False
    assert "within" not in rows["trials_per_minute"]


def test_trials_that_touch_do_not_overlap() -> None:
    first, second, third = (START + timedelta(seconds=one) for one in (1, 2, 3))
    assert overlapping([(START, first)], [(first, second)]) == 0
    assert overlapping([(START, second)], [(first, third), (second, third)]) == 1


def test_times_are_compared_kernel_by_kernel_and_device_by_device() -> None:
    before = middle([Times({("a", "p", "x"): 10.0, ("b", "p", "x"): 10.0}), Times({("a", "p", "x"): 30.0})])
    row = Times({("a", "p", "x"): 22.0, ("b", "p", "x"): 9.0, ("b", "p", "y"): 1.0}).row(before)
    assert (row["kernels"], row["same_kernels"]) == (3, 2)
    assert row["over_before"] == pytest.approx(1.0)
    assert row["devices"]["a"]["over_before"] == pytest.approx(1.1)
    assert row["devices"]["b"]["over_before"] == pytest.approx(0.9)
