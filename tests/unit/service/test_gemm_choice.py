"""Which kernel runs a GEMM on request: what clients would take, by the same regret."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
from host_samples import artifact_of, config_of
from set_server import config_set, entry

from service.gemm import choice
from service.results.served import Selection
from tilewright import GemmProblem
from tilewright.config_sets.lookup import Catalog
from tilewright.schema.config_set import ConfigSet
from tilewright.wire import GemmQuery

TUNED = GemmProblem(96, 80, 64, "float32", "nn")
NEAR, FAR = dataclasses.replace(TUNED, m=112), dataclasses.replace(TUNED, m=96 * 3)
KERNEL = artifact_of(config_of(kc=32, mc=32, nc=64), TUNED)
BANDS = [
    {"max_distance": 0.5, "expected": 0.02, "p90": 0.1, "pairs": 9},
    {"max_distance": 2.0, "expected": 0.2, "p90": 0.4, "pairs": 30},
]


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a service that serves one kernel chooses for a problem, with these changes of its entry."""
    monkeypatch.setattr(choice.entities, "get_artifact", lambda _session, _digest: KERNEL.to_bytes())

    def choose(problem: GemmProblem, query: dict[str, Any], **changes: Any) -> choice.Chosen:
        catalog = Catalog.of(ConfigSet.from_bytes(config_set([entry(TUNED, KERNEL, **changes)], BANDS), None))
        served: Any = SimpleNamespace(
            store=SimpleNamespace(read=_Session),
            select=lambda _, problems, limits: [Selection(catalog.lookup(*problems, limits), "host")],
        )
        return choice.choose(served, "host", problem, GemmQuery(match="nearest", **query))

    return choose


class _Session:
    def __enter__(self) -> None:
        """Nothing is asked of it."""

    def __exit__(self, *_: object) -> None:
        """Nothing to end."""


def test_a_near_kernel_runs_within_its_regret(chosen: Any) -> None:
    assert chosen(TUNED, {}).match == "exact"
    near = chosen(NEAR, {})
    assert near.artifact.digest == KERNEL.digest
    # log2(112 / 96) octaves, of the first band.
    assert near.match == "nearest; distance=0.222; expected_regret=0.0200"


@pytest.mark.parametrize(
    ("problem", "query", "changes", "match"),
    [
        (FAR, {}, {}, "vendor; no tuned kernel"),
        (FAR, {"max_regret": 0.2}, {}, "nearest; distance=1.585; expected_regret=0.2000"),
        (NEAR, {"max_regret": 0.01}, {}, "vendor; no tuned kernel"),
        (NEAR, {"deterministic": True}, {"deterministic": False}, "vendor; no tuned kernel"),
        (
            TUNED,
            {"deterministic": True},
            {"deterministic": False},
            "vendor; the tuned kernel is not repeatable",
        ),
        (TUNED, {}, {"use_vendor": True}, "vendor; the vendor library was faster in the race"),
        (NEAR, {}, {"use_vendor": True}, "vendor; no tuned kernel"),
        (dataclasses.replace(NEAR, batch=2), {}, {}, "vendor; no tuned kernel"),
    ],
)
def test_what_may_cost_too_much_is_left_to_the_vendor(
    chosen: Any, problem: GemmProblem, query: dict[str, Any], changes: dict[str, Any], match: str
) -> None:
    found = chosen(problem, query, **changes)
    assert found.match.startswith(match)
    assert (found.artifact is None) == found.match.startswith("vendor")


@pytest.mark.parametrize("data", [b"", b"no kernel", KERNEL.to_bytes()[:-1]])
def test_a_damaged_kernel_is_left_to_the_vendor(
    chosen: Any, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice.entities, "get_artifact", lambda _session, _digest: data)
    found = chosen(TUNED, {})
    assert (found.match.partition(";")[0], found.artifact) == ("vendor", None)
