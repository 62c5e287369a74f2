"""Family ``gemv_tma``: M or N of at most 16, weights streamed through shared memory by TMA, sm_90
(``kernels/gemv_tma/kernel.cu``)."""

from __future__ import annotations

import dataclasses
from types import MappingProxyType

from kernels.common import cuda
from kernels.gemv.shape import GemvShape
from kernels.gemv_tma import layout, validity
from kernels.gemv_tma.config import K_CHUNK_BYTES, Knobs
from kernels.gemv_tma.heuristics import SEARCH_RULES, heuristic_configs
from tilewright.artifact import Argument, Preconditions, Scalar, TensorMap
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem


class GemvTma(cuda.CudaFamily[Knobs]):
    """Weights by TMA through a ring, resident activations, mma.sync from shared memory."""

    name = "gemv_tma"
    doc = "m or n up to 16: the long operand streamed by TMA; sm_90, 8- and 16-bit types, layout nt"
    entry = "gemv_tma"
    overlaps = True
    knobs_type = Knobs
    rules = validity.RULES
    search_rules = SEARCH_RULES
    removed = MappingProxyType({"split_k": 1})
    why_unsupported = staticmethod(validity.why_unsupported)
    smem_bytes = staticmethod(layout.smem_bytes)
    grid = staticmethod(layout.grid)

    def heuristic_configs(self, problem: GemmProblem, device: DeviceSpec) -> list[Config]:
        """Valid configs to try first, the most promising one first."""
        if self.why_unsupported(problem, device):
            return []
        valid = self.valid(heuristic_configs(problem, device), problem, device)
        return list(dict.fromkeys(map(self.config, valid)))

    def threads(self, k: Knobs) -> int:
        """Threads of a CTA: those that multiply and the warp that loads weights."""
        return k.threads + 32

    def cluster(self, k: Knobs) -> int:
        """CTAs of a cluster."""
        return k.cluster_k

    def derived_macros(self, k: Knobs, problem: GemmProblem, device: DeviceSpec) -> dict[str, int | str]:
        """The tile, which operand the weights are, and how much of the activations a CTA holds."""
        tile = layout.grid(k, problem, device)
        return {
            "TILE_M": tile.tile_m,
            "TILE_N": tile.tile_n,
            "TILE_K": k.stage_k_chunks * layout.k_chunk_elements(problem),
            "WEIGHTS_A": int(GemvShape.of(problem).weights == "a"),
            "ACTIVATION_K_CHUNKS": layout.activation_k_chunks(k, problem),
        }

    def leading_arguments(self, k: Knobs, problem: GemmProblem) -> tuple[Argument, ...]:
        """The tensor map of the weights, and the batch."""
        box = (k.tile_weight_rows, K_CHUNK_BYTES // problem.dtype.size)
        weights = TensorMap(GemvShape.of(problem).weights, box)
        return weights, Scalar("batch", "int32")

    def preconditions(self, k: Knobs, problem: GemmProblem) -> Preconditions:
        """The alignment that TMA requires, and the largest k whose partitions fit shared memory."""
        needs = cuda.preconditions(problem, cuda.TMA_ALIGNMENT, cuda.TMA_ALIGNMENT)
        return dataclasses.replace(needs, max_k=layout.max_k(k, problem))


GEMV_TMA = GemvTma()
