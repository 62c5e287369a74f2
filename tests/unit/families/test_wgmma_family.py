"""Family wgmma: budgets by hand, reasons, and valid in Python <=> compiles; no GPU needed."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from device_samples import HOPPER
from sweeps import every

from kernels.base.spec import CompileError
from kernels.compiler.build import build
from kernels.compiler.nvrtc import compile_text
from kernels.wgmma.config import Knobs, accumulator_registers, register_estimate, smem_bytes
from kernels.wgmma.family import WGMMA
from tilewright import DeviceSpec, GemmProblem
from tilewright.artifact import Pointer, TensorMap
from tuner.search.points import valid_points

NT = GemmProblem(4096, 4096, 4096)
NN = GemmProblem(4096, 4096, 4096, layout="nn")
SEED = GemmProblem(4096, 4096, 4096, layout="nn", acc_dtype="float16")


def knobs(**changes: Any) -> Knobs:
    """The kernel of document 003: 128 x 128 x 64, three stages, one warpgroup."""
    values: dict[str, Any] = {
        "tile_m": 128, "tile_n": 128, "warpgroups": 1, "tile_k": 64, "stages": 3, "epilogue": "stmatrix",
        "raster": "n", "swizzle_size": 8,
    }  # fmt: skip
    return Knobs(**(values | changes))


def why(k: Knobs, problem: GemmProblem = NT, device: DeviceSpec = HOPPER) -> str | None:
    return WGMMA.why_invalid(WGMMA.config(k), problem, device)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # (128 + 128) * 64 * 2 = 32,768 a stage; two 8-byte barriers a stage.
        ({}, 3 * 32_768 + 3 * 16),
        ({"stages": 6}, 6 * 32_768 + 6 * 16),
        ({"tile_n": 256, "stages": 4}, 4 * 49_152 + 4 * 16),
        ({"tile_k": 128}, 3 * 65_536 + 3 * 16),
        # The staged D of 256 * 256 * 2 = 131,072 bytes just fits the two stages that it reuses.
        ({"tile_m": 256, "tile_n": 256, "stages": 2}, 131_072 + 2 * 16),
    ],
)
def test_shared_memory(changes: dict[str, Any], expected: int) -> None:
    assert smem_bytes(knobs(**changes), NT) == expected
    assert smem_bytes(knobs(**changes), NN) == expected


def test_accumulator_registers() -> None:
    # 128 * 256 elements over 256 threads are 128 floats, or 64 registers of two halves.
    wide = knobs(tile_n=256, warpgroups=2)
    assert accumulator_registers(wide, NT) == 128
    assert accumulator_registers(wide, SEED) == 64
    # And 40 for everything else; f16 accumulators count as floats if the epilogue reads C or a bias.
    assert register_estimate(wide, NT) == 168
    assert register_estimate(wide, SEED) == 104
    assert register_estimate(wide, dataclasses.replace(SEED, has_bias=True)) == 168


@pytest.mark.parametrize(
    ("changes", "problem", "reason"),
    [
        ({"warpgroups": 3}, NT, "tile_m must be a multiple of 64 * warpgroups = 192"),
        ({"tile_n": 96}, NN, "tile_n must be a multiple of 64 if B is stored K x N, got 96"),
        ({}, dataclasses.replace(NT, out_dtype="float32"), "stmatrix stores 16-bit elements"),
        ({"stages": 8}, NT, "262272 bytes of shared memory, a CTA may use 232448"),
        ({"tile_n": 256}, NT, "about 296 registers a thread, 128 threads leave 255"),
        ({"tile_m": 192, "tile_n": 256, "warpgroups": 1}, SEED, None),
        ({"tile_n": 256}, SEED, None),
        ({"tile_n": 96}, NT, None),
        ({}, SEED, None),
    ],
    ids=str,
)
def test_reasons(changes: dict[str, Any], problem: GemmProblem, reason: str | None) -> None:
    actual = why(knobs(**changes), problem)
    assert actual is None if reason is None else reason in (actual or "")


@pytest.mark.parametrize(
    ("problem", "arch", "reason"),
    [
        (NT, "sm_80", "wgmma exists on sm_90 alone, not on sm_80"),
        (dataclasses.replace(NT, dtype="float32", out_dtype=None), "sm_90", "float16 and bfloat16"),
        (dataclasses.replace(NT, k=4100), "sm_90", "rows of a that are multiples of 16 bytes"),
        (dataclasses.replace(NN, n=4100), "sm_90", "rows of b that are multiples of 16 bytes"),
        (dataclasses.replace(NN, layout="tn", m=4100), "sm_90", "rows of a that are multiples of 16 bytes"),
        (dataclasses.replace(NT, m=4099, n=4101), "sm_90", None),
        (dataclasses.replace(NN, m=4099, layout="nt", n=1), "sm_90", None),
    ],
    ids=str,
)
def test_what_it_supports(problem: GemmProblem, arch: str, reason: str | None) -> None:
    actual = WGMMA.why_unsupported(problem, dataclasses.replace(HOPPER, arch=arch))
    assert actual is None if reason is None else reason in (actual or "")


def test_the_plan_passes_tensor_maps_first() -> None:
    plan = WGMMA.plan(WGMMA.config(knobs(tile_m=192, tile_n=64)), NN, HOPPER)
    # A, stored M x K: boxes of 192 rows x 64 k. B, stored K x N: boxes of 64 k x 64 columns.
    assert plan.args[:3] == (
        TensorMap("a", (192, 64), swizzle=128, promotion=128),
        TensorMap("b", (64, 64), swizzle=128, promotion=128),
        Pointer("a"),
    )
    assert plan.target == "sm_90a"
    assert (plan.preconditions.align_a, plan.preconditions.align_b) == (16, 16)


@pytest.mark.parametrize("problem", [NT, NN, SEED, GemmProblem(64, 4096, 4096)], ids=str)
def test_heuristic_configs_are_valid_and_do_not_spill(problem: GemmProblem) -> None:
    configs = WGMMA.heuristic_configs(problem, HOPPER)
    assert len(configs) >= 3
    assert all(WGMMA.why_invalid(config, problem, HOPPER) is None for config in configs)
    assert build(WGMMA, configs[0], problem, HOPPER).resources.spill_bytes == 0


PROBLEMS = [
    GemmProblem(
        1000, 1016, 4096, dtype="bfloat16", layout="tt", has_c=True, has_bias=True, activation="gelu"
    ),
    GemmProblem(4096, 4096, 4096, layout="tn", out_dtype="float32"),
    SEED,
    NT,
]


@pytest.mark.parametrize("problem", every(4, PROBLEMS))
def test_sampled_configs_keep_their_registers(problem: GemmProblem) -> None:
    """Neither a spill nor a word of the assembler that wgmma run one by one: that is a CompileError."""
    points = list(valid_points(WGMMA, problem, HOPPER))
    for point in random.Random(str(problem)).sample(points, 2):
        resources = build(WGMMA, WGMMA.at(point), problem, HOPPER).resources
        assert resources.spill_bytes == 0, WGMMA.at(point)
        assert resources.static_smem == 0, WGMMA.at(point)


def test_the_largest_accumulators_do_not_spill() -> None:
    wide = WGMMA.config(knobs(tile_m=256, tile_n=192, warpgroups=2))
    assert build(WGMMA, wide, NT, HOPPER).resources.spill_bytes == 0


KERNELS = r"""
#include "common/ptx/wgmma.cuh"
template <class In, bool F16, int N, bool A_TRANSPOSED, bool B_TRANSPOSED>
__device__ __forceinline__ void multiply(unsigned* out, unsigned long long a, unsigned long long b) {
    using Op = Wgmma<In, F16, N>;
    typename Op::Register acc[Op::registers] = {};
    for (auto& r : acc) wgmma_fence_register(r);
    wgmma_fence();
    Op::template issue<A_TRANSPOSED, B_TRANSPOSED>(acc, a, b, 1);
    wgmma_commit();
    wgmma_wait<0>();
    for (auto& r : acc) wgmma_fence_register(r);
    for (auto& r : acc) *out++ = reinterpret_cast<unsigned&>(r);
}
#define KERNEL(NAME, In, F16, N, SIZE)                                                           \
    extern "C" __global__ void __launch_bounds__(128, 1)                                         \
    NAME##_##N(unsigned* out, unsigned long long a, unsigned long long b) {                      \
        static_assert(Wgmma<In, F16, N>::registers == N * SIZE / 8, "64 x N over 128 threads");  \
        multiply<In, F16, N, F16, true>(out, a, b);                                              \
    }
