"""The process of a host that samples a race for a tenth of the usual time.

Tests of jobs run it, which look at what becomes of them. How races are timed is tested in
``tests/unit/measure``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tuner.devices.host import HostDevice
from tuner.measure import interleave, timing
from tuner.workers import device_worker
from tuner.workers.process import python

_WHOLE = ("-m", "tuner.workers.device_worker", "--device", "host")


def command(*arguments: str) -> list[str]:
    """What :func:`tuner.workers.process.python` returns, with this program as the host's process."""
    return python(str(Path(__file__)), *arguments[1:]) if arguments == _WHOLE else python(*arguments)


def fewer_launches(*of: Any) -> int:
    """The launches of a sample of 0.3 ms."""
    return max(1, timing.launches_per_sample(*of) // 10)


if __name__ == "__main__":
    HostDevice.settle_s = 0.01
    interleave.launches_per_sample = fewer_launches
    del sys.argv[1]
    device_worker.main()
