"""``kill -9`` of the server and of its device's process at 200 random moments of tuning."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from kill_points import Killing

POINTS = 200


@pytest.mark.timeout(1200)
def test_nothing_is_lost_and_every_job_goes_on(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    tally = Killing(tmp_path, seed).run(POINTS)
    assert tally.kills["server"] + tally.kills["device worker"] >= POINTS, f"seed {seed}"
    assert min(tally.kills["server"], tally.kills["device worker"]) > POINTS // 4
    assert len(tally.jobs) > 1
