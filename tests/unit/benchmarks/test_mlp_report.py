"""The arithmetic of benchmarks/client/mlp.py, against numbers worked out by hand."""

from __future__ import annotations

import pytest

from benchmarks.client import mlp_report
from tilewright import GemmProblem

# Rounds of 10 us that get slower alike: the ratio within every round is 2, or 1.25.
SLOW = [10.0 + step for step in range(9)]
ROWS = {
    "torch": SLOW,
    "tilewright": [us / 2 for us in SLOW],
    "torch, graph": SLOW,
    "tilewright, graph": [us / 1.25 for us in SLOW],
}


def test_the_products_are_those_of_the_two_layers() -> None:
    assert mlp_report.products(["bfloat16"], [16], 4096, 14336) == [
        GemmProblem(16, 14336, 4096, "bfloat16", "nt", has_bias=True),
        GemmProblem(16, 4096, 14336, "bfloat16", "nt", has_bias=True),
    ]
    assert len(mlp_report.products(["float16", "bfloat16"], [1, 2, 3], 8, 16)) == 12


def test_the_tolerance_is_three_roundings() -> None:
    assert mlp_report.tolerance("float16") == 3 / 2048
    assert mlp_report.tolerance("bfloat16") == 3 / 256


@pytest.mark.parametrize(
    ("error", "difference", "equal"),
    [
        (3 / 2048, 3 / 2048, True),
        (4 / 2048, 0.0, False),
        (0.0, 4 / 2048, False),
        (float("nan"), 0.0, False),
        (0.0, float("nan"), False),
    ],
)
def test_equal_means_every_error_is_within_the_tolerance(
    error: float, difference: float, equal: bool
) -> None:
    errors = {"torch": 1e-4, "tilewright, graph": error}
    found = mlp_report.accuracy("float16", errors, difference)
    assert found["equal"] is equal
    assert set(found["relative_error"]) == set(errors)


@pytest.mark.parametrize(("us", "count"), [(62.0, 162), (10_000.0, 1), (25_000.0, 1)])
def test_a_sample_lasts_ten_milliseconds(us: float, count: int) -> None:
    assert mlp_report.passes_per_sample(us) == count


def test_times_have_median_spread_and_rate() -> None:
    """Of 10 .. 18: the median is 14, the quarters are 11.5 and 16.5, and 1.4e9 operations in 14 us are
    100 TFLOP/s."""
    found = mlp_report.times({"torch": SLOW}, 1.4e9, periods=False)["torch"]
    assert found["median_us"] == 14.0
    assert found["spread_percent"] == pytest.approx(100 * 5 / 14)
    assert found["tflops"] == pytest.approx(100.0)
    assert (found["low_us"], found["high_us"]) == (10.0, 18.0)  # all nine are needed for 99 %
    assert found["samples_us"] == SLOW


def test_speedups_are_ratios_within_rounds() -> None:
    found = mlp_report.speedups(ROWS, periods=False)
    assert found["eager"] == {"value": 2.0, "low": 2.0, "high": 2.0}
    assert found["graph"] == pytest.approx({"value": 1.25, "low": 1.25, "high": 1.25})


def test_a_case_in_one_line() -> None:
    case = {
        "dtype": "float16",
        "tokens": 16,
        "ran": {"tuned: exact": 2},
        "us": mlp_report.times(ROWS, 1e9, periods=False),
        "speedup": mlp_report.speedups(ROWS, periods=False),
        "accuracy": mlp_report.accuracy("float16", {"tilewright": 5e-4}, 1e-4),
    }
    said = mlp_report.line(case)
    assert "float16 M=16: torch 14.0 us, tilewright 7.0 us" in said
    assert "eager 2.000 [2.000, 2.000]" in said
    assert "error 5.0e-04 of 1.5e-03 allowed; ran {'tuned: exact': 2}" in said
