"""4-bit and 1-bit operands: products by hand, rows of any number of bytes, and the way of a tuning job."""

from __future__ import annotations

from typing import Any

import pytest
from gate import built, wrong
from type_samples import PACKED, SIMT_BASE, mma

from kernels.compiler.build import build
from kernels.mma_sync.family import MMA_SYNC
from kernels.simt.family import SIMT
from tilewright import Config, DType, GemmProblem
from tilewright.launch import Operands
from tilewright.schema.trial import Outcome
from tuner.workers.bench import Bench, list_devices


@pytest.mark.parametrize("dtype", PACKED)
@pytest.mark.parametrize("row_bytes", [1, 3, 31, 129, 1030])
def test_packed_rows_of_any_number_of_bytes(device, dtype, row_bytes) -> None:
    """Rows of 1, 3, 31 ... bytes: copies of one byte each, and the last k tile partly outside."""
    problem = GemmProblem(67, 43, row_bytes * DType(dtype).packing, dtype=dtype, batch=2, has_bias=True)
    assert wrong(device, MMA_SYNC, mma(dtype), problem) is None


@pytest.mark.parametrize("dtype", PACKED)
def test_packed_products_by_hand(device, dtype) -> None:
    """Independent of the tuner's own packing: bytes made of bit fields, the product from the fields."""
    from tuner.devices.base import Tensors
    from tuner.measure.operands import bind

    xp, bits, problem = device.xp, DType(dtype).bits, GemmProblem(33, 17, 200, dtype=dtype)
    random = xp.random.default_rng(1)
    stored = [random.integers(0, 256, (rows, 200 * bits // 8)).astype("uint8") for rows in (33, 17)]
    a, b = (_fields(xp, one, dtype).astype("float64") for one in stored)
    tensors = Tensors(a=stored[0][None], b=stored[1][None], d=xp.zeros((1, 33, 17), "int32"))
    for kernel in (built(device, MMA_SYNC, mma(dtype), problem),
                   built(device, SIMT, Config.of("simt", SIMT_BASE), problem)):  # fmt: skip
        tensors.d[:] = -1
        bound = bind(device, kernel, problem, [tensors])
        device.synchronize()
        bound.launches[0]()
        device.synchronize()
        kernel.close()
        assert (tensors.d[0] == a @ b.T).all()


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("dtype", PACKED)
def test_simt_computes_packed_types_in_every_layout(device, dtype, layout) -> None:
    for size in ((8, 8, 8), (72, 136, 40), (304, 520, 104)):
        problem = GemmProblem(*size, dtype=dtype, layout=layout, batch=2, has_bias=True)
        assert wrong(device, SIMT, Config.of("simt", SIMT_BASE), problem) is None


@pytest.mark.parametrize("dtype", PACKED)
def test_a_worker_checks_and_measures_them(device, dtype) -> None:
    """What a trial of POST /tune runs, in a process of its own."""
    problem = GemmProblem(512, 384, 2048, dtype=dtype)
    config = MMA_SYNC.heuristic_configs(problem, device.spec)[0]
    bench = Bench(list_devices()[0])
    try:
        result = bench.trial(build(MMA_SYNC, config, problem, device.spec), problem, None, 60.0)
    finally:
        bench.close()
    assert result.outcome is Outcome.OK, result.message
    assert result.timing is not None


@pytest.mark.parametrize("dtype", PACKED)
def test_rows_may_lie_apart(device, dtype) -> None:
    """Row strides are in bytes, and may be of more than a row has."""
    xp, problem = device.xp, GemmProblem(33, 17, 256, dtype=dtype)
    row, stride = DType(dtype).nbytes(256), DType(dtype).nbytes(256) + 16
    random = xp.random.default_rng(2)
    a, b = (random.integers(0, 256, (rows, stride)).astype("uint8") for rows in (33, 17))
    d = xp.zeros((33, 17), "int32")
    kernel = built(device, MMA_SYNC, mma(dtype), problem)
    addresses = [device.address(array) for array in (a, b, d)]
    launch = kernel.bind(problem, Operands(*addresses, lda=stride, ldb=stride))
    device.synchronize()
    launch()
    device.synchronize()
    kernel.close()
    left, right = (_fields(xp, one[:, :row], dtype).astype("float64") for one in (a, b))
    assert (d == left @ right.T).all()


def _fields(xp: Any, stored: Any, dtype: str) -> Any:
    """The values of packed bytes by their definition, one field after the other."""
    bits = DType(dtype).bits
    fields = xp.stack([stored >> shift & ((1 << bits) - 1) for shift in range(0, 8, bits)], axis=-1)
    fields = fields.reshape(stored.shape[0], -1).astype("int32")
    if dtype == "sign1":
        return 1 - 2 * fields
    return xp.where(fields > 7, fields - 16, fields) if dtype == "int4" else fields
