"""Element types of the kernels: maps, what each architecture takes, compiles, requests and fall-backs."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from device_samples import gpu
from sweeps import every, on_generations

from kernels.arch import ARCHS
from kernels.base.spec import CompileError
from kernels.common import cuda
from kernels.common.smem import LAYOUTS, chunk_offset, tile_bytes
from kernels.compiler.build import build, compile_spec
from kernels.compiler.nvrtc import compile_text
from kernels.mma_sync.family import MMA_SYNC
from kernels.registry import FAMILIES
from kernels.simt.family import SIMT
from service.gemm.choice import problem_of
from tilewright import Config, DType, GemmProblem
from tilewright.errors import DeviceUnavailable, InvalidProblem, PreconditionFailed
from tilewright.http.tensors import Tensor
from tilewright.launch import Operands
from tilewright.launch.arguments import check_preconditions
from tilewright.matmul.arrays import library_of
from tilewright.matmul.matmul import Choice, LocalMatmul
from tilewright.schema.trial import STANDS_IN, Baseline
from tilewright.wire import GemmQuery, TuneBody
from tuner.devices.base import Tensors, VendorChoice
from tuner.devices.host import HostDevice
from tuner.measure import vendor
from tuner.search.points import valid_points
from tuner.workers import gemm

FLOAT8 = ["float8_e4m3fn", "float8_e5m2"]
IN_LAYOUTS = [
    *((dtype, layout) for dtype in ("tfloat32", "float64") for layout in ("nn", "nt", "tn", "tt")),
    *((dtype, layout) for dtype in ("float16", "bfloat16") for layout in ("tn", "tt")),
]
IN_NT = [(dtype, "nt") for dtype in ("int8", "uint8", *FLOAT8)]
SIMT_TYPES = ["tfloat32", "int8", "uint8", *FLOAT8]


def problem(dtype: str, layout: str = "nt", **changes: Any) -> GemmProblem:
    return GemmProblem(512, 512, 512, **{"dtype": dtype, "layout": layout, **changes})


def config_of(arch: str, wanted: GemmProblem, **knobs: Any) -> Config:
    best = MMA_SYNC.heuristic_configs(wanted, gpu(arch))[0]
    return Config.of("mma_sync", {**dict(best.knobs), **knobs})


def archs_with(dtype: str) -> list[str]:
    return [arch for arch in ARCHS if dtype not in FLOAT8 or gpu(arch).compute_capability >= (8, 9)]


@pytest.mark.parametrize("dtype", FLOAT8)
def test_float8_is_refused_before_sm_89(dtype: str) -> None:
    for arch in ARCHS:
        reason = MMA_SYNC.why_unsupported(problem(dtype), gpu(arch))
        assert reason is None if arch in archs_with(dtype) else "from sm_89 on" in (reason or "")


@pytest.mark.parametrize(
    ("dtype", "layout", "arch"),
    every(
        11, [*on_generations(IN_LAYOUTS, most=1), *on_generations(IN_NT, lambda case: archs_with(case[0]))]
    ),
)
def test_first_heuristic_configs_compile_everywhere(dtype: str, layout: str, arch: str) -> None:
    wanted, device = problem(dtype, layout), gpu(arch)
    artifact = build(MMA_SYNC, MMA_SYNC.heuristic_configs(wanted, device)[0], wanted, device)
    # Up to 32 words of the widest warp tiles, if split-K holds their accumulators twice.
    assert artifact.resources.spill_bytes <= 128


@pytest.mark.parametrize("dtype", every(2, SIMT_TYPES))
def test_simt_compiles_for_the_oldest(dtype: str) -> None:
    wanted, device = problem(dtype, "tn", has_bias=True, has_c=True, activation="relu"), gpu("sm_80")
    assert build(SIMT, SIMT.heuristic_configs(wanted, device)[0], wanted, device).resources.spill_bytes == 0


VARIANTS = [
    ("tfloat32", "nn", {"smem_layout": "blocked"}),
    ("tfloat32", "nt", {"fragment_load": "direct", "smem_layout": "padded", "epilogue": "direct"}),
    ("tfloat32", "nt", {"accumulate": "f32_outside", "double_buffer": 0}),
    ("tfloat32", "tn", {"smem_layout": "permuted", "tile_m": 128, "stages": 3}),
    ("float16", "tn", {"fragment_load": "mixed", "smem_layout": "padded"}),
    ("bfloat16", "tt", {"fragment_load": "direct", "smem_layout": "blocked"}),
    ("float64", "tt", {"warps_k": 2, "double_buffer": 0, "split_k": 2}),
    ("float64", "nn", {"warps_k": 2, "double_buffer": 0, "split_k": 2}),
    ("int8", "nt", {"fragment_load": "mixed", "warps_k": 2, "double_buffer": 0, "split_k": 2}),
    ("float8_e5m2", "nt", {"fragment_load": "direct", "stages": 1, "double_buffer": 0}),
]


@pytest.mark.parametrize(("dtype", "layout", "knobs"), every(3, VARIANTS))
def test_variants_compile(dtype: str, layout: str, knobs: dict[str, Any]) -> None:
    wanted = problem(dtype, layout, has_c=True, has_bias=True)
    config = config_of("sm_90", wanted, **{"tile_m": 64, "tile_n": 64, "warps_m": 2, "warps_n": 2, **knobs})
    assert MMA_SYNC.why_invalid(config, wanted, gpu("sm_90")) is None
    assert build(MMA_SYNC, config, wanted, gpu("sm_90")).resources.registers > 16


REFUSED = [
    ("float64", "nt", {"fragment_load": "ldmatrix"}, "fragment_load=direct", "direct fragment loads"),
    ("tfloat32", "nn", {"fragment_load": "mixed"}, "mixed repeats another", "mixed repeats another"),
    ("int8", "nt", {"mma_k": 8}, "mma_k=8 is for 16-bit types", "MMA_K 8 is for 16-bit types"),
    ("int8", "nt", {"tile_k": 16}, "tile_k must be a multiple of 32", "k of a warp"),
    (
        "float64",
        "nn",
        {"tile_k": 8, "smem_layout": "blocked", "double_buffer": 1},
        "blocked",
        "16 x 16 blocks",
    ),
]


@pytest.mark.parametrize(("dtype", "layout", "knobs", "python", "static_assert"), REFUSED, ids=str)
def test_both_sides_refuse(
    dtype: str, layout: str, knobs: dict[str, Any], python: str, static_assert: str
) -> None:
    wanted = problem(dtype, layout)
    config = config_of("sm_80", wanted, **knobs)
    assert python in (MMA_SYNC.why_invalid(config, wanted, gpu("sm_80")) or "")
    with pytest.raises(CompileError, match=static_assert):
        compile_spec(MMA_SYNC.build_spec(config, wanted, gpu("sm_80")))


def test_float32_never_runs_in_tf32() -> None:
    wanted = problem("float32")
    assert "tfloat32" in (MMA_SYNC.why_unsupported(wanted, gpu("sm_90")) or "")
    spec = MMA_SYNC.build_spec(config_of("sm_90", problem("tfloat32")), wanted, gpu("sm_90"))
    with pytest.raises(CompileError, match="float is not tf32"):
        compile_spec(spec)


@pytest.mark.parametrize("layout", ["nn", "tn", "tt"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", *FLOAT8])
def test_operands_of_8_bits_must_have_k_in_their_rows(dtype: str, layout: str) -> None:
    assert "in layout nt" in (MMA_SYNC.why_unsupported(problem(dtype, layout), gpu("sm_90")) or "")
    assert SIMT.why_unsupported(problem(dtype, layout), gpu("sm_90")) is None


def test_depths_are_searched_in_bytes() -> None:
    """64 to 256 bytes of a row of any type, as the tiles are small."""
    for dtype, depths in (("float64", {8, 16, 32}), ("tfloat32", {16, 32, 64}),
                          ("float16", {32, 64, 128}), ("int8", {64, 128, 256})):  # fmt: skip
        small = dataclasses.replace(problem(dtype, "nt"), m=32, n=32)
        points = valid_points(MMA_SYNC, small, gpu("sm_80"))
        assert {MMA_SYNC.at(point)["tile_k"] for point in points} == depths


def test_scalars_have_the_accumulate_type() -> None:
    kinds = {}
    for dtype in ("float16", "tfloat32", "int8", "float64"):
        arguments = cuda.gemm_arguments(problem(dtype))
        kinds[dtype] = {item.kind for item in arguments if getattr(item, "name", "") in ("alpha", "beta")}
    assert kinds == {
        "float16": {"float32"},
        "tfloat32": {"float32"},
        "int8": {"int32"},
        "float64": {"float64"},
    }


@pytest.mark.parametrize("alpha", [0.5, 2.0**31, float("nan"), float("inf")])
def test_integer_kernels_take_whole_scalars(alpha: float) -> None:
    wanted, device = problem("int8"), gpu("sm_80")
    plan = MMA_SYNC.plan(config_of("sm_80", wanted), wanted, device)
    check_preconditions(plan, wanted, Operands(16, 16, 16, workspace=256, alpha=-3.0))
    with pytest.raises(PreconditionFailed, match="whole numbers"):
        check_preconditions(plan, wanted, Operands(16, 16, 16, workspace=256, alpha=alpha))


# kernels/mma_sync/compute.cuh by hand: which bytes of a (row, k) tile a lane's registers hold.
LANES = [(lane // 4, lane % 4) for lane in range(32)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_words_by_ldmatrix_are_the_mma_fragment(size: int, layout: str) -> None:
    """Lane (g, t) of an A fragment holds row g, k 4t/size .. of each 16-byte half, whatever the type.

    PTX: a0 of m16n8k32 is k 4t .. 4t + 3, of m16n8k8 .tf32 it is k t; a2 is half a step further.
    """
    chunks, step, row0 = 4, 1, 16
    smem = np.zeros(tile_bytes(layout, 32, chunks), np.uint8)
    tile = np.arange(32 * chunks * 16).reshape(32, -1)
    for row in range(32):
        for chunk in range(chunks):
            at = chunk_offset(layout, chunks, row, chunk)
            smem[at : at + 16] = tile[row, chunk * 16 : chunk * 16 + 16] % 251
    for g, t in LANES:
        for register in range(4):
            row, half = row0 + register % 2 * 8, register // 2
            at = chunk_offset(layout, chunks, row + g, step * 2 + half) + t * 4
            k = (step * 32 + half * 16) // size + t * 4 // size
            expected = tile[row + g, k * size : k * size + 4] % 251
            assert (smem[at : at + 4] == expected).all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("transposed", [True, False])
def test_doubles_are_the_mma_fragment(transposed: bool, layout: str) -> None:
    """PTX m8n8k4 and m16n8k4 .f64: lane (g, t) holds B[k = t][column g], A[row g][k = t]."""
    rows, columns, step, col0 = (32, 16, 2, 8) if transposed else (16, 32, 2, 8)
    chunks = columns * 8 // 16
    smem = np.zeros(tile_bytes(layout, rows, chunks) // 8)
    tile = np.arange(rows * columns, dtype=float).reshape(rows, columns)
    for row in range(rows):
        for chunk in range(chunks):
            at = chunk_offset(layout, chunks, row, chunk) // 8
            smem[at : at + 2] = tile[row, 2 * chunk : 2 * chunk + 2]
    for g, t in LANES:
        k, column = step * 4 + t, col0 + g
        if transposed:
            at = chunk_offset(layout, chunks, column, step * 2 + t // 2) + t % 2 * 8
            assert smem[at // 8] == tile[column, k]
        else:
            at = chunk_offset(layout, chunks, k, column * 8 // 16) + column * 8 % 16
            assert smem[at // 8] == tile[k, column]


def tensor(dtype: str, rows: int, columns: int) -> Tensor:
    wanted = GemmProblem(rows, columns, 1, dtype=dtype) if dtype != "int32" else None
    size = wanted.dtype.size if wanted else 4
    return Tensor(wanted.dtype if wanted else GemmProblem(1, 1, 1, dtype="int8").out, (rows, columns),
                  bytes(rows * columns * size))  # fmt: skip


def test_tensors_reach_the_types() -> None:
    for dtype in ("int8", "uint8", "float64", *FLOAT8):
        found = problem_of({"a": tensor(dtype, 4, 8), "b": tensor(dtype, 8, 6)}, GemmQuery())
        assert (found.m, found.n, found.k, found.dtype) == (4, 6, 8, dtype)
    singles = {"a": tensor("float32", 4, 8), "b": tensor("float32", 8, 6)}
    assert problem_of(singles, GemmQuery()).dtype == "float32"
    assert problem_of(singles, GemmQuery(dtype="tfloat32")).dtype == "tfloat32"
    with pytest.raises(InvalidProblem, match="dtype=tfloat32 does not go with it"):
        problem_of({"a": tensor("int8", 4, 8), "b": tensor("int8", 8, 6)}, GemmQuery(dtype="tfloat32"))
    assert TuneBody(m=1, n=1, k=1, dtype="float8_e4m3fn").to_problem().out == "float32"


def test_matmul_leaves_what_has_another_result_type_to_the_library() -> None:
    """NumPy's int8 product is int8, the kernel's int32: it must not land in an int8 array."""
    asked: list[GemmProblem] = []

    def lookup(wanted: GemmProblem, _device: int) -> Choice:
        asked.append(wanted)
        return Choice(None, "nothing tuned")

    local = LocalMatmul(lookup)
    for dtype in (np.int8, np.int32):
        a = np.ones((2, 2), dtype)
        assert (local(a, a) == 2).all()
        assert library_of(a).describe(a).dtype == np.dtype(dtype).name
    assert asked == []


def test_a_stand_in_is_a_yardstick_only() -> None:
    assert Baseline("cublaslt float16", 1.0, {STANDS_IN: "uint8"}).stands_in
    assert not Baseline("cublaslt", 1.0).stands_in


class NoVendor:
    """A device whose vendor library knows float16 only."""

    def __init__(self) -> None:
        self.asked: list[GemmProblem] = []

    def vendor(self, wanted: GemmProblem, _sets: object) -> list[Any]:
        self.asked.append(wanted)
        return [VendorChoice("blas", [], {"tile": 1})] if wanted.dtype == "float16" else []


def test_a_race_without_a_vendor_kernel_runs_float16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vendor, "rotated_sets", lambda _device, _problem: ())
    device: Any = NoVendor()
    (choice,) = vendor._stand_ins(device, problem("uint8", has_c=True))
    assert (choice.name, choice.detail) == ("blas float16", {"tile": 1, STANDS_IN: "uint8"})
    assert device.asked[0].out == "float32"
    assert device.asked[0].has_c
    vendor._stand_ins(device, problem("float8_e5m2", out_dtype="bfloat16"))
    assert device.asked[1].out == "float16"
    assert vendor._stand_ins(device, problem("tfloat32")) == []


def test_gemm_without_a_kernel_says_what_to_do() -> None:
    with pytest.raises(DeviceUnavailable, match=r"tune it first \(POST /tune\)"):
        gemm._launch(HostDevice(), None, problem("uint8"), Tensors(None, None, None))
    with pytest.raises(InvalidProblem, match="whole numbers for int8"):
        gemm._launch(HostDevice(), None, problem("int8"), Tensors(None, None, None, alpha=0.5))


@pytest.mark.parametrize("arch", ["sm_80", "sm_86"])
def test_fp8_instructions_need_sm_89(arch: str) -> None:
    source = """#include "common/ptx/mma.cuh"
    extern "C" __global__ void kernel(float* c) {
        unsigned a[4] = {}, b[2] = {}; float sum[4] = {};
        Mma<e4m3>::full(sum, a, b); c[0] = sum[0];
    }"""
    with pytest.raises(CompileError):
        compile_text(source, arch, entry="kernel")
    assert compile_text(source, "sm_89", entry="kernel").binary


@pytest.mark.parametrize(
    ("dtype", "family", "expected"),
    [
        ("float32", "gemv", "ieee"),
        ("float64", "gemv", "ieee"),
        ("bfloat16", "gemv", "tensor-core"),
        ("float16", "wgmma", "tensor-core"),
        ("bfloat16", "mma_sync", "tensor-core"),
        ("float32", "simt", "ieee"),
        ("float32", "host", "ieee"),
        ("float64", "mma_sync", "ieee"),
        ("tfloat32", "wgmma", "reduced"),
        ("float8_e4m3fn", "wgmma", "reduced"),
        ("int8", "mma_sync", "exact"),
    ],
)
def test_the_class_of_rounding(dtype: str, family: str, expected: str) -> None:
    problem = GemmProblem(8, 8, 8, DType(dtype))
    assert FAMILIES[family].numerics(Config.of(family, {}), problem) == expected


def test_the_fma_units_of_gemv_round_as_ieee_says() -> None:
    config, problem = Config.of("gemv", {"math": "fma"}), GemmProblem(1, 8, 8, DType.BFLOAT16)
    assert FAMILIES["gemv"].numerics(config, problem) == "ieee"
