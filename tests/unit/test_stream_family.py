"""Family stream: tiles, panels, shared memory by hand, rules on both sides, picks that compile."""

from __future__ import annotations

import dataclasses
import itertools
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kernels.build import CSRC, CompileError, build, compile_spec
from kernels.families.stream import STREAM
from kernels.families.stream_knobs import Knobs, max_k, smem_bytes, thin_panels
from kernels.families.stream_rules import balance
from kernels.family import BuildSpec
from kernels.nvrtc import compile_text
from kernels.registry import families_for
from tilewright import Config, DeviceSpec, GemmProblem

H200 = DeviceSpec("cuda", "sm_90", "H200", 132, 140 << 30, 50 << 20, 232448, 233472)
A100 = dataclasses.replace(H200, arch="sm_80", name="A100", units=108, smem_per_block=166912)
DECODE, SIXTEEN = GemmProblem(1, 6144, 4096), GemmProblem(16, 4096, 14336)
LARGE = GemmProblem(16, 28672, 4096)
TALL = GemmProblem(4096, 3, 1000, dtype="bfloat16", has_bias=True, activation="gelu")
BYTES = GemmProblem(8, 4096, 4096, dtype="float8_e4m3fn", batch=2)
INTEGERS = GemmProblem(1024, 5, 8192, dtype="uint8", has_c=True)
PROBLEMS = [DECODE, SIXTEEN, LARGE, TALL, BYTES, INTEGERS]
BASE = {
    "warp_tiles": 1, "warps": 4, "panels": 1, "split_k": 1, "stages": 4, "lockstep": 0, "hint": "normal",
    "l2_promotion": 128, "prefetch": 0,
}  # fmt: skip


def why(changes: dict[str, Any], problem: GemmProblem = DECODE, device: DeviceSpec = H200) -> str | None:
    return STREAM.why_invalid(Config.of("stream", BASE | changes), problem, device)


def with_defines(spec: BuildSpec, **changes: int | str) -> BuildSpec:
    return dataclasses.replace(spec, defines=tuple(sorted((dict(spec.defines) | changes).items())))


# (problem, knobs, bytes): ring + thin slice + sums + barriers + 1024 of alignment.
SMEM = [
    # 4 stages of 4 boxes of 2 KiB; 64 panels of one row; 4 warps of 1 x (16 + 4) floats; 4 x 4 barriers.
    (DECODE, {}, 4 * 4 * 2048 + 64 * 128 + 4 * 20 * 4 + 4 * 4 * 8 + 1024),
    # 224 panels in 4 splits of 56, 16 rows each; boxes of 32 rows, 2 a warp.
    (SIXTEEN, {"split_k": 4, "warp_tiles": 2, "panels": 2, "stages": 2},
     2 * 8 * 4096 + 56 * 16 * 128 + 4 * 16 * 36 * 4 + 2 * 4 * 8 + 1024),
    # 1000 elements of 2 bytes are 16 panels; 3 rows take 4.
    (TALL, {"warps": 8}, 4 * 8 * 2048 + 16 * 4 * 128 + 8 * 4 * 20 * 4 + 4 * 8 * 8 + 1024),
    # 8192 bytes are 64 panels, in 11 splits of at most 6.
    (INTEGERS, {"split_k": 11}, 4 * 4 * 2048 + 6 * 8 * 128 + 4 * 8 * 20 * 4 + 4 * 4 * 8 + 1024),
]  # fmt: skip


@pytest.mark.parametrize(("problem", "changes", "expected"), SMEM, ids=str)
def test_shared_memory_is_what_the_source_lays_out(problem, changes, expected) -> None:
    config = Config.of("stream", BASE | changes)
    assert STREAM.why_invalid(config, problem, H200) is None
    knobs = STREAM.knob_values(config)
    assert smem_bytes(knobs, problem) == STREAM.plan(config, problem, H200).dynamic_smem == expected
    spec = STREAM.build_spec(config, problem, H200)
    parts = "SharedMemory::ring_bytes + SharedMemory::thin_bytes + SharedMemory::sums_bytes"
    held = f'static_assert({parts} + cfg::stages * cfg::warps * 8 == {expected - 1024}, "as planned");'
    source = f"{(CSRC / spec.source).read_text()}\n{held}\n"
    compile_text(source, spec.target, spec.defines, entry=spec.entry, name=spec.source)
    # One flag of split-K comes on top.
    assert compile_spec(spec).resources.static_smem <= (16 if knobs.split_k > 1 else 0)


