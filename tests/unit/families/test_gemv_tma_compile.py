"""The source of family gemv_tma: its assertions, which knob values compile, and who has the registers."""

from __future__ import annotations

import dataclasses
import itertools
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from gemv_tma_samples import DECODE, H200, PROBLEMS, THICK_BYTES, config_of, why
from sweeps import every

from kernels.base.spec import BuildSpec, CompileError
from kernels.compiler.build import build, compile_spec
from kernels.gemv_tma.family import GEMV_TMA
from tilewright import GemmProblem
from tilewright.artifact import Resources
from tuner.search.points import valid_points


def with_defines(spec: BuildSpec, **changes: int | str) -> BuildSpec:
    return dataclasses.replace(spec, defines=tuple(sorted((dict(spec.defines) | changes).items())))


def compiled(problem: GemmProblem, **changes: int | str) -> Resources:
    return compile_spec(GEMV_TMA.build_spec(config_of(**changes), problem, H200)).resources


# What Python refuses as unsupported, and what of a config it never says, the source asserts.
BROKEN = [
    ({"IN_TYPE": "tf32"}, "gemv_tma multiplies f16"),
    ({"IN_TYPE": "float"}, "gemv_tma multiplies f16"),
    ({"IN_TYPE": "s4"}, "gemv_tma multiplies f16"),
    ({"B_TRANSPOSED": 0}, "rows run along k"),
    ({"A_TRANSPOSED": 1}, "rows run along k"),
    ({"TILE_N": 48}, "WARP_TILES x 16 weight rows"),
    ({"TILE_M": 3}, "1, 2, 4, 8 or 16 activation rows"),
    ({"TILE_M": 32}, "1, 2, 4, 8 or 16 activation rows"),
    ({"TILE_K": 128}, "k of a stage"),
    ({"WARP_TILES": 3}, "WARP_TILES is 1 or 2"),
    ({"WARPS": 5}, "WARPS is 4, 8 or 16"),
    ({"K_CHUNKS": 3}, "K_CHUNKS is 1, 2 or 4"),
    ({"STAGES": 17}, "STAGES is in 2"),
    ({"ACTIVATION_K_CHUNKS": 0}, "ACTIVATION_K_CHUNKS is at least 1"),
    ({"CLUSTER_K": 3}, "CLUSTER_K is 1, 2, 4 or 8"),
    ({"CLUSTER_K": 16}, "CLUSTER_K is 1, 2, 4 or 8"),
    ({"PREFETCH": 33}, "at most one box"),
    ({"SPLIT_K": 2}, "does not split k"),
]


@pytest.mark.parametrize(("changes", "static_assert"), every(3, BROKEN))
def test_the_source_asserts_what_it_was_written_for(changes, static_assert) -> None:
    spec = GEMV_TMA.build_spec(config_of(), DECODE, H200)
    with pytest.raises(CompileError, match=static_assert):
        compile_spec(with_defines(spec, **changes))


@pytest.mark.parametrize(
    ("problem", "knob"), every(9, itertools.product([DECODE, THICK_BYTES], GEMV_TMA.knobs))
)
def test_every_legal_value_compiles(knob, problem) -> None:
    """Beside the rest of BASE, of `stages` some: what is valid passes the asserts of the source."""
    values = (2, 5, 16) if knob.name == "stages" else knob.legal
    assert set(values) <= set(knob.legal)
    refused = [value for value in values if why({knob.name: value}, problem)]
    assert refused == ([16] if knob.name == "warps" and problem == THICK_BYTES else [])
    for value in values:
        assert value in refused or compiled(problem, **{knob.name: value}).spill_bytes == 0, value


REGISTERS = [
    (16, "float8_e4m3fn", {"warps": 16}, False),
    (16, "float8_e5m2", {"warps": 16}, False),
    (16, "float8_e4m3fn", {"warps": 16, "warp_tiles": 2}, False),
    (16, "float8_e5m2", {"warps": 16, "warp_tiles": 2}, False),
    (8, "float8_e4m3fn", {"warps": 16, "warp_tiles": 2, "cluster_k": 4}, False),
    (1, "float8_e5m2", {"warps": 16, "warp_tiles": 2, "cluster_k": 4}, False),
    (8, "float8_e4m3fn", {"warps": 16}, True),
    (8, "float8_e5m2", {"warps": 16, "cluster_k": 4}, True),
    (16, "float8_e4m3fn", {"warps": 8, "warp_tiles": 2}, True),
    (16, "float8_e5m2", {"warps": 8}, True),
    (16, "float16", {"warps": 16}, True),
    (16, "float16", {"warps": 16, "warp_tiles": 2, "cluster_k": 2}, True),
    (16, "int8", {"warps": 16, "warp_tiles": 2}, True),
]


@pytest.mark.parametrize(("rows", "dtype", "changes", "enough"), every(2, REGISTERS))
def test_what_has_too_few_registers_is_refused_and_spills(rows, dtype, changes, enough) -> None:
    """16 warps have 96 a thread; 8-bit floats need more for tiles of 32 rows, or for 16 activation rows."""
    problem, changes = GemmProblem(rows, 2048, 2048, dtype=dtype), {"stages": 2, **changes}
    said = why(changes, problem)
    assert said is None if enough else "too few for 8-bit floats" in (said or "")
    assert (compiled(problem, **changes).spill_bytes == 0) is enough


@pytest.mark.parametrize("problem", every(8, PROBLEMS))
def test_heuristic_configs_and_sampled_configs_compile_without_spills(problem) -> None:
    points = list(valid_points(GEMV_TMA, problem, H200))
    assert len(points) > 25
    configs = [GEMV_TMA.at(point) for point in random.Random(7).sample(points, 4)]
    configs += GEMV_TMA.heuristic_configs(problem, H200)
    with ThreadPoolExecutor(2) as pool:
        built = pool.map(lambda config: build(GEMV_TMA, config, problem, H200).resources, configs)
        spilled = [one.spill_bytes for one in built]
    assert dict(zip(map(str, configs), spilled, strict=True)) == dict.fromkeys(map(str, configs), 0)
