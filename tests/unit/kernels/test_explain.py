"""Explanations of configs against numbers derived by hand, on an H200."""

from __future__ import annotations

import dataclasses
import math

import pytest
from device_samples import H200, gpu

from kernels import limits
from kernels.arch import ARCHS
from kernels.explain import explain
from kernels.gemv_tma.config import Knobs
from kernels.registry import FAMILIES
from tilewright.artifact import Resources
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.explanation import Explanation
from tilewright.schema.problem import DType, GemmProblem
from tilewright.schema.trial import Timing

SQUARE = GemmProblem(4096, 4096, 4096)
TIMING = Timing((212.5,), 212.5, 212.0, 213.0, "interleaved-v5, sustained", mhz=1500.0)
HOST = DeviceSpec("host", "x86_64_v3", "Some CPU", sm_count=2, memory_bytes=8 << 30, l2_bytes=32 << 20)


def wide() -> Config:
    """A 128 x 256 tile in clusters of two along m, as wgmma_ws has it on large squares."""
    found = FAMILIES["wgmma_ws"].heuristic_configs(SQUARE, H200)
    return next(
        one
        for one in found
        if (one["tile_m"], one["tile_n"], one["cluster_m"], one["cluster_n"]) == (128, 256, 2, 1)
    )


def explained(config: Config, problem: GemmProblem = SQUARE) -> Explanation:
    return explain(config, problem, H200, TIMING, Resources(registers=168))


def test_the_limits_of_a_large_square() -> None:
    found = {limit.name: limit.us for limit in explained(wide()).limits}
    # 4096^3 multiply-adds at 2048 per SM and clock, 132 SMs, 1500 MHz
    assert found["compute"] == pytest.approx(4096**3 / (2048 * 132 * 1500))
    # three matrices of 32 MiB
    assert found["memory"] == pytest.approx(3 * 2**25 / (H200.memory_gbps * 1e3))
    # 32 x 16 tiles load 128 rows of A and, shared by two CTAs, 256 / 2 of B, 8192 bytes each, at 64 bytes
    assert found["l2"] == pytest.approx(512 * (128 + 128) * 8192 / (64 * 132 * 1500))
    assert found["launch"] == pytest.approx(3000 / 1500)


def test_the_highest_limit_is_the_nearest() -> None:
    found = explained(wide())
    assert found.nearest_limit == "compute"
    assert found.limits[0].name == "compute"
    assert found.reached == pytest.approx(4096**3 / (2048 * 132 * 1500) / 212.5)
    assert "measured 1500 MHz" in found.limits[0].basis


def test_a_decode_is_limited_by_memory() -> None:
    problem = GemmProblem(16, 8192, 8192)
    config = FAMILIES["wgmma_ws"].heuristic_configs(problem, H200)[0]
    assert explained(config, problem).nearest_limit == "memory"


def test_the_waves_and_their_tail() -> None:
    waves = explained(wide()).waves
    assert waves is not None
    # 512 tiles on 132 SMs: three full waves of 132 and one of 116
    assert (waves.work_tiles, waves.at_once, waves.waves) == (512, 132, 4)
    assert waves.last_filled == pytest.approx(116 / 132)
    assert waves.useful == pytest.approx(512 / (4 * 132))


def test_the_occupancy_and_what_binds_it() -> None:
    found = explained(wide()).occupancy
    assert found is not None
    # 168 registers are 5376 a warp; 12 warps need 64,512 of 65,536. The stages fill the shared memory.
    assert found.by_resource["registers"] == 1
    assert found.by_resource["threads"] == 2048 // 384
    assert (found.ctas, found.warps) == (1, 12)
    assert found.binding in ("shared memory", "registers")
    simt = FAMILIES["simt"].heuristic_configs(SQUARE, H200)[0]
    few = explain(simt, SQUARE, H200, None, Resources(registers=255)).occupancy
    assert few is not None
    assert few.binding == "registers"


def test_warps_get_the_registers_of_a_quarter_of_an_sm() -> None:
    """80 registers are 2560 a warp, so a quarter's 16,384 hold 6 warps: 24 of an SM, 4 CTAs of 5 warps."""
    problem = GemmProblem(8, 4096, 4096)
    config = FAMILIES["gemv_tma"].config(Knobs(warps=4))
    found = explain(config, problem, H200, None, Resources(registers=80)).occupancy
    assert found is not None
    assert (found.threads, found.by_resource["registers"]) == (160, 4)


def test_the_next_value_of_a_knob_is_excluded_by_the_rule_that_the_family_gives() -> None:
    config, family = wide(), FAMILIES["wgmma_ws"]
    found = explained(config).alternatives
    assert {one.knob for one in found} >= {"tile_m", "tile_n", "stages", "cluster_m", "epilogue"}
    for one in found:
        other = Config.of(family.name, dict(config.knobs) | {one.knob: one.value})
        broken = family.why_invalid(other, SQUARE, H200)
        assert one.valid is (broken is None)
        assert one.excluded == (broken or family.why_not_searched(other, SQUARE, H200) or "")
    assert any("shared memory" in one.excluded for one in found if one.knob == "stages")


def test_what_was_measured_comes_before_what_is_estimated() -> None:
    config = wide()
    free = next(one for one in explained(config).alternatives if one.valid and one.estimated)
    other = Config.of(config.family, dict(config.knobs) | {free.knob: free.value})
    again = explain(config, SQUARE, H200, TIMING, None, lambda _: {config: 200.0, other: 250.0})
    found = next(one for one in again.alternatives if (one.knob, one.value) == (free.knob, free.value))
    assert (found.measured_us, found.ratio, found.estimated) == (250.0, 1.25, False)


