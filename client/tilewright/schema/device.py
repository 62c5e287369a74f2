"""``DeviceSpec`` describes one device; its ``device_class`` is what results are keyed by."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Annotated, Any, Literal

from tilewright.schema.codec import Bytes, Count, KeyName, MaxLength, decode, encode

DeviceKind = Literal["cuda", "host"]


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceClass:
    """What decides performance, and so the key of every stored result.

    Attributes:
        arch: ``sm_90``, ``x86_64_v3`` and the like.
        id: stable text key, for instance ``sm_90-132sm-141gb-700w``.
    """

    arch: str
    id: str


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One device as measured or queried.

    Attributes:
        kind: ``cuda`` or ``host``.
        arch: compute architecture; ``sm_XY`` or a CPU level such as ``x86_64_v4``.
        name: marketing or model name; an alias only, except on the host, where results
            compiled for the native CPU belong to its model.
        sm_count: SMs of a GPU; on the host the number of threads used.
        memory_bytes: device memory.
        l2_bytes: L2 of the GPU, last-level cache of the CPU.
        smem_per_block: most dynamic shared memory of a block in bytes (opt-in limit); 0 on the host.
        smem_per_sm: shared memory of one SM in bytes; 0 on the host.
        memory_gbps: peak memory bandwidth in GB/s; 0 where unknown.
        clock_mhz: highest core clock in MHz; 0 where unknown.
        power_watts: power limit in watts; 0 where unknown.
        mig: MIG profile, empty on a whole GPU.
    """

    kind: DeviceKind
    arch: KeyName
    name: Annotated[str, MaxLength(200)]
    sm_count: Count = dataclasses.field(metadata={"was": "units"})
    memory_bytes: Bytes
    l2_bytes: Bytes
    smem_per_block: Count = 0
    smem_per_sm: Count = dataclasses.field(default=0, metadata={"was": "smem_per_unit"})
    memory_gbps: Count = 0
    clock_mhz: Count = 0
    power_watts: Count = 0
    mig: Annotated[str, MaxLength(32)] = ""

    @property
    def device_class(self) -> DeviceClass:
        """The class this device belongs to."""
        if self.kind == "host":
            model = hashlib.sha256(self.name.encode()).hexdigest()[:8]
            return DeviceClass(self.arch, f"{self.arch}-{self.sm_count}t-{model}")
        parts = [self.arch, f"{self.sm_count}sm", f"{round(self.memory_bytes / 1e9)}gb"]
        parts += [f"{self.power_watts}w"] if self.power_watts else []
        parts += [self.mig] if self.mig else []
        return DeviceClass(self.arch, "-".join(parts))

    @property
    def compute_capability(self) -> tuple[int, int]:
        """(major, minor) of a CUDA device; (0, 0) on the host."""
        if self.kind == "host":
            return (0, 0)
        digits = self.arch.removeprefix("sm_")
        return int(digits[:-1]), int(digits[-1])

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        plain: dict[str, Any] = encode(self)
        return plain

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> DeviceSpec:
        """The inverse of :meth:`to_dict`; also reads the names of earlier versions."""
        return decode(cls, data)
