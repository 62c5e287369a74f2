"""Family ``mma_sync``: tensor cores through mma.sync, sm_80 and later (``csrc/mma_sync.cu``)."""

from __future__ import annotations

import dataclasses

from kernels import cuda, tiling
from kernels.families.mma_sync_knobs import (
    ACCUMULATES,
    EPILOGUES,
    FRAGMENT_LOADS,
    KNOBS,
    SUMS,
    Knobs,
    smem_bytes,
)
from kernels.families.mma_sync_rules import RULES, SEARCH_RULES
from kernels.family import BuildSpec, Family
from kernels.outline import Outline
from kernels.smem_layout import LAYOUTS
from tilewright.artifact import Grid, LaunchPlan, Serves, Workspace
from tilewright.config import Config
from tilewright.device import DeviceSpec
from tilewright.problem import DType, GemmProblem


class MmaSync(Family[Knobs]):
    """cp.async into a ring of shared-memory stages, then mma.sync."""

    name = "mma_sync"
    doc = (
        "tensor cores through mma.sync: sm_80 and later, every type but float32, layouts nt and nn "
        "(types of 8 bits and fewer nt only), any size"
    )
    device_kind = "cuda"
    knobs = KNOBS
    knobs_type = Knobs
    rules = RULES
    search_rules = SEARCH_RULES

    def why_unsupported(self, problem: GemmProblem, device: DeviceSpec) -> str | None:
        """CUDA, a type that the architecture's tensor cores multiply, A stored M x K."""
        return _why_type(problem, device) or _why_layout(problem) or cuda.why_unsupported(problem, device)

    def build_spec(self, config: Config, problem: GemmProblem, device: DeviceSpec) -> BuildSpec:
        """One compilation of ``mma_sync.cu``."""
        k = self.knob_values(config)
        defines = cuda.gemm_defines(problem, tiling.grid(k), k.raster, k.group)
        defines |= {name.upper(): getattr(k, name) for name in ("tile_k", "warps_m", "warps_n", "warps_k")}
        defines |= {name.upper(): getattr(k, name) for name in ("stages", "mma_k", "double_buffer", "snake")}
        defines |= {
            "FRAGMENT_LOAD": FRAGMENT_LOADS.index(k.fragment_load),
            "SMEM_LAYOUT": LAYOUTS.index(k.smem_layout),
            "ACCUMULATE": ACCUMULATES[k.accumulate],
            "EPILOGUE": EPILOGUES.index(k.epilogue),
            "COPY_A": tiling.copy_bytes(k, problem, "a"),
            "COPY_B": tiling.copy_bytes(k, problem, "b"),
            "MIN_BLOCKS": k.min_blocks,
        }
        return cuda.build_spec("mma_sync.cu", "mma_sync", defines, device)

    def plan(self, config: Config, problem: GemmProblem, device: DeviceSpec) -> LaunchPlan:
        """Blocks of all warps, one a tile and split."""
        k = self.knob_values(config)
        partials = k.split_k * k.tile_m * k.tile_n * cuda.real_bytes(problem)
        return LaunchPlan(
            format="cubin",
            target=cuda.TARGETS[device.arch],
            entry="mma_sync",
            block=(k.threads, 1, 1),
            grid=tiling.grid(k),
            args=cuda.gemm_arguments(problem),
            serves=Serves.of(problem),
            dynamic_smem=smem_bytes(k, problem),
            programmatic=device.arch == "sm_90",
            workspace=Workspace(4, partials) if k.split_k > 1 else Workspace(),
            preconditions=cuda.preconditions(
                problem, tiling.copy_bytes(k, problem, "a"), tiling.copy_bytes(k, problem, "b")
            ),
        )

    def picks(self, problem: GemmProblem, device: DeviceSpec) -> list[Config]:
        """Shapes that do well elsewhere, ranked by wave efficiency and operand reuse."""
        candidates = [_pick(problem, device, *shape) for shape in _SHAPES]
        valid = [k for k in candidates if self.why_invalid(self.config(k), problem, device) is None]
        valid.sort(key=lambda k: -tiling.promise(k, problem, device))
        return [self.config(k) for k in valid[:8]]

    def imitations(self, outline: Outline, problem: GemmProblem, device: DeviceSpec) -> list[Config]:
        """The tile as told, each warp with 64 x 64 of it at most; none of a kernel with clusters, which
        multiplies by wgmma."""
        if outline.cluster:
            return []
        depth = (outline.tile_k or _DEPTH) * problem.dtype.bits // 16
        warps = (_warps(outline.tile_m), _warps(outline.tile_n))
        shape = (outline.tile_m, outline.tile_n, depth, *warps, outline.stages or _STAGES)
        k = dataclasses.replace(_pick(problem, device, *shape), split_k=outline.split_k)
        config = self.config(k)
        return [config] if self.why_invalid(config, problem, device) is None else []