def test_nothing_is_made_up_where_nothing_is_known() -> None:
    config = FAMILIES["host"].heuristic_configs(GemmProblem(64, 64, 64, "float32", "nn"), HOST)[0]
    found = explain(config, GemmProblem(64, 64, 64, "float32", "nn"), HOST)
    assert [limit.us for limit in found.limits] == [None, None]
    assert (found.nearest_limit, found.reached, found.occupancy, found.waves) == (None, None, None, None)
    assert found.traffic.loaded is None
    other = dataclasses.replace(H200, arch="sm_110")
    assert limits.compute(SQUARE, other, None).us is None
    assert limits.multiply_adds(DType.FLOAT8_E4M3FN, dataclasses.replace(H200, arch="sm_80")) is None


@pytest.mark.parametrize("arch", ARCHS)
def test_what_is_known_of_an_architecture_is_explained_and_nothing_else(arch: str) -> None:
    problem, device = GemmProblem(1024, 1024, 1024, "float32"), gpu(arch)
    config, facts = FAMILIES["simt"].heuristic_configs(problem, device)[0], ARCHS[arch]
    found = explain(config, problem, device, TIMING, Resources(registers=64))
    known = {limit.name: limit.us is not None for limit in found.limits}
    rates = {"compute": facts.float32, "l2": facts.l2_bytes, "launch": facts.launch_clocks}
    assert known == {name: rate is not None for name, rate in rates.items()} | {"memory": False}
    assert (found.occupancy is not None) == (facts.sm_limits is not None)


def test_the_roof_is_the_higher_of_compute_and_memory() -> None:
    for problem in (SQUARE, GemmProblem(1, 4096, 4096)):
        found = limits.roof(problem, H200, 1500.0)
        both = limits.compute(problem, H200, 1500.0).us, limits.memory(problem, H200).us
        assert found is not None
        assert found.us == max(one for one in both if one is not None)
    assert limits.roof(SQUARE, HOST, None) is None


def test_the_data_sheet_s_peak_of_an_h100() -> None:
    # 989.4 TFLOP/s of dense float16 at 1830 MHz, NVIDIA H100 data sheet
    rate = limits.multiply_adds(DType.FLOAT16, H200)
    assert rate is not None
    assert math.isclose(2 * rate * 132 * 1830e6, 989.4e12, rel_tol=1e-3)


@pytest.mark.parametrize(
    ("arch", "sms", "mhz", "dtype", "tflops"),
    [
        # NVIDIA's figures: A100, B200 (dense, tensor cores at 1860 MHz), RTX 3090, RTX 4090, RTX 5090
        ("sm_80", 108, 1410, DType.FLOAT16, 312.0),
        ("sm_80", 108, 1410, DType.FLOAT64, 19.5),
        ("sm_100", 148, 1860, DType.BFLOAT16, 2250.0),
        ("sm_100", 148, 1860, DType.FLOAT8_E4M3FN, 4500.0),
        ("sm_86", 82, 1695, DType.FLOAT32, 35.6),
        ("sm_89", 128, 2520, DType.FLOAT32, 82.6),
        ("sm_89", 128, 2520, DType.FLOAT64, 1.29),
        ("sm_120", 170, 2407, DType.FLOAT32, 104.8),
    ],
)
def test_the_data_sheets_of_other_gpus(arch: str, sms: int, mhz: int, dtype: DType, tflops: float) -> None:
    rate = limits.multiply_adds(dtype, dataclasses.replace(H200, arch=arch, sm_count=sms))
    assert rate is not None
    assert math.isclose(2 * rate * sms * mhz * 1e6, tflops * 1e12, rel_tol=5e-3)


@pytest.mark.parametrize(
    ("dtype", "accumulate", "tflops"),
    [
        # NVIDIA's figures of an RTX 4090: 128 SMs at 2520 MHz
        (DType.FLOAT16, DType.FLOAT16, 330.3),
        (DType.FLOAT16, DType.FLOAT32, 165.2),
        (DType.BFLOAT16, DType.FLOAT32, 165.2),
        (DType.TFLOAT32, DType.FLOAT32, 82.6),
        (DType.FLOAT8_E4M3FN, DType.FLOAT32, 330.3),
        (DType.INT8, DType.INT32, 660.6),
    ],
)
def test_geforce_adds_up_in_float32_at_half_the_rate(dtype: DType, accumulate: DType, tflops: float) -> None:
    geforce = dataclasses.replace(H200, arch="sm_89", name="NVIDIA GeForce RTX 4090", sm_count=128)
    rate = limits.multiply_adds(dtype, geforce, accumulate)
    assert rate is not None
    assert math.isclose(2 * rate * 128 * 2520e6, tflops * 1e12, rel_tol=1e-3)
    other = limits.multiply_adds(dtype, dataclasses.replace(geforce, name="NVIDIA L40S"), accumulate)
    assert other == rate * (2 if accumulate is DType.FLOAT32 else 1)


@pytest.mark.parametrize(
    ("m", "n", "k", "bound"),
    [(16, 6144, 4096, True), (64, 4096, 14336, True), (256, 4096, 4096, False), (4096, 4096, 4096, False)],
)
def test_decode_shapes_are_bound_by_memory(m, n, k, bound) -> None:
    problem = GemmProblem(m, n, k, DType.BFLOAT16)
    assert limits.memory_bound(problem, H200) is bound


def test_an_unknown_rate_bounds_nothing() -> None:
    unknown = dataclasses.replace(H200, memory_gbps=0)
    assert not limits.memory_bound(GemmProblem(16, 6144, 4096), unknown)
