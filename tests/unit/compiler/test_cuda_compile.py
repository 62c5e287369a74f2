"""Valid in Python <=> compiles, for every CUDA family and architecture; no GPU needed."""

from __future__ import annotations

import dataclasses
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from device_samples import gpu
from sweeps import every, on_generations

from kernels.arch import ARCHS
from kernels.base.family import Family
from kernels.base.spec import CompileError
from kernels.compiler.build import build, compile_spec
from kernels.mma_sync.family import MMA_SYNC
from kernels.registry import FAMILIES
from kernels.simt.family import SIMT
from kernels.wgmma.family import WGMMA
from kernels.wmma.family import WMMA
from tilewright import Config, GemmProblem
from tuner.search.points import valid_points

PROBLEMS = [
    GemmProblem(1024, 1024, 1024),
    GemmProblem(333, 777, 555, layout="nn", dtype="bfloat16", has_bias=True, activation="gelu"),
    GemmProblem(512, 512, 4096, acc_dtype="float16", has_c=True),
]
SIMT_PROBLEMS = [
    GemmProblem(1024, 1024, 1024, dtype="float32", layout="tn"),
    GemmProblem(100, 300, 500, dtype="float64", layout="tt", has_c=True, activation="relu"),
    GemmProblem(65, 33, 4096, layout="nn"),
]
# In turn, so that three generations for each case are all generations for each family.
CASES: list[tuple[Family[Any], GemmProblem]] = [
    (MMA_SYNC, PROBLEMS[0]),
    (SIMT, SIMT_PROBLEMS[0]),
    (WMMA, PROBLEMS[1]),
    (MMA_SYNC, PROBLEMS[1]),
    (SIMT, SIMT_PROBLEMS[1]),
    (WMMA, PROBLEMS[2]),
    (MMA_SYNC, PROBLEMS[2]),
    (SIMT, SIMT_PROBLEMS[2]),
]


@pytest.mark.parametrize(("family", "problem", "arch"), every(13, on_generations(CASES, most=3)))
def test_sampled_valid_configs_compile(family, problem, arch) -> None:
    device = gpu(arch)
    points = list(valid_points(family, problem, device))
    configs = [family.at(point) for point in random.Random(arch).sample(points, 1)]
    configs.append(family.heuristic_configs(problem, device)[0])
    with ThreadPoolExecutor(2) as pool:
        for config, artifact in zip(
            configs, pool.map(lambda c: build(family, c, problem, device), configs), strict=True
        ):
            assert artifact.plan.target == ARCHS[arch].target
            assert 16 <= artifact.resources.registers <= 255, str(config)
            assert artifact.resources.dynamic_smem <= device.smem_per_block


@pytest.mark.parametrize("problem", [PROBLEMS[0], PROBLEMS[2]], ids=str)
def test_wgmma_compiles_for_hopper_and_is_refused_elsewhere(problem) -> None:
    """More of it in test_wgmma_family.py."""
    for arch in ("sm_80", "sm_86", "sm_89"):
        assert "sm_90 alone" in (WGMMA.why_unsupported(problem, gpu(arch)) or "")
    artifact = build(WGMMA, WGMMA.heuristic_configs(problem, gpu("sm_90"))[0], problem, gpu("sm_90"))
    assert artifact.plan.target == "sm_90a"
    assert artifact.resources.spill_bytes == artifact.resources.static_smem == 0


@pytest.mark.parametrize(("family", "problem"), every(7, CASES))
def test_heuristic_configs_do_not_spill(family, problem) -> None:
    device = gpu("sm_90")
    for config in family.heuristic_configs(problem, device)[:3]:
        assert build(family, config, problem, device).resources.spill_bytes == 0, str(config)


ODD_ROWS = [("sm_80", "tt"), ("sm_90", "nn"), ("sm_80", "tn"), ("sm_90", "nt")]


@pytest.mark.parametrize(
    ("arch", "layout", "step"), every(99, [(*ODD_ROWS[0], 6), *((*case, 3) for case in ODD_ROWS)])
)
def test_heuristic_configs_of_odd_rows_do_not_spill(arch, layout, step) -> None:
    """Rows that are no multiple of 16 bytes are copied before or, in the last two, loaded as they are;
    the steps take some of each."""
    problem, device = GemmProblem(4095, 4097, 4093, layout=layout), gpu(arch, 132)
    configs = MMA_SYNC.heuristic_configs(problem, device)
    assert [config["repack"] for config in configs] == [1] * 6 + [0] * 2
    for config in configs[::step]:
        artifact = build(MMA_SYNC, config, problem, device)
        assert artifact.resources.spill_bytes == 0, str(config)
        assert len(artifact.plan.repacks) == 2 * config["repack"]


def test_what_is_read_once_is_not_copied_first() -> None:
    def loads(*size: int, layout: str = "nt") -> list[int]:
        configs = MMA_SYNC.heuristic_configs(GemmProblem(*size, layout=layout), gpu("sm_80"))
        return [config["repack"] for config in configs[:1]]

    assert loads(64, 4097, 14335) == [0]  # 14335: every element of B is read by one row of tiles
    assert loads(4096, 4097, 4096) == loads(4096, 4096, 4092) == [0]  # aligned; copies of 8 bytes
    assert loads(4096, 4097, 4096, layout="nn") == [1]


SMALL = [(127, 129, 1023), (255, 257, 511), (33, 65, 129)]


