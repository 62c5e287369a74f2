"""Family wgmma_ws: budgets by hand, the reason of every rule, and valid in Python <=> compiles; no GPU."""

from __future__ import annotations

import dataclasses
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from device_samples import HOPPER

from kernels.base.spec import CompileError
from kernels.compiler.build import compile_spec
from kernels.compiler.nvrtc import compile_text
from kernels.wgmma_ws.config import Knobs
from kernels.wgmma_ws.config import Knobs as WgmmaWsKnobs
from kernels.wgmma_ws.family import WGMMA_WS
from kernels.wgmma_ws.layout import accumulator_registers, registers, smem_bytes, subtile
from kernels.wgmma_ws.validity import RULES
from tilewright import Config, GemmProblem

NT = GemmProblem(4096, 4096, 4096)
NN = GemmProblem(4096, 4096, 4096, layout="nn")
TN = GemmProblem(4096, 4096, 4096, layout="tn")
HALF = GemmProblem(4096, 4096, 4096, acc_dtype="float16")
ADDED = GemmProblem(4096, 4096, 4096, has_c=True)
BIASED = GemmProblem(4096, 4096, 4096, has_bias=True)
FULL = dataclasses.replace(BIASED, has_c=True, activation="gelu")
FLOATS = GemmProblem(4096, 4096, 4096, out_dtype="float32")
E4M3 = GemmProblem(4096, 4096, 4096, dtype="float8_e4m3fn", out_dtype="bfloat16")
S8 = GemmProblem(4096, 4096, 4096, dtype="int8")
BASE: dict[str, Any] = dataclasses.asdict(WgmmaWsKnobs())
PINGPONG = {"schedule": "pingpong", "consumers_m": 1, "tile_n": 160, "stages": 5}
SWAPPED = {"swap_ab": 1, "tile_m": 16, "tile_n": 128, "consumers_m": 1, "consumers_n": 2}
THREE = {"tile_m": 192, "consumers_m": 3, "tile_n": 192}
DIRECT = {"epilogue": "direct", "store_stages": 1, "tile_n": 128}
REDUCE_SCATTER = {"split_k": 2, "reduction": "reduce_scatter"}


def config(changes: dict[str, Any]) -> Config:
    return Config.of("wgmma_ws", BASE | changes)


def knobs(changes: dict[str, Any]) -> Knobs:
    return WGMMA_WS.knob_values(config(changes))


def why(changes: dict[str, Any], problem: GemmProblem = NT) -> str | None:
    return WGMMA_WS.why_invalid(config(changes), problem, HOPPER)


SMEM = [
    # A stage is (128 + 256) * 64 * 2 + 16 for its barriers = 49,168; a subtile 64 * 64 * 2 = 8192, two for
    # each of two consumers; 16 + 4 a consumer for its barriers and flag.
    ({}, NT, 4 * 49_168 + 4 * 8192 + 40),
    ({"store_stages": 1}, NN, 4 * 49_168 + 2 * 8192 + 40),
    # 8 bytes for the barrier of C of a subtile.
    ({}, ADDED, 4 * 49_168 + 4 * 8192 + 40 + 4 * 8),
    ({"tile_k": 128}, E4M3, 4 * 49_168 + 4 * 8192 + 40),
    # Width 160 gives subtiles of 40 columns: 64 * 40 * 2 = 5120. (128 + 160) * 64 * 2 + 16 = 36,880 a stage.
    (PINGPONG, NT, 5 * 36_880 + 4 * 5120 + 40),
    # Copied subtiles are a power of two wide: 32.
    ({**PINGPONG, "epilogue": "stmatrix"}, NT, 5 * 36_880 + 4 * 4096 + 40),
    # Width 176 is two subtiles of 88: 64 * 88 * 2 = 11,264. (128 + 176) * 64 * 2 + 16 = 38,928.
    ({**PINGPONG, "tile_n": 176, "store_stages": 1}, NT, 5 * 38_928 + 2 * 11_264 + 40),
    # Transposed, 24 rows of 64 make one subtile: 24 * 64 * 2 = 3072. (24 + 128) * 64 * 2 + 16 = 19,472.
    ({**SWAPPED, "tile_m": 24}, NT, 4 * 19_472 + 4 * 3072 + 40),
    # Transposed, threads load C: no barriers.
    ({**SWAPPED, "tile_m": 24}, ADDED, 4 * 19_472 + 4 * 3072 + 40),
    # Transposed, a subtile is 16 rows of 64: 2048. (16 + 128) * 128 * 2 + 16 = 36,880 again.
    ({**SWAPPED, "tile_k": 128, "stages": 6}, NT, 6 * 36_880 + 4 * 2048 + 40),
    # Three consumers: (192 + 192) * 64 * 2 + 16; six subtiles.
    ({**THREE, "store_stages": 2, "stages": 3}, NT, 3 * 49_168 + 6 * 8192 + 60),
    # Each of two consumers receives half of its 64 x 128 accumulators, 16,384 bytes; it finishes 64 columns.
    ({"tile_n": 128, "cluster_k": 2}, NT, 4 * 32_784 + 4 * 8192 + 2 * 16_384 + 40),
    # One consumer and no subtiles: (64 + 64) * 64 * 2 + 16 = 16,400.
    ({**DIRECT, "tile_m": 64, "tile_n": 64, "consumers_m": 1, "stages": 8}, NT, 8 * 16_400 + 20),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "problem", "expected"), SMEM, ids=str)
