"""The suite's shapes, and shapes from a file."""

from __future__ import annotations

import pytest

from benchmarks.common.shapes import HELD_OUT, SEED_GROUP, SUITE, Shape, ShapesError, select
from tilewright.schema.problem import DType, Layout


def test_the_lists_name_each_shape_once_and_share_none() -> None:
    names = [shape.name for shape in (*SUITE, *HELD_OUT)]
    assert len(set(names)) == len(names)
    assert {shape.group for shape in HELD_OUT} <= {shape.group for shape in SUITE}


def test_the_suite_has_every_kind_of_shape() -> None:
    names = {shape.name for shape in SUITE}
    assert {
        "512x512x512-nt", "12288x12288x12288-nt", "4096x4096x4096-nn", "8192x8192x8192-nn",
        "4096x24576x1536-nt", "1x6144x4096-nt", "64x4096x14336-nt", "64x512x16384-nt",
        "1024x50257x768-nt", "4095x4097x4093-nt",
    } <= names  # fmt: skip
    assert len([shape for shape in SUITE if shape.group == "decode"]) == 9
    assert len([shape for shape in SUITE if shape.group == "prefill"]) == 9


def test_the_case_of_document_003_accumulates_in_float16() -> None:
    [seed] = select(SUITE, [SEED_GROUP])
    problem = seed.problem(DType.FLOAT16)
    assert seed.name == "4096x4096x4096-nn-float16"
    assert problem is not None
    assert (problem.layout, problem.accumulate, problem.out) == (Layout.NN, DType.FLOAT16, DType.FLOAT16)
    assert seed.problem(DType.BFLOAT16) is None


def test_8_bit_types_have_the_shapes_that_the_vendor_has() -> None:
    nt, nn = Shape("g", 16, 32, 64), Shape("g", 16, 32, 64, Layout.NN)
    problem = nt.problem(DType.FLOAT8_E4M3FN)
    assert problem is not None
    assert problem.out is DType.BFLOAT16
    assert nn.problem(DType.FLOAT8_E4M3FN) is None
    assert nn.problem(DType.INT8) is None


def test_shapes_are_selected_by_group_extents_or_name() -> None:
    assert [shape.name for shape in select(SUITE, ["8192x8192x8192"])] == [
        "8192x8192x8192-nt",
        "8192x8192x8192-nn",
    ]
    assert len(select(SUITE, ["8192x8192x8192-nn", "split-K"])) == 3
    assert select(SUITE, []) == SUITE
    with pytest.raises(ShapesError, match=r"'7x7x7'; give a group \(squares, prefill"):
        select(SUITE, ["squares", "7x7x7"])
