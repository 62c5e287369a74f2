"""A compile process whose NVRTC overflows its stack, for one config each time that a file says so."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from kernels.compiler import build, nvrtc
from tuner.workers import builder, compile_worker
from tuner.workers.builder import Builder
from tuner.workers.process import python

_FILE = "CRASH_NVRTC"
# NOTE: NVRTC compiles on a thread of its own, whose stack is as large as this limit was at the start.
_STACK_BYTES = 1 << 20
_DEEP = 'extern "C" __global__ void kernel(int* p) {{ *p = {}*p; }}'.format("!" * 150_000)


@contextlib.contextmanager
def crashing(folder: Path) -> Iterator[tuple[Builder, Path]]:
    """A builder of one process, and the file that makes NVRTC crash at its next config."""
    crash = folder / "crash"
    with (
        mock.patch.object(builder, "python", _command),
        mock.patch.dict(os.environ, {_FILE: str(crash)}),
        contextlib.closing(Builder(1, folder / "cache")) as made,
    ):
        yield made, crash


def _command(*arguments: str) -> list[str]:
    assert arguments[:2] == ("-m", "tuner.workers.compile_worker")
    return ["prlimit", f"--stack={_STACK_BYTES}", *python(__file__, *arguments[2:])]


def _build(*given: Any) -> Any:
    crash = Path(os.environ[_FILE])
    if crash.exists():
        crash.unlink()
        nvrtc.compile_text(_DEEP, "sm_90", entry="kernel")
        sys.exit("NVRTC did not crash")
    return build.build(*given)


if __name__ == "__main__":
    compile_worker.build = _build  # type: ignore[assignment]
    compile_worker.main()
