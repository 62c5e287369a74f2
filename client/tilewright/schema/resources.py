"""``Resources``: what a kernel costs. Apart from trials, as a start from the cache needs no trials."""

from __future__ import annotations

import dataclasses

from tilewright.schema.codec import Count


@dataclasses.dataclass(frozen=True, slots=True)
class Resources:
    """What one CTA of a kernel costs, read from the binary.

    Attributes:
        registers: of a thread.
        spill_bytes: local memory of a thread that the compiler spilled to.
        static_smem: bytes of static shared memory.
        dynamic_smem: bytes of dynamic shared memory.
    """

    registers: Count = 0
    spill_bytes: Count = 0
    static_smem: Count = 0
    dynamic_smem: Count = 0
