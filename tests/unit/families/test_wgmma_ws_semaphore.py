"""The split-K semaphore of wgmma_ws: its size as Python states it, and the most splits it has bits for."""

from __future__ import annotations

import pytest
from device_samples import HOPPER

from kernels.base.spec import CompileError
from kernels.compiler.nvrtc import compile_text
from kernels.wgmma_ws.config import Knobs
from kernels.wgmma_ws.family import WGMMA_WS
from kernels.wgmma_ws.layout import MOST_SPLITS, SEMAPHORE_BYTES
from tilewright import GemmProblem

DEFINES = WGMMA_WS.build_spec(WGMMA_WS.config(Knobs()), GemmProblem(4096, 4096, 4096), HOPPER).defines
SOURCE = """
#include "wgmma_ws/split_k.cuh"
static_assert(semaphore_bytes == %d, "");
extern "C" __global__ void one(void* word) { SplitKSemaphore<%d>(word).time_out(0); }
"""


def test_sizes_agree() -> None:
    compile_text(SOURCE % (SEMAPHORE_BYTES, MOST_SPLITS), "sm_90a", DEFINES, entry="one")


def test_more_splits_than_bits() -> None:
    with pytest.raises(CompileError, match="at most 16 CTAs split a tile that they reduce together"):
        compile_text(SOURCE % (SEMAPHORE_BYTES, MOST_SPLITS + 1), "sm_90a", DEFINES, entry="one")
