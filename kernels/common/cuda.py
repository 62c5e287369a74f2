"""``CudaFamily``, the base of the CUDA families: targets, ``-D`` macros of ``kernels/common/config.cuh``,
arguments, budgets."""

from __future__ import annotations

import abc
from typing import Any, Literal, cast

from kernels.arch import ARCHS, compiled_for
from kernels.base.family import Family, K
from kernels.base.knobs import defines
from kernels.base.spec import BuildSpec
from tilewright.artifact import (
    Argument,
    Grid,
    LaunchPlan,
    Pointer,
    Preconditions,
    Scalar,
    ScalarKind,
    Serves,
    Workspace,
)
from tilewright.errors import DeviceUnavailable
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import Activation, DType, GemmProblem

# NOTE: a row of any type has less than 2 GiB, and so has what a loop over it counts in 32 bits:
# repack_row() of kernels/common/repack.cuh goes 2 KiB beyond the end of the row.
MAX_EXTENT = 2**28 - 2**10
MIN_DRIVER = 13000
TMA_ALIGNMENT = 16  # bytes of addresses and row strides
FLOAT8 = (DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2)
SPLIT_FLAG_BYTES = 128  # static shared memory of split_k.cuh, before dynamic memory at a multiple of 128
_REGISTERS = 65536  # of an SM
_FILLED_BY_CLUSTERS = (120, 132)  # SMs of an H200 that clusters of 4 or 8 fill, and all of them
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
# Types of alpha, beta and the accumulators outside the tensor cores, where those are not float32.
_ACCUMULATORS: dict[DType, ScalarKind] = {DType.FLOAT64: "float64", DType.INT32: "int32"}
_ACTIVATIONS = list(Activation)
RASTER_AXES = ("m", "n")
# For families without these knobs: tiles in order along m, no splits.
_RASTER_MACROS: dict[str, int | str] = {"RASTER": 0, "RASTER_SNAKE": 0, "SWIZZLE_SIZE": 1, "SPLIT_K": 1}


def why_unsupported(problem: GemmProblem, device: DeviceSpec) -> str | None:
    """The reason why no CUDA family computes ``problem`` on ``device``, or None."""
    if device.kind != "cuda":
        return f"needs an NVIDIA GPU, {device.name} is a {device.kind} device"
    if compiled_for(device.arch) is None:
        return _why_no_target(device.arch)
    if max(problem.m, problem.n, problem.k) > MAX_EXTENT:
        return f"m, n and k must be at most {MAX_EXTENT}"
    if problem.batch > 65535:
        return "batch must be at most 65535"
    return None


def target_of(arch: str) -> str:
    """What NVRTC compiles for a GPU of this architecture.

    A GPU of a later minor version runs the cubins of the latest one before it, of the same major version.

    Raises:
        DeviceUnavailable: there are no kernels for it.
    """
    found = compiled_for(arch)
    if found is None:
        raise DeviceUnavailable(_why_no_target(arch))
    return found.target


def _why_no_target(arch: str) -> str:
    return f"no kernels for {arch}; use one of {', '.join(ARCHS)}"


def room_in_clusters(cluster: int, device: DeviceSpec) -> int:
    """The number of CTAs, one for each SM, that run at once in clusters of this size."""
    filled, of_all = _FILLED_BY_CLUSTERS
    return device.sm_count if cluster <= 2 else device.sm_count * filled // of_all


def why_no_room(cluster: int, device: DeviceSpec) -> str | None:
    """The reason why no cluster of this size fits the device, or None."""
    most = min(8, max(2, room_in_clusters(8, device)))
    return f"a cluster has at most {most} CTAs, got {cluster}" if cluster > most else None


def why_no_tma(problem: GemmProblem) -> str | None:
    """The reason why TMA cannot describe the rows of A or B, or None."""
    for operand in ("a", "b"):
        if problem.stride_alignment(operand) < TMA_ALIGNMENT:
            return f"TMA needs rows of {operand} that are multiples of {TMA_ALIGNMENT} bytes: pad them"
    return None


def why_smem(used: int, device: DeviceSpec) -> str | None:
    """The reason why a CTA cannot have ``used`` bytes of dynamic shared memory, or None."""
    if used > device.smem_per_block:
        return f"{used} bytes of shared memory, a CTA may use {device.smem_per_block}"
    return None


def why_no_split_flag(used: int, split_k: int, device: DeviceSpec) -> str | None:
    """The reason why a CTA that splits k cannot have ``used`` bytes of dynamic shared memory, or None: the
    flag that tells it that it is the last of its tile is static, and counts too."""
    return why_smem(used + SPLIT_FLAG_BYTES, device) if split_k > 1 else None


