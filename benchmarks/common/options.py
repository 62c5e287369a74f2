"""Options that the benchmarks of ``tilewright bench`` share."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from benchmarks.common.results import RESULTS
from tilewright.schema.codec import Bounds
from tilewright.schema.problem import DType


# NOTE: without slots, so that the command line reads the defaults from the class.
@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a benchmark runs.

    Attributes:
        device: cuda:0, cuda:1 and so on; host where the benchmark runs there.
        out: folder of the results; benchmarks/results by default.
        rounds: short samples of each candidate; the benchmark's own number by default.
        resume: leave out what the results hold already.
        stop_after: start nothing new after so many seconds; 0 for no bound.
    """

    device: str = "cuda:0"
    out: Path | None = None
    rounds: Annotated[int | None, Bounds(8, 10_000)] = None
    resume: bool = False
    stop_after: Annotated[float, Bounds(0.0, 1e6)] = 0.0

    @property
    def folder(self) -> Path:
        """Folder of the results."""
        return self.out or RESULTS

    def ends(self) -> Callable[[], bool]:
        """Whether the seconds of ``stop_after`` have passed since this call."""
        started = time.monotonic()
        return lambda: bool(self.stop_after) and time.monotonic() - started > self.stop_after


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowOptions(RunOptions):
    """How a benchmark that tunes runs.

    Attributes:
        repeat: number of this run, of several on one GPU.
        peers: add what ``torch.compile`` and nvMatmulHeuristics do.
    """

    repeat: Annotated[int, Bounds(1, 1000)] = 1
    peers: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShapeOptions(RowOptions):
    """How a benchmark of single shapes runs, and of which.

    Attributes:
        dtype: element type of A and B; the benchmark's own by default.
        held_out: measure the shapes that are held out.
        only: this group, MxNxK or MxNxK-LAYOUT alone; repeatable.
    """

    dtype: DType | None = None
    held_out: bool = False
    only: tuple[str, ...] = ()
