"""A process that compiles: ``python -m tuner.workers.compile_worker --cache FOLDER --cache-bytes MOST``.

A compiler that crashes, hangs or needs too much memory ends this process only; see
:mod:`tuner.workers.builder`.
"""

from __future__ import annotations

import argparse
import resource
from pathlib import Path
from typing import Any

from kernels.compiler.build import ArtifactCache, build
from kernels.compiler.cc import remove_left
from kernels.registry import FAMILIES
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem
from tuner.workers.frames import Frame
from tuner.workers.server import serve


class CompileServer:
    """Serves one operation: a config in, an artifact out."""

    def __init__(self, cache: ArtifactCache) -> None:
        self._cache = cache

    def greeting(self) -> dict[str, Any]:
        """Empty: the parent needs no data from this process."""
        return {}

    def handle(self, request: Frame) -> Frame:
        """Build one config.

        Raises:
            CompileError: the compiler refused it.
            DeviceUnavailable: the compiler is not installed.
        """
        header = request.header
        artifact = build(
            FAMILIES[header["family"]],
            Config.from_dict(header["config"]),
            GemmProblem.from_dict(header["problem"]),
            DeviceSpec.from_dict(header["device"]),
            self._cache,
        )
        return Frame({"kind": "ok"}, (artifact.to_bytes(),))


def main() -> None:
    """Answer requests until the parent closes its end."""
    parser = argparse.ArgumentParser(description="Compiles kernels; started by the tuner.")
    parser.add_argument("--cache", required=True, type=Path, help="folder of built artifacts")
    parser.add_argument("--cache-bytes", required=True, type=int, help="most bytes in it")
    parser.add_argument("--memory-bytes", required=True, type=int, help="most of a compiler")
    parser.add_argument("--pipes", required=True, help="file descriptors READ,WRITE")
    arguments = parser.parse_args()
    # NOTE: NVRTC is in this process, and the C compiler inherits the limit.
    resource.setrlimit(resource.RLIMIT_AS, (arguments.memory_bytes, arguments.memory_bytes))
    remove_left()
    cache = ArtifactCache(arguments.cache, arguments.cache_bytes)
    serve(arguments.pipes, lambda: CompileServer(cache), compiles=True)


if __name__ == "__main__":
    main()
