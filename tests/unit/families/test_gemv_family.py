"""Family gemv: shapes, shared memory, registers, and rules on both sides."""

from __future__ import annotations

import dataclasses
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from device_samples import HOPPER, gpu
from sweeps import every, on_generations

from kernels.arch import ARCHS
from kernels.compiler.build import build, compile_spec
from kernels.gemv import layout
from kernels.gemv.config import Knobs
from kernels.gemv.family import GEMV
from kernels.gemv.shape import GemvShape
from kernels.registry import families_for
from tilewright import Config, GemmProblem
from tuner.search.points import valid_points

DECODE = GemmProblem(1, 6144, 4096)
SIXTEEN = GemmProblem(16, 4096, 14336)
MN_MAJOR = dataclasses.replace(SIXTEEN, layout="nn")
ODD = GemmProblem(3, 4097, 4093, layout="tt", dtype="bfloat16", has_bias=True, activation="gelu")
TALL = GemmProblem(4096, 7, 1000, layout="nn", has_c=True)
BASE: dict[str, Any] = dataclasses.asdict(Knobs())


def config_of(**changes: Any) -> Knobs:
    return Knobs(**(BASE | changes))


def why(changes: dict[str, Any], problem: GemmProblem = DECODE, arch: str = "sm_90") -> str | None:
    return GEMV.why_invalid(Config.of("gemv", BASE | changes), problem, gpu(arch))


@pytest.mark.parametrize(
    ("problem", "weights", "k_major", "rows"),
    [
        (GemmProblem(1, 64, 8), "b", True, 1),
        (GemmProblem(3, 64, 8, layout="nn"), "b", False, 4),
        (GemmProblem(64, 16, 8), "a", True, 16),
        (GemmProblem(64, 9, 8, layout="tn"), "a", False, 16),
        (GemmProblem(16, 16, 8, layout="tt"), "b", True, 16),  # alike: B
    ],
    ids=str,
)
def test_the_longer_operand_is_the_weights(problem, weights, k_major, rows) -> None:
    shape = GemvShape.of(problem)
    assert (shape.weights, shape.k_major, shape.activation_rows) == (weights, k_major, rows)
    assert {shape.weights, shape.activations} == {"a", "b"}


def test_tiles() -> None:
    """Of K-major weights a tile is 16 rows and a step 64 bytes of k; of others 128 bytes and 16 of k."""
    k_major, mn_major = GemvShape.of(DECODE), GemvShape.of(MN_MAJOR)
    one = config_of(steps=4)
    for shape, rows, k, loads in ((k_major, 16, 4 * 32, 2 * 2 * 4), (mn_major, 64, 64, 4 * 2 * 4)):
        found = layout.tile_weight_rows(shape), layout.stage_k(one, shape)
        assert (*found, layout.loads_in_flight(one, shape)) == (rows, k, loads)
    fma = config_of(math="fma")
    assert layout.tile_activation_rows(one, mn_major) == 16
    assert layout.tile_activation_rows(fma, mn_major) == 4
    narrow = GemvShape.of(GemmProblem(8, 64, 8, dtype="int8", layout="nn"))
    assert layout.tile_activation_rows(fma, narrow) == 2


