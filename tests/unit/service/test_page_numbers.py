"""What the views of results make of them: what pairs, what is one weight, what is counted as a gain."""

from __future__ import annotations

import dataclasses

from store_samples import best

from service.web import coverage, results
from service.web.results import Side
from tilewright.schema.problem import GemmProblem
from tuner.store.records import utc_now
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


def test_weights_of_other_options_are_rows_of_their_own() -> None:
    found = [headline(one) for one in (PLAIN, *OTHERS)]
    seen = coverage.coverage("sm_90", found, [], None, lambda _: "fresh")
    weights = [row[1] for row in seen.chart.rows]
    assert len(set(weights)) == len(weights) == 1 + len(OTHERS)