@pytest.mark.parametrize(("size", "step"), every(99, [(SMALL[0], 13), *((size, 3) for size in SMALL)]))
def test_small_products_with_odd_rows_try_both_loads_and_splits(size, step) -> None:
    problem, device = GemmProblem(*size, dtype="bfloat16"), gpu("sm_90", 132)
    configs = MMA_SYNC.heuristic_configs(problem, device)
    assert {config["repack"] for config in configs[:2]} == {0, 1}
    assert len({(config["tile_m"], config["tile_n"]) for config in configs}) >= 4
    assert max(int(config["split_k"]) for config in configs[:2]) >= 3
    assert all(MMA_SYNC.why_not_searched(config, problem, device) is None for config in configs)
    for config in configs[::step]:
        assert build(MMA_SYNC, config, problem, device).resources.spill_bytes == 0, str(config)


HALF, NN = GemmProblem(256, 256, 256), GemmProblem(256, 256, 256, layout="nn")
SINGLE, DOUBLE = (GemmProblem(256, 256, 256, dtype=dtype) for dtype in ("float32", "float64"))
DECODE, SIXTEEN = GemmProblem(1, 6144, 4096), GemmProblem(16, 4096, 14336)
SIXTEEN_NN = dataclasses.replace(SIXTEEN, layout="nn")
# Family, changes of its base config, problem, what Python says, what the source says.
BROKEN = [
    ("mma_sync", {"tile_m": 96, "warps_m": 4}, HALF, "tile_m must be a multiple", "rows of a warp"),
    ("mma_sync", {"tile_n": 16, "warps_n": 4}, HALF, "tile_n must be a multiple", "columns of a warp"),
    ("mma_sync", {"tile_k": 16, "warps_k": 2}, HALF, "tile_k must be a multiple", "k of a warp"),
    ("mma_sync", {"stages": 1}, HALF, "double buffering", "double buffering"),
    ("mma_sync", {"tile_k": 32, "warps_k": 2, "stages": 2}, HALF, "double buffering", "double buffering"),
    ("simt", {"tile_m": 16, "tile_n": 16, "thread_m": 8, "thread_n": 8}, SINGLE, "whole warps", "whole w"),
    ("simt", {"thread_m": 2}, SINGLE, "multiples of 4", "16-byte groups"),
    ("simt", {"stages": 0, "thread_m": 1, "thread_n": 1}, SINGLE, "4096 threads", "1 to 32 whole warps"),
    ("simt", {"tile_m": 16, "tile_k": 8, "thread_m": 2, "thread_n": 2}, DOUBLE, "evenly", "same number"),
    ("wmma", {"tile_m": 96, "warps_m": 4}, NN, "tile_m must be a multiple", "rows of a warp"),
    ("wmma", {"tile_n": 16, "warps_n": 4}, NN, "tile_n must be a multiple", "columns of a warp"),
    ("wmma", {"tile_m": 256, "tile_n": 256, "warps_m": 8, "warps_n": 8}, NN, "at most 1024", "1 to 32 warps"),
    ("wmma", {"tile_n": 96}, NN, "12 chunks of a row of the B tile", "16-byte chunks of a tile row"),
    ("wgmma", {"warpgroups": 3}, HALF, "64 * warpgroups", "rows of a warpgroup"),
    ("wgmma", {"tile_n": 96}, NN, "multiple of 64 if B", "multiple of 64 if B"),
    ("wgmma", {}, GemmProblem(256, 256, 256, out_dtype="float32"), "16-bit", "16-bit"),
    ("gemv", {"warps_k": 16}, SIXTEEN_NN, "shared memory", "48 KiB"),
    ("gemv", {}, GemmProblem(1, 64, 64, dtype="float64"), "does not multiply", "up to 4 bytes"),
    ("gemv", {}, GemmProblem(1, 64, 64, dtype="float32"), "does not multiply", "float is not tf32|float "),
    ("gemv", {}, GemmProblem(1, 64, 64, dtype="int8", layout="nn"), "16-bit types", "16-bit types only"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "problem", "python", "static_assert"), BROKEN, ids=str)
def test_both_sides_refuse_for_the_same_reason(name, change, problem, python, static_assert) -> None:
    family, device = FAMILIES[name], gpu("sm_90" if name == "wgmma" else "sm_80")
    config = family.config(family.knobs_type(**change))
    assert python in (family.why_invalid(config, problem, device) or "")
    with pytest.raises(CompileError, match=static_assert):
        compile_spec(family.build_spec(config, problem, device))


@pytest.mark.parametrize(("family", "problem", "seed"), every(2, [(MMA_SYNC, HALF, 7), (WMMA, NN, 11)]))
def test_random_structures_agree(family, problem, seed) -> None:
    """Knobs drawn blindly: the rules marked as compiled say the same as the compiler."""
    source, device = random.Random(seed), gpu("sm_90")
    agreed = {True: 0, False: 0}
    while min(agreed.values()) < 3:
        config = Config.of(family.name, {knob.name: source.choice(knob.legal) for knob in family.knobs})
        knobs = family.knob_values(config)
        if config["accumulate"] == "f16" or knobs.warp_m * knobs.warp_n > 2048:
            continue  # another accumulate type; thousands of accumulators compile slowly
        valid = all(rule.why(knobs, problem, device) is None for rule in family.rules if rule.compiled)
        if agreed[valid] >= 3:
            continue
        try:
            compile_spec(family.build_spec(config, problem, device))
            compiled = True
        except CompileError:
            compiled = False
        assert compiled == valid, str(config)
        agreed[valid] += 1


def test_the_first_compiles_of_a_process_may_run_at_once() -> None:
    """NVRTC loads its builtins with its first program; a fresh process compiles in four threads."""
    program = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from kernels.compiler.nvrtc import compile_text\n"
        "source = 'extern \"C\" __global__ void k(float* p) { p[0] = 1; }'\n"
        "with ThreadPoolExecutor(4) as pool:\n"
        "    list(pool.map(lambda target: compile_text(source, target, entry='k'), ['sm_80'] * 4))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
