"""``Recovery``: whether a GPU is free of processes that ended, before anything else runs on it."""

from __future__ import annotations

import json
import logging
import subprocess
import threading
import time
from collections.abc import Callable

from tilewright.errors import DeviceUnavailable
from tilewright.schema.codec import decode
from tuner.devices.base import GpuState
from tuner.workers.process import python

SLACK_BYTES = 256 * 2**20  # that the driver itself may take more than before
_WAIT_S = 5.0
_POLL_S = 0.5
_READ_S = 20.0
_Why = Callable[[GpuState, GpuState], str | None]
_log = logging.getLogger("tilewright.workers")


class DeviceAway(DeviceUnavailable):
    """A device that takes no work for now. What it began goes back to where it came from."""


class DeviceNotStarted(DeviceAway):
    """The process of a device does not start."""


class DeviceSetAside(DeviceAway):
    """A GPU did not come back after a process on it was killed. It is used again once it comes back, or once
    an admin releases it."""


class Recovery:
    """Reads the state of a GPU before its first trial, and compares it with that state whenever its process
    ended.

    Attributes:
        reason: why the GPU is set aside; empty if it is not.
    """

    def __init__(self, read: Callable[[], GpuState], wait_s: float = _WAIT_S) -> None:
        """``read`` gives the state of the GPU, which has ``wait_s`` seconds to come back.

        A GPU whose state cannot be read at first, as NVML is missing, is never set aside.
        """
        self._read, self._wait_s = read, wait_s
        self._lock = threading.Lock()
        self._before: GpuState | None = None
        self._released = False
        self.reason = ""
        try:
            self._before = read()
        except DeviceUnavailable as error:
            _log.warning("the GPU is not looked at after kills: %s", error)

    def look(self, own: int) -> None:
        """Check that no ended process holds memory of the GPU on which the process ``own`` runs. Later checks
        compare with the state read here.

        Raises:
            DeviceSetAside: as of :meth:`check`.
        """
        with self._lock:
            self._before = self._wait(lambda _, now: why_held(now, own)) or self._before

    def check(self, pid: int) -> None:
        """Do nothing if the GPU came back from its process ``pid``.

        Raises:
            DeviceSetAside: it did not within the wait; a GPU that is set aside is read only once.
        """
        with self._lock:
            self._wait(lambda before, now: why_not_back(before, now, pid))

    def release(self) -> None:
        """Use the GPU as it is from the next check on."""
        self._released = True

    def _wait(self, why: _Why) -> GpuState | None:
        """The first state against which ``why`` has no reason; None if the state cannot be read."""
        deadline = time.monotonic() + (0.0 if self.reason else self._wait_s)
        while True:
            now, reason = self._judge(why)
            if not reason:
                break
            if time.monotonic() >= deadline:
                if not self.reason:
                    _log.error("the GPU is set aside: %s", reason)
                self.reason = reason
                raise DeviceSetAside(reason)
            time.sleep(_POLL_S)
        if self.reason:
            _log.warning("the GPU is back; it was set aside: %s", self.reason)
        self.reason = ""
        return now

    def _judge(self, why: _Why) -> tuple[GpuState | None, str | None]:
        if self._before is None:
            return None, None
        try:
            now = self._read()
        except DeviceUnavailable as error:
            return None, None if self._released else str(error)
        if self._released:
            self._before, self._released = now, False
            return now, None
        return now, why(self._before, now)


def why_held(now: GpuState, own: int) -> str | None:
    """In words, what ended processes hold of a GPU on which the process ``own`` runs; None if nothing.

    If NVML does not list ``own``, as in many containers, its list says nothing about the processes here.
    Memory without a process counts only if ``own`` is alone and the list is complete; otherwise unlisted
    processes may have it.
    """
    if own not in now.processes:
        return None
    if now.ended:
        return _still_held(now.ended)
    if now.complete and now.processes == (own,) and now.held_bytes > SLACK_BYTES:
        return _in_no_process(now.held_bytes)
    return None


def why_not_back(before: GpuState, now: GpuState, pid: int) -> str | None:
    """In words, how a GPU is worse than before its process ``pid`` was killed; None if it is not."""
    if pid in now.processes:
        return _still_held((pid,))
    more = now.held_bytes - before.held_bytes
    if more > SLACK_BYTES:
        return _in_no_process(more)
    if slowdowns := [one for one in now.slowdowns if one not in before.slowdowns]:
        return f"its clocks are held down ({', '.join(slowdowns)}); look at its cooling and power"
    if before.most_mhz and now.most_mhz and now.most_mhz < before.most_mhz:
        return f"its highest clock is {now.most_mhz} MHz, it was {before.most_mhz}; reset its clocks"
    if before.set_mhz and now.set_mhz and now.set_mhz < before.set_mhz:
        return f"its clock is set to {now.set_mhz} MHz, it was {before.set_mhz}; use 'nvidia-smi -rac'"
    return None


def _still_held(pids: tuple[int, ...]) -> str:
    return f"ended processes still hold it ({', '.join(map(str, pids))}); wait, or reset the GPU"


def _in_no_process(size: int) -> str:
    return f"{size / 2**20:.0f} MiB of its memory are in use by no process; reset the GPU"


def gpu_state(identity: str) -> GpuState:
    """The state of the GPU with this UUID, read by a process that may hang.

    Raises:
        DeviceUnavailable: NVML is missing or does not answer.
    """
    command = python("-m", "tuner.devices.gpu_state", identity)
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=_READ_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise DeviceUnavailable(f"NVML did not answer within {_READ_S:g} s; reset the GPU") from error
    if asked.returncode:
        said = asked.stderr.strip().rpartition("\n")[2]
        raise DeviceUnavailable(f"NVML cannot tell the GPU's state, run nvidia-smi: {said}")
    return decode(GpuState, json.loads(asked.stdout))
