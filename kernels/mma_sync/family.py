"""Family ``mma_sync``: tensor cores through mma.sync, sm_80 and later (``kernels/mma_sync/kernel.cu``)."""

from __future__ import annotations

import dataclasses
from typing import Literal

from kernels.base.tile_hint import TileHint
from kernels.common import cuda, tiling
from kernels.mma_sync import layout, validity
from kernels.mma_sync.config import Knobs
from kernels.mma_sync.heuristics import SEARCH_RULES, config_from_hint, heuristic_configs
from tilewright.artifact import Grid, LaunchPlan, PackedPointer, Pointer, Preconditions, Repack, Workspace
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem

_MOST_CONFIGS, _FEWEST_OTHERS = 8, 2
_OPERANDS: tuple[Literal["a", "b"], ...] = ("a", "b")


class MmaSync(cuda.CudaFamily[Knobs]):
    """cp.async into a ring of shared-memory stages, then mma.sync."""

    name = "mma_sync"
    doc = (
        "tensor cores through mma.sync: sm_80 and later, every type but float32, all layouts "
        "(types of 8 bits and fewer nt only), any size"
    )
    entry = "mma_sync"
    overlaps = True
    knobs_type = Knobs
    rules = validity.RULES
    search_rules = SEARCH_RULES
    why_unsupported = staticmethod(validity.why_unsupported)
    smem_bytes = staticmethod(layout.smem_bytes)

    def heuristic_configs(self, problem: GemmProblem, device: DeviceSpec) -> list[Config]:
        """Valid configs to try first, those of the fewest estimated clocks first.

        Where rows are not aligned, at least two load them in another way than the first.
        """
        if self.why_unsupported(problem, device):
            return []
        valid = self.valid(heuristic_configs(problem, device), problem, device)
        ranked = self.worth_a_trial(valid, problem, device)
        others = [k for k in ranked if k.repack != ranked[0].repack][:_FEWEST_OTHERS]
        usual = [k for k in ranked if k not in others][: _MOST_CONFIGS - len(others)]
        return [self.config(k) for k in ranked if k in others or k in usual]

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

    def derived_macros(self, k: Knobs, problem: GemmProblem, _device: DeviceSpec) -> dict[str, int | str]:
        """Which operands are repacked, and the widths of the copies, as wide as the alignment allows."""
        return {
            "REPACK_A": int(layout.repacks(k, problem, "a")),
            "REPACK_B": int(layout.repacks(k, problem, "b")),
            "COPY_A": layout.copy_bytes(k, problem, "a"),
            "COPY_B": layout.copy_bytes(k, problem, "b"),
        }

    def workspace(self, k: Knobs, problem: GemmProblem, _device: DeviceSpec) -> Workspace:
        """A counter and the partials of every split of a tile."""
        return cuda.split_workspace(k.split_k, k.tile_m * k.tile_n, problem)

    def preconditions(self, k: Knobs, problem: GemmProblem) -> Preconditions:
        """The alignment of A and B that their copies require, or that of an element if they are repacked."""

        def alignment(operand: str) -> int:
            if layout.repacks(k, problem, operand):
                return problem.dtype.size
            return layout.copy_bytes(k, problem, operand)

        return cuda.preconditions(problem, alignment("a"), alignment("b"))

    def plan(self, config: Config, problem: GemmProblem, device: DeviceSpec) -> LaunchPlan:
        """How to launch the kernel, on the copies of operands that are repacked before it."""
        k = self.knob_values(config)
        steps = tuple(_repack(problem, x) for x in _OPERANDS if layout.repacks(k, problem, x))
        copied = {step.operand for step in steps}
        plan = super().plan(config, problem, device)
        args = tuple(
            PackedPointer(item.operand) if isinstance(item, Pointer) and item.operand in copied else item
            for item in plan.args
        )
        return dataclasses.replace(plan, args=args, repacks=steps)


def _repack(problem: GemmProblem, operand: Literal["a", "b"]) -> Repack:
    along_k = problem.layout.b_transposed if operand == "b" else not problem.layout.a_transposed
    return Repack(operand, "repack_rows_of_k" if along_k else "repack_rows", (256, 1, 1), rows=8)


MMA_SYNC = MmaSync()
