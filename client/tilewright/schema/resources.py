"""``Resources``: registers and memory of a kernel. Not in trial.py, which a start from the cache skips."""

from __future__ import annotations

import dataclasses

from tilewright.schema.codec import Count


@dataclasses.dataclass(frozen=True, slots=True)
class Resources:
    """Registers and memory of a kernel, read from the binary.

    Attributes:
        registers: registers of a thread.
        spill_bytes: bytes of local memory of a thread to which the compiler spilled.
        static_smem: bytes of static shared memory.
        dynamic_smem: bytes of dynamic shared memory.
    """

    registers: Count = 0
    spill_bytes: Count = 0
    static_smem: Count = 0
    dynamic_smem: Count = 0
