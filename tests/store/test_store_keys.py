"""API keys: shown once, kept as a salted digest, revoked for good.

Idempotency keys: the work of a key is done once, and kept with it or not at all.
"""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import func, select, text, update
from store_samples import HOST, request

from tuner.store import jobs
from tuner.store.access import keys
from tuner.store.database import IdempotencyConflict, Store
from tuner.store.models import EndedSignInRow, SubmissionRow
from tuner.store.records import utc_now


def create(store: Store, *scopes: str, **more) -> tuple[keys.KeyRecord, str]:
    with store.begin() as session:
        return keys.create(session, "someone", frozenset(scopes or ("read",)), **more)


def sign_in(key_id: str, number: int, hours: float = 12.0) -> keys.SignedIn:
    return keys.SignedIn(f"{number:016x}", key_id, utc_now() + timedelta(hours=hours))


def ended_rows(store: Store) -> int:
    with store.read() as session:
        return session.scalar(select(func.count()).select_from(EndedSignInRow)) or 0


def test_an_ended_session_is_kept_until_it_would_end_by_itself(store: Store) -> None:
    key_id, other = create(store)[0].id, create(store)[0].id
    first, second, short = sign_in(key_id, 1), sign_in(key_id, 2), sign_in(key_id, 3, hours=-1)
    with store.begin() as session:
        for one in (first, first, short):
            keys.end_sign_in(session, one)
        assert keys.ended(session, first)
        assert not keys.ended(session, second)
        assert not keys.ended(session, sign_in(other, 4))
        keys.end_sign_in(session, sign_in(other, 5))
    assert ended_rows(store) == 2


@pytest.mark.long
def test_a_flood_of_ended_sessions_becomes_one_row_that_ends_all_of_the_key(store: Store) -> None:
    key_id, other = create(store)[0].id, create(store)[0].id
    flood = [sign_in(key_id, number, hours=10 + number / 1000) for number in range(700)]
    with store.begin() as session:
        keys.end_sign_in(session, sign_in(other, 9999))
        for one in flood:
            keys.end_sign_in(session, one)
            assert keys.ended(session, one)
        assert all(keys.ended(session, one) for one in flood)
        assert keys.ended(session, sign_in(key_id, 8888, hours=10)), "which began before them"
        assert not keys.ended(session, sign_in(key_id, 8889)), "one that begins now"
        assert not keys.ended(session, sign_in(other, 8888))
    assert ended_rows(store) <= 258


@pytest.mark.long
def test_sessions_of_a_key_that_end_at_once_wait_for_each_other(store: Store) -> None:
    key_id = create(store)[0].id

    def end(first: int) -> None:
        for number in range(first, first + 150):
            with store.begin() as session:
                keys.end_sign_in(session, sign_in(key_id, number))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(end, range(0, 600, 150)))
    assert ended_rows(store) <= 257


def verify(store: Store, given: str) -> keys.KeyRecord | None:
    with store.read() as session:
        return keys.verify(session, given)


def test_a_key_opens_and_its_secret_is_kept_nowhere(store: Store) -> None:
    record, given = create(store, "tune", "read")
    assert verify(store, given) == record
    assert record.scopes == ("read", "tune")
    assert record.active
    _, key_id, secret = given.split("_")
    assert (key_id, len(secret)) == (record.id, 64)
    with store.read() as session:
        kept = session.execute(text("SELECT * FROM api_key")).all()
    assert secret not in repr(kept)
    assert given not in repr(kept)


def test_a_name_that_is_no_text_is_escaped(store: Store) -> None:
    """As a shell gives what is not UTF-8."""
    with store.begin() as session:
        record, _ = keys.create(session, "J\udcffrgen", frozenset({"read"}))
        keys.trust(session, f"ed25519:{'1' * 64}", "J\udcffrgen")
        assert (record.name, keys.trusted(session)[0].name) == ("J\\udcffrgen",) * 2


def test_equal_secrets_have_different_digests(store: Store) -> None:
    with store.begin() as session:
        rows = [keys.create(session, "x", frozenset({"read"})) for _ in range(2)]
        kept = session.execute(text("SELECT salt, digest FROM api_key")).all()
    assert len({salt for salt, _ in kept}) == len({digest for _, digest in kept}) == len(rows)


