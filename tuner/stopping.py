"""Why a search ends: the words that a job keeps and shows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.trial import Outcome, Trial
from tuner.job import TuneRequest

BUDGET = "budget spent"
TIME = "time is up"
EXHAUSTED = "every valid config was tried"
FAILURES = "too many configs failed"
CANCELLED = "cancelled"
LOOK_BACK = 30


def gain_per_s(trials: Sequence[Trial]) -> float | None:
    """What the last 30 measured trials gained per second of the device, as a share of the best time.

    None before the first 30 that follow a complete trial. The rate of the past is what is expected of
    the future; a search gains less the longer it runs, so that it errs on the side of going on.
    """
    measured = [trial for trial in trials if trial.timing is not None]
    recent = measured[-LOOK_BACK:]
    before = _best_us(measured[: -len(recent)])
    after = _best_us(measured)
    if len(recent) < LOOK_BACK or before is None or after is None:
        return None
    seconds = sum(trial.check_s + trial.measure_s for trial in recent)
    return math.log(before / after) / seconds if seconds else None


def why_gain_ends(request: TuneRequest, trials: Sequence[Trial]) -> str | None:
    """The reason where the gain fell under what the request asks for; None where it did not."""
    gain = gain_per_s(trials) if request.min_gain_per_s else None
    if gain is None or gain >= request.min_gain_per_s:
        return None
    return (
        f"the last {LOOK_BACK} trials gained {gain:.2%} per device second, "
        f"less than {request.min_gain_per_s:.2%}"
    )


def _best_us(trials: Sequence[Trial]) -> float | None:
    times = [trial.timing.median_us for trial in trials if trial.outcome is Outcome.OK and trial.timing]
    return min(times, default=None)
