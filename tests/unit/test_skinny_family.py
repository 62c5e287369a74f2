"""Family skinny: shapes, shared memory, registers, and rules on both sides."""

from __future__ import annotations

import dataclasses
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kernels.build import CompileError, build, compile_spec
from kernels.cuda import TARGETS
from kernels.families import skinny_knobs
from kernels.families.skinny import SKINNY
from kernels.families.skinny_knobs import Knobs, Shape
from kernels.registry import families_for
from tilewright import Config, DeviceSpec, GemmProblem

SMEM = {
    "sm_80": (166912, 167936),
    "sm_86": (101376, 102400),
    "sm_89": (101376, 102400),
    "sm_90": (232448, 233472),
}
DECODE = GemmProblem(1, 6144, 4096)
SIXTEEN = GemmProblem(16, 4096, 14336)
ACROSS = dataclasses.replace(SIXTEEN, layout="nn")
ODD = GemmProblem(3, 4097, 4093, layout="tt", dtype="bfloat16", has_bias=True, activation="gelu")
TALL = GemmProblem(4096, 7, 1000, layout="nn", has_c=True)
BASE = {
    "math": "mma", "warp_tiles": 1, "warps_wide": 2, "warps_k": 4, "steps": 2, "slots": 2, "min_blocks": 1,
    "split_k": 1, "weight_cache": "no_allocate", "l2_fetch": 128, "prefetch": 0, "release": "started",
}  # fmt: skip


def gpu(arch: str) -> DeviceSpec:
    block, unit = SMEM[arch]
    return DeviceSpec("cuda", arch, "test", 132, 140 << 30, 50 << 20, block, unit)


H200 = gpu("sm_90")


def knobs(**changes: Any) -> Knobs:
    return Knobs(**(BASE | changes))


def why(changes: dict[str, Any], problem: GemmProblem = DECODE, arch: str = "sm_90") -> str | None:
    return SKINNY.why_invalid(Config.of("skinny", BASE | changes), problem, gpu(arch))


@pytest.mark.parametrize(
    ("problem", "weights", "along", "rows"),
    [
        (GemmProblem(1, 64, 8), "b", True, 1),
        (GemmProblem(3, 64, 8, layout="nn"), "b", False, 4),
        (GemmProblem(64, 16, 8), "a", True, 16),
        (GemmProblem(64, 9, 8, layout="tn"), "a", False, 16),
        (GemmProblem(16, 16, 8, layout="tt"), "b", True, 16),  # alike: B
    ],
    ids=str,
)
def test_the_longer_operand_is_the_weights(problem, weights, along, rows) -> None:
    shape = Shape.of(problem)
    assert (shape.weights, shape.along, shape.rows) == (weights, along, rows)
    assert {shape.weights, shape.thin} == {"a", "b"}


def test_tiles() -> None:
    """Along k a warp tile is 16 rows and a step 64 bytes; across it is 128 bytes and 16 rows."""
    along, across = Shape.of(DECODE), Shape.of(ACROSS)
    one = knobs(warp_tiles=2, steps=4)
    assert (along.tile_wide(one), along.tile_k(one), along.chunks(one)) == (2 * 2 * 16, 4 * 32, 2 * 4 * 2 * 2)
    assert (across.tile_wide(one), across.tile_k(one), across.chunks(one)) == (2 * 2 * 64, 64, 2 * 4 * 2 * 4)
    assert across.tile_thin(one) == 16
    assert across.tile_thin(knobs(math="fma")) == 4
    assert Shape.of(GemmProblem(8, 64, 8, dtype="int8", layout="nn")).tile_thin(knobs(math="fma")) == 2


