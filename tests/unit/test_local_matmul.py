"""``matmul`` on the caller's device: right from several threads, and never worse than the vendor library."""

from __future__ import annotations

import concurrent.futures
import dataclasses
from typing import Any

import numpy as np
from host_samples import artifact_of, config_of

from tilewright.errors import ServiceUnreachable
from tilewright.local import Choice, LocalMatmul
from tilewright.problem import GemmProblem

THREADS = 4


def tuned(problem: GemmProblem, _device: int) -> Choice:
    same = dataclasses.replace(problem, m=64, n=64, k=64, batch=1)
    return Choice(artifact_of(config_of(kc=64, mc=64, nc=64), same), "exact")


def operands(seed: int, dtype: str = "float32") -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    return random.standard_normal((96, 512)).astype(dtype), random.standard_normal((512, 160)).astype(dtype)


def worst(matmul: LocalMatmul, seed: int) -> float:
    a, b = operands(seed)
    exact = a.astype("float64") @ b.astype("float64")
    return max(float(np.abs(matmul(a, b) - exact).max()) for _ in range(60))


def test_threads_do_not_share_a_workspace() -> None:
    matmul = LocalMatmul(tuned)
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        errors = list(pool.map(lambda seed: worst(matmul, seed), range(THREADS)))
    # Sums of 512 products of N(0, 1) are about 23 and err by some 1e-5 in float32.
    assert max(errors) < 1e-3
    assert matmul.stats["tuned: exact"] > 0


def test_a_service_that_does_not_answer_is_asked_once_and_leaves_it_to_the_vendor() -> None:
    asked = []

    def lookup(problem: GemmProblem, device: int) -> Choice:
        asked.append((problem, device))
        raise ServiceUnreachable("nobody answers")

    matmul = LocalMatmul(lookup)
    a, b = operands(0)
    for _ in range(2):
        np.testing.assert_array_equal(matmul(a, b), a @ b)
    assert len(asked) == 1
    assert matmul.stats == {"vendor: nobody answers": 2}


def test_strides_that_are_no_whole_elements_are_not_launched_on() -> None:
    packed = np.zeros((8, 8), dtype=[("value", "f4"), ("flag", "u1")])
    packed["value"] = np.arange(64).reshape(8, 8)
    view = packed["value"]
    assert view.strides == (40, 5)
    matmul = LocalMatmul(tuned)
    np.testing.assert_array_equal(matmul(view, view), view @ view)
    assert "tuned: exact" not in matmul.stats
