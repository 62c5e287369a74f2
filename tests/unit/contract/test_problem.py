"""``GemmProblem``: every rule with its message, derived sizes, plain data both ways."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright import Activation, DType, GemmProblem, Layout
from tilewright.errors import InvalidProblem
from tilewright.schema.problem import MAX_EXTENT, OPERAND_TYPES

ACCUMULATE = {
    "float16": ("float32", "float16"),
    "bfloat16": ("float32",),
    "float32": ("float32",),
    "float64": ("float64",),
    "tfloat32": ("float32",),
    "float8_e4m3fn": ("float32",),
    "float8_e5m2": ("float32",),
    **dict.fromkeys(("int8", "uint8", "int4", "uint4", "uint1", "sign1"), ("int32",)),
}
OUT = {"float8_e4m3fn": ("float32", "float16", "bfloat16")}
OUT |= {name: types for name, types in ACCUMULATE.items() if types == ("int32",)}
OUT |= {"float8_e5m2": OUT["float8_e4m3fn"], "tfloat32": ("float32",)}
OUT |= {name: (name,) for name in ACCUMULATE if name not in OUT}
NAMES = (
    "float16, bfloat16, float32, float64, tfloat32, float8_e4m3fn, float8_e5m2, int8, uint8, int4, uint4, "
    "uint1, sign1, int32"
)


def problem(**changes: Any) -> GemmProblem:
    return GemmProblem(**{"m": 128, "n": 64, "k": 32, **changes})


@pytest.mark.parametrize("name", ["m", "n", "k", "batch"])
@pytest.mark.parametrize("extent", [0, -1, MAX_EXTENT + 1, 2.0, "8", True, None])
def test_extents_out_of_range(name: str, extent: object) -> None:
    with pytest.raises(InvalidProblem, match=rf"^{name} must be an integer in 1 \.\. 2147483647, got "):
        problem(**{name: extent})


def test_extents_at_the_limits() -> None:
    assert problem(m=1, n=1, k=1, batch=1).flops == 2
    assert problem(m=MAX_EXTENT).m == 2**31 - 1


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("dtype", "float8", NAMES),
        ("dtype", None, NAMES),
        ("out_dtype", "int16", NAMES),
        ("acc_dtype", [], NAMES),
        ("layout", "NT", "nn, nt, tn, tt"),
        ("activation", "silu", "none, relu, gelu"),
    ],
)
def test_names_outside_the_vocabulary(name: str, value: object, allowed: str) -> None:
    with pytest.raises(InvalidProblem, match=f"^{name} must be one of {allowed}; got "):
        problem(**{name: value})


@pytest.mark.parametrize("dtype", OPERAND_TYPES)
@pytest.mark.parametrize("acc_dtype", DType)
def test_accumulate_types(dtype: DType, acc_dtype: DType) -> None:
    if acc_dtype in ACCUMULATE[dtype]:
        assert problem(dtype=dtype, acc_dtype=acc_dtype).accumulate is acc_dtype
    else:
        allowed = ", ".join(ACCUMULATE[dtype])
        message = f"^{dtype} accumulates in {allowed}; acc_dtype must be one of these, got {acc_dtype}$"
        with pytest.raises(InvalidProblem, match=message):
            problem(dtype=dtype, acc_dtype=acc_dtype)


def test_out_types() -> None:
    assert problem(out_dtype="float32").out is DType.FLOAT32
    assert problem(acc_dtype="float16", out_dtype="float16").out is DType.FLOAT16
    message = "^out_dtype must be float16 or the accumulate type float32, got bfloat16$"
    with pytest.raises(InvalidProblem, match=message):
        problem(out_dtype="bfloat16")
    with pytest.raises(InvalidProblem, match="the accumulate type float16, got float32"):
        problem(acc_dtype="float16", out_dtype="float32")
    for out in OUT["float8_e5m2"]:
        assert problem(dtype="float8_e5m2", out_dtype=out).out == out
    message = "^out_dtype must be float32 or float16 or bfloat16 or the accumulate type float32, got float8"
    with pytest.raises(InvalidProblem, match=message):
        problem(dtype="float8_e4m3fn", out_dtype="float8_e4m3fn")
    with pytest.raises(InvalidProblem, match="must be float32 or the accumulate type float32, got tfloat32"):
        problem(dtype="tfloat32", out_dtype="tfloat32")


def test_int32_is_for_results_only() -> None:
    with pytest.raises(
        InvalidProblem, match=r"^int32 is a type of results only; A and B must have one of float16"
    ):
        problem(dtype="int32")


def test_integers_have_no_gelu() -> None:
    assert problem(dtype="uint8", activation="relu").out is DType.INT32
    with pytest.raises(InvalidProblem, match=r"^gelu needs a type such as float16; int8 accumulates"):
        problem(dtype="int8", activation="gelu")


@pytest.mark.parametrize(
    ("dtype", "out", "accumulate"),
    [
        ("float16", "float16", "float32"),
        ("bfloat16", "bfloat16", "float32"),
        ("float32", "float32", "float32"),
        ("float64", "float64", "float64"),
        ("tfloat32", "float32", "float32"),
        ("float8_e4m3fn", "float32", "float32"),
        ("float8_e5m2", "float32", "float32"),
        ("int8", "int32", "int32"),
        ("uint8", "int32", "int32"),
        ("int4", "int32", "int32"),
        ("sign1", "int32", "int32"),
    ],
)
def test_defaults_are_spelled_out(dtype: str, out: str, accumulate: str) -> None:
    p = problem(dtype=dtype)
    assert p == problem(dtype=dtype, out_dtype=out, acc_dtype=accumulate)
    assert (p.layout, p.activation, p.batch) == (Layout.NT, Activation.NONE, 1)
    assert isinstance(p.out_dtype, DType)


@pytest.mark.parametrize(
    ("layout", "a", "b"),
    [
        ("nn", (128, 32), (32, 64)),
        ("nt", (128, 32), (64, 32)),
        ("tn", (32, 128), (32, 64)),
        ("tt", (32, 128), (64, 32)),
    ],
)
def test_stored_shapes(layout: str, a: tuple[int, int], b: tuple[int, int]) -> None:
    assert problem(layout=layout).a_shape == a
    assert problem(layout=layout).b_shape == b


def test_flops_and_bytes() -> None:
    p = problem(batch=3, out_dtype="float32")
    # 2 * 128 * 64 * 32 = 524,288 a product.
    assert p.flops == 3 * 524_288
    # A 128 * 32 * 2 = 8192 bytes, B 64 * 32 * 2 = 4096; D 128 * 64 * 4 = 32,768.
    assert p.operand_bytes == 3 * (8192 + 4096)
    assert p.total_bytes == 3 * (8192 + 4096 + 32_768)
    assert dataclasses.replace(p, has_c=True).total_bytes == 3 * (8192 + 4096 + 2 * 32_768)


@pytest.mark.parametrize(
    ("changes", "a", "b", "d"),
    [
        # nt: the rows of A and B have k elements, those of D have n.
        ({"k": 32, "n": 64}, 16, 16, 16),
        ({"k": 4, "n": 10}, 8, 8, 4),  # 8 bytes; 20 = 4 * 5 bytes
        ({"k": 7, "n": 7}, 2, 2, 2),
        ({"k": 7, "n": 6, "layout": "nn"}, 2, 4, 4),  # rows of B have n elements
        ({"k": 7, "m": 12, "n": 8, "layout": "tn"}, 8, 16, 16),  # rows of A have m elements
        ({"k": 3, "n": 3, "dtype": "float32"}, 4, 4, 4),
        ({"k": 3, "n": 3, "dtype": "float64"}, 8, 8, 8),
        ({"k": 1, "n": 3, "out_dtype": "float32"}, 2, 2, 4),  # D is wider than A
    ],
)
def test_stride_alignment(changes: dict[str, Any], a: int, b: int, d: int) -> None:
    p = problem(**changes)
    assert [p.stride_alignment(operand) for operand in "abd"] == [a, b, d]


def test_sizes_of_types() -> None:
    assert [dtype.bits for dtype in DType] == [16, 16, 32, 64, 32, 8, 8, 8, 8, 4, 4, 1, 1, 32]
    assert [dtype.size for dtype in DType] == [2, 2, 4, 8, 4, 1, 1, 1, 1, 1, 1, 1, 1, 4]
    assert [dtype.packing for dtype in DType] == [1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 8, 8, 1]


def test_text() -> None:
    assert str(problem()) == "128x64x32 float16 nt"
    assert str(problem(batch=5, dtype="float32", layout="tn")) == "5x 128x64x32 float32 tn"


def test_from_dict_refuses_unknown_and_missing_fields() -> None:
    with pytest.raises(InvalidProblem, match=r"not a GEMM problem, .*'color'"):
        GemmProblem.from_dict({"m": 1, "n": 1, "k": 1, "color": "red"})
    with pytest.raises(InvalidProblem, match=r"not a GEMM problem, .*'k'"):
        GemmProblem.from_dict({"m": 1, "n": 1})
    with pytest.raises(InvalidProblem, match="m must be an integer"):
        GemmProblem.from_dict({"m": 0, "n": 1, "k": 1})


def test_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        problem().m = 1  # type: ignore[misc]


@st.composite
def problems(draw: st.DrawFn) -> GemmProblem:
    dtype = draw(st.sampled_from(OPERAND_TYPES))
    accumulate = draw(st.sampled_from(ACCUMULATE[dtype]))
    extent = st.integers(1, MAX_EXTENT // dtype.packing).map(lambda units: units * dtype.packing)
    return GemmProblem(
        m=draw(extent),
        n=draw(extent),
        k=draw(extent),
        batch=draw(extent),
        dtype=dtype,
        layout=draw(st.sampled_from(Layout)),
        out_dtype=DType(draw(st.sampled_from([*OUT[dtype], accumulate]))),
        acc_dtype=DType(accumulate),
        activation=draw(st.sampled_from([Activation.NONE, Activation.RELU])),
        has_bias=draw(st.booleans()),
        has_c=draw(st.booleans()),
    )


@settings(max_examples=150, deadline=None, database=None)
@given(problems())
def test_round_trip_through_json(p: GemmProblem) -> None:
    again = GemmProblem.from_dict(json.loads(json.dumps(p.to_dict())))
    assert again == p
    assert hash(again) == hash(p)
    assert all(type(value) in (int, bool, str) for value in p.to_dict().values())


def test_no_two_problems_have_one_name() -> None:
    plain = {"m": 64, "n": 48, "k": 32, "dtype": "float16"}
    changes: list[dict[str, Any]] = [
        {},
        {"m": 48},
        {"dtype": "bfloat16"},
        {"layout": "tn"},
        {"batch": 2},
        {"out_dtype": "float32"},
        {"acc_dtype": "float16"},
        {"activation": "gelu"},
        {"has_bias": True},
        {"has_c": True},
    ]
    names = {str(GemmProblem.from_dict(plain | change)) for change in changes}
    assert len(names) == len(changes)
    assert str(GemmProblem(64, 48, 32)) == "64x48x32 float16 nt"
    options = {name: value for change in changes[6:] for name, value in change.items()}
    whole = GemmProblem.from_dict(plain | {"batch": 2} | options)
    assert str(whole) == "2x 64x48x32 float16 nt acc=float16 bias C gelu"
