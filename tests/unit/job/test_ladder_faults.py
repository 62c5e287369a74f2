"""A worker that fails costs a ladder no more than what it worked on."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from toy_family import PROBLEM, TOY
from tune_lab import Lab

from kernels.registry import FAMILIES
from tilewright.schema.job import TuneRequest
from tilewright.schema.trial import BestConfig
from tuner.job.progress import FROM_LADDER
from tuner.workers.builder import Compiled
from tuner.workers.process import WorkerDied

ROWS = (32, 64, 128)


@pytest.fixture(autouse=True)
def _toy_is_a_family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "toy", TOY)


def run(lab: Lab, ladder: tuple[int, ...] = ROWS) -> list[BestConfig]:
    problem = dataclasses.replace(PROBLEM, m=ladder[-1])
    request = TuneRequest(problem, ladder, families=("toy",), max_trials=20)
    return lab.run(request)


def fail_to_build(lab: Lab, fails: Callable[[], bool]) -> None:
    """The compilers of a lab die if ``fails`` says so."""
    submit = lab.builder.submit

    def submitted(*given: Any) -> Future[Compiled]:
        if not fails():
            return submit(*given)
        died = Future[Compiled]()
        died.set_exception(WorkerDied("the process ended with exit code 1: no space", "exit code 1"))
        return died

    lab.builder.submit = submitted  # type: ignore[method-assign]


def test_a_row_that_cannot_be_searched_on_keeps_the_winner_of_its_race() -> None:
    plain, lab = Lab(), Lab()
    plain.bench.vendor_us, lab.bench.vendor_us = 1e4, 90.0
    fail_to_build(lab, lambda: bool(lab.bench.races))
    expected, found = run(plain), run(lab)
    assert [best.problem.m for best in found] == list(ROWS)
    assert [best.artifact for best in found] == [best.artifact for best in expected]
    regrets = [
        [{kernel.artifact: kernel.regret for kernel in one.kernels or ()} for one in each]
        for each in (found, expected)
    ]
    assert regrets[0] == regrets[1]
    assert lab.recorder.errors == {}


def test_a_row_whose_later_search_fails_has_what_it_measured_until_then() -> None:
    lab, known, builds = Lab(), set[str](), itertools.count()
    lab.bench.vendor_us, plain = 20.0, lab.bench.cost

    def cost(text: str) -> float:
        if not lab.bench.races:
            known.add(text)
        return plain(text) * (1.0 if text in known else 0.3)

    lab.bench.cost = lab.bench.under_load = cost
    fail_to_build(lab, lambda: bool(lab.bench.races) and next(builds) == 8)
    for best in run(lab):
        measured = [
            one.timing.median_us for one in lab.recorder.kept if one.m == best.problem.m and one.timing
        ]
        assert best.timing.median_us == pytest.approx(min(measured), rel=0.02)
    assert next(builds) > 8


def test_a_kernel_that_is_not_built_again_is_not_measured_on_other_rows() -> None:
    whole = Lab()
    best = run(whole)
    lab, builds = Lab([one for one in whole.recorder.kept if one.origin != FROM_LADDER]), itertools.count()
    fail_to_build(lab, lambda: next(builds) == 0)
    assert [one.artifact for one in run(lab)] == [one.artifact for one in best]
    assert next(builds) > 1


@pytest.mark.parametrize("built", [0, 3])
@pytest.mark.parametrize("ladder", [ROWS, (15, *ROWS), (*ROWS, 255)])
def test_a_ladder_none_of_whose_rows_is_searched_fails_as_they_did(
    ladder: tuple[int, ...], built: int
) -> None:
    lab = Lab()
    fail_to_build(lab, lambda: len(lab.builder.submitted) >= built)
    with pytest.raises(WorkerDied, match="no space"):
        run(lab, ladder)
    assert {m: error.split(":")[-1].strip() for m, error in lab.recorder.errors.items() if not m % 2} == (
        dict.fromkeys(ROWS, "no space")
    )


def test_a_ladder_whose_builder_ends_with_its_job_is_cancelled() -> None:
    lab = Lab()

    def close() -> bool:
        lab.cancelled.set()
        return True

    fail_to_build(lab, close)
    assert run(lab, (*ROWS, 255)) == []
    assert list(lab.recorder.errors) == [255]
