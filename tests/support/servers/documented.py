"""Requests generated from the OpenAPI document of the service, and what its answers must keep."""

from __future__ import annotations

from typing import Any

import httpx2
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from service.errors import Kind
from tilewright.http.calls import NDJSON
from tilewright.http.tensors import MEDIA_TYPE

# Limits that keep generated jobs small.
SMALL_JOBS = {"max_extent": 64, "max_trials": 2, "max_queue": 2, "shared_memory": 1}
# Invalid is also what is too large or too slow, or repeats a key: all refusals but those of a full queue.
REFUSALS = sorted({str(kind.status) for kind in Kind if 400 <= kind.status < 500 and kind.status != 429})
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


def bearing(key: str) -> dict[str, str]:
    """The header that shows an API key."""
    return {"Authorization": f"Bearer {key}"}


def document(url: str, key: str) -> Any:
    """The OpenAPI document of a running service with ``SMALL_JOBS``, as schemathesis reads it.

    The document's own bounds are those of any service; a valid request to tune keeps those of this one.
    """
    raw = httpx2.get(f"{url}/openapi.json", headers=bearing(key)).json()
    tune = raw["components"]["schemas"]["TuneBody"]
    for name in ("m", "n", "k"):
        tune["properties"][name] |= {"maximum": SMALL_JOBS["max_extent"]}
    tune["properties"]["max_trials"] |= {"maximum": SMALL_JOBS["max_trials"]}
    tune["required"] += ["max_trials"]
    config = schemathesis.Config.from_dict(
        {"base-url": url, "checks": {"negative_data_rejection": {"expected-statuses": REFUSALS}}}
    )
    return schemathesis.openapi.from_dict(raw, config=config)
