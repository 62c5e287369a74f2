"""What the views of results make of them: what pairs, what is one weight, what is counted as a gain."""

from __future__ import annotations

import csv
import dataclasses
import io
import math

import pytest
from store_samples import best, trial

from service.web import coverage, knobs, results
from service.web.charts import Chart, Column
from service.web.results import Filter, Side
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import VendorSamples
from tuner.store.records import utc_now
from tuner.store.reports.trials import Measured
from tuner.store.reports.winners import Headline

PLAIN = GemmProblem(64, 64, 64)
OTHERS = (
    GemmProblem(64, 64, 64, out_dtype="float32"),  # type: ignore[arg-type]
    GemmProblem(64, 64, 64, has_bias=True),
    GemmProblem(64, 64, 64, has_c=True),
    GemmProblem(64, 64, 64, activation="relu"),  # type: ignore[arg-type]
    GemmProblem(64, 64, 64, batch=2),
)


def headline(problem: GemmProblem, **changes: object) -> Headline:
    one = best(problem)
    usual = Headline(
        id=1,
        problem=problem,
        device_class=one.device_class,
        arch=one.arch,
        family=one.config.family,
        job_id=None,
        created=utc_now(),
        median_us=2.0,
        mhz=None,
        watts=None,
        method="m",
        disturbed="",
        baseline="numpy",
        baseline_us=2.5,
        stands_in=False,
        speedup=1.25,
        low=1.2,
        high=1.3,
        confidence=0.99,
        provenance=one.provenance,
    )
    return dataclasses.replace(usual, **changes)  # type: ignore[arg-type]


def test_problems_of_other_options_are_never_compared() -> None:
    side = Side(2.0, 1.9, 2.1, "host")
    left = {PLAIN: side, OTHERS[0]: side}
    right = dict.fromkeys(OTHERS, side)
    chart = results.compared(left, right)
    assert [row[0] for row in chart.rows] == ["64x64x64 float16 nt out=float32"]
    assert "1 only left, 4 only right" in chart.note


@pytest.mark.parametrize(
    ("right_us", "verdict"), [(1.9, "tie"), (2.1, "tie"), (1.8, "kernel"), (2.2, "vendor")]
)
def test_sides_differ_only_by_more_than_races_of_one_kernel(right_us: float, verdict: str) -> None:
    left = Side(2.0, 1.99, 2.01, "host")
    right = Side(right_us, right_us - 0.01, right_us + 0.01, "host")
    chart = results.compared({PLAIN: left}, {PLAIN: right})
    (_, ratio, low, high, found, *_) = chart.rows[0]
    assert (ratio, found) == (2.0 / right_us, verdict)
    assert isinstance(low, float)
    assert isinstance(high, float)
    assert (low <= 1.0 <= high) is (verdict == "tie")
    assert "intervals are 7 % or more" in chart.note


def test_weights_of_other_options_are_rows_of_their_own() -> None:
    found = [headline(one) for one in (PLAIN, *OTHERS)]
    seen = coverage.coverage("sm_90", found, [], None, lambda _: "fresh")
    weights = [row[1] for row in seen.chart.rows]
    assert len(set(weights)) == len(weights) == 1 + len(OTHERS)


def test_only_proven_speed_ups_count_as_gain() -> None:
    faster = headline(PLAIN, speedup=1.21, low=1.2)
    tie = headline(PLAIN, speedup=1.05, low=0.95)
    slower = headline(PLAIN, speedup=0.8, low=0.7, high=0.9)
    alone = headline(PLAIN, speedup=9.0, low=8.0, high=10.0, stands_in=True)
    disturbed = headline(PLAIN, speedup=2.0, low=1.9, disturbed="others")
    every = [faster, tie, slower, alone, disturbed]
    assert [results.verdict_of(one) for one in every] == ["kernel", "tie", "vendor", "alone", "disturbed"]
    assert results.mean([faster, tie]) == pytest.approx(math.sqrt(1.21))
    assert results.mean([tie, slower, alone, disturbed]) == 1.0
    assert results.mean([]) == 1.0
    assert results.summary(every)["verdicts"]["kernel"] == 1
    assert [one for one in every if Filter(verdict="kernel").takes(one)] == [faster]
    assert [one for one in every if Filter(verdict="alone").takes(one)] == [alone]


def test_the_confidence_is_that_of_the_results() -> None:
    found = [headline(PLAIN, confidence=0.95), headline(PLAIN, confidence=0.99)]
    assert results.confidence(found) == "95 % to 99 %"
    assert results.confidence(found[:1]) == "95 %"
    assert results.payoff(found[:1]).columns[3].heading == "95 % interval from"


@pytest.mark.parametrize(
    "name", ["=1+1", "+1+1", "-1+1", "@SUM(1)", " =1", "\t=1", "\r=1", "\n=1", "\uff1d1", "\u00a0=1"]
)
def test_no_cell_of_a_csv_file_is_a_formula(name: str) -> None:
    chart = Chart("c", "bars", "t", (Column(name, name), Column("n", "n")), [(name, -1.5), ("-3", 2)])
    head, first, second = csv.reader(io.StringIO(chart.csv, newline=""))
    assert head[0] == first[0] == f"'{name}"
    assert (first[1], second[0]) == ("-1.5", "-3"), "numbers stay numbers"


