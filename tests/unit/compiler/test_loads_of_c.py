"""How ``wgmma_ws`` reads C, in machine code: many loads at once, after a prefetch into the L2.

An instruction has 16 bytes; its low 9 bits name the operation. The numbers were read from nvdisasm.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from typing import Any

from device_samples import gpu

from kernels.compiler.build import build
from kernels.compiler.cubin import code_sections
from kernels.wgmma_ws.family import WGMMA_WS
from tilewright import Config, GemmProblem

LOADS, PREFETCH, STAGE, MEET = (0x180, 0x181), 0x1BC, 0x044, 0x11D
PROBLEM = GemmProblem(4096, 4096, 512, "bfloat16", "tn", has_c=True)


def operations(**knobs: Any) -> list[int]:
    device = gpu("sm_90", 132)
    first = WGMMA_WS.heuristic_configs(PROBLEM, device)[0]
    config = Config.of("wgmma_ws", dict(first.knobs) | knobs)
    assert not WGMMA_WS.why_invalid(config, PROBLEM, device)
    code = code_sections(build(WGMMA_WS, config, PROBLEM, device).binary)[".text.wgmma_ws_gemm"]
    return [low & 0x1FF for low, _ in struct.iter_unpack("<QQ", code)]


def runs(found: Sequence[int]) -> list[int]:
    """How many loads follow each other before a subtile is staged or a barrier."""
    steps = [one in LOADS for one in found if one in (*LOADS, STAGE, MEET)]
    return [len(list(group)) for loads, group in itertools.groupby(steps) if loads]


def test_c_is_loaded_in_groups() -> None:
    """The 64 pairs of a thread, 128 x 128 of a warpgroup, in four groups."""
    assert [run for run in runs(operations()) if run >= 16] == [16] * 4


def test_c_is_prefetched() -> None:
    assert PREFETCH in operations()
    assert PREFETCH not in operations(swap_ab=1)
