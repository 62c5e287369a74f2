"""Family ``wgmma``: TMA and wgmma in one role, sm_90a (``kernels/wgmma/kernel.cu``)."""

from __future__ import annotations

import itertools
from types import MappingProxyType

from kernels.base.tile_hint import TileHint
from kernels.common import cuda
from kernels.wgmma.config import Knobs, operand_tiles, smem_bytes
from kernels.wgmma.validity import RULES, SEARCH_RULES
from tilewright.artifact import Argument, Grid, Preconditions, TensorMap
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import DType, GemmProblem


class Wgmma(cuda.CudaFamily[Knobs]):
    """TMA into a ring of shared-memory stages, then wgmma by every warpgroup."""

    name = "wgmma"
    doc = "warpgroup tensor cores fed by TMA: sm_90, f16 and bf16, all layouts, rows of 16-byte multiples"
    entry = "wgmma_gemm"
    overlaps = True
    knobs_type = Knobs
    rules = RULES
    search_rules = SEARCH_RULES
    # NOTE: any value of the earlier knob l2_promotion is dropped: no result depends on it.
    removed = MappingProxyType({"in_flight": 1})
    smem_bytes = staticmethod(smem_bytes)

    def why_unsupported(self, problem: GemmProblem, device: DeviceSpec) -> str | None:
        """The reason no config computes the problem: not sm_90, not 16 bits, or rows that TMA lacks."""
        reason = cuda.why_unsupported(problem, device)
        if reason:
            return reason
        if device.arch != "sm_90":
            return f"wgmma exists on sm_90 alone, not on {device.arch}"
        if problem.dtype.size != 2:
            return f"wgmma multiplies float16 and bfloat16, not {problem.dtype}"
        return cuda.why_no_tma(problem)

    def grid(self, k: Knobs, _problem: GemmProblem, _device: DeviceSpec) -> Grid:
        """One CTA a tile."""
        return _grid(k)

    def derived_macros(self, _k: Knobs, problem: GemmProblem, _device: DeviceSpec) -> dict[str, int | str]:
        """The type of the accumulators."""
        return {"ACCUMULATE": int(problem.accumulate is DType.FLOAT16)}

    def leading_arguments(self, k: Knobs, problem: GemmProblem) -> tuple[Argument, ...]:
        """Tensor maps of A and B."""
        a, b = (
            tile.box if not k.box_lines else (k.box_lines, tile.panel) for tile in operand_tiles(k, problem)
        )
        return (TensorMap("a", a, promotion=128), TensorMap("b", b, promotion=128))

    def preconditions(self, _k: Knobs, problem: GemmProblem) -> Preconditions:
        """The alignment of A and B that TMA requires."""
        return cuda.preconditions(problem, cuda.TMA_ALIGNMENT, cuda.TMA_ALIGNMENT)

    def heuristic_configs(self, problem: GemmProblem, device: DeviceSpec) -> list[Config]:
        """Valid configs of tile shapes that are fast on other problems, the most promising one first."""
        candidates = [_filled(problem, *shape) for shape in _SHAPES]
        valid = self.valid(candidates, problem, device)
        valid.sort(key=lambda k: -_heuristic_score(k, problem, device))
        return [self.config(k) for k in valid[:8]]

    def configs_from_hint(self, hint: TileHint, problem: GemmProblem, device: DeviceSpec) -> list[Config]:
        """The config with the tile of a hint or its transpose and the most stages; none if it splits k."""
        if hint.split_k > 1:
            return []
        for tile in hint.variants[:2]:  # the others differ in clusters, which this family does not have
            shapes = itertools.product((1, 2, 3, 4), (64, 128), (2, 3, 4, 5, 6, 7, 8))
            candidates = [_filled(problem, tile.tile_m, tile.tile_n, *shape) for shape in shapes]
            valid = self.valid(candidates, problem, device)
            if valid:
                best = max(valid, key=lambda k: (k.tile_k == tile.tile_k, -abs(k.warpgroups - 2), k.stages))
                return [self.config(best)]
        return []


# tile_m, tile_n, warpgroups, tile_k, stages
_SHAPES = (
    (128, 256, 2, 64, 4),
    (256, 128, 2, 64, 4),
    (192, 160, 3, 64, 4),
    (128, 192, 2, 64, 4),
    (128, 128, 2, 64, 6),
    (128, 128, 1, 64, 3),
    (64, 256, 1, 64, 5),
    (128, 64, 1, 64, 4),
    (64, 128, 1, 64, 4),
    (64, 64, 1, 128, 6),
    (64, 32, 1, 128, 8),
)


def _filled(problem: GemmProblem, *shape: int) -> Knobs:
    tile_m, tile_n, warpgroups, tile_k, stages = shape
    return Knobs(
        tile_m=tile_m,
        tile_n=tile_n,
        warpgroups=warpgroups,
        tile_k=tile_k,
        stages=stages,
        epilogue="stmatrix" if problem.out.size == 2 else "direct",
        raster="m",
        swizzle_size=8 if -(-problem.m // tile_m) >= 8 else 1,
    )


def _heuristic_score(k: Knobs, problem: GemmProblem, device: DeviceSpec) -> float:
    reuse = k.tile_m * k.tile_n / (k.tile_m + k.tile_n)
    return cuda.wave_efficiency(problem, _grid(k), device) * reuse / (reuse + 32)


def _grid(k: Knobs) -> Grid:
    return Grid(k.tile_m, k.tile_n)


WGMMA = Wgmma()