def _why_type(problem: GemmProblem, device: DeviceSpec) -> str | None:
    if problem.dtype is DType.FLOAT32:
        return "mma_sync has no float32: tensor cores round it to tfloat32, which a problem asks for by name"
    if problem.dtype in cuda.FLOAT8 and device.kind == "cuda" and device.compute_capability < (8, 9):
        return f"mma_sync multiplies {problem.dtype} from sm_89 on, not on {device.arch}"
    return None


def _why_layout(problem: GemmProblem) -> str | None:
    if problem.layout.a_transposed:
        return f"mma_sync reads A as M x K: layouts nt and nn, not {problem.layout}"
    if problem.dtype.size == 1 and not problem.layout.b_transposed:
        return (
            f"mma_sync reads {problem.dtype} B as N x K (layout nt), not {problem.layout}: "
            "ldmatrix transposes 16-bit elements only"
        )
    return None


# tile_m, tile_n, tile_k of 16-bit elements, warps_m, warps_n, stages
_SHAPES = (
    (128, 256, 32, 2, 4, 4),
    (256, 128, 32, 4, 2, 4),
    (128, 128, 32, 2, 2, 4),
    (128, 128, 64, 2, 2, 3),
    (128, 128, 64, 4, 2, 3),
    (128, 256, 64, 2, 4, 3),
    (256, 128, 64, 4, 2, 3),
    (128, 64, 64, 2, 2, 3),
    (64, 128, 64, 2, 2, 4),
    (64, 64, 64, 2, 2, 4),
    (32, 128, 64, 1, 4, 4),
    (32, 64, 64, 1, 2, 5),
    (16, 128, 64, 1, 4, 5),
    (16, 64, 64, 1, 2, 5),
)


_DEPTH, _STAGES = 32, 3  # where an outline tells nothing of them


def _warps(tile: int) -> int:
    """Warps along an axis of a tile: 64 elements each, or 32 where that leaves one warp."""
    return max(1, tile // (64 if tile >= 128 else 32))


def _pick(problem: GemmProblem, device: DeviceSpec, *shape: int) -> Knobs:
    tile_m, tile_n, depth, warps_m, warps_n, stages = shape
    tile_k = depth * 16 // problem.dtype.bits
    tiles = Grid(tile_m, tile_n).tiles(problem) * problem.batch
    fills = [s for s in (1, 2, 4, 8) if tiles * s <= device.units and problem.k >= 4 * s * tile_k]
    return Knobs(
        tile_m=tile_m,
        tile_n=tile_n,
        warps_m=warps_m,
        warps_n=warps_n,
        tile_k=tile_k,
        warps_k=1,
        stages=stages,
        smem_layout="xor",
        fragment_load="direct" if problem.dtype is DType.FLOAT64 else "ldmatrix",
        double_buffer=1,
        mma_k=16,
        accumulate=SUMS[problem.accumulate],
        epilogue="smem",
        min_blocks=1,
        copy_bytes=16,
        snake=1,
        split_k=fills[-1] if fills else 1,
        raster="m",
        group=8 if -(-problem.m // tile_m) >= 8 else 1,
    )


MMA_SYNC = MmaSync()
