"""4-bit and 1-bit operands as data: storage, sizes, row strides, references, and what no tensor can be."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gate import reference_values

from kernels.mma_sync.family import MMA_SYNC
from service.gemm.choice import problem_of
from tilewright import DeviceSpec, DType, GemmProblem
from tilewright.errors import InvalidProblem, PreconditionFailed
from tilewright.http.tensors import from_array, numpy_type
from tilewright.launch import Operands
from tilewright.launch.arguments import check_preconditions, scalar_values
from tilewright.matmul.arrays import library_of
from tilewright.schema.trial import STANDS_IN
from tilewright.wire import GemmQuery, TuneBody
from tuner.devices.base import VendorChoice
from tuner.devices.host import HostDevice
from tuner.measure import vendor
from tuner.measure.encoding import decode, encode
from tuner.measure.operands import make_tensors

GPU = DeviceSpec("cuda", "sm_80", "test", 108, 40 << 30, 40 << 20, 166912, 167936)
PACKED = [dtype for dtype in DType if dtype.packing > 1]


def test_the_packed_types() -> None:
    assert PACKED == ["int4", "uint4", "uint1", "sign1"]
    assert [(dtype.bits, dtype.packing, dtype.size) for dtype in PACKED] == [(4, 2, 1)] * 2 + [(1, 8, 1)] * 2
    assert [DType.INT4.nbytes(6), DType.UINT1.nbytes(64), DType.FLOAT16.nbytes(3)] == [3, 8, 6]


def test_bytes_by_hand() -> None:
    def packed(dtype: DType, values: list[float]) -> list[int]:
        return encode(np, np.array(values), dtype).tolist()

    # The low nibble first: 1 | -2 << 4 is 0x01 | 0xE0; out of range goes to the nearest there is.
    assert packed(DType.INT4, [1, -2, 7, -8, 99, -99]) == [0xE1, 0x87, 0x87]
    assert packed(DType.UINT4, [1, 15, 0, 16, 2.5, -3]) == [0xF1, 0xF0, 0x02]
    # The low bit first: 1 + 2 + 8 + 128.
    assert packed(DType.UINT1, [1, 1, 0, 1, 0, 0, 0, 1]) == [0x8B]
    assert packed(DType.SIGN1, [-1, -7, 1, -1, 0, 2, 3, -1]) == [0x8B]
    with pytest.raises(ValueError, match="5 elements of int4 do not fill whole bytes"):
        encode(np, np.zeros((2, 5)), DType.INT4)


@pytest.mark.parametrize("dtype", PACKED)
def test_every_byte_survives(dtype: DType) -> None:
    every = np.arange(256).astype(np.uint8).reshape(2, 4, 32)
    values = decode(every, dtype)
    assert values.shape == (2, 4, 32 * dtype.packing)
    assert (encode(np, values, dtype) == every).all()


@pytest.mark.parametrize(("dtype", "name"), [(DType.INT4, "int4"), (DType.UINT4, "uint4")])
def test_4_bit_values_are_those_of_ml_dtypes(dtype: DType, name: str) -> None:
    nibbles = np.arange(16).astype(np.uint8)
    expected = nibbles.view(getattr(ml_dtypes, name)).astype(np.float32)
    assert (decode(nibbles, dtype)[::2] == expected).all()
    assert (decode(nibbles << 4, dtype)[1::2] == expected).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "int4", "k": 63}, "2 elements of int4 share a byte, so the 63 of a row of A "),
        ({"dtype": "uint1", "k": 60}, "8 elements of uint1 share a byte, so the 60 of a row of A "),
        ({"dtype": "sign1", "n": 12, "layout": "nn"}, r"the 12 of a row of B \(layout nn\) must be a "),
        ({"dtype": "uint4", "m": 9, "layout": "tt"}, "the 9 of a row of A "),
    ],
)  # fmt: skip
def test_rows_fill_bytes(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidProblem, match=message):
        GemmProblem(**{"m": 64, "n": 64, "k": 64, **changes})


def test_sizes_in_bytes() -> None:
    four = GemmProblem(10, 20, 24, dtype="int4", batch=3)
    # 12 bytes a row of A and of B, 4 an element of D.
    assert four.operand_bytes == 3 * 12 * (10 + 20)
    assert four.total_bytes == four.operand_bytes + 3 * 4 * 10 * 20
    assert [four.stride_alignment(operand) for operand in "abd"] == [4, 4, 16]
    assert GemmProblem(10, 20, 24, dtype="sign1").stride_alignment("a") == 1


def test_row_strides_are_in_bytes() -> None:
    problem = GemmProblem(10, 20, 64, dtype="int4")
    packed = scalar_values(problem, Operands(16, 16, 16))
    assert [packed[name] for name in ("k", "lda", "ldb", "stride_a", "ldd")] == [64, 32, 32, 320, 20]
    config = MMA_SYNC.heuristic_configs(GemmProblem(512, 512, 4096, dtype="int4"), GPU)[0]
    plan = MMA_SYNC.plan(config, problem, GPU)
    check_preconditions(plan, problem, Operands(16, 16, 16, lda=48, workspace=256))
    with pytest.raises(PreconditionFailed, match="lda must be at least the 64 columns of a row, got 16"):
        check_preconditions(plan, problem, Operands(16, 16, 16, lda=16, workspace=256))
    with pytest.raises(PreconditionFailed, match="multiples of 16 bytes"):
        check_preconditions(plan, problem, Operands(16, 16, 16, lda=40, workspace=256))


@pytest.mark.parametrize("dtype", PACKED)
@pytest.mark.parametrize("data", ["normal", "integer"])
def test_operands_use_all_bits_and_their_reference_is_exact(dtype: DType, data: Any) -> None:
    problem = GemmProblem(24, 16, 4096, dtype=dtype, batch=2, has_c=True)
    tensors = make_tensors(HostDevice(), problem, 0, data)
    assert tensors.a.shape == (2, 24, 4096 // dtype.packing)
    values = decode(tensors.a, dtype)
    if data == "normal":
        used = {"int4": 16, "uint4": 9, "uint1": 2, "sign1": 2}[dtype]
        assert len(np.unique(values)) >= used
    expected = (values.astype(int) @ decode(tensors.b, dtype).astype(int).swapaxes(1, 2)) + tensors.c
    assert (reference_values(HostDevice(), problem, tensors) == expected).all()


def test_tune_takes_them_and_gemm_says_why_not() -> None:
    assert TuneBody(m=8, n=8, k=64, dtype="sign1").to_problem().out == "int32"
    for dtype in PACKED:
        with pytest.raises(InvalidProblem, match=rf"safetensors has no packed {dtype}.*POST /tune"):
            problem_of({}, GemmQuery(dtype=dtype))
        with pytest.raises(InvalidProblem, match=f"no packed {dtype}"):
            numpy_type(dtype)


@pytest.mark.parametrize("name", ["int4", "uint4"])
def test_arrays_of_one_element_a_byte_are_not_packed(name: str) -> None:
    array = np.zeros((4, 8), getattr(ml_dtypes, name))
    with pytest.raises(InvalidProblem, match=f"no packed {name}"):
        from_array("a", array)
    with pytest.raises(InvalidProblem, match=f"arrays hold one {name} in a byte"):
        library_of(array).describe(array)


def test_the_vendor_stands_in_with_float16(monkeypatch: pytest.MonkeyPatch) -> None:
    class Vendor:
        def vendor(self, wanted: GemmProblem, _sets: object) -> list[VendorChoice]:
            return [VendorChoice("blas", [], {})] if wanted.dtype == "float16" else []

    monkeypatch.setattr(vendor, "rotated_sets", lambda _device, _problem: ())
    device: Any = Vendor()
    (choice,) = vendor.vendor_choices(device, GemmProblem(64, 64, 64, dtype="uint1"))
    assert (choice.name, choice.detail) == ("blas float16", {STANDS_IN: "uint1"})
