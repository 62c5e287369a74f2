"""Rows and means of a recorded suite, from figures chosen by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks.common.pages import ReportError
from benchmarks.common.recorded_suite import Row, aligned, load_rows, means
from benchmarks.common.shapes import SEED_GROUP, Shape
from tilewright.schema.problem import DType, Layout

SQUARE = Shape("squares", 4096, 4096, 4096)
ODD = Shape("odd", 4095, 4097, 4093)


def row_of(shape: Shape, ours_us: float, best_us: float | None) -> Row:
    problem = shape.problem(DType.FLOAT16)
    assert problem is not None
    return Row(
        m=shape.m, n=shape.n, k=shape.k, dtype="float16", layout=shape.layout.value, ours_us=ours_us,
        ratio_vs_cublaslt_best=best_us and best_us / ours_us, config={}, family="wgmma",
        accumulate=problem.accumulate.value, group=shape.group, shape=shape.name,
    )  # fmt: skip


def test_means_over_groups() -> None:
    rows = [
        row_of(SQUARE, 100.0, 121.0),
        row_of(Shape("squares", 8192, 8192, 8192), 100.0, 100.0),
        row_of(ODD, 100.0, 400.0),
        row_of(Shape(SEED_GROUP, 4096, 4096, 4096, Layout.NN, DType.FLOAT16), 100.0, 200.0),
        row_of(Shape("squares", 64, 64, 64), 1.0, None),
    ]
    found = {mean.name: mean for mean in means(rows)}
    assert list(found) == ["aligned", "all", "squares", "odd", SEED_GROUP]
    # sqrt(1.21 * 1) = 1.1; cbrt(1.21 * 1 * 4) = cbrt(4.84).
    assert found["aligned"].ratio == found["squares"].ratio == pytest.approx(1.1)
    assert found["all"].ratio == pytest.approx(math.cbrt(4.84))
    assert found["all"].shapes == 3
    assert found["all"].worst.shape == "8192x8192x8192-nt"
    assert found[SEED_GROUP].ratio == pytest.approx(2.0)


def test_aligned_is_what_tensor_maps_take() -> None:
    assert aligned(row_of(SQUARE, 1.0, 1.0))
    assert aligned(row_of(Shape("odd", 1000, 1000, 1000), 1.0, 1.0))  # 2000 bytes are 125 times 16
    assert not aligned(row_of(ODD, 1.0, 1.0))
    assert not aligned(row_of(Shape("odd", 1024, 50257, 768), 1.0, 1.0))


@pytest.mark.parametrize("text", ['[{"m": 1}]', "["])
def test_a_damaged_file_says_so(text: str, tmp_path: Path) -> None:
    path = tmp_path / "suite-x-float16.json"
    path.write_text(text)
    with pytest.raises(ReportError, match="not a list of suite rows"):
        load_rows(path)
