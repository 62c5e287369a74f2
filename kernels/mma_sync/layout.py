"""Shared memory and registers of family ``mma_sync``, as functions of a config and a problem."""

from __future__ import annotations

from kernels.arch import unpacks_float8
from kernels.common import cuda, tiling
from kernels.common.smem import tile_bytes
from kernels.mma_sync.config import Knobs
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import DType, GemmProblem

ROW_ALIGNMENT = 16  # bytes of the widest copy
_STEP_BYTES = 32  # of a row of A that one k step multiplies

# Registers of a thread beside accumulators and fragments: addresses, bounds, loop state.
_OTHER_REGISTERS = 40

# From sm_90 on the assembler multiplies these types in a subroutine, which takes more registers; after sm_90
# uint1 too.
_CALLED = (DType.INT4, DType.UINT4, DType.SIGN1)
_CALL_REGISTERS = 20


def step_k(problem: GemmProblem) -> int:
    """Elements of k that one k step multiplies."""
    return 8 * _STEP_BYTES // problem.dtype.bits


def repacks(config: Knobs, problem: GemmProblem, operand: str) -> bool:
    """Whether a launch before copies an operand to rows that are multiples of 16 bytes."""
    return bool(config.repack) and problem.stride_alignment(operand) < ROW_ALIGNMENT


def copy_bytes(config: Knobs, problem: GemmProblem, operand: str) -> int:
    """Bytes of a global access to operand ``a`` or ``b``."""
    if repacks(config, problem, operand):
        return config.copy_bytes
    return tiling.copy_bytes(config, problem, operand)


def smem_bytes(config: Knobs, problem: GemmProblem) -> int:
    """Dynamic shared memory: the stages, which the reduction over warps_k and the epilogue reuse."""
    stage = sum(tile_bytes(config.smem_layout, *tile) for tile in tiling.operand_tiles(config, problem))
    elements = config.tile_m * config.tile_n
    reduction = elements * cuda.accumulator_bytes(problem) if config.warps_k > 1 else 0
    staged = elements * problem.out.size if config.epilogue == "smem" else 0
    return max(config.stages * stage, reduction, staged)


def register_estimate(config: Knobs) -> int:
    """Registers that a thread needs, within a few: accumulators, fragments, everything else."""
    bits = {"f16": 16, "f64": 64}.get(config.accumulate, 32)
    accumulators = config.warp_m * config.warp_n * bits // 1024
    fragments = (1 + config.double_buffer) * (config.warp_m + config.warp_n) // 4
    return accumulators + fragments + _OTHER_REGISTERS


def emulation_registers(config: Knobs, problem: GemmProblem, device: DeviceSpec) -> int:
    """Additional registers on devices that unpack a type (8-bit floats) or multiply it in a subroutine."""
    if problem.dtype in cuda.FLOAT8:
        return (config.warp_m + config.warp_n) // 2 if unpacks_float8(device.arch) else 0
    if problem.dtype is DType.UINT1:
        return _CALL_REGISTERS if device.compute_capability >= (10, 0) else 0
    return _CALL_REGISTERS if problem.dtype in _CALLED and device.compute_capability >= (9, 0) else 0
