"""Interference for races: a busy process on one of the cores that they run on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

BUSY_S = 60  # the interference ends by itself, also if this process is killed
BUSY = f"""
import os, sys, time
os.nice(19)
os.sched_setaffinity(0, {{int(sys.argv[1])}})
end = time.monotonic() + {BUSY_S}
print("at work", flush=True)
while time.monotonic() < end:
    pass
"""


@contextmanager
def a_nice_neighbour() -> Iterator[None]:
    """A process of the lowest priority on one of the cores that this one may use."""
    command = [sys.executable, "-c", BUSY, str(min(os.sched_getaffinity(0)))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "at work\n"
        try:
            yield
        finally:
            process.kill()
