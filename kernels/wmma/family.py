"""Family ``wmma``: 16 x 16 x 16 products of opaque fragments, sm_80 and later
(``kernels/wmma/kernel.cu``)."""

from __future__ import annotations

from kernels.common import cuda, tiling
from kernels.wmma import validity
from kernels.wmma.config import Knobs, smem_bytes
from kernels.wmma.heuristics import SEARCH_RULES, heuristic_configs
from tilewright.artifact import Grid, Workspace
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem

_MOST_CONFIGS = 4


class Wmma(cuda.CudaFamily[Knobs]):
    """Loads of whole tiles, then wmma; D through shared memory."""

    name = "wmma"
    doc = "tensor cores through wmma 16x16x16: sm_80 and later, f16 and bf16, all layouts, any size"
    entry = "wmma"
    knobs_type = Knobs
    rules = validity.RULES
    search_rules = SEARCH_RULES
    why_unsupported = staticmethod(validity.why_unsupported)
    smem_bytes = staticmethod(smem_bytes)
    preconditions = staticmethod(tiling.preconditions)

    def heuristic_configs(self, problem: GemmProblem, device: DeviceSpec) -> list[Config]:
        """Valid configs to try first, those of the fewest estimated clocks first."""
        if self.why_unsupported(problem, device):
            return []
        valid = self.valid(heuristic_configs(problem, device), problem, device)
        return [self.config(k) for k in self.worth_a_trial(valid, problem, device)[:_MOST_CONFIGS]]

    def grid(self, k: Knobs, _problem: GemmProblem, _device: DeviceSpec) -> Grid:
        """One CTA a tile and split."""
        return tiling.grid(k)

    def derived_macros(self, k: Knobs, problem: GemmProblem, _device: DeviceSpec) -> dict[str, int | str]:
        """The widths of the copies, as wide as the alignment allows."""
        return tiling.copy_macros(k, problem)

    def workspace(self, k: Knobs, problem: GemmProblem, _device: DeviceSpec) -> Workspace:
        """A counter and the partials of every split of a tile."""
        return cuda.split_workspace(k.split_k, k.tile_m * k.tile_n, problem)


WMMA = Wmma()
