"""Bank conflicts of a config, from which lane of a warp holds which matrix element in mma.sync: the maps of
``kernels/mma_sync/compute.cuh``.

Source: PTX ISA, "Matrix Fragments for mma.m16n8k8" and "... mma.m16n8k16" with 16-bit inputs, and those of
"mma.m16n8k32", "mma.m16n8k64" and "mma.m16n8k256" with 8-, 4- and 1-bit integers. Element ``i`` of a fragment
lies in its 32-bit register ``i // (32 / bits)``, from the low bits up. With g = lane / 4 and t = lane % 4,
a register holds the neighbours in bytes 4t .. 4t + 3 of row (A, C, D) or column (B) g of 16 bytes of k.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

from kernels.common.smem import bank_conflicts, chunk_offset
from tilewright.schema.config import Config
from tilewright.schema.problem import GemmProblem

LANES = 32


def a_element(lane: int, i: int, bits: int = 16) -> tuple[int, int]:
    """(row, k) of element ``i`` of the A fragment; m16n8k8 has the first two registers only.

    Registers 0 and 1 hold rows g and g + 8 of the first 16 bytes of k, registers 2 and 3 those of the second.
    """
    register, k = _place(lane, i, bits)
    return lane // 4 + register % 2 * 8, k + register // 2 * (128 // bits)


def b_element(lane: int, i: int, bits: int = 16) -> tuple[int, int]:
    """(k, column) of element ``i`` of the B fragment; m16n8k8 has the first register only."""
    register, k = _place(lane, i, bits)
    return k + register * (128 // bits), lane // 4


def _place(lane: int, i: int, bits: int) -> tuple[int, int]:
    """The register of element ``i``, and its k within 16 bytes."""
    held = 32 // bits
    return i // held, lane % 4 * held + i % held


def accumulator_element(lane: int, i: int) -> tuple[int, int]:
    """(row, column) of element ``i`` of C and D, the same for all shapes."""
    return lane // 4 + i // 2 * 8, lane % 4 * 2 + i % 2


_CHUNK = 16  # bytes
_STEP_CHUNKS = 2  # chunks of a row that one k step takes


@dataclasses.dataclass(frozen=True, slots=True)
class Access:
    """One shared-memory instruction of a warp.

    Attributes:
        name: what it does, for instance ``store a`` (from global memory) or ``load a`` (fragments).
        addresses: byte address of each of the 32 lanes within its tile.
        width: bytes a lane accesses: 2, 4, 8 or 16.
    """

    name: str
    addresses: tuple[int, ...]
    width: int

    @property
    def phases(self) -> int:
        """Parts that the hardware serves one after the other even without conflicts."""
        return LANES * max(self.width, 4) // 128

    @property
    def conflicts(self) -> int:
        """Passes beyond one a phase."""
        # NOTE: a bank delivers whole words, so halves count as the word they lie in.
        return bank_conflicts([address // 4 * 4 for address in self.addresses], max(self.width, 4))


@dataclasses.dataclass(frozen=True, slots=True)
class Tile:
    """A tile in shared memory: rows of 16-byte chunks in one of the layouts."""

    layout: str
    chunks: int

    def address(self, row: int, byte: int) -> int:
        """Byte address of a byte of a row."""
        return chunk_offset(self.layout, self.chunks, row, byte // _CHUNK) + byte % _CHUNK

    def chunk(self, row: int, chunk: int) -> int:
        """Byte address of a chunk of a row."""
        return chunk_offset(self.layout, self.chunks, row, chunk)


def conflicts_per_phase(config: Config, problem: GemmProblem) -> dict[str, float]:
    """Mean extra passes per phase, by the name of the access; 0.0 is free of conflicts.

    Raises:
        ValueError: the shared-memory accesses of this family or element type are not described here.
    """
    found: dict[str, list[Access]] = {}
    for access in accesses(config, problem):
        found.setdefault(access.name, []).append(access)
    return {
        name: sum(one.conflicts for one in group) / sum(one.phases for one in group)
        for name, group in found.items()
    }


def accesses(config: Config, problem: GemmProblem) -> list[Access]:
    """The accesses of one warp of each kind to shared memory for one k tile, and for D if D is staged.

    Raises:
        ValueError: the shared-memory accesses of this family or element type are not described here.
    """
    describe = _FAMILIES.get(config.family)
    if describe is None:
        raise ValueError(f"no shared-memory accesses are described for {config.family}")
    if problem.dtype.size != 2:
        raise ValueError(f"shared-memory accesses are described for 16-bit elements, not for {problem.dtype}")
    return list(describe(dict(config.knobs), problem))


def _mma_sync(knobs: dict[str, Any], problem: GemmProblem) -> Iterator[Access]:
    a, b = _operand_tiles(knobs, problem)
    yield from _copies(knobs, problem, a, b)
    columns = knobs["tile_n"] // knobs["warps_n"]
    for step in range(knobs["tile_k"] * problem.dtype.size // _CHUNK // _STEP_CHUNKS // knobs["warps_k"]):
        if knobs["fragment_load"].startswith("ldmatrix"):
            yield _ldmatrix("load a", a, 0, step)
        else:
            yield from _direct_a(a, step)
        for column in range(0, columns, 8):
            if knobs["fragment_load"] == "direct":
                yield from _direct_b(b, problem.layout.b_transposed, column, step)
            elif column % 16 == 0:
                yield _ldmatrix_b(b, problem.layout.b_transposed, column, step)
    if knobs["epilogue"] == "smem":
        yield from _staged_d(Tile("permuted", knobs["tile_n"] * problem.out.size // _CHUNK), problem)


def _wmma(knobs: dict[str, Any], problem: GemmProblem) -> Iterator[Access]:
    a, b = _operand_tiles(knobs, problem)
    yield from _copies(knobs, problem, a, b)
    for step in range(knobs["tile_k"] * problem.dtype.size // _CHUNK // _STEP_CHUNKS):
        yield _ldmatrix("load a", a, 0, step)
        for column in range(0, knobs["tile_n"] // knobs["warps_n"], 16):
            yield _ldmatrix_b(b, problem.layout.b_transposed, column, step)


def _wgmma(_knobs: dict[str, Any], _problem: GemmProblem) -> Iterator[Access]:
    swizzled = Tile("xor", 8)
    for name in ("a", "b"):
        yield Access(
            f"store {name}", tuple(swizzled.chunk(lane // 8, lane % 8) for lane in range(LANES)), _CHUNK
        )
        for chunk in range(8):
            yield Access(f"load {name}", tuple(swizzled.chunk(lane, chunk) for lane in range(LANES)), _CHUNK)


_FAMILIES: dict[str, Callable[[dict[str, Any], GemmProblem], Iterator[Access]]] = {
    "mma_sync": _mma_sync,
    "wmma": _wmma,
    "wgmma": _wgmma,
}


def _operand_tiles(knobs: dict[str, Any], problem: GemmProblem) -> tuple[Tile, Tile]:
    deep = knobs["tile_k"] * problem.dtype.size // _CHUNK
    a = Tile(knobs["smem_layout"], deep)
    if problem.layout.b_transposed:
        return a, Tile(knobs["smem_layout"], deep)
    return a, Tile(knobs["smem_layout"], knobs["tile_n"] * problem.dtype.size // _CHUNK)


def _copies(knobs: dict[str, Any], problem: GemmProblem, a: Tile, b: Tile) -> Iterator[Access]:
    """``TileLoader``: neighbouring threads take neighbouring bytes of a row, in accesses of one width."""
    for name, tile in (("a", a), ("b", b)):
        width = math.gcd(knobs["copy_bytes"], problem.stride_alignment(name))
        share = _thread_bytes(knobs, tile, width)
        across = tile.chunks * _CHUNK // share
        places = [tile.address(lane // across, lane % across * share) for lane in range(LANES)]
        for piece in range(0, share, width):
            yield Access(f"store {name}", tuple(place + piece for place in places), width)


def _thread_bytes(knobs: dict[str, Any], tile: Tile, width: int) -> int:
    """Bytes of a row that a thread takes at a time: one access in wmma if the threads cover whole rows."""
    if knobs["smem_layout"] == "plain":
        return width
    threads = LANES * knobs["warps_m"] * knobs["warps_n"]
    spread = "fragment_load" not in knobs and threads % (tile.chunks * _CHUNK // width) == 0
    return width if spread else _CHUNK


def _ldmatrix(name: str, tile: Tile, row: int, step: int) -> Access:
    """16 rows by two chunks: lane l gives row l % 16, chunk l / 16."""
    first = step * _STEP_CHUNKS
    return Access(
        name, tuple(tile.chunk(row + lane % 16, first + lane // 16) for lane in range(LANES)), _CHUNK
    )


def _ldmatrix_b(tile: Tile, transposed: bool, column: int, step: int) -> Access:
    """Two column tiles: lanes 0-15 give the k halves of the first, lanes 16-31 of the second."""

    def place(lane: int) -> int:
        half, tile_of_two = lane // 8 % 2, lane // 16
        if transposed:
            return tile.chunk(column + tile_of_two * 8 + lane % 8, step * _STEP_CHUNKS + half)
        return tile.chunk(step * 16 + half * 8 + lane % 8, column // 8 + tile_of_two)

    return Access("load b", tuple(place(lane) for lane in range(LANES)), _CHUNK)


def _direct_a(tile: Tile, step: int) -> Iterator[Access]:
    for i in range(0, 8, 2):
        owned = [a_element(lane, i) for lane in range(LANES)]
        yield Access("load a", tuple(tile.address(row, step * 32 + k * 2) for row, k in owned), 4)


def _direct_b(tile: Tile, transposed: bool, column: int, step: int) -> Iterator[Access]:
    if transposed:
        for i in (0, 2):
            owned = [b_element(lane, i) for lane in range(LANES)]
            yield Access("load b", tuple(tile.address(column + n, step * 32 + k * 2) for k, n in owned), 4)
        return
    for i in range(4):
        owned = [b_element(lane, i) for lane in range(LANES)]
        yield Access("load b", tuple(tile.address(step * 16 + k, (column + n) * 2) for k, n in owned), 2)


def _staged_d(tile: Tile, problem: GemmProblem) -> Iterator[Access]:
    size = problem.out.size
    for i in (0, 2):
        owned = [accumulator_element(lane, i) for lane in range(LANES)]
        yield Access("stage d", tuple(tile.address(row, column * size) for row, column in owned), 2 * size)
    lines = [tile.chunk(lane // tile.chunks, lane % tile.chunks) for lane in range(LANES)]
    yield Access("copy d", tuple(lines), _CHUNK)
