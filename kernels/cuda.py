"""What the CUDA families share: targets, the -D interface of ``csrc/config.cuh``, arguments, picks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from kernels.family import BuildSpec
from kernels.raster import RASTERS
from tilewright.artifact import Argument, Grid, Pointer, Preconditions, Scalar, ScalarKind
from tilewright.device import DeviceSpec
from tilewright.problem import Activation, DType, GemmProblem

TARGETS = {"sm_80": "sm_80", "sm_86": "sm_86", "sm_89": "sm_89", "sm_90": "sm_90a"}
MAX_EXTENT = 2**28 - 1  # a row of any type has less than 2 GiB
MIN_DRIVER = 13000
TMA_ALIGNMENT = 16  # bytes that TMA asks of addresses and row strides
FLOAT8 = (DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2)
_REGISTERS = 65536  # of a multiprocessor
_MOST_REGISTERS = 255  # of a thread

_TYPES = {
    DType.FLOAT16: "f16",
    DType.BFLOAT16: "bf16",
    DType.FLOAT32: "float",
    DType.FLOAT64: "double",
    DType.TFLOAT32: "tf32",
    DType.FLOAT8_E4M3FN: "e4m3",
    DType.FLOAT8_E5M2: "e5m2",
    DType.INT8: "s8",
    DType.UINT8: "u8",
    DType.INT4: "s4",
    DType.UINT4: "u4",
    DType.UINT1: "u1",
    DType.SIGN1: "sign1",
    DType.INT32: "int",
}
# Accumulators, alpha and beta as the kernels hold them: float16 sums leave the tensor cores as float32.
_REALS: dict[DType, ScalarKind] = {DType.FLOAT64: "float64", DType.INT32: "int32"}
_ACTIVATIONS = list(Activation)


def why_unsupported(problem: GemmProblem, device: DeviceSpec) -> str | None:
    """What keeps every CUDA family from a problem on a device."""
    if device.kind != "cuda":
        return f"needs an NVIDIA GPU, {device.name} is a {device.kind} device"
    if device.arch not in TARGETS:
        return f"no kernels for {device.arch}; supported are {', '.join(TARGETS)}"
    if max(problem.m, problem.n, problem.k) > MAX_EXTENT:
        return f"m, n and k must be at most {MAX_EXTENT}"
    if problem.batch > 65535:
        return "batch must be at most 65535"
    return None


def room_in_clusters(cluster: int, device: DeviceSpec) -> int:
    """Blocks, one a multiprocessor, that find room in clusters of so many: of an H200's 132 multiprocessors
    clusters of 4 or 8 fill 120."""
    return device.units if cluster <= 2 else device.units * 10 // 11


def why_no_room(cluster: int, device: DeviceSpec) -> str | None:
    """A cluster of so many blocks that the device has no place for."""
    most = min(8, max(2, room_in_clusters(8, device)))
    return f"a cluster has at most {most} blocks, got {cluster}" if cluster > most else None


def why_no_tma(problem: GemmProblem) -> str | None:
    """A row of A or B that TMA cannot describe."""
    for operand in ("a", "b"):
        if problem.stride_alignment(operand) < TMA_ALIGNMENT:
            return f"TMA needs rows of {operand} that are multiples of {TMA_ALIGNMENT} bytes: pad them"
    return None


def why_smem(used: int, device: DeviceSpec) -> str | None:
    """A block's ``used`` bytes of dynamic shared memory are within what the device allows."""
    if used > device.smem_per_block:
        return f"{used} bytes of shared memory, a block may use {device.smem_per_block}"
    return None


def why_registers(needed: int, threads: int, min_blocks: int | None = None) -> str | None:
    """A thread needs no more registers than a block of ``threads`` leaves it.

    Args:
        min_blocks: blocks that a multiprocessor must hold at once, in families where that is a knob.
    """
    limit = min(_MOST_REGISTERS, _REGISTERS // (threads * (min_blocks or 1)) // 8 * 8)
    if needed > limit:
        blocks = "" if min_blocks is None else f"{min_blocks} x "
        return f"about {needed} registers a thread, {blocks}{threads} threads leave {limit}"
    return None


def gemm_defines(
    problem: GemmProblem, grid: Grid, raster: str, group: int, snake: int = 0
) -> dict[str, int | str]:
    """The macros of ``csrc/config.cuh`` except TILE_K."""
    return {
        "IN_TYPE": _TYPES[problem.dtype],
        "OUT_TYPE": _TYPES[problem.out],
        "A_TRANSPOSED": int(problem.layout.a_transposed),
        "B_TRANSPOSED": int(problem.layout.b_transposed),
        "TILE_M": grid.tile_m,
        "TILE_N": grid.tile_n,
        "RASTER": RASTERS.index(raster),
        "RASTER_SNAKE": snake,
        "GROUP": group,
        "SPLIT_K": grid.split_k,
        "ALIGN_D": problem.stride_alignment("d"),
        "ACTIVATION": _ACTIVATIONS.index(problem.activation),
        "HAS_BIAS": int(problem.has_bias),
        "HAS_C": int(problem.has_c),
    }


def real_bytes(problem: GemmProblem) -> int:
    """Bytes of a sum outside of the tensor cores."""
    return 8 if problem.accumulate is DType.FLOAT64 else 4


def weights(problem: GemmProblem) -> Literal["a", "b"]:
    """The longer operand, read once where the other one has few rows; B where both are alike."""
    return "a" if problem.m > problem.n else "b"


def build_spec(source: str, entry: str, defines: Mapping[str, int | str], device: DeviceSpec) -> BuildSpec:
    """One compilation for the architecture of a device, its defines in a stable order."""
    return BuildSpec("cuda", source, TARGETS[device.arch], entry, tuple(sorted(defines.items())))


def gemm_arguments(problem: GemmProblem) -> tuple[Argument, ...]:
    """``GEMM_PARAMETERS`` of ``csrc/config.cuh``."""
    pointers = tuple(Pointer(name) for name in ("a", "b", "c", "d", "bias", "workspace"))
    sizes = tuple(Scalar(name, "int32") for name in ("m", "n", "k"))
    strides = tuple(
        Scalar(name, "int64")
        for name in ("lda", "ldb", "ldc", "ldd", "stride_a", "stride_b", "stride_c", "stride_d")
    )
    real = _REALS.get(problem.accumulate, "float32")
    return (*pointers, *sizes, *strides, Scalar("alpha", real), Scalar("beta", real))


def preconditions(problem: GemmProblem, align_a: int, align_b: int) -> Preconditions:
    """Alignment of the operands as the kernel was built for, the driver its compiler needs, and the extents
    that its arithmetic holds."""
    return Preconditions(align_a, align_b, problem.stride_alignment("d"), MIN_DRIVER, MAX_EXTENT)


def wave_efficiency(problem: GemmProblem, grid: Grid, device: DeviceSpec, blocks_per_unit: int = 1) -> float:
    """Useful share of the multiprocessor time, 0 .. 1: tile edges and the last wave are lost."""
    blocks = grid.tiles(problem) * grid.split_k * problem.batch
    slots = device.units * blocks_per_unit
    waves = -(-blocks // slots)
    covered = grid.tiles(problem) * grid.tile_m * grid.tile_n
    return problem.m * problem.n / covered * blocks / (waves * slots)