def test_a_split_takes_whole_panels_and_the_slice_the_longest() -> None:
    for k in (8, 64, 72, 4096, 4104, 14336):
        problem = GemmProblem(1, 64, k)
        panels = -(-k // 64)
        for split_k in (1, 2, 3, 11):
            ends = [panels * split // split_k for split in range(split_k + 1)]  # as Work::unit has them
            knobs = Knobs(1, 4, 1, split_k)
            longest = max(after - before for before, after in itertools.pairwise(ends))
            assert thin_panels(knobs, problem) == longest
            assert max_k(knobs, problem) == split_k * longest * 64 >= k


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_no_other_k_has_longer_splits(dtype) -> None:
    problem = GemmProblem(16, 4096, 14336, dtype=dtype)
    elements = 128 // problem.dtype.size
    for split_k in (1, 3, 4, 11):
        knobs = Knobs(1, 4, 1, split_k)
        held = thin_panels(knobs, problem)
        most = max_k(knobs, problem) // elements
        assert -(-most // split_k) == held
        assert -(-(most + 1) // split_k) == held + 1


def test_a_plan_serves_no_longer_k() -> None:
    config = Config.of("stream", BASE | {"split_k": 3})
    plan = STREAM.plan(config, DECODE, H200)
    # 64 panels in three splits of at most 22.
    assert plan.preconditions.max_k == 3 * 22 * 64
    assert plan.why_not(dataclasses.replace(DECODE, k=3 * 22 * 64)) is None
    assert plan.why_not(dataclasses.replace(DECODE, m=40, n=8)) is None  # in more tiles
    assert "k must be at most 4224" in (plan.why_not(dataclasses.replace(DECODE, k=4232)) or "")


@pytest.mark.parametrize(
    ("problem", "tile", "weights"), [(LARGE, (16, 32), "b"), (TALL, (32, 4), "a")], ids=str
)
def test_the_plan(problem, tile, weights) -> None:
    config = Config.of("stream", BASE | {"warp_tiles": 2, "split_k": 8, "hint": "evict_first"})
    plan = STREAM.plan(config, problem, H200)
    assert (plan.grid.tile_m, plan.grid.tile_n) == tile
    assert plan.block == (128, 1, 1)
    assert (plan.args[0].operand, plan.args[0].box, plan.args[0].swizzle) == (weights, (32, 64), 128)
    # 132 multiprocessors hold 16 whole groups of 8 splits: a block's units then all have the same split.
    assert plan.grid.blocks(problem) == (128, 1, 1)
    per_thread = -(-tile[0] * tile[1] // 128)
    assert plan.workspace.bytes_per_tile == 8 * per_thread * 128 * 4
    assert plan.programmatic


def test_few_units_are_few_blocks() -> None:
    plan = STREAM.plan(Config.of("stream", BASE | {"split_k": 3}), GemmProblem(2, 100, 4096), H200)
    assert plan.grid.blocks(GemmProblem(2, 100, 4096)) == (7 * 3, 1, 1)


def test_balance() -> None:
    """28672 rows are 1792 tiles, 13.6 a block: 14 rounds, the last not full; 11 splits need 149.3 rounds."""
    assert balance(Knobs(1, 4, 1), LARGE, H200) == pytest.approx(1792 / (14 * 132))
    assert balance(Knobs(1, 4, 1, 11), LARGE, H200) == pytest.approx(1792 * 11 / (150 * 132))


@pytest.mark.parametrize(
    ("changes", "problem", "device", "reason"),
    [
        ({}, GemmProblem(17, 17, 64), H200, "m or n up to 16"),
        ({}, DECODE, A100, "TMA of sm_90"),
        ({}, dataclasses.replace(DECODE, acc_dtype="float16"), H200, "not float16"),
        ({}, GemmProblem(1, 64, 64, dtype="float32"), H200, "not float32"),
        ({}, dataclasses.replace(DECODE, layout="nn"), H200, "layout nt, not nn"),
        ({}, dataclasses.replace(DECODE, k=4095), H200, "multiples of 16 bytes"),
        ({}, SIXTEEN, H200, "458752 hold the thin operand: split k"),
        ({"split_k": 4}, SIXTEEN, H200, None),
        ({"warps": 16, "panels": 4, "warp_tiles": 2}, DECODE, H200, "bytes of shared memory"),
        ({}, GemmProblem(16, 64, 1 << 20), H200, "hold the thin operand"),
        ({"prefetch": 4}, DECODE, H200, None),
        ({}, TALL, H200, None),
    ],
    ids=str,
)
def test_problems_and_budgets(changes, problem, device, reason) -> None:
    said = why(changes, problem, device)
    assert said is None if reason is None else reason in (said or "")


def test_a_k_that_no_split_holds_is_unsupported() -> None:
    """12 splits beside the smallest ring: 232448 - 16 - 2 * 8224 - 5120 - 1024 bytes hold 102 panels."""
    longest = 12 * 102 * 64
    assert "stream" in families_for(GemmProblem(16, 4096, longest), H200)
    assert "stream" not in families_for(GemmProblem(16, 4096, longest + 64), H200)
    assert STREAM.picks(GemmProblem(16, 4096, longest), H200)
    assert list(STREAM.enumerate(GemmProblem(16, 4096, longest), H200))


# What Python refuses as unsupported, and what of a config it never says, the source asserts.
BROKEN = [
    ({"IN_TYPE": "tf32"}, "stream multiplies f16"),
    ({"IN_TYPE": "float"}, "stream multiplies f16"),
    ({"IN_TYPE": "s4"}, "stream multiplies f16"),
    ({"B_TRANSPOSED": 0}, "rows run along k"),
    ({"A_TRANSPOSED": 1}, "rows run along k"),
    ({"TILE_N": 48}, "WARP_TILES x 16"),
    ({"TILE_M": 3}, "1, 2, 4, 8 or 16 rows"),
    ({"TILE_M": 32}, "1, 2, 4, 8 or 16 rows"),
    ({"TILE_K": 128}, "k of a stage"),
    ({"WARP_TILES": 3}, "WARP_TILES is 1 or 2"),
    ({"WARPS": 5}, "WARPS is 4, 8 or 16"),
    ({"PANELS": 3}, "PANELS is 1, 2 or 4"),
    ({"STAGES": 17}, "STAGES is in 2"),
    ({"THIN_PANELS": 0}, "THIN_PANELS is at least 1"),
    ({"LOCKSTEP": 2}, "LOCKSTEP is 0 or 1"),
    ({"WEIGHT_HINT": 2}, "WEIGHT_HINT is 0"),
    ({"PREFETCH": 33}, "at most one box"),
]


@pytest.mark.parametrize(("changes", "static_assert"), BROKEN, ids=str)
def test_the_source_asserts_what_it_was_written_for(changes, static_assert) -> None:
    spec = STREAM.build_spec(Config.of("stream", BASE), DECODE, H200)
    with pytest.raises(CompileError, match=static_assert):
        compile_spec(with_defines(spec, **changes))


@pytest.mark.parametrize("knob", STREAM.knobs, ids=lambda one: one.name)
def test_every_legal_value_compiles(knob) -> None:
    """Those of one knob beside the rest of BASE: what is legal passes the asserts of the source."""
    legal = [Config.of("stream", BASE | {knob.name: value}) for value in (knob.legal[0], knob.legal[-1])]
    for config in legal:
        assert STREAM.why_invalid(config, DECODE, H200) is None
        assert build(STREAM, config, DECODE, H200).resources.spill_bytes == 0


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_sampled_configs_compile_without_spills(problem) -> None:
    points = list(STREAM.enumerate(problem, H200))
    assert len(points) > 100
    configs = [STREAM.at(point) for point in random.Random(7).sample(points, 4)]
    configs += STREAM.picks(problem, H200)[:2]
    with ThreadPoolExecutor(2) as pool:
        built = list(pool.map(lambda c: build(STREAM, c, problem, H200).resources, configs))
    for config, resources in zip(configs, built, strict=True):
        assert resources.spill_bytes == 0, str(config)
        assert resources.registers * STREAM.knob_values(config).threads <= 65536, str(config)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "uint8"])
@pytest.mark.parametrize(
    "size", [(1, 1, 16), (16, 16, 64), (3, 40, 4096), (16, 4096, 14336), (28672, 9, 4096)]
)
def test_every_type_and_size_has_picks(size, dtype) -> None:
    problem = GemmProblem(*size, dtype=dtype)
    picks = STREAM.picks(problem, H200)
    assert 1 <= len(picks) <= 8
    assert size[2] < 4096 or len({dict(one.knobs)["warps"] for one in picks}) > 1


def test_picks_fetch_early_what_the_l2_does_not_hold_anyway() -> None:
    assert {dict(one.knobs)["prefetch"] for one in STREAM.picks(LARGE, H200)} == {2, 4}
    assert {dict(one.knobs)["prefetch"] for one in STREAM.picks(GemmProblem(16, 512, 1024), H200)} == {0}


def test_searched_rings_are_of_three_depths() -> None:
    """Stages of 8 KiB: 48 and 96 KiB are 6 and 12, and 144 KiB more than the 16 that are legal."""
    depths = {
        config["stages"]
        for config in map(STREAM.at, STREAM.enumerate(DECODE, H200))
        if (config["warp_tiles"], config["warps"], config["panels"]) == (1, 4, 1)
    }
    assert depths == {6, 12, 16}
