"""What NVML says of a GPU that no process of ours uses: ``python -m tuner.devices.gpu_state UUID``.

In a process of its own: a driver that is stuck may never answer, and the service loads no driver.
"""

from __future__ import annotations

import contextlib
import json
import sys
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

from tilewright.schema.codec import encode
from tuner.devices.base import GpuState

T = TypeVar("T")
# What holds the clocks below what they were; a power cap or an idle GPU does not.
_SLOWDOWNS = {
    "HwSlowdown": 0x8,
    "SwThermalSlowdown": 0x20,
    "HwThermalSlowdown": 0x40,
    "HwPowerBrakeSlowdown": 0x80,
}


def read(identity: str) -> GpuState:
    """The state of the GPU, or of the MIG instance, with this UUID in hex.

    Raises:
        pynvml.NVMLError: NVML does not answer, or has no such GPU.
    """
    pynvml.nvmlInit()
    handle = _handle(str(uuid.UUID(identity)))
    running = _known(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle)) or []
    used = int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
    accounted = sum(int(one.usedGpuMemory or 0) for one in running)
    events = _known(lambda: pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)) or 0
    return GpuState(
        held_bytes=max(0, used - accounted),
        processes=tuple(int(one.pid) for one in running),
        most_mhz=_known(lambda: int(pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM))),
        slowdowns=tuple(name for name, bit in _SLOWDOWNS.items() if events & bit),
    )


def _handle(text: str) -> Any:
    with contextlib.suppress(pynvml.NVMLError):
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{text}")
    return pynvml.nvmlDeviceGetHandleByUUID(f"MIG-{text}")


def _known(ask: Callable[[], T]) -> T | None:
    """What NVML answers; None if this GPU, such as a MIG instance, does not tell."""
    with contextlib.suppress(pynvml.NVMLError):
        return ask()
    return None


def main() -> None:
    """Print the state as JSON."""
    sys.stdout.write(json.dumps(encode(read(sys.argv[1]))))


if __name__ == "__main__":
    main()
