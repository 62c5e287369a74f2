"""Shared memory, registers, grids and workspaces, derived by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from device_samples import A100, ADA, HOPPER

from kernels.common import cuda
from kernels.compiler.build import compile_spec
from kernels.mma_sync import layout
from kernels.mma_sync.config import Knobs as MmaKnobs
from kernels.mma_sync.family import MMA_SYNC
from kernels.simt import config
from kernels.simt.config import Knobs as SimtKnobs
from kernels.simt.family import SIMT
from kernels.wmma.family import WMMA
from tilewright import Config, DeviceSpec, DType, GemmProblem, Layout
from tilewright.artifact import Grid, Workspace

# KiB of shared memory: the most that one CTA may have, all of an SM.

NT = GemmProblem(4096, 4096, 4096)
NN = GemmProblem(4096, 4096, 4096, layout=Layout.NN)
F32 = GemmProblem(4096, 4096, 4096, dtype=DType.FLOAT32)
F64 = GemmProblem(4096, 4096, 4096, dtype=DType.FLOAT64)


def mma(**changes: Any) -> MmaKnobs:
    """The kernel of document 000: 128 x 128 x 32, 2 x 2 warps, 4 stages, blocked."""
    document = {
        "tile_m": 128, "tile_n": 128, "tile_k": 32, "stages": 4,
        "smem_layout": "blocked", "epilogue": "direct",
    }  # fmt: skip
    return MmaKnobs(**(document | changes))


def fma(**changes: Any) -> SimtKnobs:
    return SimtKnobs(**({"tile_m": 128, "tile_n": 128, "thread_m": 8, "thread_n": 8} | changes))


def why(knobs: MmaKnobs, device: DeviceSpec, problem: GemmProblem = NT) -> str | None:
    return MMA_SYNC.why_invalid(MMA_SYNC.config(knobs), problem, device)


@pytest.mark.parametrize(
    ("problem", "changes", "expected"),
    [
        # Document 000: A and B 128 * 32 * 2 = 8192 bytes each, four stages: 65,536.
        (NT, {}, 65_536),
        (NT, {"stages": 1}, 16_384),
        (NN, {}, 65_536),
        # Padded: 128 rows of 64 + 16 bytes = 10,240 each; B of nn has 32 rows of 256 + 16 = 8,704.
        (NT, {"smem_layout": "padded"}, 4 * 20_480),
        (NN, {"smem_layout": "padded"}, 4 * (10_240 + 8_704)),
        (NT, {"smem_layout": "xor", "tile_n": 256, "stages": 3}, 3 * (8_192 + 16_384)),
        # The staged epilogue reuses the stages: 128 * 128 * 2 = 32,768 of f16.
        (NT, {"epilogue": "smem"}, 65_536),
        (NT, {"epilogue": "smem", "stages": 1}, 32_768),
        (dataclasses.replace(NT, out_dtype=DType.FLOAT32), {"epilogue": "smem", "stages": 1}, 65_536),
        # Slice-K meets as 128 * 128 floats.
        (NT, {"warps_k": 2, "stages": 2}, 65_536),
    ],
)
def test_shared_memory_of_mma_sync(problem: GemmProblem, changes: dict[str, Any], expected: int) -> None:
    assert layout.smem_bytes(mma(**changes), problem) == expected


@pytest.mark.parametrize("smem_layout", ["blocked", "padded", "xor", "permuted"])
def test_the_limit_is_exact(smem_layout: str) -> None:
    used = layout.smem_bytes(mma(smem_layout=smem_layout), NT)
    exact = dataclasses.replace(A100, smem_per_block=used)
    assert why(mma(smem_layout=smem_layout), exact) is None
    message = f"{used} bytes of shared memory, a CTA may use {used - 1}"
    short = dataclasses.replace(exact, smem_per_block=used - 1)
    assert why(mma(smem_layout=smem_layout), short) == message


@pytest.mark.parametrize("family", [MMA_SYNC, WMMA], ids=lambda family: family.name)
def test_the_flag_of_split_k_counts(family: cuda.CudaFamily[Any]) -> None:
    """It is static: one byte, and up to the next multiple of 128, where the dynamic memory starts."""
    # mma_sync: 2 * (256 + 96) rows of 144 bytes; wmma: 96 rows of 264 floats. Both are 99 KiB.
    if family is MMA_SYNC:
        knobs = {"tile_m": 256, "tile_n": 96, "tile_k": 64, "warps_m": 4, "warps_n": 2}
    else:
        knobs = {"tile_m": 96, "tile_n": 256, "tile_k": 16, "warps_m": 2, "warps_n": 4}
    whole = family.knobs_type(**knobs, stages=2, smem_layout="padded")
    assert family.smem_bytes(whole, NT) == ADA.smem_per_block
    assert family.why_invalid(family.config(whole), NT, ADA) is None
    split = dataclasses.replace(whole, split_k=2)
    reason = "101504 bytes of shared memory, a CTA may use 101376"
    assert family.why_invalid(family.config(split), NT, ADA) == reason
    roomy = dataclasses.replace(ADA, smem_per_block=ADA.smem_per_block + cuda.SPLIT_FLAG_BYTES)
    roomy = dataclasses.replace(roomy, smem_per_sm=roomy.smem_per_block + 1024)
    assert family.why_invalid(family.config(split), NT, roomy) is None
    built = compile_spec(family.build_spec(family.config(split), NT, roomy))
    assert built.resources.static_smem <= cuda.SPLIT_FLAG_BYTES


def test_the_reserved_kibibyte_counts_for_every_block() -> None:
    knobs = mma(min_ctas_per_sm=2, warps_n=4, double_buffer=0, smem_layout="xor")
    enough = dataclasses.replace(A100, smem_per_sm=2 * (65_536 + 1024))
    assert why(knobs, enough) is None
    message = f"min_ctas_per_sm=2 CTAs of 65536 bytes do not fit {2 * 66_560 - 1} bytes"
    assert why(knobs, dataclasses.replace(enough, smem_per_sm=2 * 66_560 - 1)) == message


@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        # 64 KiB fit everywhere; Ada ends at 99 KiB, A100 at 163, Hopper at 227.
        ({}, "ada a100 hopper"),
        ({"stages": 6}, "ada a100 hopper"),  # 96 KiB
        ({"tile_n": 256, "warps_n": 4, "stages": 4}, "ada a100 hopper"),  # 4 * 24 = 96
        ({"tile_n": 256, "warps_n": 4, "stages": 5}, "a100 hopper"),  # 120
        ({"tile_n": 256, "warps_n": 4, "stages": 3, "tile_k": 64}, "a100 hopper"),  # 3 * 48 = 144
        ({"tile_n": 256, "warps_n": 4, "stages": 4, "tile_k": 64}, "hopper"),  # 192
        ({"tile_n": 256, "warps_n": 4, "stages": 5, "tile_k": 64}, ""),  # 240
    ],
    ids=str,
)
def test_what_fits_which_gpu(changes: dict[str, Any], fits: str) -> None:
    devices = {"ada": ADA, "a100": A100, "hopper": HOPPER}
    reasons = {name: why(mma(**changes), device) for name, device in devices.items()}
    assert [name for name, reason in reasons.items() if reason is None] == fits.split()
    assert all(reason is None or "bytes of shared memory" in reason for reason in reasons.values())


def test_limits_in_bytes() -> None:
    assert [d.smem_per_block for d in (A100, ADA, HOPPER)] == [166_912, 101_376, 232_448]
    assert [d.smem_per_sm for d in (A100, ADA, HOPPER)] == [167_936, 102_400, 233_472]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # Warp tile 64 x 64 over 32 lanes: 4096 / 32 = 128 accumulators. Fragments of one k step: A has
        # 64 / 16 * 4 = 16 registers, B 64 / 8 * 2 = 16; twice that when double-buffered. 40 for the rest.
        ({}, 128 + 64 + 40),
        ({"double_buffer": 0}, 128 + 32 + 40),
        ({"accumulate": "f16"}, 64 + 64 + 40),  # two halves a register
        ({"accumulate": "f32_outside", "double_buffer": 0}, 128 + 32 + 40),
        # Warp tile 32 x 64: 64 accumulators, fragments (32 + 64) / 4 = 24.
        ({"warps_m": 4, "double_buffer": 0}, 64 + 24 + 40),
    ],
    ids=str,
)
def test_registers_of_mma_sync(changes: dict[str, Any], expected: int) -> None:
    assert layout.register_estimate(mma(**changes)) == expected


def test_the_register_file_is_shared_by_all_threads() -> None:
    # 65536 registers: 128 threads could have 512 each, but 255 is the most; 3 CTAs leave 170, in
    # steps of 8.
    assert why(mma(smem_layout="xor", stages=2), A100) is None
    message = "about 232 registers a thread, 3 x 128 threads leave 168"
    assert why(mma(smem_layout="xor", stages=2, min_ctas_per_sm=3), A100) == message
    # 128 + 64 * 2 + 40 > 255 whatever the number of threads.
    wide = mma(warps_m=1, smem_layout="xor", stages=2)
    assert why(wide, A100) == f"about {256 + 96 + 40} registers a thread, 1 x 64 threads leave 255"


def test_shared_memory_of_simt() -> None:
    # Rows of 128 + 4 floats for A and for B, 16 of them, two stages: 2 * 16 * 264 * 4.
    assert config.smem_bytes(fma(), F32) == 33_792
    # Half-precision inputs are widened to float first.
    assert config.smem_bytes(fma(), NT) == 33_792
    # Doubles: 128 + 2 a row, 8 bytes.
    assert config.smem_bytes(fma(), F64) == 2 * 16 * 260 * 8
    assert config.smem_bytes(fma(stages=1, tile_m=32, tile_n=16, tile_k=8), F32) == 8 * 56 * 4
    assert config.smem_bytes(fma(stages=0), F32) == 0


def test_registers_of_simt() -> None:
    # 8 x 8 accumulators, two operand vectors of 8 kept twice, (128 + 128) * 16 / 256 in flight, 44 others.
    assert config.register_estimate(fma(), F32) == 64 + 32 + 16 + 44
    # A double takes two: (4 * 4 + 2 * 8 + 128 * 16 / 256) * 2 + 44.
    knobs = fma(tile_m=64, tile_n=64, thread_m=4, thread_n=4)
    assert config.register_estimate(knobs, F64) == (16 + 16 + 8) * 2 + 44
    # 4 x 1 accumulators, 5 operands kept twice, and for each of the 5 four loads and an address of two words.
    assert config.register_estimate(fma(thread_m=4, thread_n=1, stages=0), F32) == 4 + 10 + 30 + 44


def test_threads() -> None:
    assert mma().threads == 128
    assert mma(warps_m=4, warps_k=2).threads == 512
    assert fma().threads == 256
    assert fma(tile_m=64, thread_n=4).threads == 8 * 32


@pytest.mark.parametrize(
    ("grid", "problem", "ctas"),
    [
        (Grid(128, 256), NT, (32 * 16, 1, 1)),
        (Grid(128, 128), GemmProblem(4097, 4095, 64), (33 * 32, 1, 1)),
        (Grid(128, 128), GemmProblem(1, 1, 1), (1, 1, 1)),
        (Grid(64, 64, split_k=4), GemmProblem(65, 64, 4096, batch=3), (2, 4, 3)),
        (Grid(128, 256, max_blocks=132), NT, (132, 1, 1)),
        (Grid(128, 256, max_blocks=132), GemmProblem(1024, 1024, 64), (32, 1, 1)),
    ],
)
def test_grids(grid: Grid, problem: GemmProblem, ctas: tuple[int, int, int]) -> None:
    assert grid.ctas(problem) == ctas


@pytest.mark.parametrize(
    ("tiles", "zero", "total"),
    [
        # 4 bytes a tile rounded up to 256, then 1000 a tile, then 24.
        (1, 256, 256 + 1000 + 24),
        (64, 256, 256 + 64_000 + 24),
        (65, 512, 512 + 65_000 + 24),
    ],
)
def test_workspace_bytes(tiles: int, zero: int, total: int) -> None:
    workspace = Workspace(zero_bytes_per_tile=4, bytes_per_tile=1000, fixed_bytes=24)
    assert workspace.zero_bytes(tiles) == zero
    assert workspace.total_bytes(tiles) == total
    assert Workspace().total_bytes(tiles) == 0


def test_workspace_of_split_k() -> None:
    # 300 x 200 in tiles of 128 x 128: 3 * 2 = 6 tiles, 12 over the batch. A tile has 4 partials of
    # 128 * 128 * 4 = 65,536 bytes and one counter of 4 bytes, together less than 256.
    problem = GemmProblem(300, 200, 4096, batch=2)
    plan = MMA_SYNC.plan(MMA_SYNC.config(mma(split_k=4)), problem, A100)
    assert plan.grid.ctas(problem) == (6, 4, 2)
    assert plan.workspace_zero_bytes(problem) == 256
    assert plan.workspace_bytes(problem) == 256 + 12 * 4 * 65_536
    assert MMA_SYNC.plan(MMA_SYNC.config(mma()), problem, A100).workspace_bytes(problem) == 0


def test_workspace_of_split_k_in_double() -> None:
    knobs = fma(tile_m=64, tile_n=64, thread_m=4, thread_n=4, split_k=2)
    plan = SIMT.plan(SIMT.config(knobs), F64, A100)
    # 64 * 64 = 4096 tiles of 2 partials of 64 * 64 * 8 bytes, 16,384 bytes of counters.
    assert plan.workspace_bytes(F64) == 16_384 + 4096 * 2 * 32_768


def test_plan_of_mma_sync() -> None:
    plan = MMA_SYNC.plan(MMA_SYNC.config(mma()), GemmProblem(100, 100, 36), HOPPER)
    assert (plan.target, plan.block, plan.dynamic_smem) == ("sm_90a", (128, 1, 1), 65_536)
    # Rows of 36 halves are 72 bytes: multiples of 8; rows of D 200 bytes: multiples of 8.
    needed = plan.preconditions
    assert (needed.align_a, needed.align_b, needed.align_d) == (8, 8, 8)


def test_plan_of_simt_asks_for_no_alignment_of_its_inputs() -> None:
    plan = SIMT.plan(SIMT.config(fma()), GemmProblem(7, 7, 7, dtype=DType.FLOAT32), ADA)
    needed = plan.preconditions
    assert (plan.target, plan.block) == ("sm_89", (256, 1, 1))
    assert (needed.align_a, needed.align_b, needed.align_d) == (4, 4, 4)


def test_wave_efficiency() -> None:
    # 512 tiles on 132 SMs take 4 waves of 132 = 528 CTAs.
    assert cuda.wave_efficiency(NT, Grid(128, 256), HOPPER) == pytest.approx(512 / 528)
    # One CTA of 128 x 128 of which 100 x 64 is used, on one SM of 132.
    small = GemmProblem(100, 64, 64)
    assert cuda.wave_efficiency(small, Grid(128, 128), HOPPER) == pytest.approx(6400 / 16_384 / 132)


def test_config_round_trip() -> None:
    assert MMA_SYNC.knob_values(MMA_SYNC.config(mma())) == mma()
    assert isinstance(MMA_SYNC.config(mma()), Config)
