"""How ``wgmma_ws`` reads C, in machine code: by TMA, or in groups of loads.

An instruction has 16 bytes; its low 9 bits name the operation. The numbers were read from nvdisasm.
"""

from __future__ import annotations

import dataclasses
import itertools
import struct
from collections.abc import Sequence

from device_samples import gpu

from kernels.compiler.build import build
from kernels.compiler.cubin import code_sections
from kernels.wgmma_ws.family import WGMMA_WS
from tilewright import Config, GemmProblem

LOADS, TMA_LOAD, TMA_PREFETCH, PREFETCH, STAGE, MEET = (0x180, 0x181), 0x1B4, 0x1B8, 0x1BC, 0x044, 0x11D


def operations(problem: GemmProblem, **knobs: int | str) -> list[int]:
    device = gpu("sm_90", 132)
    first = WGMMA_WS.heuristic_configs(problem, device)[0]
    config = Config.of("wgmma_ws", dict(first.knobs) | knobs)
    assert not WGMMA_WS.why_invalid(config, problem, device)
    code = code_sections(build(WGMMA_WS, config, problem, device).binary)[".text.wgmma_ws_gemm"]
    return [low & 0x1FF for low, _ in struct.iter_unpack("<QQ", code)]


def runs(found: Sequence[int]) -> list[int]:
    """How many loads follow each other before a subtile is staged or a barrier."""
    steps = [one in LOADS for one in found if one in (*LOADS, STAGE, MEET)]
    return [len(list(group)) for loads, group in itertools.groupby(steps) if loads]


def test_tma_loads_c() -> None:
    found = operations(GemmProblem(4096, 4096, 512, "bfloat16", "tn", has_c=True))
    assert not any(operation in LOADS for operation in found)
    without = operations(GemmProblem(4096, 4096, 512, "bfloat16", "tn"))
    assert found.count(TMA_LOAD) > without.count(TMA_LOAD)


def test_what_has_no_stage_yet_is_prefetched() -> None:
    problem = GemmProblem(4096, 4096, 4096, "bfloat16", "nt", has_c=True)
    assert TMA_PREFETCH in operations(problem)
    assert TMA_PREFETCH not in operations(dataclasses.replace(problem, has_c=False))


def test_what_threads_load_is_prefetched() -> None:
    problem = GemmProblem(4096, 4096, 4096, "bfloat16", "nt", out_dtype="float32", has_c=True)
    assert PREFETCH in operations(problem)
    assert PREFETCH not in operations(dataclasses.replace(problem, out_dtype="bfloat16"))


def test_rows_that_tma_cannot_take_are_loaded_in_groups() -> None:
    """The pairs of a thread for a subtile of 64 x 64, each two loads of 16 bits or one of 32."""
    problem = GemmProblem(4096, 4098, 4096, "bfloat16", "nt", has_c=True)
    tile = {"schedule": "cooperative", "tile_m": 128, "tile_n": 128, "consumers_m": 2, "consumers_n": 1}
    found = operations(problem, **tile, stages=4)
    assert max(runs(found)) >= 16
