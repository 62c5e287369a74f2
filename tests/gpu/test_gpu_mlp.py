"""benchmarks/client/mlp.py on a small model: results are checked before anything is timed.

Kernels are a family's first heuristic configs, compiled here; the service is tested elsewhere.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("torch sees no GPU", allow_module_level=True)

from benchmarks.client import mlp, mlp_report  # noqa: E402
from benchmarks.client.launch import HeuristicKernels  # noqa: E402
from tilewright.errors import TilewrightError  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
SMALL = argparse.Namespace(width=256, inner=512, rounds=9)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_case_is_checked_and_timed(device: Any, dtype: str) -> None:
    case = mlp.Bench(device, HeuristicKernels("mma_sync", device.spec), dtype, SMALL).case(64)
    assert case["accuracy"]["equal"]
    assert case["ran"] == {"tuned: exact": 2}
    assert set(case["us"]) == {"torch", "torch, graph", "tilewright", "tilewright, graph"}
    assert all(found["median_us"] > 0 for found in case["us"].values())
    assert json.dumps(case, allow_nan=False)
    assert mlp_report.line(case)


def test_a_wrong_result_is_never_timed(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlp_report, "tolerance", lambda _: 0.0)
    with pytest.raises(TilewrightError, match="wrong results"):
        mlp.Bench(device, HeuristicKernels("mma_sync", device.spec), "float16", SMALL).case(64)
