"""The fair lock: granted in the order of asking, and a wait that ends leaves no trace."""

from __future__ import annotations

import threading
import time

import pytest

from tuner.workers.process import FairLock


def wait_for_waiters(lock: FairLock, count: int) -> None:
    limit = time.monotonic() + 5.0
    while len(lock._waiting) != count:
        assert time.monotonic() < limit
        time.sleep(0.001)


def test_first_come_first_served() -> None:
    lock, order = FairLock(), []

    def visit(number: int) -> None:
        assert lock.acquire()
        order.append(number)
        lock.release()

    assert lock.acquire()
    threads = [threading.Thread(target=visit, args=(number,)) for number in range(5)]
    for number, thread in enumerate(threads):
        thread.start()
        wait_for_waiters(lock, number + 1)
    lock.release()
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3, 4]


def test_timeout_leaves_the_lock_usable() -> None:
    lock = FairLock()
    assert lock.acquire()
    assert not lock.acquire(timeout_s=0.02)
    lock.release()
    assert lock.acquire(timeout_s=0.0)
    assert not lock.acquire(timeout_s=0.0)


def test_one_holder_at_a_time() -> None:
    lock, inside, most = FairLock(), 0, 0

    def visit() -> None:
        nonlocal inside, most
        for _ in range(200):
            if lock.acquire(timeout_s=0.001):
                inside += 1
                most = max(most, inside)
                inside -= 1
                lock.release()

    threads = [threading.Thread(target=visit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert lock.acquire(timeout_s=0.0)


@pytest.mark.parametrize("handed_over", [False, True])
def test_a_wait_that_is_interrupted_leaves_the_lock_usable(
    monkeypatch: pytest.MonkeyPatch, handed_over: bool
) -> None:
    """As by Ctrl-C, also at the moment at which the lock is handed over."""
    lock = FairLock()

    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:  # noqa: ARG002
            if handed_over:
                lock.release()
            raise KeyboardInterrupt

    assert lock.acquire()
    with monkeypatch.context() as patch:
        patch.setattr(threading, "Event", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            lock.acquire()
    if not handed_over:
        lock.release()
    assert lock.acquire(timeout_s=0.0)
