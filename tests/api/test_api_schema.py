"""The service against its own OpenAPI document: generated requests, no 5xx, answers as documented."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from api_operations import OPERATIONS
from api_server import Server, finish, start
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from service.problems import Kind
from tilewright.store_calls import NDJSON
from tilewright.tensors import MEDIA_TYPE

CASES = 60  # of each operation that takes anything: valid ones, and as many invalid ones
LEAST = 2000  # in all
# Invalid is also what is too large or too slow, or repeats a key: all refusals but those of a full queue.
REFUSALS = sorted({str(kind.status) for kind in Kind if 400 <= kind.status < 500 and kind.status != 429})
CONFIG = schemathesis.Config.from_dict(
    {"checks": {"negative_data_rejection": {"expected-statuses": REFUSALS}}}
)
CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
]


@schemathesis.serializer(MEDIA_TYPE, NDJSON)
def raw_bytes(_context: Any, value: Any) -> Any:
    """Generated bodies of binary media types travel as they are."""
    return value


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose limits keep generated jobs small."""
    running = start(
        tmp_path_factory.mktemp("schema"), max_extent=64, max_trials=2, max_queue=2, shared_memory=1
    )
    yield running
    finish(running)


@pytest.fixture(scope="module")
def operations(limited: Server) -> dict[str, Any]:
    document = schemathesis.openapi.from_url(f"{limited.url}/openapi.json", config=CONFIG)
    found = [result.ok() for result in document.get_all_operations()]
    return {operation.definition.raw["operationId"]: operation for operation in found}


def test_every_operation_is_in_the_document(operations: dict[str, Any]) -> None:
    assert set(operations) == set(OPERATIONS)


@pytest.fixture(scope="module")
def sent() -> collections.Counter[tuple[str, GenerationMode]]:
    """How many requests were sent to each operation."""
    return collections.Counter()


@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_answers_are_as_documented(
    operations: dict[str, Any],
    sent: collections.Counter[tuple[str, GenerationMode]],
    name: str,
    mode: GenerationMode,
) -> None:
    operation = operations[name]
    if mode is GenerationMode.NEGATIVE and not _takes_anything(operation):
        pytest.skip("an operation without parameters has no invalid requests")

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=CASES,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    def check(case: schemathesis.Case) -> None:
        sent[name, mode] += 1
        case.call_and_validate(checks=CHECKS, timeout=30)

    check()
    assert sent[name, mode] > 0


def test_enough_was_sent(sent: collections.Counter[tuple[str, GenerationMode]]) -> None:
    if {name for name, _ in sent} != set(OPERATIONS):
        pytest.skip("only some operations were asked")
    assert sum(sent.values()) >= LEAST


def _takes_anything(operation: Any) -> bool:
    raw = operation.definition.raw
    return bool(raw.get("parameters") or raw.get("requestBody"))