@pytest.mark.parametrize(
    "change", [str.upper, lambda given: given[:-1], lambda given: given + "0", str.swapcase]
)
def test_anything_else_does_not_open(store: Store, change) -> None:
    _, given = create(store)
    assert verify(store, change(given)) is None


@pytest.mark.parametrize(
    "given", ["", "_", "__", "tw", "tw__", "tw_x_y", "tw_\0_y", "é_é_é", "tw_' OR 1=1_x"]
)
def test_garbage_does_not_open(store: Store, given: str) -> None:
    create(store)
    assert verify(store, given) is None


def test_a_secret_opens_under_its_own_id_only(store: Store) -> None:
    (first, one), (second, _) = create(store), create(store)
    assert verify(store, one.replace(first.id, second.id)) is None


def test_revoked_and_expired_keys_do_not_open(store: Store) -> None:
    record, given = create(store)
    _, short = create(store, expires=utc_now() + timedelta(hours=1))
    _, late = create(store, expires=utc_now() - timedelta(seconds=1))
    assert verify(store, short) is not None
    assert verify(store, late) is None
    with store.begin() as session:
        assert keys.revoke(session, record.id)
        assert not keys.revoke(session, "none")
    assert verify(store, given) is None
    with store.begin() as session:
        revoked = keys.listing(session)[0].revoked
        assert not keys.revoke(session, record.id)
        assert keys.listing(session)[0].revoked == revoked
        assert [one.active for one in keys.listing(session)] == [False, True, False]


def test_whether_a_key_was_ever_made(store: Store) -> None:
    with store.read() as session:
        assert not keys.any_made(session)
    record, _ = create(store)
    with store.begin() as session:
        keys.revoke(session, record.id)
        assert keys.any_made(session)


COUNT = itertools.count()


def ask(store: Store, key: str | None, digest: str = "one") -> int:
    with store.begin() as session:
        return keys.once(session, key, digest, lambda: {"number": next(COUNT)})["number"]


def test_a_key_gives_the_same_answer_for_a_day(store: Store) -> None:
    first = ask(store, "k1")
    assert ask(store, "k1") == first
    assert ask(store, "k2") == first + 1
    with store.begin() as session:
        session.execute(update(SubmissionRow).values(created=utc_now() - keys.KEY_LIFE))
    assert ask(store, "k1") == first + 2, "a day later the key is as good as new"


def test_of_each_caller_the_last_keys_are_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "MOST_KEYS", 20)
    monkeypatch.setattr(keys, "_COUNTED_EACH", 3)
    other, last = ask(store, "an_id:k"), 0
    for number in range(200):
        last = ask(store, f"anXid:{number}")
    with store.read() as session:
        assert (session.scalar(select(func.count()).select_from(SubmissionRow)) or 0) < 120
    assert ask(store, "anXid:199") == last
    assert ask(store, "anXid:0") > last, "one that was forgotten is as good as new"
    assert ask(store, "an_id:k") == other


def test_keys_that_stay_are_not_locked(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "MOST_KEYS", 3)
    monkeypatch.setattr(keys, "_COUNTED_EACH", 10**9)
    for number in range(5):
        ask(store, f"me:{number}")
    monkeypatch.setattr(keys, "_COUNTED_EACH", 1)
    query = select(SubmissionRow.key).order_by(SubmissionRow.key).with_for_update(skip_locked=True)
    with store.begin() as session:
        keys.once(session, "me:5", "one", dict)
        if store.engine.dialect.name == "postgresql":  # SQLite locks no rows
            with store.engine.connect() as other:
                assert list(other.scalars(query)) == ["me:2", "me:3", "me:4"]
    with store.read() as session:
        assert set(session.scalars(select(SubmissionRow.key))) == {f"me:{number}" for number in range(2, 6)}


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
            keys.once(
                session, "k1", "one", lambda: {"job": jobs.submit(session, request(), HOST), "number": 1 // 0}
            )

    with pytest.raises(ZeroDivisionError):
        submit_and_fail()
    with store.read() as session:
        assert jobs.listing(session) == []
    assert ask(store, "k1", "another") is not None
