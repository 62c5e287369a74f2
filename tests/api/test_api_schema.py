"""The service against its own OpenAPI document: generated requests, no 5xx, answers as documented."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from api_server import Server, finish, start
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from tilewright.tensors import MEDIA_TYPE

CASES = 25  # for each operation, valid and invalid alike
CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
]
OPERATIONS = {
    "tune",
    "list_jobs",
    "get_job",
    "list_trials",
    "cancel_job",
    "follow_job",
    "best_config",
    "artifact",
    "gemm",
    "families",
    "devices",
    "live",
    "ready",
}


@schemathesis.serializer(MEDIA_TYPE)
def raw_bytes(_context: Any, value: Any) -> Any:
    """Generated bodies of binary media types travel as they are."""
    return value


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose limits keep generated jobs small."""
    running = start(tmp_path_factory.mktemp("schema"), max_extent=64, max_trials=2, max_queue=2)
    yield running
    finish(running)


@pytest.fixture(scope="module")
def operations(limited: Server) -> dict[str, Any]:
    document = schemathesis.openapi.from_url(f"{limited.url}/openapi.json")
    found = [result.ok() for result in document.get_all_operations()]
    return {operation.definition.raw["operationId"]: operation for operation in found}


def test_every_operation_is_in_the_document(operations: dict[str, Any]) -> None:
    assert set(operations) == OPERATIONS


@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_answers_are_as_documented(operations: dict[str, Any], name: str, mode: GenerationMode) -> None:
    operation = operations[name]
    if mode is GenerationMode.NEGATIVE and not _takes_anything(operation):
        pytest.skip("an operation without parameters has no invalid requests")
    sent = 0

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=CASES,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    def check(case: schemathesis.Case) -> None:
        nonlocal sent
        sent += 1
        case.call_and_validate(checks=CHECKS, timeout=30)

    check()
    assert sent > 0


def _takes_anything(operation: Any) -> bool:
    raw = operation.definition.raw
    return bool(raw.get("parameters") or raw.get("requestBody"))
