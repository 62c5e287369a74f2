"""Family ``gemv``: M or N of at most 16, weights read straight to registers (``kernels/gemv/kernel.cu``)."""

from __future__ import annotations

from types import MappingProxyType

from kernels.common import cuda
from kernels.gemv import layout, validity
from kernels.gemv.config import Knobs
from kernels.gemv.heuristics import SEARCH_RULES, heuristic_configs
from kernels.gemv.shape import GemvShape
from tilewright.artifact import Grid, Preconditions, Workspace
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem

_MOST_CONFIGS = 6


class Gemv(cuda.CudaFamily[Knobs]):
    """Weights from global memory straight to registers; the warps of a CTA are added up in shared memory."""

    name = "gemv"
    doc = "m or n up to 16: the long operand read once at memory speed; sm_80 and later, types from 8 bits"
    entry = "gemv"
    overlaps = True
    knobs_type = Knobs
    rules = validity.RULES
    search_rules = SEARCH_RULES
    removed = MappingProxyType({"warp_tiles": 1, "warps_rows": 1, "warps_wide": 1})
    why_unsupported = staticmethod(validity.why_unsupported)

    def heuristic_configs(self, problem: GemmProblem, device: DeviceSpec) -> list[Config]:
        """Valid configs to try first, the most promising one first."""
        if self.why_unsupported(problem, device):
            return []
        valid = self.valid(heuristic_configs(problem, device), problem, device)
        return [self.config(k) for k in valid[:_MOST_CONFIGS]]

    def uses_tensor_cores(self, config: Config) -> bool:
        """All but ``math=fma``."""
        return dict(config.knobs).get("math") != "fma"

    def grid(self, k: Knobs, problem: GemmProblem, _device: DeviceSpec) -> Grid:
        """One CTA a tile and split."""
        return layout.grid(k, GemvShape.of(problem))

    def derived_macros(self, k: Knobs, problem: GemmProblem, _device: DeviceSpec) -> dict[str, int | str]:
        """The tile, which operand the weights are, and the alignment of both operands."""
        shape = GemvShape.of(problem)
        tile = layout.grid(k, shape)
        return {
            "TILE_M": tile.tile_m,
            "TILE_N": tile.tile_n,
            "TILE_K": layout.stage_k(k, shape),
            "WEIGHTS_A": int(shape.weights == "a"),
            "ALIGN_WEIGHTS": problem.stride_alignment(shape.weights),
            "ALIGN_ACTIVATIONS": problem.stride_alignment(shape.activations),
        }

    def workspace(self, k: Knobs, problem: GemmProblem, _device: DeviceSpec) -> Workspace:
        """A counter and the partials of every split of a tile."""
        return layout.workspace(k, problem)

    def preconditions(self, _k: Knobs, problem: GemmProblem) -> Preconditions:
        """The alignment of the problem's own rows."""
        aligned = (problem.stride_alignment(side) for side in ("a", "b"))
        return cuda.preconditions(problem, *aligned)


GEMV = Gemv()