def why_registers(needed: int, threads: int, min_ctas: int | None = None) -> str | None:
    """The reason why ``threads`` threads cannot have ``needed`` registers each, or None.

    Args:
        min_ctas: CTAs that an SM must hold at once, in families with that knob.
    """
    limit = min(_MOST_REGISTERS, _REGISTERS // (threads * (min_ctas or 1)) // 8 * 8)
    if needed > limit:
        ctas = "" if min_ctas is None else f"{min_ctas} x "
        return f"about {needed} registers a thread, {ctas}{threads} threads leave {limit}"
    return None


def problem_macros(problem: GemmProblem) -> dict[str, int | str]:
    """The macros of ``kernels/common/config.cuh`` that follow from the problem alone."""
    return {
        "IN_TYPE": _TYPES[problem.dtype],
        "OUT_TYPE": _TYPES[problem.out],
        "A_TRANSPOSED": int(problem.layout.a_transposed),
        "B_TRANSPOSED": int(problem.layout.b_transposed),
        "ALIGN_D": problem.stride_alignment("d"),
        "ACTIVATION": _ACTIVATIONS.index(problem.activation),
        "HAS_BIAS": int(problem.has_bias),
        "HAS_C": int(problem.has_c),
    }


def accumulator_bytes(problem: GemmProblem) -> int:
    """Bytes of an accumulator outside the tensor cores."""
    return 8 if problem.accumulate is DType.FLOAT64 else 4


def split_workspace(split_k: int, tile_elements: int, problem: GemmProblem) -> Workspace:
    """A counter and the partials of every split, for each tile; empty without splits."""
    partials = split_k * tile_elements * accumulator_bytes(problem)
    return Workspace(4, partials) if split_k > 1 else Workspace()


def weights(problem: GemmProblem) -> Literal["a", "b"]:
    """The operand that covers the longer axis of D, which a GEMV reads once; B if m equals n."""
    return "a" if problem.m > problem.n else "b"


def gemm_arguments(problem: GemmProblem) -> tuple[Argument, ...]:
    """``GEMM_PARAMETERS`` of ``kernels/common/config.cuh``."""
    pointers = tuple(Pointer(name) for name in ("a", "b", "c", "d", "bias", "workspace"))
    sizes = tuple(Scalar(name, "int32") for name in ("m", "n", "k"))
    strides = tuple(
        Scalar(name, "int64")
        for name in ("lda", "ldb", "ldc", "ldd", "stride_a", "stride_b", "stride_c", "stride_d")
    )
    kind = _ACCUMULATORS.get(problem.accumulate, "float32")
    return (*pointers, *sizes, *strides, Scalar("alpha", kind), Scalar("beta", kind))


def preconditions(problem: GemmProblem, align_a: int, align_b: int) -> Preconditions:
    """The alignment that the kernel was compiled for, the driver that it needs, and its largest extents."""
    return Preconditions(align_a, align_b, problem.stride_alignment("d"), MIN_DRIVER, MAX_EXTENT)


def wave_efficiency(problem: GemmProblem, grid: Grid, device: DeviceSpec) -> float:
    """Fraction of the SMs' time that computes D, 0 .. 1: tile edges and the last wave are lost."""
    ctas = grid.tiles(problem) * grid.split_k * problem.batch
    waves = -(-ctas // device.sm_count)
    covered = grid.tiles(problem) * grid.tile_m * grid.tile_n
    return problem.m * problem.n / covered * ctas / (waves * device.sm_count)


class CudaFamily(Family[K]):
    """A family of CUDA kernels: compiled by NVRTC with the macros of its knobs and of the problem.

    Subclasses give ``entry`` (the symbol of the kernel), ``overlaps`` (whether a launch may start before the
    previous launch has ended, on sm_90) and the hooks below; a hook receives the config as the family's own
    dataclass. The source is ``kernel.cu`` in the folder of the family's name.
    """

    device_kind = "cuda"
    entry: str
    overlaps = False

    def __init_subclass__(cls) -> None:
        """Derive the source."""
        super().__init_subclass__()
        cls.source = f"{cls.name}/kernel.cu"

    def build_spec(self, config: Config, problem: GemmProblem, device: DeviceSpec) -> BuildSpec:
        """One compilation of the family's source for the architecture of a device."""
        k = self.knob_values(config)
        macros = _RASTER_MACROS | problem_macros(problem) | defines(self.knobs, k)
        macros |= self.derived_macros(k, problem, device)
        return BuildSpec(
            self.language, self.source, target_of(device.arch), self.entry, tuple(sorted(macros.items()))
        )

    def plan(self, config: Config, problem: GemmProblem, device: DeviceSpec) -> LaunchPlan:
        """How to launch the compiled kernel."""
        k = self.knob_values(config)
        return LaunchPlan(
            format="cubin",
            target=target_of(device.arch),
            entry=self.entry,
            block=(self.threads(k), 1, 1),
            cluster=(self.cluster(k), 1, 1),
            grid=self.grid(k, problem, device),
            args=(*self.leading_arguments(k, problem), *gemm_arguments(problem)),
            serves=Serves.of(problem),
            dynamic_smem=self.smem_bytes(k, problem),
            programmatic=self.overlaps and device.arch == "sm_90",
            workspace=self.workspace(k, problem, device),
            preconditions=self.preconditions(k, problem),
        )

    @abc.abstractmethod
    def grid(self, k: K, problem: GemmProblem, device: DeviceSpec, /) -> Grid:
        """The CTAs of a launch."""

    def threads(self, k: K) -> int:
        """Threads of a CTA."""
        return int(cast(Any, k).threads)

    def cluster(self, _k: K) -> int:
        """CTAs of a cluster."""
        return 1

    def derived_macros(self, _k: K, _problem: GemmProblem, _device: DeviceSpec) -> dict[str, int | str]:
        """Macros that follow from knobs and problem together."""
        return {}

    def leading_arguments(self, _k: K, _problem: GemmProblem) -> tuple[Argument, ...]:
        """Arguments before those that all kernels take, such as tensor maps."""
        return ()

    def smem_bytes(self, _k: K, _problem: GemmProblem, /) -> int:
        """Dynamic shared memory of a CTA in bytes."""
        return 0

    def workspace(self, _k: K, _problem: GemmProblem, _device: DeviceSpec) -> Workspace:
        """Device memory for counters and partials."""
        return Workspace()

    @abc.abstractmethod
    def preconditions(self, k: K, problem: GemmProblem) -> Preconditions:
        """Alignment and extents that the compiled kernel relies on."""
