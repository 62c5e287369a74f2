"""Family ``simt``: ordinary FMA units, any type, layout, alignment and size (``csrc/simt.cu``)."""

from __future__ import annotations

import dataclasses

from kernels import cuda
from kernels.family import BuildSpec, Family, Knob, Rule
from kernels.raster import AXES
from tilewright.artifact import Grid, LaunchPlan, Serves, Workspace
from tilewright.config import Config
from tilewright.device import DeviceSpec
from tilewright.problem import DType, GemmProblem

# Registers of a thread beside the accumulators and the operands in flight.
_OTHER_REGISTERS = 44


@dataclasses.dataclass(slots=True)
class Knobs:
    """See :data:`KNOBS`."""

    tile_m: int
    tile_n: int
    thread_m: int
    thread_n: int
    tile_k: int
    stages: int
    split_k: int
    raster: str
    group: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return (self.tile_m // self.thread_m) * (self.tile_n // self.thread_n)


KNOBS = (
    Knob("tile_m", (16, 32, 64, 128), "rows of D a block computes"),
    Knob("tile_n", (16, 32, 64, 128), "columns of D a block computes"),
    Knob("thread_m", (2, 4, 8), "rows of D a thread computes"),
    Knob("thread_n", (2, 4, 8), "columns of D a thread computes"),
    Knob("tile_k", (8, 16, 32), "k of one stage"),
    Knob("stages", (1, 2), "tiles in shared memory; 2 fetches ahead"),
    Knob("split_k", (1, 2, 4, 8, 16), "blocks that share a tile"),
    Knob("raster", AXES, "axis along which groups of tiles are laid"),
    Knob("group", (1, 4, 8), "tiles of a block-swizzle group"),
)


def smem_bytes(knobs: Knobs, problem: GemmProblem) -> int:
    """Dynamic shared memory: both tiles, transposed to k rows, one 16-byte group of padding a row."""
    padding = 2 * (16 // cuda.real_bytes(problem))
    return knobs.stages * knobs.tile_k * (knobs.tile_m + knobs.tile_n + padding) * cuda.real_bytes(problem)


def register_estimate(knobs: Knobs, problem: GemmProblem) -> int:
    """Registers a thread needs, within a few."""
    words = cuda.real_bytes(problem) // 4
    fetched = (knobs.tile_m + knobs.tile_n) * knobs.tile_k // knobs.threads
    values = knobs.thread_m * knobs.thread_n + 2 * (knobs.thread_m + knobs.thread_n) + fetched
    return values * words + _OTHER_REGISTERS


def _why_threads(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    vector = 16 // cuda.real_bytes(p)
    if k.thread_m % vector or k.thread_n % vector:
        return f"thread_m and thread_n must be multiples of {vector} ({p.dtype} in 16-byte groups)"
    if k.threads % 32 or not 32 <= k.threads <= 1024:
        return f"{k.threads} threads in a block; it needs 1 to 32 whole warps"
    return None


def _why_loads(k: Knobs, _p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.tile_m * k.tile_k % k.threads or k.tile_n * k.tile_k % k.threads:
        return f"{k.threads} threads cannot share the elements of a stage evenly"
    return None


def _why_registers(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    return cuda.why_registers(register_estimate(k, p), k.threads)


def _why_smem(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    return cuda.why_smem(smem_bytes(k, p), d)


def _why_split(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    if k.split_k == 1:
        return None
    tiles = Grid(k.tile_m, k.tile_n).tiles(p) * p.batch
    if tiles * (k.split_k - 1) >= 4 * d.units or p.k < 2 * k.split_k * k.tile_k:
        return "split-K pays only where tiles leave multiprocessors idle and k is long"
    return None


def _why_oversized(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if (k.tile_m > 16 and k.tile_m >= 2 * p.m) or (k.tile_n > 16 and k.tile_n >= 2 * p.n):
        return "more than half of the tile would lie outside D"
    return None


class Simt(Family[Knobs]):
    """Register-tiled GEMM on the FMA units."""

    name = "simt"
    doc = "ordinary FMA units: every type, layout, alignment and size; the fallback and float64"
    device_kind = "cuda"
    knobs = KNOBS
    knobs_type = Knobs
    rules = (
        Rule(("tile_m", "tile_n", "thread_m", "thread_n"), _why_threads),
        Rule(("tile_m", "tile_n", "thread_m", "thread_n", "tile_k"), _why_loads),
        Rule(("tile_m", "tile_n", "thread_m", "thread_n", "tile_k"), _why_registers, compiled=False),
        Rule(("tile_m", "tile_n", "tile_k", "stages"), _why_smem, compiled=False),
    )
    search_rules = (
        Rule(("tile_m", "tile_n"), _why_oversized),
        Rule(("tile_m", "tile_n", "tile_k", "split_k"), _why_split),
    )

    def why_unsupported(self, problem: GemmProblem, device: DeviceSpec) -> str | None:
        """CUDA, and no float16 accumulation, which the FMA units do not have."""
        if problem.accumulate is DType.FLOAT16:
            return "simt accumulates in float32, float64 or int32, not float16"
        return cuda.why_unsupported(problem, device)

    def build_spec(self, config: Config, problem: GemmProblem, device: DeviceSpec) -> BuildSpec:
        """One compilation of ``simt.cu``."""
        k = self.knob_values(config)
        defines = cuda.gemm_defines(problem, _grid(k), k.raster, k.group)
        defines |= {name.upper(): getattr(k, name) for name in ("tile_k", "thread_m", "thread_n", "stages")}
        return cuda.build_spec("simt.cu", "simt", defines, device)

    def plan(self, config: Config, problem: GemmProblem, device: DeviceSpec) -> LaunchPlan:
        """One block a tile and split."""
        k = self.knob_values(config)
        partials = k.split_k * k.tile_m * k.tile_n * cuda.real_bytes(problem)
        return LaunchPlan(
            format="cubin",
            target=cuda.TARGETS[device.arch],
            entry="simt",
            block=(k.threads, 1, 1),
            grid=_grid(k),
            args=cuda.gemm_arguments(problem),
            serves=Serves.of(problem),
            dynamic_smem=smem_bytes(k, problem),
            workspace=Workspace(4, partials) if k.split_k > 1 else Workspace(),
            preconditions=cuda.preconditions(problem, problem.dtype.size, problem.dtype.size),
        )

    def picks(self, problem: GemmProblem, device: DeviceSpec) -> list[Config]:
        """Square-ish tiles, ranked by wave efficiency and operand reuse."""
        thread = 8 if problem.dtype is not DType.FLOAT64 else 4
        shapes = [(128, 128, thread), (64, 64, 4), (128, 64, thread), (32, 32, 4), (16, 64, 4), (64, 16, 4)]
        knobs = [Knobs(m, n, min(t, 8), min(t, 8), 16, 2, 1, "m", 1) for m, n, t in shapes]
        valid = [k for k in knobs if self.why_invalid(self.config(k), problem, device) is None]
        valid.sort(key=lambda k: -cuda.wave_efficiency(problem, _grid(k), device) * min(k.tile_m, k.tile_n))
        return [self.config(k) for k in valid]


def _grid(k: Knobs) -> Grid:
    return Grid(k.tile_m, k.tile_n, k.split_k)


SIMT = Simt()