#define F16_F32(N, ...) KERNEL(f16_f32, f16, false, N, 4)
#define BF16_F32(N, ...) KERNEL(bf16_f32, bf16, false, N, 4)
#define F16_F16(N, ...) KERNEL(f16_f16, f16, true, N, 2)
"""
ALL = "TW_EVERY_N_F32(F16_F32) TW_EVERY_N_F32(BF16_F32) TW_EVERY_N_F16(F16_F16)"


@pytest.mark.long
def test_every_legal_n_assembles() -> None:
    """All 32 values of N: the operand lists have the length that the instruction asks for."""
    binary = compile_text(KERNELS + ALL, "sm_90a", entry="f16_f32_256").binary
    names = [f"{name}_{n}" for name in ("f16_f32", "bf16_f32", "f16_f16") for n in range(8, 257, 8)]
    assert all(f".text.{name}\0".encode() in binary for name in names)


def test_serialised_wgmma_is_a_compile_error() -> None:
    """Touching an accumulator between two wgmma of a group makes the assembler run them one by one."""
    touched = KERNELS.replace("wgmma_commit();", "acc[0] += acc[0]; wgmma_commit();", 1)
    with pytest.raises(CompileError, match="gave up a wgmma guarantee"):
        compile_text(f"{touched}F16_F32(64)", "sm_90a", entry="f16_f32_64")


def test_a_16_bit_d_is_stored_through_shared_memory() -> None:
    """No config with epilogue=direct is searched for it; for another D there is nothing else."""
    for out_dtype, epilogue in (("float16", "stmatrix"), ("float32", "direct")):
        problem = dataclasses.replace(NT, out_dtype=out_dtype)
        points = valid_points(WGMMA, problem, HOPPER)
        assert {WGMMA.at(point)["epilogue"] for point in points} == {epilogue}
