"""Knobs of family ``skinny`` and the rules between them."""

from __future__ import annotations

import dataclasses
from typing import Literal

from kernels import cuda
from kernels.family import Knob, Rule
from tilewright.device import DeviceSpec
from tilewright.problem import DType, GemmProblem

MATHS = ("fma", "mma")
SPLITS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)
WEIGHT_CACHES = ("plain", "no_allocate", "evict_first")
_FLOAT8 = (DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2)
_STATIC_SMEM = 48 << 10
_RESIDENT_THREADS = 2048
_MOST_LOADS = 40

# Registers of a thread beside weights, thin rows and sums: addresses, predicates, fragments.
_ALONG_REGISTERS = 32
_ACROSS_REGISTERS = 56
_FMA_REGISTERS = 60


@dataclasses.dataclass(slots=True)
class Knobs:
    """See :data:`KNOBS`."""

    math: str
    warp_tiles: int
    warps_wide: int
    warps_k: int
    steps: int
    slots: int
    min_blocks: int
    split_k: int
    weight_cache: str
    l2_fetch: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps_wide * self.warps_k


KNOBS = (
    Knob("math", MATHS, "units that multiply: ordinary ones or tensor cores"),
    Knob("warp_tiles", (1, 2, 4), "tiles a warp computes: 16 rows of weights along k, or 128 bytes across"),
    Knob("warps_wide", (1, 2, 4, 8), "warps along the long side of D"),
    Knob("warps_k", (1, 2, 4, 8, 16), "warps that take slots of k in turn"),
    Knob("steps", (1, 2, 4, 8), "k steps of a slot: 64 bytes of each row, or 16 rows across k"),
    Knob("slots", (1, 2, 3, 4), "slots of weights a warp holds or awaits in registers"),
    Knob("min_blocks", (1, 2, 3, 4, 6, 8), "blocks a multiprocessor must hold"),
    Knob("split_k", SPLITS, "blocks that share a tile", (1, 2, 3, 4, 6, 8, 12, 16)),
    Knob("weight_cache", WEIGHT_CACHES, "caches that weights pass by", ("no_allocate", "evict_first")),
    Knob("l2_fetch", (0, 128, 256), "bytes the L2 fetches at least; 0 is its own choice", (0, 128, 256)),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """How a problem looks to the kernel.

    Attributes:
        weights: the operand that is streamed; ``thin``: the other one.
        along: rows of the weights run along k.
        rows: the thin extent, rounded up to a power of two of at most 16.
        wide: extent of D along the weights' rows.
        dtype: element type of both operands.
    """

    weights: Literal["a", "b"]
    along: bool
    rows: int
    wide: int
    dtype: DType

    @classmethod
    def of(cls, problem: GemmProblem) -> Shape:
        """The longer operand is the weights; B where both are alike."""
        thin = min(problem.m, problem.n, 16)
        rows = 1 << (thin - 1).bit_length()
        if problem.m > problem.n:
            return cls("a", not problem.layout.a_transposed, rows, problem.m, problem.dtype)
        return cls("b", problem.layout.b_transposed, rows, problem.n, problem.dtype)

    @property
    def thin(self) -> Literal["a", "b"]:
        """The operand with few rows."""
        return "b" if self.weights == "a" else "a"

    @property
    def chunk(self) -> int:
        """Elements of a 16-byte chunk."""
        return 16 // self.dtype.size

    def tile_wide(self, k: Knobs) -> int:
        """Extent of a block's tile along the weights' rows."""
        return (16 if self.along else 8 * self.chunk) * k.warp_tiles * k.warps_wide

    def tile_thin(self, k: Knobs) -> int:
        """Extent of a block's tile along the thin axis: all of it, but fma keeps every sum in one lane."""
        most = 16 if k.math == "mma" else 2 if self.chunk == 16 and not self.along else 4
        return min(self.rows, most)

    def tile_k(self, k: Knobs) -> int:
        """k of one slot."""
        return k.steps * (4 * self.chunk if self.along else 16)

    def chunks(self, k: Knobs) -> int:
        """16-byte loads of weights that a lane has in flight."""
        return k.slots * k.steps * k.warp_tiles * (2 if self.along else 4)

    def why_no_mma(self, device: DeviceSpec) -> str | None:
        """The reason tensor cores do not multiply this, or None."""
        if self.dtype in (DType.FLOAT32, DType.FLOAT64):
            return f"math=mma does not multiply {self.dtype}: use fma"
        if not self.along and self.dtype.size != 2:
            return f"math=mma takes weights across k in 16-bit types only, not {self.dtype}: use fma"
        if self.dtype in _FLOAT8 and device.arch in ("sm_80", "sm_86"):
            return f"{device.arch} has no mma of {self.dtype}: use fma"
        return None


def smem_bytes(k: Knobs, problem: GemmProblem) -> int:
    """Static shared memory: the sums of every warp, 4 words of padding a row."""
    shape = Shape.of(problem)
    return k.warps_k * shape.tile_thin(k) * (shape.tile_wide(k) + 4) * cuda.real_bytes(problem)


def register_estimate(k: Knobs, problem: GemmProblem, arch: str) -> int:
    """Registers a thread cannot do without; where registers are free the compiler takes more."""
    shape = Shape.of(problem)
    # Across k, and more so in fma, the compiler keeps some words twice.
    words = 7 if k.math == "fma" else 4 if shape.along else 5
    held = words * shape.chunks(k) + (4 * k.warp_tiles if shape.along else 2)
    math = (_mma_registers if k.math == "mma" else _fma_registers)(k, shape, problem)
    # Narrow loads are put together in registers of their own, as is one slot's worth of transposed words.
    narrow = problem.stride_alignment(shape.weights) < 16
    permuted = k.math == "mma" and not shape.along
    moved = 4 * shape.chunks(k) // k.slots if narrow or permuted else 0
    # NOTE: sm_90 unpacks 8-bit floats to float16 before it multiplies them.
    unpacks = k.math == "mma" and problem.dtype in _FLOAT8 and arch == "sm_90"
    unpacked = 60 + 4 * shape.chunks(k) if unpacks else 0
    gathered = 0 if _thin_along(problem, shape) else 16
    return held + math + moved + (40 if narrow else 0) + gathered + unpacked


def _thin_along(problem: GemmProblem, shape: Shape) -> bool:
    layout = problem.layout
    return layout.b_transposed if shape.thin == "b" else not layout.a_transposed


def _mma_registers(k: Knobs, shape: Shape, _problem: GemmProblem) -> int:
    thin_tiles = -(-shape.tile_thin(k) // 8)
    thin = min(4, k.steps * thin_tiles) * (4 if shape.along else 2)
    sums = k.warp_tiles * (8 if shape.along else 16 * thin_tiles)
    return sums + thin + (_ALONG_REGISTERS if shape.along else _ACROSS_REGISTERS)


def _fma_registers(k: Knobs, shape: Shape, problem: GemmProblem) -> int:
    words = cuda.real_bytes(problem) // 4
    thin = shape.tile_thin(k) * ((4 if shape.along else problem.dtype.size) + 2 + words)
    sums = shape.tile_thin(k) * words * k.warp_tiles * (2 if shape.along else shape.chunk)
    return sums * 3 // 2 + thin + _FMA_REGISTERS


def _why_math(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    return Shape.of(p).why_no_mma(d) if k.math == "mma" else None


def _why_threads(k: Knobs, _p: GemmProblem, _d: DeviceSpec) -> str | None:
    return f"{k.threads} threads in a block, at most 1024" if k.threads > 1024 else None


def _why_smem(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    used = smem_bytes(k, p)
    if used > _STATIC_SMEM:
        return f"the sums of all warps take {used} bytes of shared memory, at most {_STATIC_SMEM}"
    return None


def _why_registers(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    loads = Shape.of(p).chunks(k)
    if loads > _MOST_LOADS:
        return f"{loads} loads of 16 bytes in flight a lane, at most {_MOST_LOADS}"
    return cuda.why_registers(register_estimate(k, p, d.arch), k.threads, k.min_blocks)


def _why_fma(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    shape = Shape.of(p)
    if k.math == "fma" and shape.rows > 4 and shape.why_no_mma(d) is None:
        return "ordinary units fall behind the memory beyond 4 thin rows; tensor cores do not"
    return None


def _why_loads(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    loads = Shape.of(p).chunks(k)
    if loads < 4:
        return f"{loads} loads in flight a lane do not cover the memory's latency"
    return None


def _why_oversized(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    shape = Shape.of(p)
    if k.warp_tiles * k.warps_wide > 1 and shape.tile_wide(k) >= 2 * shape.wide:
        return "more than half of the tile would lie outside D"
    return None


def _why_idle_warps(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.warps_k > 1 and p.k <= (k.warps_k // 2) * Shape.of(p).tile_k(k):
        return "half of the warps along k would have no slot"
    return None


def _why_split(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    if k.split_k == 1:
        return None
    shape = Shape.of(p)
    tiles = -(-shape.wide // shape.tile_wide(k)) * p.batch
    if tiles * (k.split_k - 1) * k.threads >= d.units * _RESIDENT_THREADS:
        return "split-K pays only where the tiles alone leave multiprocessors unfilled"
    if p.k < k.split_k * k.warps_k * shape.tile_k(k):
        return "every warp of every split needs a slot"
    return None


def _why_min_blocks(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    shape = Shape.of(p)
    blocks = -(-shape.wide // shape.tile_wide(k)) * p.batch * k.split_k
    if k.min_blocks > 1 and blocks <= d.units * (k.min_blocks - 1):
        return f"{blocks} blocks never put {k.min_blocks} on a multiprocessor"
    if k.min_blocks > 1 and k.min_blocks * k.threads > _RESIDENT_THREADS:
        return f"a multiprocessor holds {_RESIDENT_THREADS} threads"
    return None


_TILE = ("warp_tiles", "warps_wide")
_BLOCK = (*_TILE, "warps_k")
RULES: tuple[Rule[Knobs], ...] = (
    # NOTE: the source asserts types and layouts, the assembler knows the architectures.
    Rule(("math",), _why_math),
    Rule(("warps_wide", "warps_k"), _why_threads),
    Rule(_BLOCK, _why_smem),
    Rule(("math", *_BLOCK, "steps", "slots", "min_blocks"), _why_registers, compiled=False),
)
SEARCH_RULES: tuple[Rule[Knobs], ...] = (
    Rule(("math",), _why_fma),
    Rule(("warp_tiles", "steps", "slots"), _why_loads),
    Rule(_TILE, _why_oversized),
    Rule(("warps_k", "steps"), _why_idle_warps),
    Rule((*_BLOCK, "steps", "split_k"), _why_split),
    Rule((*_BLOCK, "split_k", "min_blocks"), _why_min_blocks),
)
