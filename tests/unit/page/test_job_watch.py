"""How open pages look at a job: seldom, together, and never in the way of another job."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from service.web import now
from service.web.now import JobNow, JobWatch

PATIENCE_S = 20


class Watch(JobWatch):
    """One whose looks are counted, and wait where they are told to."""

    def __init__(self) -> None:
        super().__init__(SimpleNamespace(), SimpleNamespace())  # type: ignore[arg-type]
        self.looks: list[str] = []
        self.missing: set[str] = set()
        self.slow: dict[str, threading.Event] = {}

    def _read(self, job_id: str) -> JobNow | None:
        self.looks.append(job_id)
        if job_id in self.slow:
            assert self.slow[job_id].wait(PATIENCE_S)
        job: Any = SimpleNamespace(id=job_id)
        return None if job_id in self.missing else JobNow(job, {}, None)


def test_many_who_ask_at_once_look_once_or_twice() -> None:
    watch = Watch()
    watch.slow["a"] = threading.Event()
    with ThreadPoolExecutor(16) as pool:
        asked = [pool.submit(watch.now, "a", fresh) for fresh in (True, False) * 8]
        watch.slow["a"].set()
        assert all(one.result(PATIENCE_S) for one in asked)
    assert 1 <= len(watch.looks) <= 3
    watch.now("a")
    assert len(watch.looks) <= 3, "a moment ago"
    before = len(watch.looks)
    watch.now("a", fresh=True)
    assert len(watch.looks) == before + 1


def test_a_slow_look_keeps_no_other_job_waiting() -> None:
    watch = Watch()
    watch.slow["a"] = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(watch.now, "a")
        while not watch.looks:
            pass
        assert watch.now("b")
        assert not slow.done()
        watch.slow["a"].set()
        assert slow.result(PATIENCE_S)


def test_unknown_jobs_are_not_kept_and_push_no_other_out() -> None:
    watch = Watch()
    watch.now("a")
    watch.missing = {f"x{number}" for number in range(3 * now._MOST_KEPT)}
    for name in watch.missing:
        assert watch.now(name) is None
    assert set(watch._looks) == {"a"}


def test_of_many_jobs_the_one_asked_for_longest_ago_goes() -> None:
    watch = Watch()
    for number in range(now._MOST_KEPT):
        watch.now(str(number))
    watch.now("0")
    watch.now("new")
    assert "0" in watch._looks
    assert "1" not in watch._looks
    assert len(watch._looks) == now._MOST_KEPT


@pytest.mark.parametrize(("cost", "wait"), [(0.0, 1.0), (0.01, 2.0), (60.0, 10.0)])
def test_the_wait_follows_the_cost_of_a_look_up_to_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, cost: float, wait: float
) -> None:
    watch = Watch()
    ticks = iter((5.0, 5.0 + cost))
    monkeypatch.setattr(now.time, "thread_time", lambda: next(ticks))
    watch.now("a")
    look = watch._looks["a"]
    assert look.until - look.started == pytest.approx(wait, abs=0.5)
