"""Family wgmma_ws: what the tuner may try compiles, does not spill and costs what Python says; no GPU."""

from __future__ import annotations

import dataclasses
import functools
import os
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from device_samples import HOPPER
from sweeps import every

from kernels.base.spec import CompileError
from kernels.compiler.build import build
from kernels.wgmma_ws.config import Knobs
from kernels.wgmma_ws.family import WGMMA_WS
from kernels.wgmma_ws.layout import registers, smem_bytes
from tilewright import Config, GemmProblem
from tuner.search.points import valid_points

SEED = 1
EACH, FEW = 5, 2  # configs of each problem, and in `make test`

PROBLEMS = [
    GemmProblem(4096, 4096, 4096),
    GemmProblem(
        1000, 1016, 4096, dtype="bfloat16", layout="tt", has_c=True, has_bias=True, activation="gelu"
    ),
    GemmProblem(2048, 4096, 1024, layout="nn", acc_dtype="float16"),
    GemmProblem(16, 4096, 4096, dtype="bfloat16", has_bias=True),
    GemmProblem(4096, 14336, 4096, has_bias=True),
    GemmProblem(2048, 4096, 4096, dtype="bfloat16", has_bias=True, activation="gelu"),
    GemmProblem(256, 512, 16384, layout="tn"),
    GemmProblem(640, 1280, 8192, dtype="float8_e4m3fn", out_dtype="float32", has_c=True),
    GemmProblem(999, 1111, 777, batch=2, has_bias=True),
    GemmProblem(512, 512, 8192, dtype="int8", out_dtype="int32"),
]


def sample(problem: GemmProblem, count: int) -> list[Config]:
    """Configs from all that are searched."""
    points = list(valid_points(WGMMA_WS, problem, HOPPER))
    chance = random.Random(f"{SEED} {problem}")
    return [WGMMA_WS.at(point) for point in chance.sample(points, count)]


# reduce_scatter in tiles as wide as registers allow, and fields of the problem.
REDUCE_SCATTER = dataclasses.asdict(
    Knobs(split_k=2, reduction="reduce_scatter", stages=3, store_stages=1, reverse_k=1)
)
LIMITS: list[tuple[dict[str, object], dict[str, object]]] = [
    ({"tile_m": 256}, {}),
    ({"tile_m": 192, "consumers_m": 1, "split_k": 16}, {"has_c": True}),
    ({"tile_m": 192, "consumers_m": 1, "split_k": 8}, {"has_bias": True, "activation": "gelu"}),
    ({"tile_m": 128, "consumers_m": 1}, {"has_bias": True}),
    ({"tile_m": 256}, {"has_bias": True, "activation": "gelu"}),
    ({"tile_m": 256}, {"has_c": True, "has_bias": True, "activation": "gelu"}),
    ({"tile_m": 256, "epilogue": "direct"}, {}),
    ({"tile_m": 192, "consumers_m": 3, "split_k": 3}, {"has_bias": True}),
]


def complaint(problem: GemmProblem, config: Config) -> str | None:
    """What is wrong with a config as compiled, or None."""
    knobs = WGMMA_WS.knob_values(config)
    try:
        resources = build(WGMMA_WS, config, problem, HOPPER).resources
    except CompileError as error:
        return f"{config}: {error}"
    expected = smem_bytes(knobs, problem)
    claims = {
        "spills": resources.spill_bytes == 0,
        "registers": registers(knobs) in (None, resources.registers),
        "static shared memory": resources.static_smem == 0,
        "dynamic shared memory": resources.dynamic_smem == expected <= HOPPER.smem_per_block,
    }
    wrong = [name for name, holds in claims.items() if not holds]
    return f"{config}: {', '.join(wrong)}, {resources}" if wrong else None


@pytest.mark.parametrize(
    ("problem", "count"), every(99, [(PROBLEMS[0], FEW), *((problem, EACH) for problem in PROBLEMS)])
)
def test_searched_configs_keep_their_budgets(problem: GemmProblem, count: int) -> None:
    configs = sample(problem, count)
    assert len(set(configs)) == count
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        assert [said for said in pool.map(functools.partial(complaint, problem), configs) if said] == []


@pytest.mark.parametrize(("changes", "extra"), every(8, LIMITS))
def test_reduce_scatter_that_takes_all_registers(
    changes: dict[str, object], extra: dict[str, object]
) -> None:
    problem = GemmProblem(512, 1792, 16384, **extra)
    configs = [
        Config.of("wgmma_ws", {**REDUCE_SCATTER, **changes, "tile_n": width}) for width in range(256, 0, -8)
    ]
    why = [WGMMA_WS.why_invalid(config, problem, HOPPER) for config in configs]
    widest = why.index(None)
    assert any("accumulator registers" in (reason or "") for reason in why[:widest])
    assert complaint(problem, configs[widest]) is None
