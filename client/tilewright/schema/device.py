"""``DeviceSpec``, the description of one device, and ``DeviceClass``, the key of its results."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Annotated, Any, Literal

from tilewright.schema.codec import ArchName, Bytes, Count, MaxLength, decode, encode

DeviceKind = Literal["cuda", "host"]


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceClass:
    """The properties that decide performance: the key of every stored result.

    Attributes:
        arch: ``sm_90``, ``x86_64_v3`` and the like.
        id: stable text key, for instance ``sm_90-132sm-141gb-700w``.
    """

    arch: str
    id: str


# NOTE: without slots, so that the answer of the wire can inherit the fields.
@dataclasses.dataclass(frozen=True)
class DeviceFields:
    """The description of one device.

    Attributes:
        kind: ``cuda`` or ``host``.
        arch: compute architecture; ``sm_XY`` or a CPU level such as ``x86_64_v4``.
        name: model name. On the host it is part of the device class, because kernels are compiled for the
            CPU.
        sm_count: SMs of a GPU; on the host the number of threads used.
        memory_bytes: device memory.
        l2_bytes: L2 of the GPU, last-level cache of the CPU.
        smem_per_block: most dynamic shared memory of a CTA in bytes (opt-in limit); 0 on the host.
        smem_per_sm: shared memory of one SM in bytes; 0 on the host.
        memory_gbps: peak memory bandwidth in GB/s; 0 if unknown.
        clock_mhz: highest core clock in MHz; 0 if unknown.
        power_watts: power limit in watts; 0 if unknown.
        mig: MIG profile, empty on a whole GPU.
    """

    kind: DeviceKind
    arch: ArchName
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


@dataclasses.dataclass(frozen=True)
class DeviceSpec(DeviceFields):
    """A device, with its class."""

    @property
    def device_class(self) -> DeviceClass:
        """The class of the device."""
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
        """The description as plain data."""
        plain: dict[str, Any] = encode(self)
        return plain

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> DeviceSpec:
        """The inverse of :meth:`to_dict`; also reads field names of earlier versions."""
        return decode(cls, data)
