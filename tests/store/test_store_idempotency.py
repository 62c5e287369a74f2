"""Idempotency keys: the work of a key is done once, and kept with it or not at all."""

from __future__ import annotations

import itertools

import pytest
from sqlalchemy import update
from store_samples import HOST, request

from tuner.store import idempotency, jobs
from tuner.store.database import Store
from tuner.store.errors import IdempotencyConflict
from tuner.store.models import SubmissionRow
from tuner.store.records import utc_now

COUNT = itertools.count()


def ask(store: Store, key: str | None, digest: str = "one") -> int:
    with store.begin() as session:
        return idempotency.once(session, key, digest, lambda: {"number": next(COUNT)})["number"]


def test_a_key_gives_the_same_answer_for_a_day(store: Store) -> None:
    first = ask(store, "k1")
    assert ask(store, "k1") == first
    assert ask(store, "k2") == first + 1
    with store.begin() as session:
        session.execute(update(SubmissionRow).values(created=utc_now() - idempotency.KEY_LIFE))
    assert ask(store, "k1") == first + 2, "a day later the key is as good as new"


def test_without_a_key_the_work_is_done_each_time(store: Store) -> None:
    first = ask(store, None)
    assert ask(store, None) == first + 1


def test_a_key_with_another_request_is_refused(store: Store) -> None:
    ask(store, "k1")
    with pytest.raises(IdempotencyConflict, match="use a new key"):
        ask(store, "k1", "another")


def test_work_that_fails_leaves_neither_itself_nor_its_key(store: Store) -> None:
    def submit_and_fail() -> None:
        with store.begin() as session:
            idempotency.once(
                session, "k1", "one", lambda: {"job": jobs.submit(session, request(), HOST), "number": 1 // 0}
            )

    with pytest.raises(ZeroDivisionError):
        submit_and_fail()
    with store.read() as session:
        assert jobs.listing(session) == []
    assert ask(store, "k1", "another") is not None
