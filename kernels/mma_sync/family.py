"""Family ``mma_sync``: tensor cores through mma.sync, sm_80 and later (``kernels/mma_sync/kernel.cu``)."""

from __future__ import annotations

from kernels.base.tile_hint import TileHint
from kernels.common import cuda, tiling
from kernels.mma_sync import layout, validity
from kernels.mma_sync.config import KNOBS, Knobs
from kernels.mma_sync.heuristics import SEARCH_RULES, config_from_hint, heuristic_configs
from tilewright.artifact import Grid, Preconditions, Workspace
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem

_MOST_CONFIGS = 8


class MmaSync(cuda.CudaFamily[Knobs]):
    """cp.async into a ring of shared-memory stages, then mma.sync."""

    name = "mma_sync"
    doc = (
        "tensor cores through mma.sync: sm_80 and later, every type but float32, all layouts "
        "(types of 8 bits and fewer nt only), any size"
    )
    entry = "mma_sync"
    source = "mma_sync/kernel.cu"
    knobs = KNOBS
    knobs_type = Knobs
    rules = validity.RULES
    search_rules = SEARCH_RULES

    def why_unsupported(self, problem: GemmProblem, device: DeviceSpec) -> str | None:
        """The reason no config computes the problem: its type, or that type in its layout."""
        return validity.why_unsupported(problem, device)

    def heuristic_configs(self, problem: GemmProblem, device: DeviceSpec) -> list[Config]:
        """Valid configs to try first, ranked by wave efficiency and operand reuse."""
        if self.why_unsupported(problem, device):
            return []
        ranked = tiling.ranked(heuristic_configs(problem, device), problem, device)
        valid = (one for one in map(self.config, ranked) if self.why_invalid(one, problem, device) is None)
        return list(valid)[:_MOST_CONFIGS]

    def configs_from_hint(self, hint: TileHint, problem: GemmProblem, device: DeviceSpec) -> list[Config]:
        """The config with the tile of a hint if it is valid; none for a kernel with clusters, which uses
        wgmma."""
        if hint.cluster:
            return []
        config = self.config(config_from_hint(hint, problem, device))
        return [config] if self.why_invalid(config, problem, device) is None else []

    def grid(self, k: Knobs, _problem: GemmProblem, _device: DeviceSpec) -> Grid:
        """One CTA a tile and split."""
        return tiling.grid(k)

    def threads(self, k: Knobs) -> int:
        """Threads of a CTA."""
        return k.threads

    def derived_macros(self, k: Knobs, problem: GemmProblem, _device: DeviceSpec) -> dict[str, int | str]:
        """The widths of the copies, as wide as the alignment allows."""
        return tiling.copy_macros(k, problem)

    def smem_bytes(self, k: Knobs, problem: GemmProblem) -> int:
        """Dynamic shared memory in bytes."""
        return layout.smem_bytes(k, problem)

    def workspace(self, k: Knobs, problem: GemmProblem, _device: DeviceSpec) -> Workspace:
        """A counter and the partials of every split of a tile."""
        return cuda.split_workspace(k.split_k, k.tile_m * k.tile_n, problem)

    def preconditions(self, k: Knobs, problem: GemmProblem) -> Preconditions:
        """The alignment of A and B that their copies require."""
        return tiling.preconditions(k, problem)

    def overlaps(self, device: DeviceSpec) -> bool:
        """Whether a launch may start before the previous launch has ended: from sm_90 on."""
        return device.arch == "sm_90"


MMA_SYNC = MmaSync()
