"""Work that many callers share: made once, by two at a time, kept until a commit; too many are refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import true

from service.errors import Refusal
from service.web import shared_work
from service.web.shared_work import SharedWork
from tuner.store import sets
from tuner.store.database import Store

PATIENCE_S = 20


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(f"sqlite:///{tmp_path / 'tilewright.db'}")
    opened.migrate()
    yield opened
    opened.close()


@pytest.fixture
def shared(store: Store) -> Iterator[SharedWork]:
    made = SharedWork(store)
    yield made
    made.close()


class Work:
    """Work that lasts until it is let go."""

    def __init__(self) -> None:
        self.calls, self.at_work, self.most = 0, 0, 0
        self.go = threading.Event()
        self._lock = threading.Lock()

    def __call__(self) -> int:
        with self._lock:
            self.calls += 1
            self.at_work += 1
            self.most = max(self.most, self.at_work)
            mine = self.calls
        assert self.go.wait(PATIENCE_S)
        with self._lock:
            self.at_work -= 1
        return mine


def until(reached: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_callers_at_once_share_one_result(shared: SharedWork) -> None:
    work = Work()
    with ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(shared.get, "view", work) for _ in range(6)]
        until(lambda: shared._callers._value == 2)
        work.go.set()
        assert [one.result(PATIENCE_S) for one in asked] == [1] * 6


def test_a_result_is_kept_until_a_commit_and_for_a_while(
    shared: SharedWork, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work()
    work.go.set()
    assert [shared.get("view", work) for _ in range(3)] == [1, 1, 1]
    with store.begin() as session:
        sets.changed(session, "sm_90-1", true())
    assert [shared.get("view", work) for _ in range(3)] == [2, 2, 2]
    monkeypatch.setattr(shared_work, "_FRESH_S", -1.0)
    assert shared.get("other", work) == 3
    assert shared.get("other", work) == 4, "told ages would be wrong"


def test_few_results_are_kept(shared: SharedWork) -> None:
    for number in range(50):
        assert shared.get(number, lambda kept=number: kept) == number  # type: ignore[misc]
    assert len(shared._kept) == shared_work._MOST_KEPT
    assert 49 in shared._kept


def test_two_are_made_at_once_and_the_ninth_caller_is_refused(shared: SharedWork) -> None:
    work = Work()
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(shared.get, number, work) for number in range(8)]
        until(lambda: shared._callers._value == 0 and work.at_work == 2)
        with pytest.raises(Refusal, match="try again in a few seconds") as refused:
            shared.get("ninth", work)
        work.go.set()
        assert sorted(one.result(PATIENCE_S) for one in asked) == list(range(1, 9))
    assert (refused.value.status_code, (refused.value.headers or {})["Retry-After"]) == (503, "3")
    assert work.most == 2


def test_who_waits_too_long_is_refused_and_the_work_goes_on(
    shared: SharedWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_work, "_PATIENCE_S", 0.05)
    work = Work()
    with ThreadPoolExecutor(2) as pool:
        first = [pool.submit(shared.get, number, work) for number in range(2)]
        until(lambda: work.at_work == 2)
        for name in (0, "third"):
            with pytest.raises(Refusal, match="try again"):
                shared.get(name, work)
        work.go.set()
        assert sorted(one.result(PATIENCE_S) for one in first) == [1, 2]
    assert shared.get("third", lambda: 3) == 3, "places are given back"


def test_a_failure_reaches_its_callers_and_is_not_kept(shared: SharedWork) -> None:
    def fails() -> int:
        raise ValueError("once")

    for _ in range(2 * shared_work._MOST_CALLERS):
        with pytest.raises(ValueError, match="once"):
            shared.get("view", fails)
    assert shared.get("view", lambda: 1) == 1
