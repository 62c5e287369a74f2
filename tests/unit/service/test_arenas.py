"""The service's threads share the memory that they free."""

from __future__ import annotations

import subprocess
import sys

import pytest
from sweeps import every

ALLOCATE = """
import ctypes, threading
from service.cli.serve import share_arena
{first}
ready = threading.Barrier(4)

def allocate():
    ready.wait()
    kept = [bytearray(50_000) for _ in range(20)]
    ready.wait()

threads = [threading.Thread(target=allocate) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
ctypes.CDLL(None).malloc_stats()
"""


@pytest.mark.long
@pytest.mark.parametrize(("first", "shared"), every(2, [("share_arena()", True), ("", False)]))
def test_the_threads_of_a_service_share_one_arena(first: str, shared: bool) -> None:
    command = [sys.executable, "-c", ALLOCATE.format(first=first)]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stderr
    assert (told.count("Arena ") == 1) is shared
