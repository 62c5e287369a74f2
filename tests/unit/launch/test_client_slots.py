"""Bound launches that move: what is patched, what is kept, and what is refused."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from host_samples import artifact_of, config_of

from tilewright import GemmProblem
from tilewright.artifact import Grid, LaunchPlan, Pointer, Preconditions, Serves
from tilewright.errors import PreconditionFailed
from tilewright.launch import Operands, load
from tilewright.launch.slots import DescriptorSlot, PointerSlot, Slots

PROBLEM = GemmProblem(64, 64, 64, "float32", "nn")
PLAN = LaunchPlan(
    format="cubin",
    target="sm_90a",
    entry="gemm",
    block=(128, 1, 1),
    grid=Grid(64, 64),
    args=(Pointer("a"), Pointer("d")),
    serves=Serves.of(PROBLEM),
    preconditions=Preconditions(16, 1, 8),
)


class Maps:
    """Encodes descriptors that tell what they were made of."""

    def __init__(self) -> None:
        self.encoded: list[int] = []
        self.handed: list[int] = []

    def encode(self, address: int) -> ctypes.c_uint64:
        self.encoded.append(address)
        made = ctypes.c_uint64()
        made.address = -address  # type: ignore[attr-defined]
        return made


def test_only_what_moved_is_patched() -> None:
    maps, a = Maps(), ctypes.c_void_p(160)
    slots = Slots(
        PLAN,
        Operands(160, 320, 480),
        [PointerSlot("a", a), DescriptorSlot("d", maps.encode, maps.handed.append)],
    )
    slots.move(160, 320, 480)
    assert (a.value, maps.handed) == (160, [])
    slots.move(1600, 320, 480)
    assert (a.value, maps.handed) == (1600, [])
    slots.move(1600, 320, 4800)
    assert (a.value, maps.handed) == (1600, [-4800])


def test_descriptors_are_kept_for_the_latest_addresses() -> None:
    maps = Maps()
    slot = DescriptorSlot("d", maps.encode, maps.handed.append)
    for address in [16, 32, 16, 32]:
        slot.point(address)
    assert maps.encoded == [16, 32]
    assert maps.handed == [-16, -32, -16, -32]
    for address in range(1000, 1063):  # with 32 they are 64; 16 was used longer ago and went
        slot.point(address)
    slot.point(32)
    slot.point(16)
    assert maps.encoded == [16, 32, *range(1000, 1063), 16]


def test_addresses_less_aligned_than_the_kernel_needs_are_refused_and_change_nothing() -> None:
    a = ctypes.c_void_p(160)
    slots = Slots(PLAN, Operands(160, 320, 480), [PointerSlot("a", a)])
    with pytest.raises(PreconditionFailed, match="address of a must be a multiple of 16 bytes"):
        slots.move(168, 320, 480)
    with pytest.raises(PreconditionFailed, match="address of d must be a multiple of 8 bytes"):
        slots.move(160, 320, 484)
    assert a.value == 160
    slots.move(320, 3, 480)  # b may lie anywhere
    assert a.value == 320


def test_a_refused_descriptor_leaves_no_half_move_behind() -> None:
    def refuse(address: int) -> ctypes.c_uint64:
        raise PreconditionFailed(f"no map at {address}")

    a = ctypes.c_void_p(160)
    slots = Slots(
        PLAN, Operands(160, 320, 480), [PointerSlot("a", a), DescriptorSlot("d", refuse, [].append)]
    )
    with pytest.raises(PreconditionFailed):
        slots.move(320, 320, 960)
    with pytest.raises(PreconditionFailed):
        slots.move(160, 320, 480)


def test_a_host_launch_moves_with_all_its_threads() -> None:
    random = np.random.default_rng(0)
    artifact = artifact_of(config_of(threads=2, kc=32, mc=32, nc=32), PROBLEM)
    kernel = load(artifact)
    scratch = np.zeros(artifact.plan.workspace_bytes(PROBLEM), "uint8")
    first, second = ([random.standard_normal((64, 64)).astype("float32") for _ in range(3)] for _ in "ab")
    launch = kernel.bind(PROBLEM, Operands(*(x.ctypes.data for x in first), workspace=scratch.ctypes.data))
    launch()
    launch.move(*(x.ctypes.data for x in second))
    launch()
    for a, b, d in (first, second):
        np.testing.assert_allclose(d, a @ b, rtol=1e-4, atol=1e-4)
    kernel.close()