def test_shared_memory(changes: dict[str, Any], problem: GemmProblem, expected: int) -> None:
    assert smem_bytes(knobs(changes), problem) == expected <= HOPPER.smem_per_block
    assert why(changes, problem) is None


_LAYOUT = """
#include "wgmma_ws/config.cuh"
constexpr int of_consumer = 16 + SharedMemory::c_barriers * 8 + 4;
static_assert(SharedMemory::before_ring + Stages::bytes + of_consumer * cfg::consumers == {bytes}, "");
static_assert(subtile_rows == {rows} && subtile_columns == {columns}, "");
extern "C" __global__ void nothing() {{}}
"""


@pytest.mark.parametrize(("changes", "problem", "expected"), SMEM, ids=str)
def test_the_source_lays_out_the_same(changes: dict[str, Any], problem: GemmProblem, expected: int) -> None:
    rows, columns = subtile(knobs(changes))
    text = _LAYOUT.format(bytes=expected, rows=rows, columns=columns)
    defines = WGMMA_WS.build_spec(config(changes), problem, HOPPER).defines
    compile_text(text, "sm_90a", defines, entry="nothing")


@pytest.mark.parametrize("epilogue", ["stmatrix", "tma", "overlapped"])
@pytest.mark.parametrize("swap_ab", [0, 1])
def test_subtiles_of_every_width(swap_ab: int, epilogue: str) -> None:
    """As the source has them; unless TMA stores them swizzled, rows an odd number of 16-byte chunks long."""
    base = {**(SWAPPED if swap_ab else {}), "epilogue": epilogue}
    axis = "tile_m" if swap_ab else "tile_n"
    of_width = {width: subtile(knobs({**base, axis: width})) for width in range(8, 257, 8)}
    asserts = [
        f'static_assert(widest_subtile({w}) == {subtile[1 - swap_ab]}, "");'
        for w, subtile in of_width.items()
    ]
    text = "\n".join(['#include "wgmma_ws/config.cuh"', *asserts, 'extern "C" __global__ void nothing() {}'])
    defines = WGMMA_WS.build_spec(config(base), NT, HOPPER).defines
    compile_text(text, "sm_90a", defines, entry="nothing")
    for rows, columns in () if swap_ab else of_width.values():
        assert rows == 64
        assert columns in (8, 16, 32, 64) or (columns // 8 % 2 and epilogue != "stmatrix")


def test_registers_by_hand() -> None:
    # 65,536 over 384 threads are 170, in eights 168; over 512 they are 128; one consumer has what it needs.
    assert registers(knobs({})) == registers(knobs(PINGPONG)) == 168
    assert registers(knobs(THREE)) == 128
    assert registers(knobs({"tile_m": 64, "tile_n": 64, "consumers_m": 1})) is None


@pytest.mark.parametrize(
    ("changes", "problem", "expected"),
    [
        ({}, NT, 64 * 256 // 128),
        ({}, HALF, 64),  # two halves a register
        ({"tile_n": 128, "promote": 2, "tile_k": 128}, E4M3, 2 * 64),  # one set is multiplied, one kept
        (SWAPPED, NT, 64 * 16 // 128),
        ({**PINGPONG, "tile_m": 128}, NT, 2 * 64 * 160 // 128),
    ],
    ids=str,
)
def test_sum_registers(changes: dict[str, Any], problem: GemmProblem, expected: int) -> None:
    assert accumulator_registers(knobs(changes), problem) == expected


# Changes, problem, what Python says, what the source says (None: it says nothing).
BROKEN = [
    ({"schedule": "pingpong"}, NT, "ping-pong consumers do not share a tile", "consumer computes a whole"),
    ({"consumers_n": 2}, NT, "4 consumers, registers allow 3", "1 .. 3 consumers"),
    ({"consumers_m": 3}, NT, "consumers_m must divide tile_m", "warpgroup tiles of a tile are equal"),
    ({"tile_m": 96}, NT, "64 along the M of wgmma, got 48", "along the M of wgmma"),
    ({**SWAPPED, "tile_m": 24, "consumers_m": 2, "consumers_n": 1}, NT, "got 12", "along the N of wgmma"),
    ({**DIRECT, "tile_k": 128, "tile_n": 56}, S8, "multiples of 16 above 32, got 56", "wgmma of integers"),
    ({"tile_k": 256}, NT, "128 or 256 bytes, got 512", "TILE_K is 128 or 256 bytes"),
    ({"tile_n": 96}, NN, "multiple of 64 where B is stored K x N, got 96", "whole panels"),
    ({**SWAPPED, "tile_m": 32}, TN, "multiple of 64 where A is stored K x M, got 32", "whole panels"),
    ({"cluster_m": 4, "cluster_n": 4}, NT, "at most 8 CTAs, got 16", "at most 8 CTAs"),
    ({"cluster_k": 2, "tile_n": 144}, NT, "32 along the N of wgmma, got 144", "a multiple of 16 along"),
    ({}, FLOATS, "D is float32; use epilogue=direct", "stmatrix stages 16-bit"),
    ({"tile_n": 136, "epilogue": "stmatrix"}, NT, "16 columns, got 136", "a subtile that is copied"),
    ({**PINGPONG, "epilogue": "overlapped"}, NT, "ping-pong overlaps the store", "a cooperative tile"),
    ({"split_k": 2, "epilogue": "overlapped"}, NT, "in one set of accumulators", "a cooperative tile"),
    ({"epilogue": "overlapped"}, ADDED, "in which C arrives", "stored at once"),
    ({}, dataclasses.replace(NT, n=4100), "use epilogue=stmatrix", "TMA stores rows"),
    ({**DIRECT, "store_stages": 2}, NT, "epilogue=direct stages nothing", None),
    ({"epilogue": "stmatrix", "sector_aligned_store": 1}, NT, "needs a TMA epilogue", "aligned sub"),
    ({**SWAPPED, "sector_aligned_store": 1}, NT, "needs a TMA epilogue", "aligned subtiles"),
    ({"tile_n": 200, "sector_aligned_store": 1}, NT, "16 columns, got 200", "aligned subtiles"),
    ({"promote": 2, "tile_n": 64}, NT, "promote is for 8-bit floats", "accumulators of 8-bit"),
    ({"stages": 5}, NT, "278648 bytes of shared memory, a CTA may use 232448", None),
    ({"reduction": "kernel"}, NT, "no partials to add up", "partials of split-K are added up"),
    ({"split_k": 2, "tile_n": 64}, NT, "needs reduction=kernel or", "partials of split-K are added up"),
    ({"reduction": "reduce_scatter", "split_k": 3}, NT, "8 * split_k = 24",
     "slices are a multiple of 8"),
    ({"reduction": "reduce_scatter", "split_k": 32}, NT, "split_k up to 16",
     "at most 16 CTAs"),
    ({"cluster_k": 2, "split_k": 2, "tile_n": 64, "reduction": "reduce_scatter"}, NT, "need reduction=kernel",
     "by a kernel after"),
    ({"cta_order": "gpc", "prefetch": 4, "cluster_m": 2}, NT, "nothing can be pre", "no time to prefetch"),
    ({"cta_order": "gpc"}, NT, "place single CTAs deterministically", "does not place single CTAs"),
    ({"tile_m": 256, "stages": 2}, NT, "256 accumulator registers a thread, 2 consumers have 208", None),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "problem", "python", "static_assert"), BROKEN, ids=str)
def test_both_sides_refuse_for_the_same_reason(
    changes: dict[str, Any], problem: GemmProblem, python: str, static_assert: str | None
) -> None:
    assert python in (why(changes, problem) or "")
    if static_assert:
        with pytest.raises(CompileError, match=static_assert):
            compile_spec(WGMMA_WS.build_spec(config(changes), problem, HOPPER))


def test_a_cta_order_holds_the_clusters_of_the_device() -> None:
    pairs = config({"cta_order": "gpc", "cluster_m": 2})
    assert WGMMA_WS.why_invalid(pairs, NT, dataclasses.replace(HOPPER, sm_count=513)) is None
    reason = WGMMA_WS.why_invalid(pairs, NT, dataclasses.replace(HOPPER, sm_count=514))
    assert "orders 256 clusters at most, 257 would run" in (reason or "")


def test_every_rule_is_broken_above() -> None:
    said = [WGMMA_WS.why_invalid(config(changes), problem, HOPPER) for changes, problem, _, _ in BROKEN]
    for rule in RULES:
        if rule.why.__name__ == "_why_many_clusters":
            continue  # of larger devices: below
        reasons = [rule.why(knobs(changes), problem, HOPPER) for changes, problem, _, _ in BROKEN]
        first = [reason for reason, one in zip(reasons, said, strict=True) if reason and reason == one]
        assert first, rule.why.__name__


@pytest.mark.parametrize(
    ("changes", "problem", "most"),
    [
        ({}, HALF, None),
        # 2 * 64 * 192 / 128 = 192 accumulators fit.
        ({"tile_m": 256, "tile_n": 192, "stages": 3, "store_stages": 1}, NT, None),
        ({"tile_m": 256, "tile_n": 192, "split_k": 2, "reduction": "kernel", "stages": 3}, NT, None),
        # Partials reuse registers of stored accumulators: 208 - 16; C, a bias, other stores 24 to 88.
        ({"tile_m": 256, "tile_n": 192, **REDUCE_SCATTER, "stages": 3}, NT, None),
        ({"tile_m": 256, "tile_n": 192, **REDUCE_SCATTER, "stages": 3}, BIASED, 160),
        ({**DIRECT, "tile_m": 256, "tile_n": 192, **REDUCE_SCATTER, "stages": 3}, NT, 160),
        ({"tile_m": 256, "tile_n": 160, **REDUCE_SCATTER, "stages": 3, "store_stages": 1}, FULL, 152),
        ({"tile_m": 192, "tile_n": 128, "consumers_m": 1, **REDUCE_SCATTER, "stages": 3}, BIASED, 184),
        ({"tile_m": 192, "tile_n": 128, "consumers_m": 1, **REDUCE_SCATTER, "stages": 3}, NT, None),
        ({**REDUCE_SCATTER, "epilogue": "stmatrix", "stages": 3}, ADDED, 120),
        ({"split_k": 16, "reduction": "reduce_scatter", "stages": 3}, NT, None),
        ({"tile_m": 256, **REDUCE_SCATTER, "stages": 2}, HALF, 192),
        # Halves are unpacked where something is added to them.
        ({"tile_m": 256, "stages": 2}, HALF, None),
        ({"tile_m": 256, "stages": 2}, dataclasses.replace(HALF, has_bias=True), 160),
        ({"tile_m": 256, "stages": 2, "split_k": 2, "reduction": "kernel"}, HALF, None),
        ({}, BIASED, None),
        ({"epilogue": "overlapped"}, BIASED, None),
        # C that TMA loads needs few registers, but with a bias both are finished at once: 208 - 64.
        (
            {"tile_m": 256, "tile_n": 192, "stages": 3, "store_stages": 1},
            dataclasses.replace(NT, has_c=True),
            None,
        ),
        ({"tile_m": 256, "tile_n": 160, "stages": 3, "store_stages": 1}, FULL, 144),
        ({"tile_m": 256, "tile_n": 160, "cluster_k": 2, "stages": 2, "store_stages": 4}, ADDED, 152),
        # 216 less 72 kept, 8 for 2 * 2 subtiles of 72 columns and 8 for a second atom of 64 rows.
        ({"tile_m": 256, "tile_n": 144, "epilogue": "overlapped", "stages": 3, "store_stages": 1}, NT, 128),
        ({**THREE, "stages": 3}, NT, None),
        ({**THREE, "tile_n": 208, "stages": 3, "store_stages": 1}, NT, 100),
    ],
    ids=str,
)
def test_the_most_accumulators(changes: dict[str, Any], problem: GemmProblem, most: int | None) -> None:
    said = why(changes, problem)
    assert said is None if most is None else (said or "").endswith(f"consumers have {most}")


@pytest.mark.parametrize(
    ("problem", "arch", "reason"),
    [
        (NT, "sm_80", "wgmma exists on sm_90 alone, not on sm_80"),
        (dataclasses.replace(NT, dtype="float32", out_dtype=None), "sm_90", "not float32"),
        (dataclasses.replace(S8, layout="nn"), "sm_90", "use layout nt"),
        (dataclasses.replace(NT, m=4099, n=4101, k=4097), "sm_90", None),
        (dataclasses.replace(NN, batch=65535), "sm_90", None),
    ],
    ids=str,
)
def test_what_it_supports(problem: GemmProblem, arch: str, reason: str | None) -> None:
    actual = WGMMA_WS.why_unsupported(problem, dataclasses.replace(HOPPER, arch=arch))
    assert actual is None if reason is None else reason in (actual or "")


def mutated(seed: int) -> tuple[GemmProblem, dict[str, Any]]:
    """A config that is right but for what three random knobs may break."""
    chance = random.Random(seed)
    problem = chance.choice([NT, NN, TN, HALF, FLOATS, E4M3, S8])
    deep = {"tile_k": 128 // problem.dtype.size}
    start = chance.choice([{}, PINGPONG, SWAPPED, THREE, DIRECT])
    some = chance.sample(WGMMA_WS.knobs, 3)
    return problem, {**start, **deep} | {knob.name: chance.choice(knob.legal) for knob in some}


def agrees(seed: int) -> str | None:
    """What Python and the compiler disagree about, or None."""
    problem, changes = mutated(seed)
    k = knobs(changes)
    compiled = [r for rule in RULES if rule.compiled and (r := rule.why(k, problem, HOPPER))]
    if not compiled and why(changes, problem):
        return None  # a budget, of which the source knows nothing
    try:
        compile_spec(WGMMA_WS.build_spec(config(changes), problem, HOPPER))
    except CompileError as error:
        asserted = "static assertion failed" in str(error)
        return None if compiled and asserted else f"{problem} {changes}: {compiled or 'valid'}, but {error}"
    return f"{problem} {changes}: compiles, but {compiled}" if compiled else None


@pytest.mark.parametrize("seeds", [range(10), pytest.param(range(10, 60), marks=pytest.mark.long)], ids=str)
def test_valid_in_python_means_that_it_compiles(seeds: range) -> None:
    with ThreadPoolExecutor(2) as pool:
        assert [said for said in pool.map(agrees, seeds) if said] == []
