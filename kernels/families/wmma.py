"""Family ``wmma``: 16 x 16 x 16 products of opaque fragments, sm_80 and later (``csrc/wmma.cu``)."""

from __future__ import annotations

import dataclasses

from kernels import cuda, tiling
from kernels.family import BuildSpec, Family, Knob, Rule
from kernels.raster import AXES
from kernels.smem_layout import tile_bytes
from tilewright.artifact import Grid, LaunchPlan, Serves, Workspace
from tilewright.config import Config
from tilewright.device import DeviceSpec
from tilewright.problem import DType, GemmProblem

# The rows of a fragment are evenly spaced, so swizzled layouts are out.
LAYOUTS = ("blocked", "padded")
ACCUMULATES = ("f32", "f16")
PADDING = 8  # elements after each row of the staged sums

# Registers of a thread beside accumulators and fragments: addresses, bounds, loop state. With 36, warps of
# 32 x 64 fit 512 threads and warps of 16 x 32 fit 1024: the most that NVRTC 13.0 compiles without spills.
_OTHER_REGISTERS = 36


@dataclasses.dataclass(slots=True)
class Knobs:
    """See :data:`KNOBS`."""

    tile_m: int
    tile_n: int
    warps_m: int
    warps_n: int
    tile_k: int
    stages: int
    smem_layout: str
    accumulate: str
    copy_bytes: int
    snake: int
    split_k: int
    raster: str
    group: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps_m * self.warps_n

    @property
    def warp_m(self) -> int:
        """Rows of D that a warp computes."""
        return self.tile_m // self.warps_m

    @property
    def warp_n(self) -> int:
        """Columns of D that a warp computes."""
        return self.tile_n // self.warps_n


KNOBS = (
    Knob("tile_m", (16, 32, 64, 96, 128, 192, 256), "rows of D a block computes", (16, 32, 64, 128, 256)),
    Knob("tile_n", (16, 32, 64, 96, 128, 192, 256), "columns of D a block computes", (32, 64, 128, 256)),
    Knob("warps_m", (1, 2, 4, 8), "warps along m", (1, 2, 4)),
    Knob("warps_n", (1, 2, 4, 8), "warps along n", (1, 2, 4)),
    Knob("tile_k", (16, 32, 64, 128), "k of one stage", (32, 64)),
    Knob("stages", (1, 2, 3, 4, 5, 6), "k tiles in shared memory; 1 loads synchronously", (2, 3, 4)),
    Knob("smem_layout", LAYOUTS, "arrangement of tiles and staged sums in shared memory"),
    Knob("accumulate", ACCUMULATES, "type of the running sum"),
    Knob("copy_bytes", (2, 4, 8, 16), "global access of a thread", (16,)),
    Knob("snake", (0, 1), "odd rows of wmma tiles run backwards through n"),
    Knob("split_k", (1, 2, 3, 4, 6, 8, 12, 16, 32), "blocks that share a tile", (1, 2, 4, 8)),
    Knob("raster", AXES, "axis along which groups of tiles are laid"),
    Knob("group", (1, 2, 4, 8, 16), "tiles of a block-swizzle group", (1, 4, 8)),
)


def smem_bytes(knobs: Knobs, problem: GemmProblem) -> int:
    """Dynamic shared memory: the stages, reused by the sums on their way to D."""
    stage = sum(tile_bytes(knobs.smem_layout, *tile) for tile in tiling.operand_tiles(knobs, problem))
    row = knobs.tile_n + (PADDING if knobs.smem_layout == "padded" else 0)
    sums = knobs.tile_m * row * (2 if knobs.accumulate == "f16" else 4)
    return max(knobs.stages * stage, sums)


def register_estimate(knobs: Knobs) -> int:
    """Registers a thread cannot do without: accumulators, fragments of one k step, everything else.

    Where registers are free the compiler takes up to 80 more.
    """
    accumulators = knobs.warp_m * knobs.warp_n // (64 if knobs.accumulate == "f16" else 32)
    return accumulators + (knobs.warp_m + knobs.warp_n) // 4 + _OTHER_REGISTERS


