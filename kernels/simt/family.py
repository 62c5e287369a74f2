"""Family ``simt``: ordinary FMA units, any type, layout, alignment and size (``kernels/simt/kernel.cu``)."""

from __future__ import annotations

from kernels.base.family import Rule
from kernels.common import cuda
from kernels.simt.config import Knobs, register_estimate, smem_bytes
from tilewright.artifact import Grid, Preconditions, Workspace
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import DType, GemmProblem

_THREADS = ("tile_m", "tile_n", "thread_m", "thread_n")
_SHORT_K, _FEW_ELEMENTS, _DIRECT_TILE_K = 32, 2**17, 8
# tile_m, tile_n, thread_m, thread_n of configs without shared memory
_DIRECT = (
    (1, 128, 1, 1), (1, 32, 1, 1), (128, 1, 1, 1), (32, 1, 1, 1),
    (16, 64, 4, 1), (64, 16, 1, 4), (16, 16, 4, 2), (16, 16, 1, 1),
)  # fmt: skip


def is_tiny(problem: GemmProblem) -> bool:
    """Whether a launch takes longer than its loads and products, so that the shortest kernel may win."""
    elements = problem.m * problem.n * problem.batch
    return problem.k <= _SHORT_K and elements <= _FEW_ELEMENTS


def _why_threads(c: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    vector = 16 // cuda.accumulator_bytes(p) if c.stages else 1
    if c.thread_m % vector or c.thread_n % vector:
        return f"thread_m and thread_n must be multiples of {vector} ({p.dtype} in 16-byte groups)"
    if c.tile_m % c.thread_m or c.tile_n % c.thread_n:
        return "thread_m must divide tile_m, and thread_n tile_n"
    if c.threads % 32 or not 32 <= c.threads <= 1024:
        return f"{c.threads} threads in a CTA; it needs 1 to 32 whole warps"
    return None


def _why_loads(c: Knobs, _p: GemmProblem, _d: DeviceSpec) -> str | None:
    if c.stages and (c.tile_m * c.tile_k % c.threads or c.tile_n * c.tile_k % c.threads):
        return f"{c.threads} threads cannot divide the elements of a stage evenly"
    return None


def _why_registers(c: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    return cuda.why_registers(register_estimate(c, p), c.threads)


def _why_smem(c: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    return cuda.why_smem(smem_bytes(c, p), d)


def _why_split(c: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    if c.split_k == 1:
        return None
    tiles = Grid(c.tile_m, c.tile_n).tiles(p) * p.batch
    if tiles * (c.split_k - 1) >= 4 * d.sm_count or p.k < 2 * c.split_k * c.tile_k:
        return "split-K pays only if the tiles leave SMs idle and k is long"
    return None


def _why_oversized(c: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    # NOTE: a tile of 16 x 16 with 32-bit accumulators has fewer threads than a warp.
    least_n = 32 if p.m <= 16 else 16
    if (c.tile_m > 16 and c.tile_m >= 2 * p.m) or (c.tile_n > least_n and c.tile_n >= 2 * p.n):
        return "more than half of the tile would lie outside D"
    if (c.tile_m == 1 < p.m) or (c.tile_n == 1 < p.n):
        return "a tile of one row or column pays only for a D of one"
    return None


def _why_direct(c: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if c.stages == 0 and not is_tiny(p):
        return f"stages=0 reads operands again for each element: it pays for few, and a k up to {_SHORT_K}"
    if c.stages == 0 and (c.thread_m * c.thread_n > 16 or c.tile_k != _DIRECT_TILE_K or c.split_k > 1):
        return (
            f"with stages=0 few elements a thread are fastest, and tile_k={_DIRECT_TILE_K} is as good as any"
        )
    return None


class Simt(cuda.CudaFamily[Knobs]):
    """Register-tiled GEMM on the FMA units."""

    name = "simt"
    doc = "ordinary FMA units: every type, layout, alignment and size; float32, and the fallback"
    entry = "simt"
    knobs_type = Knobs
    rules = (
        Rule((*_THREADS, "stages"), _why_threads),
        Rule((*_THREADS, "tile_k", "stages"), _why_loads),
        Rule((*_THREADS, "tile_k", "stages"), _why_registers, compiled=False),
        Rule(("tile_m", "tile_n", "tile_k", "stages"), _why_smem, compiled=False),
    )
    search_rules = (
        Rule(("tile_m", "tile_n"), _why_oversized),
        Rule(("tile_m", "tile_n", "tile_k", "split_k"), _why_split),
        Rule((*_THREADS, "tile_k", "stages", "split_k"), _why_direct),
    )
    smem_bytes = staticmethod(smem_bytes)

    def why_unsupported(self, problem: GemmProblem, device: DeviceSpec) -> str | None:
        """The reason no config computes the problem: float16 accumulation, which FMA units lack."""
        if problem.accumulate is DType.FLOAT16:
            return "simt accumulates in float32, float64 or int32, not float16"
        return cuda.why_unsupported(problem, device)

    def uses_tensor_cores(self, _config: Config) -> bool:
        """No config does."""
        return False

    def grid(self, k: Knobs, _problem: GemmProblem, _device: DeviceSpec) -> Grid:
        """One CTA a tile and split."""
        return _grid(k)

    def workspace(self, k: Knobs, problem: GemmProblem, _device: DeviceSpec) -> Workspace:
        """A counter and the partials of every split of a tile."""
        return cuda.split_workspace(k.split_k, k.tile_m * k.tile_n, problem)

    def preconditions(self, _k: Knobs, problem: GemmProblem) -> Preconditions:
        """Elements aligned to their size; nothing else is required."""
        return cuda.preconditions(problem, problem.dtype.size, problem.dtype.size)

    def heuristic_configs(self, problem: GemmProblem, device: DeviceSpec) -> list[Config]:
        """Valid configs to try first: nearly square tiles, ranked by wave efficiency and operand reuse."""
        thread = 8 if problem.dtype is not DType.FLOAT64 else 4
        shapes = [(128, 128, thread), (64, 64, 4), (128, 64, thread), (32, 32, 4), (16, 64, 4), (64, 16, 4)]
        configs = [Knobs(m, n, thread_m=t, thread_n=t) for m, n, t in shapes]
        valid = self.valid(configs, problem, device)
        valid.sort(key=lambda k: -cuda.wave_efficiency(problem, _grid(k), device) * min(k.tile_m, k.tile_n))
        direct = [
            Knobs(m, n, tm, tn, tile_k=_DIRECT_TILE_K, stages=0)
            for m, n, tm, tn in _DIRECT
            if is_tiny(problem)
        ]
        fits = [k for k in self.valid(direct, problem, device) if _why_oversized(k, problem, device) is None]
        return [self.config(k) for k in (*fits, *valid)]


def _grid(k: Knobs) -> Grid:
    return Grid(k.tile_m, k.tile_n, k.split_k)


SIMT = Simt()
