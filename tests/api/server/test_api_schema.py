"""The service against its own OpenAPI document: generated requests, no 5xx, answers as documented."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from api_server import OPERATIONS, Server, admin_key, finish, start
from documented import CHECKS, SMALL_JOBS, bearing, document
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode

# Requests to each operation that takes anything: valid ones, and as many invalid ones.
# ``make fuzz`` sends more.
CASES = [2, pytest.param(20, marks=pytest.mark.long)]
LEAST = {2: 80, 20: 700}  # in all
Sent = collections.Counter[tuple[int, str, GenerationMode]]


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose limits keep generated jobs small."""
    running = start(tmp_path_factory.mktemp("schema"), **SMALL_JOBS)
    yield running
    finish(running)


@pytest.fixture(scope="module")
def key(limited: Server) -> str:
    return admin_key(limited)


@pytest.fixture(scope="module")
def operations(limited: Server, key: str) -> dict[str, Any]:
    found = [result.ok() for result in document(limited.url, key).get_all_operations()]
    return {operation.definition.raw["operationId"]: operation for operation in found}


def test_every_operation_is_in_the_document(operations: dict[str, Any]) -> None:
    assert set(operations) == set(OPERATIONS)


@pytest.fixture(scope="module")
def sent() -> Sent:
    """How many requests were sent to each operation."""
    return collections.Counter()


@pytest.mark.parametrize("cases", CASES)
@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_answers_are_as_documented(
    operations: dict[str, Any], key: str, sent: Sent, name: str, mode: GenerationMode, cases: int
) -> None:
    operation = operations[name]
    if mode is GenerationMode.NEGATIVE and not _takes_anything(operation):
        pytest.skip("an operation without parameters has no invalid requests")

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=cases,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    def check(case: schemathesis.Case) -> None:
        sent[cases, name, mode] += 1
        case.call_and_validate(checks=CHECKS, timeout=30, headers=bearing(key))

    check()
    assert sent[cases, name, mode] > 0


@pytest.mark.parametrize("cases", CASES)
def test_enough_was_sent(sent: Sent, cases: int) -> None:
    counts = {key: count for key, count in sent.items() if key[0] == cases}
    if {name for _, name, _ in counts} != set(OPERATIONS):
        pytest.skip("only some operations were asked")
    assert sum(counts.values()) >= LEAST[cases]


def _takes_anything(operation: Any) -> bool:
    raw = operation.definition.raw
    return bool(raw.get("parameters") or raw.get("requestBody"))