def _why_shares(k: Knobs, _p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.tile_m % (16 * k.warps_m):
        return f"tile_m must be a multiple of 16 * warps_m = {16 * k.warps_m}"
    if k.tile_n % (16 * k.warps_n):
        return f"tile_n must be a multiple of 16 * warps_n = {16 * k.warps_n}"
    if k.threads > 1024:
        return f"{k.threads} threads in a block, at most 1024"
    return None


def _why_accumulate(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.accumulate != ("f16" if p.accumulate is DType.FLOAT16 else "f32"):
        return f"accumulate={k.accumulate} does not sum in {p.accumulate}"
    return None


def _why_registers(k: Knobs, _p: GemmProblem, _d: DeviceSpec) -> str | None:
    return cuda.why_registers(register_estimate(k), k.threads)


def _why_smem(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    return cuda.why_smem(smem_bytes(k, p), d)


def _why_odd_warps(k: Knobs, _p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.warp_m > 64 or k.warp_n > 64:
        return "warp tiles beyond 64 x 64 spill"
    if k.warp_m * k.warp_n < min(1024, k.tile_m * k.tile_n // 2):
        return "warp tiles this small load more than they multiply"
    if k.threads < 64:
        return "a block needs two warps to hide latency"
    return None


class Wmma(Family[Knobs]):
    """Loads of whole tiles, then wmma; D through shared memory."""

    name = "wmma"
    doc = "tensor cores through wmma 16x16x16: sm_80 and later, f16 and bf16, layouts nt and nn, any size"
    device_kind = "cuda"
    knobs = KNOBS
    knobs_type = Knobs
    rules = (
        Rule(("tile_m", "tile_n", "warps_m", "warps_n"), _why_shares),
        Rule(("tile_m", "tile_n", "tile_k", "warps_m", "warps_n"), tiling.why_copies),
        Rule(("accumulate",), _why_accumulate, compiled=False),
        Rule(
            ("tile_m", "tile_n", "warps_m", "warps_n", "accumulate"),
            _why_registers,
            compiled=False,
        ),
        Rule(
            ("tile_m", "tile_n", "tile_k", "stages", "smem_layout", "accumulate"), _why_smem, compiled=False
        ),
    )
    search_rules = (
        Rule(("tile_m", "tile_n"), tiling.why_oversized),
        Rule(("tile_m", "tile_n", "warps_m", "warps_n"), _why_odd_warps),
        Rule(("tile_m", "tile_n", "tile_k", "split_k"), tiling.why_split),
        Rule(("tile_m", "tile_n", "raster", "group"), tiling.why_group),
    )

    def why_unsupported(self, problem: GemmProblem, device: DeviceSpec) -> str | None:
        """CUDA, f16 or bf16, A stored M x K."""
        if problem.dtype not in (DType.FLOAT16, DType.BFLOAT16):
            return f"wmma multiplies float16 and bfloat16, not {problem.dtype}"
        if problem.layout.a_transposed:
            return f"wmma reads A as M x K: layouts nt and nn, not {problem.layout}"
        return cuda.why_unsupported(problem, device)

    def build_spec(self, config: Config, problem: GemmProblem, device: DeviceSpec) -> BuildSpec:
        """One compilation of ``wmma.cu``."""
        k = self.knob_values(config)
        defines = cuda.gemm_defines(problem, tiling.grid(k), k.raster, k.group)
        defines |= {
            name.upper(): getattr(k, name) for name in ("tile_k", "warps_m", "warps_n", "stages", "snake")
        }
        defines |= {
            "SMEM_LAYOUT": LAYOUTS.index(k.smem_layout),
            "ACCUMULATE": ACCUMULATES.index(k.accumulate),
            "COPY_A": tiling.copy_bytes(k, problem, "a"),
            "COPY_B": tiling.copy_bytes(k, problem, "b"),
        }
        return cuda.build_spec("wmma.cu", "wmma", defines, device)

    def plan(self, config: Config, problem: GemmProblem, device: DeviceSpec) -> LaunchPlan:
        """Blocks of all warps, one a tile and split."""
        k = self.knob_values(config)
        partials = k.split_k * k.tile_m * k.tile_n * 4
        aligned = tiling.copy_bytes(k, problem, "a"), tiling.copy_bytes(k, problem, "b")
        return LaunchPlan(
            format="cubin",
            target=cuda.TARGETS[device.arch],
            entry="wmma",
            block=(k.threads, 1, 1),
            grid=tiling.grid(k),
            args=cuda.gemm_arguments(problem),
            serves=Serves.of(problem),
            dynamic_smem=smem_bytes(k, problem),
            workspace=Workspace(4, partials) if k.split_k > 1 else Workspace(),
            preconditions=cuda.preconditions(problem, *aligned),
        )

    def picks(self, problem: GemmProblem, device: DeviceSpec) -> list[Config]:
        """The tiles of the seed and their neighbours, ranked by wave efficiency and operand reuse."""
        candidates = [_pick(problem, device, *shape) for shape in _SHAPES]
        valid = [k for k in candidates if self.why_invalid(self.config(k), problem, device) is None]
        valid.sort(key=lambda k: -tiling.promise(k, problem, device))
        return [self.config(k) for k in valid[:4]]


# tile_m, tile_n, tile_k, warps_m, warps_n, stages
_SHAPES = (
    (128, 128, 32, 2, 2, 4),
    (128, 256, 32, 2, 4, 3),
    (256, 128, 32, 4, 2, 3),
    (128, 64, 32, 2, 2, 4),
    (64, 128, 32, 2, 2, 4),
    (64, 64, 64, 2, 2, 3),
    (32, 128, 64, 1, 4, 3),
    (32, 64, 64, 1, 2, 4),
    (16, 64, 64, 1, 2, 4),
)


def _pick(problem: GemmProblem, device: DeviceSpec, *shape: int) -> Knobs:
    tile_m, tile_n, tile_k, warps_m, warps_n, stages = shape
    tiles = Grid(tile_m, tile_n).tiles(problem) * problem.batch
    fills = [s for s in (1, 2, 4, 8) if tiles * s <= device.units and problem.k >= 4 * s * tile_k]
    return Knobs(
        tile_m=tile_m,
        tile_n=tile_n,
        warps_m=warps_m,
        warps_n=warps_n,
        tile_k=tile_k,
        stages=stages,
        smem_layout="padded",
        accumulate="f16" if problem.accumulate is DType.FLOAT16 else "f32",
        copy_bytes=16,
        snake=1,
        split_k=fills[-1] if fills else 1,
        raster="m",
        group=8 if -(-problem.m // tile_m) >= 8 else 1,
    )


WMMA = Wmma()
