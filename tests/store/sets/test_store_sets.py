"""Config sets: kept once by content, served as the latest or as pinned, paged."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from set_server import config_set, entry
from sqlalchemy import delete, true
from sqlalchemy.orm import Session
from store_samples import HOST_CLASS, OTHER_CLASS, artifact, best, problem

from service.errors import Refusal
from service.http.routes import config_sets as routes
from service.results import config_sets
from tilewright import wire
from tilewright.schema.config_set import ConfigSet
from tilewright.schema.kernel import Preconditions
from tuner.store import best as winners
from tuner.store import entities, sets
from tuner.store.database import Store, StoreError
from tuner.store.models import ConfigSetRow
from tuner.store.sets import ServedSetRecord, SetRecord, Snapshot

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def snapshot(letter: str = "a", device_class: str = HOST_CLASS) -> Snapshot:
    return Snapshot(f"sha256:{letter * 64}", device_class, "x86_64_v3", 3, sets.pack(b'{"x":1}' * 100), NOW)


def keep(store: Store, *kept: Snapshot, made_from: str = "1 here") -> None:
    for item in kept:
        with store.begin() as session:
            sets.keep(session, item, made_from)


def served(store: Store, device_class: str = HOST_CLASS) -> ServedSetRecord:
    with store.read() as session:
        return sets.served(session, device_class)


def letters(found: list[SetRecord]) -> str:
    return "".join(item.digest[7] for item in found)


def test_a_class_without_a_set_is_served_nothing(store: Store) -> None:
    assert served(store) == ServedSetRecord(0, None, None, None)
    with store.read() as session:
        assert sets.packed(session, snapshot().digest) is None
        assert sets.get(session, snapshot().digest) is None
        assert sets.listing(session) == []


def test_a_snapshot_comes_back_byte_for_byte(store: Store) -> None:
    keep(store, snapshot())
    with store.read() as session:
        packed = sets.packed(session, snapshot().digest)
        assert packed is not None
        assert sets.unpack(packed) == sets.unpack(snapshot().packed)
        found = sets.get(session, snapshot().digest)
    assert found is not None
    assert (found.entries, found.created, found.device_class) == (3, NOW, HOST_CLASS)


def test_the_same_content_is_kept_once_and_served_again(store: Store) -> None:
    keep(store, snapshot("a"), snapshot("b"), snapshot("a"), made_from="7 here")
    assert served(store) == ServedSetRecord(0, snapshot("a").digest, None, "7 here")
    with store.read() as session:
        assert letters(sets.listing(session)) == "ab", "the one that was made the latest last comes first"


def test_every_winner_raises_the_revision_of_its_class_alone(store: Store) -> None:
    with store.begin() as session:
        entities.put_artifact(session, artifact())
        winners.put(session, best(problem(), speedup=2.0))
        winners.put(session, best(problem(65)))
    assert served(store).revision == 2
    with store.begin() as session:
        assert not winners.put(session, best(problem(), disturbed="others were busy"))
    assert served(store).revision == 2, "a winner that was not taken changes nothing"
    assert served(store, OTHER_CLASS).revision == 0


def test_revisions_of_writers_at_once_all_count(store: Store) -> None:
    def change() -> None:
        for _ in range(10):
            with store.begin() as session:
                sets.changed(session, HOST_CLASS, true())

    threads = [threading.Thread(target=change) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert served(store).revision == 40


def test_a_pin_holds_until_it_is_taken_back(store: Store) -> None:
    keep(store, snapshot("a"), snapshot("b"))
    with store.begin() as session:
        sets.pin(session, HOST_CLASS, snapshot("a").digest)
    keep(store, snapshot("c"))
    assert (served(store).pinned, served(store).latest) == (snapshot("a").digest, snapshot("c").digest)
    with store.begin() as session:
        sets.pin(session, HOST_CLASS, None)
        sets.pin(session, OTHER_CLASS, None)
    assert served(store).pinned is None


def test_each_change_of_what_is_served_has_a_higher_serial(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a minute too, when the clock is set back, and after a backup was restored."""
    serials = [served(store).serial]

    def at(minutes: int, *changes: Callable[[Session], object]) -> None:
        monkeypatch.setattr(sets, "time", SimpleNamespace(time=lambda: 60.0 * minutes))
        for change in changes:
            with store.begin() as session:
                change(session)
            serials.append(served(store).serial)

    def won(session: Session) -> None:
        sets.changed(session, HOST_CLASS, true())

    def pin(letter: str | None) -> Callable[[Session], object]:
        return lambda session: sets.pin(session, HOST_CLASS, letter and snapshot(letter).digest)

    keep(store, snapshot("a"), snapshot("b"))
    at(1000, won, won, pin("a"), won, pin(None))
    at(500, won, pin("b"), sets.renumber)
    at(2000, sets.renumber, won)
    assert serials == [1, 2, 3, 1001, 1002, 1003, 1004, 1005, 1006, 2001, 2002]


