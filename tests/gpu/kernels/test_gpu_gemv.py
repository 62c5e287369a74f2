"""Family gemv: every knob at awkward sizes, against exact integers and float64."""

from __future__ import annotations

import gate
import pytest
from gpu_samples import EPILOGUES, GEMV_BASE

from kernels.gemv.family import GEMV
from tilewright import Config, GemmProblem

LAYOUTS = ["nn", "nt", "tn", "tt"]


def wrong(device, knobs: dict[str, int | str], problem: GemmProblem) -> str | None:
    return gate.wrong(device, GEMV, Config.of("gemv", {**GEMV_BASE, **knobs}), problem)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("few", [1, 2, 3, 5, 8, 9, 15, 16])
def test_every_number_of_activation_rows_on_either_side(device, few, layout) -> None:
    assert wrong(device, {}, GemmProblem(few, 257, 520, layout=layout)) is None
    assert wrong(device, {}, GemmProblem(65, few, 129, layout=layout, dtype="bfloat16")) is None


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("k", [1, 2, 8, 31, 64, 65, 1000, 4093])
def test_every_depth(device, k, layout) -> None:
    for size in ((1, 1), (3, 100), (16, 300)):
        assert wrong(device, {}, GemmProblem(*size, k, layout=layout)) is None


VARIANTS = [
    *({"math": "fma", "stages": x, "steps": 1} for x in (1, 2)),
    {"steps": 1, "warps_k": 2, "stages": 1},
    *({"warps_k": x} for x in (1, 2, 8)),
    *({"steps": x, "stages": y} for x, y in ((1, 1), (1, 3), (1, 4), (2, 1))),
    *({"min_ctas_per_sm": x, "stages": 1, "warps_k": 2} for x in (1, 2)),
    *({"split_k": x} for x in (2, 5, 16, 32)),
]  # fmt: skip


@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_every_knob_of_gemv(device, variant, layout) -> None:
    for size in ((1, 520, 1000), (16, 519, 999), (304, 5, 520)):
        assert wrong(device, variant, GemmProblem(*size, layout=layout)) is None


@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize("release", ["started", "loaded"])
@pytest.mark.parametrize("prefetch", [1, 4, 16])
def test_weights_that_are_fetched_early(device, prefetch, release, layout) -> None:
    for size in ((1, 520, 1000), (16, 264, 72), (304, 5, 520)):
        for split_k in (1, 3):
            knobs = {"prefetch": prefetch, "release": release, "split_k": split_k}
            assert wrong(device, knobs, GemmProblem(*size, layout=layout)) is None


@pytest.mark.parametrize("variant", [
    {"steps": 8, "stages": 2}, {"steps": 4, "stages": 4}, {"warps_k": 16},
], ids=str)  # fmt: skip
def test_what_only_k_major_weights_have_registers_for(device, variant) -> None:
    for size in ((1, 520, 1000), (16, 520, 2056)):
        assert wrong(device, variant, GemmProblem(*size)) is None


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "tfloat32", "float8_e4m3fn", "float8_e5m2", "int8"])
def test_every_type_by_its_heuristic_configs(device, dtype, layout) -> None:
    for size in ((1, 300, 1024), (128, 15, 513)):
        problem = GemmProblem(*size, dtype=dtype, layout=layout)
        for config in GEMV.heuristic_configs(problem, device.spec)[:2]:
            assert wrong(device, dict(config.knobs), problem) is None, str(config)


@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize("extra", EPILOGUES, ids=str)
def test_gemv_epilogues(device, extra, layout) -> None:
    for size in ((4, 132, 520), (257, 13, 96)):
        for split in (1, 4):
            problem = GemmProblem(*size, dtype="bfloat16", layout=layout, **extra)
            assert wrong(device, {"split_k": split}, problem) is None
