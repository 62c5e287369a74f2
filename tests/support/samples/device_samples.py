"""Devices for tests that need none."""

from __future__ import annotations

from tilewright.schema.device import DeviceSpec

A100 = DeviceSpec("cuda", "sm_80", "A100", 108, 40 << 30, 40 << 20, 163 << 10, 164 << 10)
ADA = DeviceSpec("cuda", "sm_89", "L40S", 142, 48 << 30, 96 << 20, 99 << 10, 100 << 10)
H200 = DeviceSpec(
    "cuda", "sm_90", "NVIDIA H200", 132, 150_109_880_320, 60 << 20, 232_448, 233_472, 4814, 1980, 700
)
HOPPER = DeviceSpec("cuda", "sm_90", "H200", 132, 141 << 30, 50 << 20, 227 << 10, 228 << 10)

# Kilobytes of shared memory of an SM, by architecture; a CTA may have all but one.
_SMEM_KB = {
    "sm_80": 164,
    "sm_86": 100,
    "sm_87": 164,
    "sm_88": 100,
    "sm_89": 100,
    "sm_90": 228,
    "sm_100": 228,
    "sm_103": 228,
    "sm_110": 228,
    "sm_120": 100,
    "sm_121": 100,
}


def gpu(arch: str, sm_count: int = 108) -> DeviceSpec:
    """A GPU of an architecture that kernels are compiled for."""
    smem = _SMEM_KB[arch] << 10
    return DeviceSpec("cuda", arch, "test", sm_count, 40 << 30, 40 << 20, smem - 1024, smem)
