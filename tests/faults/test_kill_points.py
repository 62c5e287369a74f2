"""A few of the moments that ``kill_points.py`` tries by the hundred."""

from __future__ import annotations

import random
from pathlib import Path

from kill_points import Killing

POINTS = 10


def test_nothing_is_lost_and_every_job_goes_on(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    tally = Killing(tmp_path, seed).run(POINTS)
    assert sum(tally.kills.values()) == POINTS, f"seed {seed}"
    assert tally.trials > 0
