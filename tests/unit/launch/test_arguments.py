"""From operands to argument values, and every precondition with its message."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tilewright import GemmProblem, LaunchPlan, Layout
from tilewright.artifact import Grid, Preconditions, Serves, Workspace
from tilewright.errors import LaunchError, PreconditionFailed
from tilewright.launch.arguments import Operands, check_preconditions, scalar_values

PROBLEM = GemmProblem(100, 64, 48, batch=3)
FULL = dataclasses.replace(PROBLEM, has_c=True, has_bias=True)
PACKED = Operands(a=4096, b=8192, d=12288)


def plan(problem: GemmProblem = PROBLEM, **changes: Any) -> LaunchPlan:
    parts: dict[str, Any] = {
        "format": "cubin",
        "target": "sm_80",
        "entry": "gemm",
        "block": (128, 1, 1),
        "grid": Grid(64, 64),
        "args": (),
        "serves": Serves.of(problem),
        "preconditions": Preconditions(align_a=16, align_b=8, align_d=4),
    }
    return LaunchPlan(**(parts | changes))


def refusal(operands: Operands, problem: GemmProblem = PROBLEM, **changes: Any) -> str:
    """What check_preconditions says, without its leading sentence; empty if it agrees."""
    try:
        check_preconditions(plan(problem, **changes), problem, operands)
    except PreconditionFailed as error:
        return str(error).removeprefix(f"gemm cannot run {problem}: ")
    return ""


def with_operands(**changes: Any) -> Operands:
    return dataclasses.replace(PACKED, **changes)


def test_packed_values() -> None:
    # A is 100 x 48, B 64 x 48 (nt), D 100 x 64.
    assert scalar_values(PROBLEM, PACKED) == {
        "m": 100, "n": 64, "k": 48, "batch": 3,
        "lda": 48, "ldb": 48, "ldc": 64, "ldd": 64,
        "stride_a": 4800, "stride_b": 3072, "stride_c": 6400, "stride_d": 6400,
        "alpha": 1.0, "beta": 0.0,
    }  # fmt: skip


def test_values_of_a_transposed_a_and_given_strides() -> None:
    problem = dataclasses.replace(PROBLEM, layout=Layout.TN)
    values = scalar_values(problem, with_operands(lda=112, ldd=72, alpha=0.5, beta=2.0))
    # A is stored 48 x 100, B 48 x 64; batches lie a whole padded matrix apart.
    assert (values["lda"], values["stride_a"]) == (112, 48 * 112)
    assert (values["ldb"], values["stride_b"]) == (64, 48 * 64)
    assert (values["ldc"], values["ldd"]) == (64, 72)
    assert (values["stride_c"], values["stride_d"]) == (6400, 7200)
    assert (values["alpha"], values["beta"]) == (0.5, 2.0)


def test_what_fits_is_accepted() -> None:
    assert refusal(PACKED) == ""
    assert refusal(with_operands(c=256, bias=2, beta=1.0), FULL) == ""
    assert refusal(with_operands(lda=56, ldb=52, ldd=66)) == ""


def test_a_refusal_is_a_launch_error() -> None:
    assert issubclass(PreconditionFailed, LaunchError)


@pytest.mark.parametrize(
    ("name", "address", "align"), [("a", 4104, 16), ("b", 8196, 8), ("d", 12290, 4), ("c", 258, 4)]
)
def test_addresses(name: str, address: int, align: int) -> None:
    operands = dataclasses.replace(with_operands(c=256, bias=2), **{name: address})
    message = f"the address of {name} must be a multiple of {align} bytes"
    assert refusal(operands, FULL) == message


def test_missing_operands() -> None:
    assert refusal(with_operands(bias=2), FULL) == "it reads C; give one"
    assert refusal(with_operands(c=256), FULL) == "it adds a bias; give one"
    assert refusal(with_operands(beta=1.0)) == "beta must be 0 if the problem has no C"


def test_alpha_0_is_refused_where_a_product_may_be_nan() -> None:
    assert "alpha is 0" in refusal(with_operands(alpha=0.0))
    assert refusal(with_operands(alpha=0.0), GemmProblem(96, 64, 64, "int8")) == ""


def test_workspace() -> None:
    # 100 x 64 in tiles of 64 x 64 is 2 tiles, 6 over the batch: 6 counters of 4 bytes round up to 256,
    # then 6 partial tiles of 16,384 bytes.
    changes: dict[str, Any] = {"workspace": Workspace(4, 16_384)}
    assert refusal(PACKED, **changes) == f"it needs a workspace of {256 + 6 * 16_384} bytes"
    assert refusal(with_operands(workspace=256), **changes) == ""


def test_batch_that_does_not_fit_the_grid() -> None:
    at_limit, above = (dataclasses.replace(PROBLEM, batch=batch) for batch in (65535, 65536))
    assert refusal(PACKED, at_limit) == ""
    assert refusal(PACKED, above) == "a batch above 65535 does not fit the launch grid; split it"
    assert refusal(PACKED, above, format="elf") == ""


@pytest.mark.parametrize("axis", ["m", "n", "k"])
@pytest.mark.parametrize("padding", [0, 16])
def test_extents_beyond_the_arithmetic_of_a_stored_kernel(axis: str, padding: int) -> None:
    """Packed or strided: what the tuner refuses for a family, a launch of its binary refuses too."""
    needs: dict[str, Any] = {"preconditions": Preconditions(max_extent=1000)}
    at_limit, above = (GemmProblem(**{"m": 64, "n": 64, "k": 64, axis: extent}) for extent in (1000, 1001))
    for problem, message in ((at_limit, ""), (above, "m, n and k must be at most 1000")):
        operands = with_operands(lda=problem.k + padding) if padding else PACKED
        assert refusal(operands, problem, **needs) == message
    assert refusal(PACKED, above, preconditions=Preconditions()) == ""  # artifacts of earlier releases


@pytest.mark.parametrize("padding", [0, 16])
def test_k_beyond_what_a_kernel_holds(padding: int) -> None:
    needs: dict[str, Any] = {"preconditions": Preconditions(max_k=1024)}
    for problem, allowed in (
        (GemmProblem(64, 2048, 1024), True),
        (GemmProblem(2048, 64, 64), True),
        (GemmProblem(64, 64, 1025), False),
    ):
        message = "" if allowed else "k must be at most 1024: the kernel holds one operand of that k at most"
        operands = with_operands(lda=problem.k + padding) if padding else PACKED
        assert refusal(operands, problem, **needs) == message


@pytest.mark.parametrize(
    "other",
    [
        {"dtype": "bfloat16"}, {"layout": "nn"}, {"out_dtype": "float32"}, {"acc_dtype": "float16"},
        {"activation": "relu"}, {"has_bias": True}, {"has_c": True},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("lda", [0, 64])
def test_another_kind_of_problem(other: dict[str, Any], lda: int) -> None:
    """Packed or strided: a kernel runs only the kind of problem that it was compiled for."""
    problem = dataclasses.replace(
        GemmProblem(128, 64, 48), **({"out_dtype": None, "acc_dtype": None} | other)
    )
    operands = with_operands(c=256 * problem.has_c, bias=16 * problem.has_bias, lda=lda)
    with pytest.raises(
        PreconditionFailed, match=r"must be one of those that the artifact serves, Serves\(.*; got Serves\("
    ):
        check_preconditions(plan(), problem, operands)


@pytest.mark.parametrize(
    ("extents", "message"),
    [
        ((100, 64, 44), "row stride of a must be a multiple of 16 bytes"),
        ((100, 63, 48), "row stride of d must be a multiple of 4 bytes"),
    ],
)
def test_packed_row_strides(extents: tuple[int, int, int], message: str) -> None:
    assert refusal(PACKED, GemmProblem(*extents)) == message


@pytest.mark.parametrize(
    ("bias", "told"), [(16, ""), (18, "the address of bias must be a multiple of 4 bytes")]
)
def test_a_bias_has_the_alignment_of_its_elements(bias: int, told: str) -> None:
    problem = dataclasses.replace(PROBLEM, has_bias=True, out_dtype="float32")
    assert refusal(with_operands(bias=bias), problem) == told


@pytest.mark.parametrize("at", [256, 260])
def test_a_workspace_starts_where_its_parts_may(at: int) -> None:
    scratch = {"workspace": Workspace(zero_bytes_per_tile=4)}
    told = refusal(with_operands(workspace=at), **scratch)
    assert told == ("" if at == 256 else "the address of workspace must be a multiple of 256 bytes")


def test_packed_row_stride_of_b() -> None:
    needs: dict[str, Any] = {"preconditions": Preconditions(align_a=2, align_b=16, align_d=2)}
    problem = GemmProblem(16, 20, 44, layout=Layout.NN)
    assert refusal(PACKED, problem, **needs) == "row stride of b must be a multiple of 16 bytes"


@pytest.mark.parametrize(
    ("strides", "message"),
    [
        ({"lda": 47}, "lda must be at least the 48 columns of a row, got 47"),
        ({"ldb": 40}, "ldb must be at least the 48 columns of a row, got 40"),
        ({"ldc": 63}, "ldc must be at least the 64 columns of a row, got 63"),
        ({"ldd": 1}, "ldd must be at least the 64 columns of a row, got 1"),
        # 104, 100 and 130 bytes.
        ({"lda": 52}, "lda and the 48 columns of a row must be multiples of 16 bytes"),
        ({"ldb": 50}, "ldb and the 48 columns of a row must be multiples of 8 bytes"),
        ({"ldc": 65}, "ldc and the 64 columns of a row must be multiples of 4 bytes"),
        ({"ldd": 65}, "ldd and the 64 columns of a row must be multiples of 4 bytes"),
    ],
    ids=str,
)
def test_given_row_strides(strides: dict[str, int], message: str) -> None:
    assert refusal(with_operands(c=256, bias=2, **strides), FULL) == message


def test_padding_does_not_hide_odd_columns() -> None:
    """The kernel reads rows of 44 halves (88 bytes) in pieces of 16 bytes, whatever lies behind them."""
    problem = dataclasses.replace(PROBLEM, k=44)
    message = "lda and the 44 columns of a row must be multiples of 16 bytes"
    assert refusal(with_operands(lda=48, ldb=48), problem) == message
