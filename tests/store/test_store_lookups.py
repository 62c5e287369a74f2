"""Lookups of an architecture answered from a store of several device classes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from store_samples import HOST, HOST_CLASS, OTHER_CLASS, OTHER_HOST, artifact, best, problem

from service import lookups
from service.app import create_app
from service.deps import Service
from service.settings import Settings
from tilewright import wire
from tuner.store import artifacts
from tuner.store import best as winners

SHARED, FIRST_ALONE = problem(64), problem(4096)


@pytest.fixture
def service(url: str) -> Iterator[Service]:
    """Two classes of one architecture: in the later one by name the vendor library was faster in a race."""
    made: Service = create_app(Settings(database_url=url)).state.service
    first, last = sorted((HOST, OTHER_HOST), key=lambda device: device.device_class.id)
    lost = dataclasses.replace(best(SHARED, last, 0.8), speedup_low=0.7, speedup_high=0.9)
    with made.store.begin() as session:
        artifacts.put(session, artifact())
        winners.put(session, best(FIRST_ALONE, first))
        winners.put(session, lost)
    yield made
    made.served.close()
    made.store.close()


def body(max_regret: float = 0.1) -> wire.LookupBody:
    problems = [wire.ProblemFields.of(one).model_dump() for one in (SHARED, FIRST_ALONE)]
    fields = {"arch": HOST.arch, "policy": "nearest", "max_regret": max_regret, "problems": problems}
    return wire.LookupBody.model_validate(fields)


def test_a_race_that_favours_the_vendor_answers_before_a_class_without_one(service: Service) -> None:
    answer, _ = lookups.answers(service, body())
    lost, won = answer.items
    first, last = sorted((HOST_CLASS, OTHER_CLASS))
    assert (lost.kind, lost.device_class, lost.miss) == ("vendor", last, False)
    assert (lost.reason, lost.entry is None) == ("the vendor library was faster in the race", False)
    assert (won.kind, won.device_class) == ("exact", first)


def test_a_set_is_loaded_once_whatever_the_policies(service: Service) -> None:
    for step in range(20):
        lookups.answers(service, body(max_regret=step / 100))
    assert service.served.catalog.cache_info().misses == 2  # the two classes