def tried(names: str, count: int, first: int = 0) -> list[Measured]:
    return [Measured(first + i, "f", 1.0 + i, dict.fromkeys(names, i % 3)) for i in range(count)]


def test_knobs_that_few_trials_have_together_are_not_rated() -> None:
    mixed = [*tried("ab", 19), *tried("a", 15, 19)]
    assert knobs.importance(mixed, ["a", "b"]) == {}
    assert knobs.importance([], []) == {}
    assert set(knobs.importance(tried("ab", 20), ["a", "b"])) == {"a", "b"}


def test_a_plot_s_name_is_safe_in_a_header_for_any_name_of_a_knob() -> None:
    hostile = 'a"\r\nSet-Cookie: x=1; \u202e'
    trials = [Measured(i, "f", 1.0 + i, {hostile: i % 2, "plain_1": i % 3}) for i in range(24)]
    sample = knobs.Sample("f", 24, frozenset(range(24)), frozenset(range(24)))
    names = [one.name for one in knobs.knob_views(trials, sample, "m").slices]
    assert "slice-plain_1" in names
    assert all(name.isascii() and name.replace("-", "").replace("_", "").isalnum() for name in names)


def test_knobs_beyond_any_float_that_are_stored_already_are_shown() -> None:
    trials = [Measured(i, "f", 1.0 + i, {"a": (5, 10**400, -(10**400))[i % 3]}) for i in range(24)]
    sample = knobs.Sample("f", 24, frozenset(range(24)), frozenset(range(24)))
    (chart,) = knobs.knob_views(trials, sample, "m").slices
    assert list(dict.fromkeys(row[0] for row in chart.rows)) == [str(-(10**400)), "5", str(10**400)]
    assert knobs.parallel(trials, sample, "m").rows


def test_a_result_shows_both_sides_of_its_races() -> None:
    won = best(PLAIN)
    chart = results.distributions(won, "today")
    by_name = {
        name: [row for row in chart.rows if row[2] == name] for name in {str(row[2]) for row in chart.rows}
    }
    assert by_name.keys() == {
        f"{of}, {race}" for of in ("winner", "numpy") for race in ("head-to-head", "final")
    }
    assert [row[:2] for row in by_name["numpy, head-to-head"]] == [(2.4, 1 / 3), (2.5, 2 / 3), (2.6, 1.0)]
    assert {row[3:5] for row in by_name["numpy, final"]} == {(1650.5, 90.0)}, "its own clock and power"
    assert {row[3:5] for row in by_name["numpy, head-to-head"]} == {(1700.5, None)}
    in_order = [row[1] for row in results.samples(won, [], "today").rows if row[2] == "numpy, head-to-head"]
    assert in_order == [2.6, 2.5, 2.4]


def test_a_result_of_an_earlier_release_says_what_it_lacks() -> None:
    chart = results.distributions(dataclasses.replace(best(PLAIN), vendor_samples=None), "today")
    assert {row[2] for row in chart.rows} == {"winner, head-to-head"}
    assert "keeps no samples of the vendor library" in chart.note


def test_an_import_with_endless_samples_makes_no_endless_page() -> None:
    many = tuple(float(number) for number in range(1, 5000))
    whole = best(PLAIN)
    won = dataclasses.replace(
        whole,
        timing=dataclasses.replace(whole.timing, samples_us=many),
        vendor_samples=VendorSamples(many, many, many),
    )
    searched = dataclasses.replace(trial(0), timing=won.timing)
    for chart in (results.distributions(won, "today"), results.samples(won, [searched] * 20, "today")):
        assert len(chart.rows) <= 12 * results.MOST_SAMPLES
    assert results.distributions(won, "today").rows[results.MOST_SAMPLES - 1][1] == 1.0


@pytest.mark.parametrize(
    "told",
    [
        None,
        "fast",
        {},
        {"kernel": 1.0},
        {"kernel": "<b>", "vendor": 2.0},
        {"kernel": 10**400, "vendor": 1},
        {"kernel": 1, "vendor": 0},
    ],
)
def test_launches_apart_are_told_where_they_were_timed(told: object) -> None:
    won = best(PLAIN)
    timed = {"apart_us": {"kernel": 2.5, "vendor": 2.75}}
    both = dataclasses.replace(won, baseline=dataclasses.replace(won.baseline, detail=timed))
    assert results.apart(both) == timed["apart_us"]
    odd = dataclasses.replace(won, baseline=dataclasses.replace(won.baseline, detail={"apart_us": told}))
    assert results.apart(odd) is None, "an import may say anything"
    apart = VendorSamples((2.5,), apart_us=(2.75, 2.7), winner_apart_us=(2.5, 2.4))
    names = {
        row[2] for row in results.distributions(dataclasses.replace(won, vendor_samples=apart), "today").rows
    }
    assert {"winner, launches apart", "numpy, launches apart"} <= names
