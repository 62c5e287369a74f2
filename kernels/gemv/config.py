"""The knobs of family ``gemv``."""

from __future__ import annotations

import dataclasses

from kernels.base.knobs import knob

MATHS = ("fma", "mma")
SPLITS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)
RELEASES = ("started", "loaded")


@dataclasses.dataclass(slots=True)
class Knobs:
    """A config of family ``gemv``."""

    math: str = knob("mma", MATHS, "units that multiply: FMA units or tensor cores")
    warps_k: int = knob(4, (1, 2, 4, 8, 16), "warps of a CTA, all along k, which take stages in turn")
    steps: int = knob(
        2, (1, 2, 4, 8), "k steps of a stage: 64 bytes of each row if the weights are K-major, else 16 of k"
    )
    stages: int = knob(
        2, (1, 2, 3, 4), "stages of weights that a warp has in registers or in flight", was="slots"
    )
    min_ctas_per_sm: int = knob(
        1, (1, 2, 3, 4, 6, 8), "CTAs that an SM must hold: the register budget", was="min_blocks"
    )
    split_k: int = knob(1, SPLITS, "CTAs that split the k of a tile", searched=(1, 2, 3, 4, 6, 8, 12, 16))
    prefetch: int = knob(
        0,
        (0, 1, 2, 4, 8, 16),
        "stages of each warp prefetched into the L2 while the previous kernel ends",
        searched=(0, 2, 4),
        absent=0,
    )
    release: str = knob(
        "started",
        RELEASES,
        "when the next kernel may start: once all CTAs have started, or have issued their loads",
        absent="started",
    )

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return 32 * self.warps_k
