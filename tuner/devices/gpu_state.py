"""What NVML says of a GPU from outside: ``python -m tuner.devices.gpu_state UUID``.

In a process of its own: a driver that is stuck may never answer, and the service loads no driver.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pynvml

from tilewright.schema.codec import encode
from tuner.devices.base import GpuState
from tuner.devices.nvml import slowdowns

T = TypeVar("T")
_PROC = Path("/proc")
_FIRST_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of Linux: that of the machine, not of a container
_KILL = 1 << signal.SIGKILL - 1
_EXITING = 0x4  # PF_EXITING of Linux


def read(identity: str) -> GpuState:
    """The state of the GPU, or of the MIG instance, with this UUID in hex.

    NOTE: NVML does not tell the range that clocks are locked to, and an idle GPU gives no reason for its
    clock. Only the clock under load shows a lock: see :mod:`tuner.store.faults.drift`.

    Raises:
        pynvml.NVMLError: NVML does not answer, or has no such GPU.
    """
    pynvml.nvmlInit()
    handle = _handle(str(uuid.UUID(identity)))
    computing = _known(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
    drawing = _known(lambda: pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle))
    memory = {int(one.pid): one.usedGpuMemory for one in [*(drawing or ()), *(computing or ())]}
    used, without_reserved = _used(handle)
    sm = pynvml.NVML_CLOCK_SM
    return GpuState(
        held_bytes=max(0, used - sum(int(held or 0) for held in memory.values())),
        processes=tuple(sorted(memory)),
        most_mhz=_known(lambda: int(pynvml.nvmlDeviceGetMaxClockInfo(handle, sm))),
        slowdowns=slowdowns(handle),
        set_mhz=_known(lambda: int(pynvml.nvmlDeviceGetApplicationsClock(handle, sm))),
        ended=tuple(pid for pid in sorted(memory) if _ended(pid)),
        complete=without_reserved
        and None not in (computing, drawing, *memory.values())
        and _sees_all_processes()
        # The system itself uses the memory of a GPU that is a NUMA node.
        and _known(lambda: pynvml.nvmlDeviceGetNumaNodeId(handle)) is None,
    )


def _used(handle: Any) -> tuple[int, bool]:
    """The bytes of memory in use, and whether they exclude the driver's own reserve."""
    told = _known(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2))
    if told is None:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used), False
    return int(told.total - told.free - told.reserved), True  # NOTE: by driver ``used`` has it or not


def _sees_all_processes() -> bool:
    """Whether every process of the machine has an id here, unlike in a container with ids of its own."""
    try:
        return os.readlink(_PROC / "self/ns/pid") == _FIRST_NAMESPACE
    except OSError:
        return False


def _ended(pid: int) -> bool:
    """Whether no process has this id, or each of its threads was killed and is about to go.

    NOTE: the driver frees the memory of a process while it exits: until then the process keeps its id.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):  # of another user, or no id at all
        pass
    try:
        threads = list((_PROC / str(pid) / "task").iterdir())
    except OSError:  # hidden
        return False
    return bool(threads) and all(map(_goes, threads))


def _goes(thread: Path) -> bool:
    """Whether a thread ended, exits or has a kill pending, by its folder in ``/proc``."""
    try:
        state, *numbers = (thread / "stat").read_text().rpartition(")")[2].split()
        status = dict(line.split(":", 1) for line in (thread / "status").read_text().splitlines())
    except (FileNotFoundError, ProcessLookupError):
        return True
    except OSError:
        return False
    killed = any(int(status[kind], 16) & _KILL for kind in ("SigPnd", "ShdPnd"))
    return killed or state in "ZX" or bool(int(numbers[5]) & _EXITING)


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
