"""4-bit and 1-bit operands as kernels: the fragments of their mma, what each architecture compiles."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from device_samples import gpu
from fragments import ACCUMULATOR_ELEMENTS, a_elements, b_elements
from sweeps import every, on_generations

from benchmarks.ladder.bank_conflicts import LANES, a_element, accumulator_element, b_element
from kernels.arch import ARCHS
from kernels.compiler.build import build
from kernels.compiler.nvrtc import compile_text
from kernels.mma_sync.family import MMA_SYNC
from kernels.mma_sync.layout import step_k
from kernels.registry import FAMILIES
from kernels.simt.family import SIMT
from tilewright import Config, DType, GemmProblem
from tuner.measure.encoding import encode
from tuner.search.points import valid_points

PACKED = [dtype for dtype in DType if dtype.packing > 1]
# Elements of k of one mma: 32 bytes of a row.
MMA_K = {4: 64, 1: 256}
BOUNDS = {"int4": (-8, 7), "uint4": (0, 15), "uint1": (0, 1)}


def values_of(dtype: DType, shape: tuple[int, ...]) -> Any:
    random = np.random.default_rng(len(dtype))
    if dtype is DType.SIGN1:
        return random.choice([-1.0, 1.0], shape)
    low, high = BOUNDS[dtype]
    return random.integers(low, high + 1, shape).astype(float)


# Read off the figures of the PTX ISA. m16n8k64, 4 bits: row 0 of A shows T0:{a0..a7} T1:{a0..a7} in its first
# 32 columns, {a16..a23} in the others; row 8 {a8..a15} and {a24..a31}. m16n8k256, 1 bit: {a0..a31} and
# {a64..a95}, {a32..a63} and {a96..a127}. B downwards: {b0..b7}, {b8..b15} of 4 bits, {b0..b31}, {b32..b63}
# of one.
@pytest.mark.parametrize(
    ("bits", "lane", "i", "a", "b"),
    [
        (4, 0, 0, (0, 0), (0, 0)), (4, 0, 7, (0, 7), (7, 0)), (4, 1, 0, (0, 8), (8, 0)),
        (4, 3, 7, (0, 31), (31, 0)), (4, 4, 1, (1, 1), (1, 1)), (4, 0, 8, (8, 0), (32, 0)),
        (4, 30, 15, (15, 23), (55, 7)), (4, 0, 16, (0, 32), None), (4, 31, 31, (15, 63), None),
        (1, 0, 0, (0, 0), (0, 0)), (1, 0, 31, (0, 31), (31, 0)), (1, 1, 0, (0, 32), (32, 0)),
        (1, 3, 31, (0, 127), (127, 0)), (1, 0, 32, (8, 0), (128, 0)), (1, 29, 63, (15, 63), (191, 7)),
        (1, 0, 64, (0, 128), None), (1, 31, 127, (15, 255), None),
    ],
)  # fmt: skip
def test_fragment_maps(bits: int, lane: int, i: int, a: tuple[int, int], b: tuple[int, int] | None) -> None:
    assert a_element(lane, i, bits) == a
    if b is None:
        assert i >= b_elements(MMA_K[bits])
    else:
        assert b_element(lane, i, bits) == b


@pytest.mark.parametrize("bits", [16, 8, 4, 1])
def test_every_element_has_one_owner(bits: int) -> None:
    k = 256 // bits
    a = Counter(a_element(lane, i, bits) for lane in range(LANES) for i in range(a_elements(k)))
    b = Counter(b_element(lane, i, bits) for lane in range(LANES) for i in range(b_elements(k)))
    assert a == Counter((row, at) for row in range(16) for at in range(k))
    assert b == Counter((at, column) for at in range(k) for column in range(8))


def registers(stored: Any, halves: int) -> dict[tuple[int, int], int]:
    """What ``load_a`` (``load_b``) of ``kernels/mma_sync/compute.cuh`` put into (lane, register): bytes
    4t to 4t + 3 of a 16-byte half of row g, with ``halves`` blocks of eight rows."""
    held = {}
    for lane in range(LANES):
        for register in range(2 * halves):
            row, half = lane // 4 + register % halves * 8, register // halves
            word = stored[row, half * 16 + lane % 4 * 4 :][:4]
            held[lane, register] = int.from_bytes(word.tobytes(), "little")
    return held


@pytest.mark.parametrize("dtype", PACKED)
def test_packed_bytes_are_the_fragments_of_an_mma(dtype: DType) -> None:
    """Packed rows through the registers of 32 lanes to the product: bit field i of a fragment is the element
    that the PTX ISA says, and what the hardware computes of them is the product over k."""
    bits, k = dtype.bits, MMA_K[dtype.bits]
    a, b = values_of(dtype, (16, k)), values_of(dtype, (8, k))
    left, right = registers(encode(np, a, dtype), 2), registers(encode(np, b, dtype), 1)

    def field(held: dict[tuple[int, int], int], lane: int, i: int) -> int:
        return held[lane, i * bits // 32] >> i * bits % 32 & ((1 << bits) - 1)

    def value(raw: int) -> int:
        return raw - 16 if dtype is DType.INT4 and raw > 7 else raw

    tile_a, tile_b = np.zeros((16, k), int), np.zeros((k, 8), int)
    for lane in range(LANES):
        for i in range(a_elements(k)):
            tile_a[a_element(lane, i, bits)] = value(field(left, lane, i))
        for i in range(b_elements(k)):
            tile_b[b_element(lane, i, bits)] = value(field(right, lane, i))
    signs = dtype is DType.SIGN1
    d = k - 2 * (tile_a[:, :, None] ^ tile_b[None]).sum(1) if signs else tile_a @ tile_b
    positions = [accumulator_element(lane, i) for lane in range(LANES) for i in range(ACCUMULATOR_ELEMENTS)]
    assert all(d[row, column] == (a @ b.T)[row, column] for row, column in positions)


@pytest.mark.parametrize(("dtype", "arch"), every(6, on_generations(PACKED, most=3)))
def test_first_heuristic_configs_compile_everywhere(dtype: DType, arch: str) -> None:
    """The instructions that types differ in are compiled for each architecture below."""
    problem, device = GemmProblem(512, 512, 4096, dtype=dtype), gpu(arch)
    config = MMA_SYNC.heuristic_configs(problem, device)[0]
    assert config["accumulate"] == "s32"
    artifact = build(MMA_SYNC, config, problem, device)
    assert artifact.resources.spill_bytes <= 128
    assert artifact.plan.preconditions.align_a == 16


# The instructions by themselves, as kernels/common/ptx/mma.cuh has them.
@pytest.mark.parametrize(
    ("name", "target"),
    every(5, itertools.product(["s4", "u4", "u1", "sign1"], (arch.target for arch in ARCHS.values()))),
)
def test_the_instructions_exist(name: str, target: str) -> None:
    source = f"""#include "common/ptx/mma.cuh"
    extern "C" __global__ void kernel(const unsigned* p, int* d) {{
        unsigned a[4] = {{p[0], p[1], p[2], p[3]}}, b[2] = {{p[4], p[5]}};
        int sum[4] = {{}};
        Mma<{name}>::full(sum, a, b);
        d[threadIdx.x] = sum[0] + sum[1] + sum[2] + sum[3];
    }}"""
    assert compile_text(source, target, entry="kernel").binary


VARIANTS = [
    {"fragment_load": "direct", "smem_layout": "blocked"},
    {"fragment_load": "ldmatrix_reload", "double_buffer": 0, "epilogue": "direct"},
    {"stages": 1, "double_buffer": 0, "smem_layout": "padded"},
    {"warps_k": 2, "double_buffer": 0, "split_k": 2, "smem_layout": "permuted"},
]


@pytest.mark.parametrize(("dtype", "knobs"), every(7, itertools.product(PACKED, VARIANTS)))
def test_variants_compile(dtype: DType, knobs: dict[str, Any]) -> None:
    """Rows of a multiple of one byte only: the narrowest copies."""
    problem = GemmProblem(
        65, 33, 3 * dtype.packing, dtype=dtype, has_c=True, has_bias=True, activation="relu"
    )
    best = MMA_SYNC.heuristic_configs(GemmProblem(512, 512, 4096, dtype=dtype), gpu("sm_80"))[0]
    small = {"tile_m": 64, "tile_n": 64, "warps_m": 2, "warps_n": 2, **knobs}
    config = Config.of("mma_sync", {**dict(best.knobs), **small})
    assert MMA_SYNC.why_invalid(config, problem, gpu("sm_80")) is None
    assert build(MMA_SYNC, config, problem, gpu("sm_80")).plan.preconditions.align_a == 1


@pytest.mark.parametrize("dtype", PACKED)
def test_the_subroutines_of_sm_90_take_registers(dtype: DType) -> None:
    """Two CTAs of 8 warps of 32 x 64 leave 128 registers a thread: 64 accumulators, 24 of fragments and 40
    others. The subroutines of sm_90 need about 20 more."""
    problem = GemmProblem(4096, 4096, 4096, dtype=dtype)
    best = MMA_SYNC.heuristic_configs(problem, gpu("sm_80"))[0]
    tile = {"tile_m": 128, "tile_n": 128, "warps_m": 4, "warps_n": 2, "tile_k": 512 // dtype.bits}
    full = Config.of(
        "mma_sync", {**dict(best.knobs), **tile, "stages": 3, "double_buffer": 0, "min_ctas_per_sm": 2}
    )
    assert MMA_SYNC.why_invalid(full, problem, gpu("sm_80")) is None
    reason = MMA_SYNC.why_invalid(full, problem, gpu("sm_90"))
    if dtype is DType.UINT1:
        assert reason is None
    else:
        assert "about 148 registers a thread" in (reason or "")


@pytest.mark.parametrize(("dtype", "layout"), every(3, itertools.product(PACKED, ["nn", "tt"])))
def test_simt_takes_every_layout(dtype: DType, layout: str) -> None:
    problem = GemmProblem(64, 64, 64, dtype=dtype, layout=layout, has_c=True)
    assert (
        build(
            SIMT, SIMT.heuristic_configs(problem, gpu("sm_80"))[0], problem, gpu("sm_80")
        ).resources.spill_bytes
        == 0
    )


@pytest.mark.parametrize("dtype", every(3, PACKED))
def test_a_k_step_is_32_bytes(dtype: DType) -> None:
    problem = GemmProblem(32, 32, 4096, dtype=dtype)
    assert step_k(problem) == MMA_K[dtype.bits]
    depths = {MMA_SYNC.at(point)["tile_k"] for point in valid_points(MMA_SYNC, problem, gpu("sm_80"))}
    assert depths == {k for steps in (2, 4, 8) if (k := steps * MMA_K[dtype.bits]) <= 1024}


@pytest.mark.parametrize("dtype", PACKED)
def test_every_family_says_whether_it_computes_them(dtype: DType) -> None:
    for arch in ARCHS:
        takes = {
            (name, layout)
            for name, family in FAMILIES.items()
            for layout in ("nn", "nt", "tn", "tt")
            if not family.why_unsupported(GemmProblem(64, 64, 64, dtype=dtype, layout=layout), gpu(arch))
        }
        assert takes == {("mma_sync", "nt"), *(("simt", layout) for layout in ("nn", "nt", "tn", "tt"))}
