"""Several at once: the database decides, and nothing is done twice or lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from store_samples import HOST, HOST_CLASS, request

from tuner.store import events, idempotency, jobs
from tuner.store.database import Store

WORKERS = 6
T = TypeVar("T")


def at_once(work: Callable[[int], T]) -> list[T]:
    """Run ``work(0) .. work(WORKERS - 1)`` in threads that start together."""
    gate = threading.Barrier(WORKERS)

    def run(index: int) -> T:
        gate.wait()
        return work(index)

    with ThreadPoolExecutor(WORKERS) as pool:
        return list(pool.map(run, range(WORKERS)))


def submit_in(store: Store, m: int) -> tuple[str, bool]:
    with store.begin() as session:
        job, created = jobs.submit(session, request(m), HOST)
        return job.id, created


def test_identical_submissions_make_one_job(store: Store) -> None:
    for m in range(1, 6):
        results = at_once(lambda _, m=m: submit_in(store, m))
        assert len({job_id for job_id, _ in results}) == 1
        assert sum(created for _, created in results) == 1


def test_the_work_of_one_key_is_done_once(store: Store) -> None:
    done: list[int] = []

    def ask(index: int, number: int) -> int:
        with store.begin() as session:
            answer = idempotency.once(session, f"key {number}", "digest", lambda: {"by": index})
            done.extend([number] * (answer == {"by": index}))
        return answer["by"]

    for number in range(5):
        answers = at_once(lambda index, number=number: ask(index, number))
        assert len(set(answers)) == 1
    assert done == list(range(5))


def test_each_job_is_claimed_once(store: Store) -> None:
    submitted = {submit_in(store, m)[0] for m in range(1, 31)}

    def claim_all(index: int) -> list[str]:
        mine = []
        while True:
            with store.begin() as session:
                job = jobs.claim(session, HOST_CLASS, f"worker {index}")
            if job is None:
                return mine
            mine.append(job.id)

    claimed = [job_id for mine in at_once(claim_all) for job_id in mine]
    assert len(claimed) == 30
    assert set(claimed) == submitted


def test_a_follower_sees_every_event_once(store: Store) -> None:
    """Ids become visible in order: a reader that goes on from the last id it saw misses nothing."""
    job_id, _ = submit_in(store, 1)
    done = threading.Event()
    seen: list[int] = []

    def follow() -> None:
        last = 0
        while True:
            finished = done.is_set()
            with store.read() as session:
                new = [event.id for event in events.after(session, job_id, last)]
            seen.extend(new)
            last = seen[-1] if seen else last
            if finished and not new:
                return

    def write(index: int) -> None:
        for number in range(15):
            with store.begin() as session:
                events.append(session, job_id, "note", {"by": index, "number": number})

    follower = threading.Thread(target=follow)
    follower.start()
    at_once(write)
    done.set()
    follower.join()
    with store.read() as session:
        everything = [event.id for event in events.after(session, job_id)]
    assert len(everything) == 1 + 15 * WORKERS
    assert seen == everything
