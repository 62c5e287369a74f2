"""The main loop of ``mma_sync`` in machine code: how many instructions accompany each mma.

An instruction has 16 bytes; its low 9 bits name the operation. The numbers were read from nvdisasm.
"""

from __future__ import annotations

import functools
import struct

import pytest
from device_samples import gpu
from sweeps import every

from kernels.compiler.build import build
from kernels.compiler.cubin import code_sections
from kernels.mma_sync.family import MMA_SYNC
from tilewright import Artifact, GemmProblem

BRANCH, BARRIER = 0x147, 0x11D
MMA = {0x03C: "HMMA", 0x037: "IMMA", 0x03F: "DMMA"}
LOAD_FRAGMENT, COPY, LOCAL = 0x03B, 0x1AE, (0x183, 0x187)


@functools.cache
def first_config(arch: str, dtype: str, layout: str) -> Artifact:
    problem, device = GemmProblem(4096, 4096, 4096, dtype=dtype, layout=layout), gpu(arch, 132)
    return build(MMA_SYNC, MMA_SYNC.heuristic_configs(problem, device)[0], problem, device)


def main_loop(artifact: Artifact, arch: str) -> list[int]:
    """The operations of the loop with products, from the target of its last branch to that branch."""
    code = list(struct.iter_unpack("<QQ", code_sections(artifact.binary)[".text.mma_sync"]))
    operations = [low & 0x1FF for low, _ in code]
    loops = []
    for at, (low, high) in enumerate(code):
        distance = branch_distance(low, high, arch) if low & 0x1FF == BRANCH else 0
        body = operations[at + 1 + distance : at + 1]
        if distance < 0 and any(operation in MMA for operation in body):
            loops.append(body)
    return min(loops, key=len)


def branch_distance(low: int, high: int, arch: str) -> int:
    """Instructions from the one after a branch to its target."""
    field = low >> 34 | (high & 0x3FFFF) << 30
    signed = field - (field >> 47 << 48)
    return (signed << 8 | low >> 16 & 0xFF) * 4 // 16 if arch == "sm_90" else signed * 4 // 16


ARCHS = ["sm_80", "sm_90"]
MOST = [
    # 128 x 256 x 32 in 8 warps of 64 x 64: a k tile has 64 mma, 16 ldmatrix and 6 copies of a thread,
    # 22 / 64 = 0.34. The rest: two instructions an address and pass through the stages, the barrier,
    # the branch, and three empty ones before each group of copies.
    ("float16", "nt", 0.60),
    ("bfloat16", "nt", 0.60),
    ("int8", "nt", 0.60),
    ("tfloat32", "nt", 0.60),
    # Rows of k: the addresses are advanced for each k tile.
    ("float16", "nn", 0.70),
    ("float16", "tn", 0.76),
    ("float16", "tt", 0.66),
]


@pytest.mark.parametrize(
    ("arch", "dtype", "layout", "most"), every(6, [(arch, *case) for arch in ARCHS for case in MOST])
)
def test_other_instructions_for_each_mma(arch: str, dtype: str, layout: str, most: float) -> None:
    loop = main_loop(first_config(arch, dtype, layout), arch)
    products = sum(operation in MMA for operation in loop)
    assert products == 4 * 64  # four stages
    assert (len(loop) - products) / products <= most
    assert (loop.count(LOAD_FRAGMENT), loop.count(COPY), loop.count(BARRIER)) == (4 * 16, 4 * 6, 4)


@pytest.mark.parametrize(
    ("layout", "most", "arch"),
    every(4, [(*case, arch) for arch in ARCHS for case in [("nn", 1.15), ("tn", 1.40), ("tt", 0.90)]]),
)
def test_other_instructions_for_each_mma_of_tf32_with_rows_of_k(arch: str, layout: str, most: float) -> None:
    """Two words of A or one of B a load: 8 loads for 16 mma in tt, 16 in nn, 24 in tn."""
    artifact = first_config(arch, "tfloat32", layout)
    loop = main_loop(artifact, arch)
    products = sum(operation in MMA for operation in loop)
    assert products == 4 * 64
    assert artifact.resources.spill_bytes == 0
    assert (len(loop) - products) / products <= most


@pytest.mark.parametrize("arch", ARCHS)
def test_nothing_in_the_loop_keeps_the_tensor_cores_waiting_for_long(arch: str) -> None:
    """The longest run of instructions without a product, across the branch too."""
    loop = main_loop(first_config(arch, "float16", "nt"), arch)
    runs = "".join("M" if operation in MMA else "." for operation in loop * 2).split("M")
    assert max(map(len, runs)) <= 12
    assert not any(operation in LOCAL for operation in loop)


@pytest.mark.parametrize("arch", ARCHS)
def test_two_ctas_an_sm_are_among_the_heuristic_configs(arch: str) -> None:
    configs = MMA_SYNC.heuristic_configs(GemmProblem(4096, 4096, 4096), gpu(arch, 132))
    assert {config["min_ctas_per_sm"] for config in configs[:6]} == {1, 2}
