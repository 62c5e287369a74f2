"""Interference on the cores of a job: its race is no win, and each job reports its own race."""

from __future__ import annotations

from neighbour import a_nice_neighbour

from tilewright import Client, GemmProblem

PROBLEM = GemmProblem(80, 72, 64, "float32", "nn")
LONGER = GemmProblem(400, 400, 400, "float32", "nn")  # others are counted in hundredths of a second


def test_a_race_with_interference_is_no_win(client: Client) -> None:
    with a_nice_neighbour():
        job = client.tune(LONGER, max_trials=2)
    best = job.best
    assert best is not None
    assert (best.verdict, best.use_vendor) == ("disturbed", True)
    # NOTE: beside other tests the neighbour itself gets little, and the race waits for cores instead.
    assert "cores busy" in best.timing.disturbed or "waited for a core" in best.timing.disturbed
    (view,) = client.lookup_many([LONGER], device_class=best.device_class)
    assert view.kind == "vendor"
    assert "disturbed the race" in view.reason


def test_a_job_tells_of_its_own_race_and_of_the_stored_winner(client: Client) -> None:
    first = client.tune(PROBLEM, max_trials=1, seed=1)
    again = client.tune(PROBLEM, max_trials=1, seed=2, wait=False)
    assert again.best is None
    assert again.stored is not None
    assert again.stored.job_id in (first.id, first.stored.job_id if first.stored else None)
    ended = client.wait(again.id)
    assert ended.best is not None
    assert first.best is not None
    assert (first.best.job_id, ended.best.job_id) == (first.id, again.id)
    assert ended.baseline_ratio == ended.best.speedup.value
    shown = client.job(first.id)
    assert shown.best is not None
    assert shown.best.timing == first.best.timing
