"""What the methods of a client refuse before they ask the service."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tilewright import Client, GemmProblem
from tilewright.errors import InvalidProblem
from tilewright.http.gemm_calls import with_layout

PROBLEM = GemmProblem(8, 8, 8, "float32")
NOWHERE = "http://127.0.0.1:1"


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with Client(NOWHERE) as made:
        yield made


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a problem as a dict": (lambda client: client.tune(PROBLEM.to_dict()), "GemmProblem"),
    "a problem as text": (lambda client: client.best_config("8x8x8"), "GemmProblem"),
    "another m": (lambda client: client.tune(PROBLEM, m=5), "m: give it in the GemmProblem"),
    "another layout": (lambda client: client.best_config(PROBLEM, layout="nn"), "layout: give it"),
    "one problem of many": (lambda client: client.lookup_many(PROBLEM), "such as a list"),
    "problems as tuples": (lambda client: client.lookup_many([(8, 8, 8)]), "GemmProblem"),
    "a miss that is a problem": (lambda client: client.report_misses("sm_90", [PROBLEM]), "a miss is a Miss"),
    "an import of bytes": (lambda client: client.import_results(b"{}"), "a path or a binary file"),
    "a layout twice": (
        lambda client: client.gemm(np.eye(2), np.eye(2), layout="tn", transpose_a=True),
        "not both",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_are_refused_with_what_to_give(client: Client, name: str) -> None:
    call, reason = REFUSED[name]
    with pytest.raises(InvalidProblem, match=reason):
        call(client)


def test_a_layout_is_the_layout_of_the_request() -> None:
    assert with_layout({"layout": "tn"}) == {"layout": "tn"}  # type: ignore[typeddict-unknown-key]
    assert with_layout({"transpose_b": True})["layout"].value == "nt"


OPTIONS: list[dict[str, Any]] = [
    {"max_regret": -5}, {"max_regret": math.nan}, {"max_regret": "0.1"}, {"deterministic": "no"},
    {"offline": "no"}, {"refresh_s": -3}, {"refresh_s": "3"}, {"cache_bytes": "3"}, {"cache_days": "3"},
    {"cache_dir": 3}, {"pin": 5}, {"start_timeout": "3"}, {"start_timeout": math.inf},
]  # fmt: skip


@pytest.mark.parametrize("option", OPTIONS, ids=str)
def test_an_option_out_of_range_or_of_another_type_is_refused(option: dict[str, Any]) -> None:
    (name,) = option
    with pytest.raises(InvalidProblem, match=name):
        Client(NOWHERE, **option)
