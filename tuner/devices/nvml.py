"""What NVML tells of the processes on a GPU and of what slows it; it needs no CUDA context.

A process finds itself in NVML's lists by its id. In a container with process ids of its own it is not listed
under its id, and cannot be told from others while it works. Then the use of the whole GPU counts, measured
while this process leaves the GPU idle.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
import uuid
from typing import Any, Self

import pynvml

_LOOK_BACK_S = 1.0
_SAMPLED_S = 1.2  # NVML averages its figure for the whole GPU over up to a second
_PAUSE_S = 0.1
# What holds the clocks below what they were; a power cap or an idle GPU does not.
SLOWDOWNS = {
    "HwSlowdown": 0x8,
    "SwThermalSlowdown": 0x20,
    "HwThermalSlowdown": 0x40,
    "HwPowerBrakeSlowdown": 0x80,
}


# Of these what may hold for seconds and has one cause. NVML sets the first one also while clocks change.
_BY_TEMPERATURE_OR_BRAKE = SLOWDOWNS.keys() - {"HwSlowdown"}


def slowdowns(handle: Any) -> tuple[str, ...]:
    """What slows a GPU now, by the names in :data:`SLOWDOWNS`; none if NVML does not tell."""
    try:
        reasons = pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    except pynvml.NVMLError:
        return ()
    return tuple(name for name, bit in SLOWDOWNS.items() if reasons & bit)


@dataclasses.dataclass(frozen=True, slots=True)
class GpuProcess:
    """Another process on a GPU; ``memory_bytes`` is None if NVML does not report it."""

    pid: int
    memory_bytes: int | None


class GpuNeighbours:
    """The other processes on one GPU."""

    def __init__(self, handle: Any) -> None:
        """``handle`` is NVML's handle of the GPU."""
        self._handle = handle

    @classmethod
    def of(cls, identity: str) -> Self | None:
        """The neighbours on the GPU with a UUID in hex; None if NVML is missing or does not know it, such as
        a part of a GPU."""
        try:
            pynvml.nvmlInit()
            return cls(pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.UUID(identity)}"))
        except pynvml.NVMLError:
            return None

    def processes(self, own: int | None) -> list[GpuProcess] | None:
        """All processes except ``own``; None if ``own`` is not listed, because any listed process may be
        ``own``."""
        running = self._running()
        others = [GpuProcess(pid, memory) for pid, memory in sorted(running.items()) if pid != own]
        return others if own in running else None

    def told(self, own: int | None) -> tuple[str, ...]:
        """The processes other than ``own`` in words; empty if there is none."""
        others = self.processes(own)
        if others is not None:
            return tuple(f"process {one.pid} holds {_memory(one)}" for one in others)
        more = len(self._running()) - (own is not None)
        return (f"{more} other processes hold memory of the GPU",) if more > 0 else ()

    def share(self, own: int) -> float | None:
        """The share of the last second in which processes other than ``own`` used the GPU, added up. None if
        NVML does not report it, or does not list ``own``."""
        others = self.processes(own)
        if not others:
            return None if others is None else 0.0
        since_us = int((time.time() - _LOOK_BACK_S) * 1e6)
        try:
            samples = pynvml.nvmlDeviceGetProcessUtilization(self._handle, since_us)
        except pynvml.NVMLError as error:
            return 0.0 if error.value == pynvml.NVML_ERROR_NOT_FOUND else None  # none used it since then
        latest = {sample.pid: sample for sample in sorted(samples, key=lambda sample: sample.timeStamp)}
        return float(sum(latest[one.pid].smUtil for one in others if one.pid in latest)) / 100.0

    def share_while_idle(self, most: float) -> float | None:
        """The share of the time in which any process uses the GPU; None if NVML does not report it.

        Call it while this process leaves the GPU idle. NVML's figure includes about the last second, so a
        figure above ``most`` is read again for that long.
        """
        ends = time.monotonic() + _SAMPLED_S
        while True:
            try:
                used = pynvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100.0
            except pynvml.NVMLError:
                return None
            if used <= most or time.monotonic() >= ends:
                return float(used)
            time.sleep(_PAUSE_S)

    def _running(self) -> dict[int, int | None]:
        found: dict[int, int | None] = {}
        for listed in (
            pynvml.nvmlDeviceGetGraphicsRunningProcesses,
            pynvml.nvmlDeviceGetComputeRunningProcesses,
        ):
            with contextlib.suppress(pynvml.NVMLError):
                found |= {process.pid: process.usedGpuMemory for process in listed(self._handle)}
        return found


class LostSeconds:
    """Seconds of a GPU that went to other processes (``gpu``), and in which temperature or a power brake
    slowed it (``slowed``). What a look finds counts since the look before."""

    def __init__(self, handle: Any) -> None:
        self._handle, self._neighbours = handle, GpuNeighbours(handle)
        self._seconds, self._at = {"slowed": 0.0}, time.monotonic()

    def look(self, own: int) -> dict[str, float]:
        """The seconds so far. ``gpu`` is left out if NVML does not report the use, or does not list the
        process ``own``, whose use then cannot be told from that of others."""
        share = self._neighbours.share(own)
        now, since = time.monotonic(), self._at
        self._at = now
        is_slowed = not _BY_TEMPERATURE_OR_BRAKE.isdisjoint(slowdowns(self._handle))
        self._seconds["slowed"] += (now - since) * is_slowed
        if share is not None:
            self._seconds["gpu"] = self._seconds.get("gpu", 0.0) + (now - since) * share
        return {kind: taken for kind, taken in self._seconds.items() if kind != "gpu" or share is not None}


def _memory(process: GpuProcess) -> str:
    """The memory of a process in words."""
    held = process.memory_bytes
    return "memory of the GPU" if held is None else f"{held / 2**30:.1f} GiB of the GPU's memory"
