"""wgmma_ws/tally.cuh: what Python says of its size, and how many parts it holds."""

from __future__ import annotations

import pytest

from kernels.build import CompileError
from kernels.families.wgmma_ws_budgets import MOST_PARTS, TALLY_BYTES
from kernels.nvrtc import compile_text

_SOURCE = """
#include "wgmma_ws/tally.cuh"
static_assert(tally_bytes == %d, "");
extern "C" __global__ void one(void* word) { Tally<%d>(word).give_up(0); }
"""


def test_sizes_agree() -> None:
    compile_text(_SOURCE % (TALLY_BYTES, MOST_PARTS), "sm_90a", entry="one")


def test_more_parts_than_bits() -> None:
    with pytest.raises(CompileError, match="at most 16 blocks share a tile out"):
        compile_text(_SOURCE % (TALLY_BYTES, MOST_PARTS + 1), "sm_90a", entry="one")
