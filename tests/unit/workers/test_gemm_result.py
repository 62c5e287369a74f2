"""Room for D of a GEMM on request, where its type is wider than that of A and B."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from device_samples import HOPPER

from service.gemm import operands
from service.gemm.run import GemmRunner
from service.metrics import Metrics
from service.results.served import Selection
from service.settings import Settings
from tilewright import GemmProblem
from tilewright.schema.match import LookupResult
from tilewright.wire.gemm import GemmPost
from tuner.devices.base import Tensors, VendorChoice
from tuner.devices.host import HostDevice
from tuner.store.database import Store
from tuner.workers.gemm import GemmRun, Gemms
from tuner.workers.shared_memory import Pages, Region

M, N, K = 5, 3, 16


class _Filling(HostDevice):
    """Memory of the host, and a vendor library that computes 7 whatever the operands."""

    def vendor(self, problem: GemmProblem, sets: Sequence[Tensors]) -> list[VendorChoice]:  # noqa: ARG002
        (tensors,) = sets
        return [VendorChoice("filling", [lambda stream=0: tensors.d.fill(7)], {})]  # noqa: ARG005


class _Bench:
    """A GPU by its spec."""

    name, spec = "cuda:0", HOPPER

    def gemm(
        self,
        _artifact: object,
        problem: GemmProblem,
        regions: Mapping[str, Region],
        scalars: tuple[float, float],
        _wait_s: float,
    ) -> GemmRun:
        return Gemms(_Filling()).run(None, problem, regions, scalars)


@pytest.fixture
def gemms(tmp_path: Path) -> Iterator[GemmRunner]:
    store = Store.open(f"sqlite:///{tmp_path / 'tilewright.db'}")
    store.migrate()
    engine: Any = SimpleNamespace(bench=lambda _device: _Bench())
    untuned = Selection(LookupResult("vendor", "no tuned kernel", miss=True), None)
    served: Any = SimpleNamespace(store=store, select=lambda *_: [untuned])
    yield GemmRunner(Settings(), engine, served, Metrics())
    store.close()


@pytest.mark.parametrize(
    ("dtype", "out", "stored"),
    [
        ("int8", None, "int32"),
        ("uint8", None, "int32"),
        ("float8_e4m3fn", None, "float32"),
        ("float8_e5m2", "float16", "float16"),
        ("bfloat16", "float32", "float32"),
    ],
)
def test_the_result_has_room_for_its_own_type(
    gemms: GemmRunner, dtype: str, out: str | None, stored: str
) -> None:
    query = GemmPost(m=M, n=N, k=K, dtype=dtype, out_dtype=out, layout="nt")
    problem = GemmProblem(M, N, K, dtype, out_dtype=out)
    with Pages() as body, Pages() as result:
        body.append(bytes(problem.operand_bytes))
        served = gemms.run(operands.raw(body, query), query, result)
        assert served.ran == "filling"
        assert (served.d.dtype, served.d.shape) == (problem.out, (M, N))
        assert operands.shapes(problem)["d"] == (served.d.dtype, served.d.shape)
        values = np.frombuffer(result.read(0, 1000), stored)
    np.testing.assert_array_equal(values, np.full(M * N, 7, stored))
