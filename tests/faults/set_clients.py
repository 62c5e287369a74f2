"""One of many processes that share a cache. Imports little: each of them pays for it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from tilewright import GemmProblem
from tilewright.client import Client

TUNED = GemmProblem(48, 40, 64, "float32", "nn")


def product_is_right(tw: Client) -> None:
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(shape).astype("float32") for shape in (TUNED.a_shape, TUNED.b_shape))
    np.testing.assert_allclose(tw.matmul(a, b), a @ b, rtol=1e-4, atol=1e-4)


def one_of_many(url: str, folder: str, answers: Any, skew_s: float = 0.0) -> None:
    """By a clock that is off by so many seconds, and from the first product on by as many the other way."""
    right = time.time
    time.time = lambda: right() + skew_s
    with Client(url, cache_dir=Path(folder), start_timeout=60.0) as tw:
        product_is_right(tw.start())
        time.time = lambda: right() - skew_s
        assert tw.refresh(60.0)
        product_is_right(tw)
        answers.put(dict(tw.stats))
