"""Tiles, grid, shared memory and registers of family ``gemv``, as functions of a config and a problem."""

from __future__ import annotations

from kernels.arch import unpacks_float8
from kernels.common import cuda
from kernels.gemv.config import Knobs
from kernels.gemv.shape import GemvShape
from tilewright.artifact import Grid, Workspace
from tilewright.schema.problem import GemmProblem


def tile_weight_rows(shape: GemvShape) -> int:
    """Rows of weights in a tile."""
    return 16 if shape.k_major else 8 * shape.vector


def tile_activation_rows(config: Knobs, shape: GemvShape) -> int:
    """Activation rows of a tile: all with mma; few with fma, whose lanes hold all their accumulators."""
    most = 16 if config.math == "mma" else 2 if shape.vector == 16 and not shape.k_major else 4
    return min(shape.activation_rows, most)


def stage_k(config: Knobs, shape: GemvShape) -> int:
    """k of a stage."""
    return config.steps * (4 * shape.vector if shape.k_major else 16)


def loads_in_flight(config: Knobs, shape: GemvShape) -> int:
    """16-byte loads of weights that a lane has in flight."""
    return config.stages * config.steps * (2 if shape.k_major else 4)


def grid(config: Knobs, shape: GemvShape) -> Grid:
    """One CTA a tile and split."""
    rows, few = tile_weight_rows(shape), tile_activation_rows(config, shape)
    return Grid(rows, few, config.split_k) if shape.weights == "a" else Grid(few, rows, config.split_k)


def workspace(config: Knobs, problem: GemmProblem) -> Workspace:
    """A counter and the partials of every split of a tile, of which every thread holds equally many."""
    tile = grid(config, GemvShape.of(problem))
    held = -(-tile.tile_m * tile.tile_n // config.threads) * config.threads
    return cuda.split_workspace(config.split_k, held, problem)


def smem_bytes(config: Knobs, problem: GemmProblem) -> int:
    """Static shared memory in bytes: the partials of every warp, with 4 words of padding a row."""
    shape = GemvShape.of(problem)
    row = (tile_weight_rows(shape) + 4) * cuda.accumulator_bytes(problem)
    return config.warps_k * tile_activation_rows(config, shape) * row


# Registers of a thread beside weights, activations and accumulators: addresses, predicates, fragments.
# NOTE: these numbers and those below were found by compiling.
_K_MAJOR_REGISTERS = 32
_MN_MAJOR_REGISTERS = 56
_FMA_REGISTERS = 60


def register_estimate(config: Knobs, problem: GemmProblem, arch: str) -> int:
    """The fewest registers that a thread needs; the compiler uses more if they are free."""
    shape = GemvShape.of(problem)
    loads = loads_in_flight(config, shape)
    # Unless the weights are K-major, and even more with fma, the compiler keeps some words twice.
    words = 7 if config.math == "fma" else 4 if shape.k_major else 5
    held = words * loads + (4 if shape.k_major else 2)
    math = (_mma_registers if config.math == "mma" else _fma_registers)(config, shape, problem)
    # Narrow loads are assembled in registers of their own, and so is one stage of transposed words.
    narrow = problem.stride_alignment(shape.weights) < 16
    permuted = config.math == "mma" and not shape.k_major
    moved = 4 * loads // config.stages if narrow or permuted else 0
    unpacked = 60 + 4 * loads if _unpacks(config, problem, arch) else 0
    gathered = 0 if _activations_k_major(problem, shape) else 16
    return held + math + moved + (40 if narrow else 0) + gathered + unpacked


def early_registers(config: Knobs, problem: GemmProblem, arch: str) -> int:
    """Registers that ``prefetch`` and ``release=loaded`` take beside the estimate."""
    if not config.prefetch and config.release == "started":
        return 0
    if _unpacks(config, problem, arch) or config.stages > 2:
        return 16
    shape = GemvShape.of(problem)
    few = config.math == "mma" and tile_activation_rows(config, shape) <= 8
    return 4 if few else 8


def _unpacks(config: Knobs, problem: GemmProblem, arch: str) -> bool:
    """Whether 8-bit floats become float16 before the multiplication, as they must on some architectures."""
    return config.math == "mma" and problem.dtype in cuda.FLOAT8 and unpacks_float8(arch)


def _activations_k_major(problem: GemmProblem, shape: GemvShape) -> bool:
    layout = problem.layout
    return layout.b_transposed if shape.activations == "b" else not layout.a_transposed


def _mma_registers(config: Knobs, shape: GemvShape, _problem: GemmProblem) -> int:
    columns = -(-tile_activation_rows(config, shape) // 8)
    activations = min(4, config.steps * columns) * (4 if shape.k_major else 2)
    accumulators = 8 if shape.k_major else 16 * columns
    return accumulators + activations + (_K_MAJOR_REGISTERS if shape.k_major else _MN_MAJOR_REGISTERS)


def _fma_registers(config: Knobs, shape: GemvShape, problem: GemmProblem) -> int:
    words, rows = cuda.accumulator_bytes(problem) // 4, tile_activation_rows(config, shape)
    activations = rows * ((4 if shape.k_major else problem.dtype.size) + 2 + words)
    accumulators = rows * words * (2 if shape.k_major else shape.vector)
    return accumulators * 3 // 2 + activations + _FMA_REGISTERS
