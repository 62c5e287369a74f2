"""Family wmma: shared memory, registers, rules on both sides, and the index maps of its kernel."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from device_samples import A100, ADA

from kernels.common.smem import bank_conflicts, chunk_offset, row_stride
from kernels.compiler.build import build
from kernels.wmma.config import LAYOUTS, PADDING, Knobs, register_estimate, smem_bytes
from kernels.wmma.family import WMMA
from tilewright import Config, DeviceSpec, GemmProblem

NT = GemmProblem(5376, 5376, 2048)
NN = dataclasses.replace(NT, layout="nn")
F16 = dataclasses.replace(NT, acc_dtype="float16")

NAIVE = {
    "tile_m": 128, "tile_n": 128, "warps_m": 2, "warps_n": 2, "tile_k": 32, "stages": 1,
    "smem_layout": "blocked", "accumulate": "f32", "copy_bytes": 2, "snake": 0, "split_k": 1,
    "raster": "m", "swizzle_size": 1,
}  # fmt: skip
FOUR_STAGES = NAIVE | {"stages": 4, "copy_bytes": 16}


def knobs(**changes: Any) -> Knobs:
    return Knobs(**(FOUR_STAGES | changes))


def why(changes: dict[str, Any], problem: GemmProblem = NT, device: DeviceSpec = A100) -> str | None:
    return WMMA.why_invalid(Config.of("wmma", FOUR_STAGES | changes), problem, device)


@pytest.mark.parametrize("kernel", [NAIVE, FOUR_STAGES], ids=["naive", "4-stage"])
@pytest.mark.parametrize("device", [A100, ADA], ids=lambda d: d.arch)
def test_both_kernels_of_document_000_build_with_its_shared_memory(kernel, device) -> None:
    """max(16,384 or 4 * 16,384, 128 * 128 * 4) = 65,536 bytes."""
    config = Config.of("wmma", kernel)
    assert WMMA.why_invalid(config, NT, device) is None
    artifact = build(WMMA, config, NT, device)
    assert artifact.resources.dynamic_smem == 65_536
    assert artifact.resources.spill_bytes == 0
    assert artifact.plan.block == (128, 1, 1)
    assert artifact.plan.preconditions.align_a == kernel["copy_bytes"]


@pytest.mark.parametrize(
    ("problem", "changes", "expected"),
    [
        # A and B 128 * 32 * 2 = 8192 bytes each; six stages are larger than the accumulators.
        (NT, {"stages": 6}, 98_304),
        (NN, {"stages": 6}, 98_304),
        # Padded: rows of 64 + 16 bytes, 10,240 each; B of nn has 32 rows of 256 + 16 = 8,704.
        (NT, {"smem_layout": "padded"}, 4 * 20_480),
        (NN, {"smem_layout": "padded"}, 4 * (10_240 + 8_704)),
        # One stage: the accumulators decide, 128 rows of 128 + 8 elements where padded.
        (NT, {"smem_layout": "padded", "stages": 1}, 128 * 136 * 4),
        (F16, {"accumulate": "f16", "stages": 1}, 128 * 128 * 2),
        (F16, {"accumulate": "f16", "stages": 1, "smem_layout": "padded"}, 128 * 136 * 2),
    ],
)
def test_shared_memory(problem, changes, expected) -> None:
    assert smem_bytes(knobs(**changes), problem) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # 64 x 64 over 32 lanes: 128 accumulators; fragments of one k step 4 * 4 for A and for B; 36 others.
        ({}, 128 + 32 + 36),
        ({"accumulate": "f16"}, 64 + 32 + 36),  # two halves a register
        ({"warps_m": 4}, 64 + 24 + 36),  # 32 x 64
    ],
)
def test_register_estimate(changes, expected) -> None:
    assert register_estimate(knobs(**changes)) == expected


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"tile_n": 256, "warps_m": 4, "warps_n": 4}, NN),  # 512 threads of at most 128 registers
        ({"warps_m": 8, "warps_n": 4, "smem_layout": "padded"}, NN),  # 1024 of at most 64
        ({"split_k": 4}, NT),
        ({"split_k": 4, "accumulate": "f16", "smem_layout": "padded"}, F16),
    ],
    ids=str,
)
def test_registers_of_what_was_compiled(changes, problem) -> None:
    assert why(changes, problem) is None
    resources = build(WMMA, Config.of("wmma", FOUR_STAGES | changes), problem, A100).resources
    assert resources.spill_bytes == 0
    assert -8 <= resources.registers - register_estimate(knobs(**changes)) <= 80


@pytest.mark.parametrize(
    ("changes", "problem", "reason"),
    [
        ({"accumulate": "f16"}, NT, "does not accumulate in float32"),
        ({}, F16, "does not accumulate in float16"),
        ({"tile_n": 256}, NT, "registers a thread"),
        ({"warps_m": 8, "warps_n": 2, "tile_m": 256}, NT, None),
        ({"tile_k": 128, "stages": 3}, NT, "bytes of shared memory"),
        ({"smem_layout": "xor"}, NT, "smem_layout must be one of"),
        ({}, dataclasses.replace(NT, layout="tn"), None),
        ({}, GemmProblem(256, 256, 256, dtype="float32"), "float16 and bfloat16"),
    ],
    ids=str,
)
def test_budgets_and_problems(changes, problem, reason) -> None:
    said = why(changes, problem)
    assert said is None if reason is None else reason in (said or "")


@pytest.mark.long
def test_every_architecture_compiles_every_accumulation() -> None:
    """One config each; f16 accumulated in f16 and f32, bf16 in f32, synchronous and asynchronous copies."""
    bf16 = GemmProblem(333, 777, 555, layout="nn", dtype="bfloat16", has_bias=True, activation="gelu")
    pairs = [(NAIVE, NN), (FOUR_STAGES, bf16), (FOUR_STAGES | {"accumulate": "f16"}, F16)]
    build(WMMA, Config.of("wmma", NAIVE), NT, A100)
    for arch in ("sm_86", "sm_90"):
        device = dataclasses.replace(A100, arch=arch)
        with ThreadPoolExecutor(2) as pool:
            made = pool.map(lambda pair: build(WMMA, Config.of("wmma", pair[0]), pair[1], device), pairs)  # noqa: B023
            assert all(artifact.resources.spill_bytes == 0 for artifact in made)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("chunks", [2, 4, 8, 32])
def test_rows_of_a_fragment_are_evenly_spaced(layout, chunks) -> None:
    """wmma.load needs 16 rows of 32 bytes, one stride apart, from a multiple of 32 bytes on."""
    stride = 32 if layout == "blocked" else row_stride(layout, chunks)
    for row0 in (0, 16, 48):
        for chunk0 in range(0, chunks, 2):
            base = chunk_offset(layout, chunks, row0, chunk0)
            assert base % 32 == 0
            for row in range(16):
                for half in (0, 1):
                    at = chunk_offset(layout, chunks, row0 + row, chunk0 + half)
                    assert at == base + row * stride + half * 16


@pytest.mark.parametrize(("layout", "extra"), [("blocked", 4), ("padded", 0)])
def test_bank_conflicts_of_a_fragment_load(layout, extra) -> None:
    """The hardware loads a fragment by ldmatrix: rows 32 bytes apart meet in pairs, one extra pass in each
    of the four phases; rows of 64 + 16 bytes do not."""
    addresses = [chunk_offset(layout, 4, lane % 16, lane // 16) for lane in range(32)]
    assert bank_conflicts(addresses, 16) == extra


def staged_element(layout: str, tile_n: int, row: int, col: int) -> int:
    """``StagedTile::element``: the position of an accumulator, in elements."""
    if layout == "blocked":
        return (row // 16 * (tile_n // 16) + col // 16) * 256 + row % 16 * 16 + col % 16
    return row * (tile_n + PADDING) + col


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("tile_m", "tile_n", "warps"), [(128, 128, 4), (16, 96, 2), (256, 64, 8)])
def test_threads_divide_the_accumulators(layout, tile_m, tile_n, warps) -> None:
    """Every element of the tile goes through exactly one thread, lies at an offset of its own inside the
    bytes of smem_bytes, and the 32 vectors of a warp are consecutive in D."""
    threads = 32 * warps
    seen = set()
    offsets = set()
    for i in range(tile_m * tile_n // threads // 4):
        for thread in range(threads):
            vector = thread + i * threads
            row, col = vector // (tile_n // 4), vector % (tile_n // 4) * 4
            assert row * tile_n + col == 4 * vector
            assert staged_element(layout, tile_n, row, col) % 4 == 0
            seen |= {(row, col + e) for e in range(4)}
            first = staged_element(layout, tile_n, row, col)
            offsets |= {staged_element(layout, tile_n, row, col + e) for e in range(4)}
            assert staged_element(layout, tile_n, row, col + 3) == first + 3
    padding = PADDING if layout == "padded" else 0
    assert len(seen) == len(offsets) == tile_m * tile_n
    assert max(offsets) < tile_m * (tile_n + padding)


def test_workspace_holds_the_partials_of_every_split() -> None:
    plan = WMMA.plan(Config.of("wmma", FOUR_STAGES | {"split_k": 4}), GemmProblem(256, 256, 4096), A100)
    assert plan.workspace.bytes_per_tile == 4 * 128 * 128 * 4
    assert plan.workspace.zero_bytes_per_tile == 4
    assert WMMA.plan(Config.of("wmma", NAIVE), NT, A100).workspace_bytes(NT) == 0


@pytest.mark.parametrize(
    "problem", [NT, NN, F16, GemmProblem(8, 4096, 4096), GemmProblem(4096, 16, 512), GemmProblem(1, 1, 1)]
)
def test_heuristic_configs_are_valid(problem) -> None:
    configs = WMMA.heuristic_configs(problem, A100)
    assert configs
    assert all(WMMA.why_invalid(config, problem, A100) is None for config in configs)


@pytest.mark.parametrize(("k", "tile_ks"), [(31, {32}), (32, {32}), (33, {32, 64})])
def test_no_first_config_is_twice_as_deep_as_the_problem(k: int, tile_ks: set[int]) -> None:
    configs = WMMA.heuristic_configs(GemmProblem(1023, 1025, k, "bfloat16", "nt"), A100)
    assert {config["tile_k"] for config in configs} == tile_ks
