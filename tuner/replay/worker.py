"""A process that replays runs: ``python -m tuner.replay.worker --space FILE``."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from tilewright.schema.config import Config
from tilewright.schema.job import Sampler
from tuner.replay.formats import read_space
from tuner.replay.run import RunSpec, run
from tuner.workers.frames import Frame
from tuner.workers.server import serve


class ReplayServer:
    """Serves one operation: a spec in, a result out."""

    def __init__(self, path: Path) -> None:
        self._space = read_space(path)

    def greeting(self) -> dict[str, Any]:
        """Nothing to tell."""
        return {}

    def handle(self, request: Frame) -> Frame:
        """Replay one run."""
        return Frame({"kind": "ok", **dataclasses.asdict(run(self._space, spec_of(request.header)))})


def header_of(spec: RunSpec) -> dict[str, Any]:
    """A spec as the header of a request."""
    return dataclasses.asdict(spec) | {
        "initial_configs": [config.to_dict() for config in spec.initial_configs]
    }


def spec_of(header: dict[str, Any]) -> RunSpec:
    """The inverse of :func:`header_of`."""
    initial_configs = tuple(map(Config.from_dict, header["initial_configs"]))
    return RunSpec(**(header | {"sampler": Sampler(header["sampler"]), "initial_configs": initial_configs}))


def main() -> None:
    """Replay until the parent is gone."""
    parser = argparse.ArgumentParser(description="Replays searches; started by 'tilewright replay'.")
    parser.add_argument("--space", required=True, type=Path, help="a recorded space")
    parser.add_argument("--pipes", required=True, help="file descriptors READ,WRITE")
    arguments = parser.parse_args()
    serve(arguments.pipes, lambda: ReplayServer(arguments.space))


if __name__ == "__main__":
    main()
