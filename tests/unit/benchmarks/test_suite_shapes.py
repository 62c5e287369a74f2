"""The suite's shapes, and shapes from a file."""

from __future__ import annotations

import json

import pytest

from benchmarks.suite.shapes import HELD_OUT, SEED_GROUP, SUITE, Shape, ShapesError, read_shapes, select
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


def test_shapes_are_read_from_a_file(tmp_path) -> None:
    path = tmp_path / "mine.json"
    entries = [
        {"m": 1, "n": 2, "k": 3},
        {"m": 1, "n": 2, "k": 3, "layout": "nn", "accumulate": "float16", "group": "g"},
    ]
    path.write_text(json.dumps(entries))
    assert read_shapes(path) == (
        Shape("given", 1, 2, 3),
        Shape("g", 1, 2, 3, Layout.NN, DType.FLOAT16),
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('[{"m": 0, "n": 2, "k": 3}]', "entry 0.m: Input should be greater than or equal to 1"),
        ('[{"m": 1, "n": 2, "k": 3}, {"m": 1}]', "entry 1.n: Field required"),
        ('[{"m": 1, "n": 2, "k": 3, "batch": 1}]', "entry 0.batch: Extra inputs"),
        ('[{"m": "1", "n": 2, "k": 3}]', "entry 0.m: Input should be a valid integer"),
        ('[{"m": 1, "n": 2, "k": 3, "layout": "tnt"}]', "entry 0.layout: Input should be 'nn', 'nt'"),
        ('{"m": 1}', "valid array"),
        ("[", "Invalid JSON"),
        ("[]", "holds no shape"),
        ('[{"m": 1, "n": 2, "k": 3}, {"m": 1, "n": 2, "k": 3, "group": "b"}]', "has 1x2x3-nt twice"),
    ],
)
def test_a_bad_file_is_refused_with_the_place(tmp_path, text, complaint) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(ShapesError, match=complaint) as caught:
        read_shapes(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_refused(tmp_path) -> None:
    with pytest.raises(ShapesError, match="cannot read"):
        read_shapes(tmp_path / "none.json")


def test_shapes_are_selected_by_group_extents_or_name() -> None:
    assert [shape.name for shape in select(SUITE, ["8192x8192x8192"])] == [
        "8192x8192x8192-nt",
        "8192x8192x8192-nn",
    ]
    assert len(select(SUITE, ["8192x8192x8192-nn", "split-K"])) == 3
    assert select(SUITE, []) == SUITE
    with pytest.raises(ShapesError, match=r"'7x7x7'; give a group \(squares, prefill"):
        select(SUITE, ["squares", "7x7x7"])