@pytest.mark.parametrize("problem", [DECODE, TALL], ids=str)
def test_the_grid_covers_d_and_the_workspace_every_partial(problem) -> None:
    config = Config.of("skinny", BASE | {"split_k": 3})
    plan = SKINNY.plan(config, problem, H200)
    wide, thin = max(problem.m, problem.n), min(problem.m, problem.n)
    assert plan.grid.blocks(problem) == (-(-wide // 32), 3, 1)
    # 32 wide and 1, or 8, thin: sums of a tile in whole rounds of 256 threads, for each of 3 splits.
    assert plan.workspace.bytes_per_tile == 3 * 256 * 4
    assert plan.block == (256, 1, 1)
    assert plan.dynamic_smem == 0
    assert thin <= 8


@pytest.mark.parametrize(
    ("problem", "changes", "expected"),
    [
        (DECODE, {}, 4 * 1 * (32 + 4) * 4),
        (SIXTEEN, {"warp_tiles": 4}, 4 * 16 * (128 + 4) * 4),
        (ACROSS, {"warps_k": 2}, 2 * 16 * (128 + 4) * 4),
        (GemmProblem(2, 64, 64, dtype="float64"), {"math": "fma"}, 4 * 2 * (32 + 4) * 8),
    ],
    ids=str,
)
def test_shared_memory_is_what_the_cubin_has(problem, changes, expected) -> None:
    config = Config.of("skinny", BASE | changes)
    assert SKINNY.why_invalid(config, problem, H200) is None
    assert skinny_knobs.smem_bytes(SKINNY.knob_values(config), problem) == expected
    # One flag of split-K may come on top.
    assert expected <= build(SKINNY, config, problem, H200).resources.static_smem <= expected + 16


@pytest.mark.parametrize(
    ("changes", "problem", "arch", "reason"),
    [
        ({}, GemmProblem(17, 17, 64), "sm_90", "m or n up to 16"),
        ({}, dataclasses.replace(DECODE, acc_dtype="float16"), "sm_90", "not float16"),
        ({}, GemmProblem(1, 64, 64, dtype="float32"), "sm_90", "does not multiply float32"),
        ({}, GemmProblem(1, 64, 64, dtype="int8", layout="nn"), "sm_90", "16-bit types only"),
        ({}, GemmProblem(1, 64, 64, dtype="float8_e4m3fn"), "sm_86", "sm_86 has no mma"),
        ({"warps_wide": 8, "warps_k": 8}, DECODE, "sm_90", "2048 threads"),
        ({"warp_tiles": 4, "warps_wide": 8}, SIXTEEN, "sm_90", "bytes of shared memory"),
        ({"min_blocks": 8}, DECODE, "sm_90", "registers a thread"),
        ({"steps": 8, "slots": 4}, DECODE, "sm_90", "loads of 16 bytes in flight"),
        ({}, DECODE, "sm_80", None),
        ({}, TALL, "sm_90", None),
    ],
    ids=str,
)
def test_problems_and_budgets(changes, problem, arch, reason) -> None:
    said = why(changes, problem, arch)
    assert said is None if reason is None else reason in (said or "")


def test_skinny_joins_where_a_side_is_short() -> None:
    assert "skinny" in families_for(GemmProblem(16, 4096, 64), H200)
    assert "skinny" in families_for(GemmProblem(4096, 1, 64, dtype="float64"), H200)
    assert "skinny" not in families_for(GemmProblem(64, 64, 64), H200)


BROKEN = [
    ({"warps_wide": 8, "warps_k": 8}, DECODE, "at most 1024", "1 to 32 warps"),
    ({"warp_tiles": 4, "warps_wide": 8}, SIXTEEN, "shared memory", "48 KiB"),
    ({}, GemmProblem(1, 64, 64, dtype="float64"), "does not multiply", "up to 4 bytes"),
    ({}, GemmProblem(1, 64, 64, dtype="float32"), "does not multiply", "float is not tf32|float "),
    ({}, GemmProblem(1, 64, 64, dtype="int8", layout="nn"), "16-bit types", "16-bit types only"),
]


@pytest.mark.parametrize(("changes", "problem", "python", "static_assert"), BROKEN, ids=str)
def test_both_sides_refuse_for_the_same_reason(changes, problem, python, static_assert) -> None:
    config = Config.of("skinny", BASE | changes)
    assert python in (SKINNY.why_invalid(config, problem, H200) or "")
    with pytest.raises(CompileError, match=static_assert):
        compile_spec(SKINNY.build_spec(config, problem, H200))


@pytest.mark.parametrize("problem", [DECODE, SIXTEEN, ACROSS, ODD, TALL], ids=str)
@pytest.mark.parametrize("arch", TARGETS)
def test_sampled_configs_compile_without_spills(problem, arch) -> None:
    device = gpu(arch)
    points = list(SKINNY.enumerate(problem, device))
    assert len(points) > 1000
    configs = [SKINNY.at(point) for point in random.Random(arch).sample(points, 2)]
    configs.append(SKINNY.picks(problem, device)[0])
    with ThreadPoolExecutor(2) as pool:
        built = list(pool.map(lambda c: build(SKINNY, c, problem, device).resources, configs))
    for config, resources in zip(configs, built, strict=True):
        assert resources.spill_bytes == 0, str(config)
        threads = SKINNY.knob_values(config).threads * SKINNY.knob_values(config).min_blocks
        assert resources.registers <= 65536 // threads, str(config)


@pytest.mark.parametrize("problem", [DECODE, SIXTEEN, ACROSS], ids=str)
def test_picks_do_not_spill_and_fill_the_device(problem) -> None:
    picks = SKINNY.picks(problem, H200)
    assert len(picks) >= 3
    for config in picks:
        assert build(SKINNY, config, problem, H200).resources.spill_bytes == 0, str(config)
        x, y, z = SKINNY.plan(config, problem, H200).grid.blocks(problem)
        assert x * y * z * SKINNY.knob_values(config).threads >= H200.units * 128, str(config)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "float8_e4m3fn", "uint8", "tfloat32"])
def test_every_type_and_layout_has_picks(dtype, layout) -> None:
    for size in ((1, 1, 1), (1, 4096, 4096), (16, 4097, 7), (4097, 16, 130)):
        for arch in TARGETS:
            assert SKINNY.picks(GemmProblem(*size, dtype=dtype, layout=layout), gpu(arch)), (size, arch)


def test_narrow_strides_take_narrow_loads() -> None:
    config = SKINNY.picks(ODD, H200)[0]
    defines = dict(SKINNY.build_spec(config, ODD, H200).defines)
    # B of tt has rows of 4093 bf16, A of 3.
    assert (defines["ALIGN_WEIGHTS"], defines["ALIGN_THIN"]) == (2, 2)
    assert SKINNY.plan(config, DECODE, H200).preconditions.align_b == 16
