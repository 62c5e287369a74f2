"""The knobs of family ``gemv_tma``."""

from __future__ import annotations

import dataclasses

from kernels.base.knobs import knob

CLUSTERS = (1, 2, 4, 8)
PREFETCHES = (0, 2, 4)
MAX_STAGES = 16
K_CHUNK_BYTES = 128  # of k: the width of a TMA box


@dataclasses.dataclass(slots=True)
class Knobs:
    """A config of family ``gemv_tma``."""

    warp_tiles: int = knob(1, (1, 2), "weight rows of a tile, and of a TMA box, in units of 16")
    warps: int = knob(4, (4, 8, 16), "warps of a CTA that multiply; they take k chunks of 128 bytes in turn")
    k_chunks: int = knob(1, (1, 2, 4), "k chunks of a warp in a stage", was="panels")
    stages: int = knob(2, tuple(range(2, MAX_STAGES + 1)), "stages in shared memory")
    cluster_k: int = knob(1, CLUSTERS, "CTAs of a cluster, which partition the k of a tile", absent=1)
    prefetch: int = knob(0, PREFETCHES, "stages prefetched into the L2 while the previous kernel ends")

    @property
    def threads(self) -> int:
        """Threads of a CTA that multiply."""
        return 32 * self.warps

    @property
    def tile_weight_rows(self) -> int:
        """Rows of weights in a tile."""
        return 16 * self.warp_tiles

    @property
    def stage_k_chunks(self) -> int:
        """k chunks of a stage, each a TMA box."""
        return self.warps * self.k_chunks

    @property
    def stage_bytes(self) -> int:
        """Bytes of weights in a stage."""
        return self.stage_k_chunks * self.tile_weight_rows * K_CHUNK_BYTES
