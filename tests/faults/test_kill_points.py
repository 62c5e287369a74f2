"""``kill -9`` of the server, of its device's process and of a compiler at random moments of tuning; the whole
of it is ``kill_points.py``."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from kill_points import Killing


@pytest.mark.parametrize(("points", "trials"), [(4, 6), pytest.param(24, 30, marks=pytest.mark.long)])
@pytest.mark.timeout(1000)
def test_nothing_is_lost_and_every_job_goes_on(tmp_path: Path, points: int, trials: int) -> None:
    seed = random.randrange(2**32)
    counts = Killing(tmp_path, seed, trials).run(points)
    assert counts.kills["server"] + counts.kills["device worker"] >= points, f"seed {seed}"
    assert min(counts.kills["server"], counts.kills["device worker"]) >= points // 4
    assert counts.jobs
