"""Races on the times of kernels that ran alone at the power limit of two H100s, as they were recorded."""

from __future__ import annotations

import json
import random
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sweeps import every

from benchmarks.lab import power_swing
from tuner.measure import interleave
from tuner.measure.stats import PERIODS_MISLEAD, Ratio, speed_ratio

RECORDED = Path(power_swing.__file__).parent / "2026-11-27-power-swing.json"
SAMPLE_S = 0.003
RACES = 30  # on each trace


class Recorded:
    """Factors on the time of a kernel, as a trace has them."""

    def __init__(self, trace: dict[str, Any], clock: Any) -> None:
        self._seconds, us = np.asarray(trace["ms"]) / 1000.0, np.asarray(trace["us"])
        self._factors, self.clock = us / us.mean(), clock

    def start(self, seconds: float, seed: int) -> None:
        """Let a race begin that ends within ``seconds``, before the end of the trace."""
        self.clock.now = random.Random(seed).uniform(0.0, self._seconds[-1] - seconds)

    def sampler(self, us: float) -> Any:
        """Samples of a kernel that takes so many microseconds on average."""

        def now() -> float:
            at = int(np.searchsorted(self._seconds, self.clock.now))
            return us * float(self._factors[at])

        return self.clock.sampler(now, SAMPLE_S)


@pytest.fixture
def recorded(clock) -> list[Recorded]:
    return [Recorded(trace, clock) for trace in json.loads(RECORDED.read_text())["traces"]]


def ratios(device: Any, recorded: list[Recorded], us: float, passes: int) -> list[Ratio]:
    """Of races of a kernel with one that takes ``us`` where it takes 100, from many starts on each trace."""
    found = []
    for swing in recorded:
        for seed in range(RACES):
            swing.start(2 * passes * 1.1, seed)
            samplers = [swing.sampler(100.0), swing.sampler(us)]
            taken = interleave.shuffled_rounds(device, samplers, 0, random.Random(seed), passes=passes)
            found.append(speed_ratio(taken.rows[1], taken.rows[0], taken.periods))
    return found


@pytest.mark.parametrize("passes", every(2, [1, 2]))
def test_twins_rarely_differ(passes, drawing, recorded) -> None:
    found = ratios(drawing(690.0), recorded, 100.0, passes)
    assert sum(not one.undecided for one in found) <= 0.01 * len(found)
    assert statistics.pstdev(one.value for one in found) < 0.006 / passes**0.5


def test_two_percent_are_mostly_found(drawing, recorded) -> None:
    found = ratios(drawing(690.0), recorded, 102.0, 1)
    assert sum(one.low > 1.0 for one in found) > 0.8 * len(found)
    assert statistics.fmean(one.value for one in found) == pytest.approx(1.02, abs=0.002)
    assert {round(one.high / one.value, 4) for one in found} == {PERIODS_MISLEAD}


@pytest.mark.long
def test_whole_periods_tell_twins_from_what_is_one_percent_slower(drawing, recorded) -> None:
    """Each of six candidates has one sample."""
    device, slower, spreads = drawing(690.0), 0, list[float]()
    for swing in recorded:
        for seed in range(RACES):
            swing.start(6 * 1.1, seed)
            samplers = [swing.sampler(us) for us in (100.0, 101.0, *[100.0] * 4)]
            rows = interleave.shuffled_rounds(device, samplers, 0, random.Random(seed), [range(6)]).rows
            (fastest, late), others = (row[0] for row in rows[:2]), [us for (us,) in rows[2:]]
            slower += late > fastest
            spreads.append(max(others) / min(others) - 1.0)
    assert slower > 0.85 * len(spreads)
    assert statistics.fmean(spreads) < 0.015


def test_a_trace_is_told_by_its_period() -> None:
    for trace in json.loads(RECORDED.read_text())["traces"]:
        period, *_, near, far = power_swing.summary(trace)
        assert 0.98 <= float(period.split()[1]) <= 1.02
        assert near.startswith("0.5 s apart they differ by ")
        assert float(near.split()[-1].rstrip("%")) > 1.5 * float(far.split()[-1].rstrip("%"))