def test_of_two_who_know_the_same_set_one_changes_what_is_served(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(store, snapshot("a"), snapshot("b"), snapshot("c"))
    pin = sets.pin

    def slowly(*given: Any) -> None:
        time.sleep(0.5)  # both have looked by then, where nothing keeps them from it
        pin(*given)

    monkeypatch.setattr(sets, "pin", slowly)
    nothing = SimpleNamespace(device_class=HOST_CLASS, entries=())
    loaded = SimpleNamespace(digest="", artifacts={}, config_set=nothing)  # no kernel, so none is missing
    service: Any = SimpleNamespace(store=store, served=SimpleNamespace(loaded=lambda _: loaded))
    request: Any = SimpleNamespace(scope={"key_id": "0" * 12})

    def change(letter: str) -> bool:
        body = wire.PinBody(device_class=HOST_CLASS, digest=snapshot(letter).digest)
        try:
            routes.post_current(body, service, request, f'"{snapshot("c").digest}"')
        except Refusal:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        done = dict(zip("ab", pool.map(change, "ab"), strict=True))
    (winner,) = [letter for letter, changed in done.items() if changed]
    assert served(store).pinned == snapshot(winner).digest


def test_a_set_of_an_earlier_format_differs_only_in_what_was_raced() -> None:
    kernel = artifact(needs=Preconditions(align_a=16))
    new, faster = entry(problem(), kernel), entry(problem(65), kernel)
    old = {name: value for name, value in new.items() if name != "preconditions"}
    before, after = (
        ConfigSet.from_bytes(content)
        for content in (
            config_set([old, faster | {"median_us": 3.0}], format=2),
            config_set([new, faster]),
        )
    )
    found = config_sets.difference(before, after)
    assert ([change.problem.m for change in found.changed], found.unchanged) == ([65], 1)


@pytest.mark.parametrize(("after_us", "decided"), [(1.94, False), (2.06, False), (1.8, True), (2.2, True)])
def test_times_within_the_spread_between_races_decide_nothing(after_us: float, decided: bool) -> None:
    """Though the intervals, each of its own race, are disjoint."""
    sets_of_one = (
        config_set([entry(problem(), artifact(), median_us=us, low_us=us - 0.01, high_us=us + 0.01)])
        for us in (2.0, after_us)
    )
    (change,) = config_sets.difference(*map(ConfigSet.from_bytes, sets_of_one)).changed
    assert (change.time_ratio, change.decided) == (2.0 / after_us, decided)


def test_only_a_set_of_the_class_can_be_pinned(store: Store) -> None:
    keep(store, snapshot("a", OTHER_CLASS))
    with store.begin() as session:
        for digest in (snapshot("a").digest, snapshot("b").digest):
            with pytest.raises(StoreError, match=r"GET /config-sets"):
                sets.pin(session, HOST_CLASS, digest)


def test_listing_pages_newest_first(store: Store) -> None:
    keep(store, *(snapshot(letter) for letter in "abcde"), snapshot("f", OTHER_CLASS))
    with store.read() as session:
        page = sets.listing(session, HOST_CLASS, limit=2)
        rest = sets.listing(session, HOST_CLASS, limit=9, before=page[-1].id)
        everything = sets.listing(session)
    assert letters(page + rest) == "edcba"
    assert len(everything) == 6


def test_pins_do_not_change_the_order_so_that_a_second_rollback_goes_further_back(store: Store) -> None:
    keep(store, *(snapshot(letter) for letter in "abcb"))
    with store.begin() as session:
        for digest in (snapshot("c").digest, snapshot("a").digest, None):
            sets.pin(session, HOST_CLASS, digest)
            assert letters(sets.listing(session)) == "bca"


def test_a_page_goes_on_after_a_set_that_was_deleted_or_made_the_latest_again(store: Store) -> None:
    keep(store, *(snapshot(letter) for letter in "abcdeb"))
    with store.read() as session:
        (*_, last) = sets.listing(session, limit=3)
        assert last.digest[7] == "d"
        assert letters(sets.listing(session, before=last.id)) == "ca"
    with store.begin() as session:
        session.execute(delete(ConfigSetRow).where(ConfigSetRow.id == last.id))
    with store.read() as session:
        assert letters(sets.listing(session, before=last.id)) == "ca"


def test_the_latest_set_is_the_first_of_its_class_also_after_the_clock_was_set_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for letter, day in zip("abac", (5, 3, 1, 2), strict=True):
        monkeypatch.setattr(sets, "utc_now", lambda day=day: NOW + timedelta(days=day))
        keep(store, snapshot(letter))
    with store.read() as session:
        assert letters(sets.listing(session, HOST_CLASS)) == "cab"
