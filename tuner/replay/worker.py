"""A process that replays runs: ``python -m tuner.replay.worker --space FILE``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tilewright.schema.codec import decode, encode
from tuner.replay.formats import read_space
from tuner.replay.run import RunSpec, run
from tuner.workers.frames import Frame
from tuner.workers.server import serve


class ReplayServer:
    """Serves one operation: a spec in, a result out."""

    def __init__(self, path: Path) -> None:
        self._space = read_space(path)

    def greeting(self) -> dict[str, Any]:
        """Empty: the parent needs no data from this process."""
        return {}

    def handle(self, request: Frame) -> Frame:
        """Replay one run."""
        spec = decode(RunSpec, request.header["spec"])
        return Frame({"kind": "ok", "result": encode(run(self._space, spec))})


def main() -> None:
    """Answer requests until the parent closes its end."""
    parser = argparse.ArgumentParser(description="Replays searches; started by 'tilewright replay'.")
    parser.add_argument("--space", required=True, type=Path, help="a recorded space")
    parser.add_argument("--pipes", required=True, help="file descriptors READ,WRITE")
    arguments = parser.parse_args()
    serve(arguments.pipes, lambda: ReplayServer(arguments.space))


if __name__ == "__main__":
    main()
