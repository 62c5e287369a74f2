"""``kill -9`` of the server, of its device's process and of a compiler at random moments of tuning; the whole
of it is ``kill_points.py``."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from kill_points import Killing

POINTS, TRIALS = 24, 30


@pytest.mark.long
@pytest.mark.timeout(1000)
def test_nothing_is_lost_and_every_job_goes_on(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    counts = Killing(tmp_path, seed, TRIALS).run(POINTS)
    assert counts.kills["server"] + counts.kills["device worker"] >= POINTS, f"seed {seed}"
    assert min(counts.kills["server"], counts.kills["device worker"]) >= POINTS // 4
    assert counts.jobs
