"""Knobs of family ``skinny``, and the tiles, shared memory and registers that follow from them."""

from __future__ import annotations

import dataclasses
from typing import Literal

from kernels import cuda
from kernels.family import Knob
from tilewright.artifact import Workspace
from tilewright.device import DeviceSpec
from tilewright.problem import DType, GemmProblem

MOST_THIN = 16  # rows of the thin operand
MATHS = ("fma", "mma")
SPLITS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)
RELEASES = ("started", "loaded")
WEIGHT_CACHES = ("plain", "no_allocate", "evict_first")

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
    prefetch: int
    release: str

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
    Knob("l2_fetch", (0, 128, 256), "bytes the L2 fetches at least; 0 is its own choice", (128,)),
    Knob(
        "prefetch",
        (0, 1, 2, 4, 8, 16),
        "slots brought to the L2 while the kernel before ends",
        (0, 2, 4),
        before=0,
    ),
    Knob("release", RELEASES, "what of this kernel lets the next one start", before="started"),
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
        thin = min(problem.m, problem.n, MOST_THIN)
        rows = 1 << (thin - 1).bit_length()
        if cuda.weights(problem) == "a":
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
        if self.dtype in cuda.FLOAT8 and device.arch in ("sm_80", "sm_86"):
            return f"{device.arch} has no mma of {self.dtype}: use fma"
        return None


def finish_workspace(problem: GemmProblem, tile: int, threads: int, split_k: int) -> Workspace:
    """Counters and sums of the splits of a tile of so many elements, as in ``tile/thin_finish.cuh``."""
    if split_k == 1:
        return Workspace()
    return Workspace(4, split_k * -(-tile // threads) * threads * cuda.real_bytes(problem))


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
    unpacked = 60 + 4 * shape.chunks(k) if _unpacks(k, problem, arch) else 0
    gathered = 0 if _thin_along(problem, shape) else 16
    return held + math + moved + (40 if narrow else 0) + gathered + unpacked


def early_registers(k: Knobs, problem: GemmProblem, arch: str) -> int:
    """What prefetch and a late release take beside the estimate: found by compiling."""
    if not k.prefetch and k.release == "started":
        return 0
    if _unpacks(k, problem, arch) or k.slots > 2:
        return 16
    few = k.math == "mma" and k.warp_tiles == 1 and Shape.of(problem).tile_thin(k) <= 8
    return 4 if few else 8


def _unpacks(k: Knobs, problem: GemmProblem, arch: str) -> bool:
    """Whether 8-bit floats become float16 before they are multiplied, as they must on sm_90."""
    return k.math == "mma" and problem.dtype in cuda.FLOAT8 and arch == "sm_90"


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