@pytest.mark.parametrize("problem", [DECODE, TALL], ids=str)
def test_the_grid_covers_d_and_the_workspace_every_partial(problem) -> None:
    config = Config.of("gemv", BASE | {"split_k": 3})
    plan = GEMV.plan(config, problem, HOPPER)
    rows, few = max(problem.m, problem.n), min(problem.m, problem.n)
    assert plan.grid.ctas(problem) == (-(-rows // 16), 3, 1)
    # 16 weight rows by 1, or 8: partials of a tile in whole rounds of 128 threads, for each of 3 splits.
    assert plan.workspace.bytes_per_tile == 3 * 128 * 4
    assert plan.block == (128, 1, 1)
    assert plan.dynamic_smem == 0
    assert few <= 8


@pytest.mark.parametrize(
    ("problem", "changes", "expected"),
    [
        (DECODE, {}, 4 * 1 * (16 + 4) * 4),
        (SIXTEEN, {"warps_k": 8}, 8 * 16 * (16 + 4) * 4),
        (MN_MAJOR, {"warps_k": 2}, 2 * 16 * (64 + 4) * 4),
        (GemmProblem(2, 64, 64, dtype="float64"), {"math": "fma"}, 4 * 2 * (16 + 4) * 8),
    ],
    ids=str,
)
def test_shared_memory_is_what_the_cubin_has(problem, changes, expected) -> None:
    config = Config.of("gemv", BASE | changes)
    assert GEMV.why_invalid(config, problem, HOPPER) is None
    assert layout.smem_bytes(GEMV.knob_values(config), problem) == expected
    # One flag of split-K may come on top.
    assert expected <= build(GEMV, config, problem, HOPPER).resources.static_smem <= expected + 16


@pytest.mark.parametrize(
    ("changes", "problem", "arch", "reason"),
    [
        ({}, GemmProblem(17, 17, 64), "sm_90", "m or n up to 16"),
        ({}, dataclasses.replace(DECODE, acc_dtype="float16"), "sm_90", "not float16"),
        ({}, GemmProblem(16, 512, 2048, dtype="int4"), "sm_90", "elements of whole bytes, not int4"),
        ({}, GemmProblem(1, 64, 64, dtype="float32"), "sm_90", "does not multiply float32"),
        ({}, GemmProblem(1, 64, 64, dtype="int8", layout="nn"), "sm_90", "16-bit types only"),
        ({}, GemmProblem(1, 64, 64, dtype="float8_e4m3fn"), "sm_86", "sm_86 has no mma"),
        ({"warps_k": 16}, MN_MAJOR, "sm_90", "bytes of shared memory"),
        ({"min_ctas_per_sm": 8}, DECODE, "sm_90", "registers a thread"),
        ({"steps": 8, "stages": 4}, DECODE, "sm_90", "loads of 16 bytes in flight"),
        ({}, DECODE, "sm_80", None),
        ({}, TALL, "sm_90", None),
    ],
    ids=str,
)
def test_problems_and_budgets(changes, problem, arch, reason) -> None:
    said = why(changes, problem, arch)
    assert said is None if reason is None else reason in (said or "")


def test_gemv_joins_where_a_side_is_short() -> None:
    assert "gemv" in families_for(GemmProblem(16, 4096, 64), HOPPER)
    assert "gemv" in families_for(GemmProblem(4096, 1, 64, dtype="float64"), HOPPER)
    assert "gemv" not in families_for(GemmProblem(64, 64, 64), HOPPER)


@pytest.mark.parametrize(
    ("problem", "arch"), every(7, on_generations([DECODE, SIXTEEN, MN_MAJOR, ODD, TALL], most=3))
)
def test_sampled_configs_compile_without_spills(problem, arch) -> None:
    device = gpu(arch)
    points = list(valid_points(GEMV, problem, device))
    assert len(points) > 500
    configs = [GEMV.at(point) for point in random.Random(arch).sample(points, 1)]
    configs.append(GEMV.heuristic_configs(problem, device)[0])
    with ThreadPoolExecutor(2) as pool:
        built = list(pool.map(lambda c: build(GEMV, c, problem, device).resources, configs))
    for config, resources in zip(configs, built, strict=True):
        assert resources.spill_bytes == 0 or device.compute_capability >= (10, 0), str(config)
        threads = GEMV.knob_values(config).threads * GEMV.knob_values(config).min_ctas_per_sm
        assert resources.registers <= 65536 // threads, str(config)


@pytest.mark.parametrize("problem", every(3, [DECODE, SIXTEEN, MN_MAJOR]))
def test_heuristic_configs_do_not_spill_and_fill_the_device(problem) -> None:
    configs = GEMV.heuristic_configs(problem, HOPPER)
    assert len(configs) >= 3
    for config in configs:
        assert build(GEMV, config, problem, HOPPER).resources.spill_bytes == 0, str(config)
        x, y, z = GEMV.plan(config, problem, HOPPER).grid.ctas(problem)
        assert x * y * z * GEMV.knob_values(config).threads >= HOPPER.sm_count * 128, str(config)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "float8_e4m3fn", "uint8", "tfloat32"])
def test_every_type_and_layout_has_heuristic_configs(dtype, layout) -> None:
    for size in ((1, 1, 1), (1, 4096, 4096), (16, 4097, 7), (4097, 16, 130)):
        for arch in ARCHS:
            assert GEMV.heuristic_configs(GemmProblem(*size, dtype=dtype, layout=layout), gpu(arch)), (
                size,
                arch,
            )


def test_narrow_strides_take_narrow_loads() -> None:
    config = GEMV.heuristic_configs(ODD, HOPPER)[0]
    defines = dict(GEMV.build_spec(config, ODD, HOPPER).defines)
    # B of tt has rows of 4093 bf16, A of 3.
    assert (defines["ALIGN_WEIGHTS"], defines["ALIGN_ACTIVATIONS"]) == (2, 2)
    assert GEMV.plan(config, DECODE, HOPPER).preconditions.align_b == 16


@pytest.mark.parametrize(
    "removed",
    [
        *({"weight_cache": x} for x in ("plain", "no_allocate", "evict_first")),
        *({"l2_fetch": x} for x in (0, 128, 256)),
        {"warp_tiles": 1},
        {"warps_rows": 1},
        {"warps_wide": 1},
    ],
    ids=str,
)
def test_a_config_with_a_removed_knob_is_completed(removed) -> None:
    """Hints for caches that won no race do not count; a CTA has one tile of weights."""
    stored = Config.of("gemv", BASE | removed)
    assert GEMV.completed(stored) == Config.of("gemv", BASE)


@pytest.mark.parametrize("gone", [{"warp_tiles": 2}, {"warps_rows": 2}, {"warps_wide": 4}], ids=str)
def test_a_config_whose_kernel_is_gone_stays_as_it_was(gone) -> None:
    stored = Config.of("gemv", BASE | gone)
    assert GEMV.completed(stored) == stored
    assert "exactly the knobs" in (why(gone) or "")


@pytest.mark.parametrize("layout", every(3, ["nn", "nt", "tn", "tt"]))
def test_no_weights_are_loaded_before_the_kernel_that_wrote_them_has_ended(layout: str) -> None:
    """The compiler refuses such a kernel; ``ld.global.nc`` would make some."""
    problem = GemmProblem(16, 6144, 4096, layout=layout)
    for config in GEMV.heuristic_configs(problem, HOPPER)[:3]:
        compile_spec(GEMV.build_spec(config, problem, HOPPER))
