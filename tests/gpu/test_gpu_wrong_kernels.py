"""Wrong kernels of every family: a trial finds each, on the path that a job's trials take."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from wrong_kernels import FAULTS, Fault

from kernels.compiler.build import build
from kernels.registry import FAMILIES
from tilewright.schema.trial import Outcome
from tuner.workers.bench import Bench

HANG_S = 20.0
TRIAL_S = 120.0  # of a new process, which has all to load beside the other tests


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    made = Bench("cuda:0")
    yield made
    made.close()


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_wrong_kernel_is_found_and_the_right_one_passes(
    fault: Fault, bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    device = bench.spec
    right = build(FAMILIES[fault.family], fault.config(device), fault.problem, device)
    wrong = fault.built(device, monkeypatch, tmp_path)
    found = bench.trial(wrong, fault.problem, None, HANG_S)
    assert found.outcome is not Outcome.OK
    assert bench.trial(right, fault.problem, None, TRIAL_S).outcome is Outcome.OK
