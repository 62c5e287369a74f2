"""The fair lock: granted in the order of asking, and a wait that ends leaves no trace."""

from __future__ import annotations

import threading
import time

from tuner.workers.fair_lock import FairLock


def wait_for_waiters(turns: FairLock, count: int) -> None:
    limit = time.monotonic() + 5.0
    while len(turns._waiting) != count:
        assert time.monotonic() < limit
        time.sleep(0.001)


def test_first_come_first_served() -> None:
    turns, order = FairLock(), []

    def visit(number: int) -> None:
        assert turns.acquire()
        order.append(number)
        turns.release()

    assert turns.acquire()
    threads = [threading.Thread(target=visit, args=(number,)) for number in range(5)]
    for number, thread in enumerate(threads):
        thread.start()
        wait_for_waiters(turns, number + 1)
    turns.release()
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3, 4]


def test_timeout_leaves_the_lock_usable() -> None:
    turns = FairLock()
    assert turns.acquire()
    assert not turns.acquire(timeout_s=0.02)
    turns.release()
    assert turns.acquire(timeout_s=0.0)
    assert not turns.acquire(timeout_s=0.0)


def test_one_holder_at_a_time() -> None:
    turns, inside, most = FairLock(), 0, 0

    def visit() -> None:
        nonlocal inside, most
        for _ in range(200):
            if turns.acquire(timeout_s=0.001):
                inside += 1
                most = max(most, inside)
                inside -= 1
                turns.release()

    threads = [threading.Thread(target=visit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert turns.acquire(timeout_s=0.0)
