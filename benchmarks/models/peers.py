"""Adds to rows of a benchmark what users have today: ``torch.compile`` in its longest mode, and our kernels
with the tiles that nvMatmulHeuristics chooses first.

Each is a process of its own that starts after the rows are measured. A row gets ``torch_ratio``, the time of
``torch.matmul`` over that of the compiled product, and ``heuristics_ratio``, the time of the vendor library
over that of the best of those tiles.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.common.fresh import FreshTuner
from benchmarks.models.files import Row, RowFile
from kernels.base.tile_hint import TileHint
from tilewright.errors import DeviceUnavailable, TilewrightError
from tilewright.schema.problem import GemmProblem
from tuner.measure.stats import median

RATIOS = ("torch_ratio", "heuristics_ratio")
TIMEOUT_S = 300.0
_NONE = {
    "torch_us": None,
    "torch_matmul_us": None,
    "torch_tune_s": None,
    "torch_ratio": None,
    "heuristics_us": None,
    "heuristics_ratio": None,
    "heuristics_kernel": "",
    "torch_failure": "",
    "heuristics_failure": "",
}


class Peer:
    """A process that answers problems; it ends with the block, or if an answer takes too long."""

    def __init__(self, what: str, gpu: str) -> None:
        self._command = [sys.executable, "-m", "benchmarks.models.peer_worker", what, gpu]
        self._process: subprocess.Popen[bytes] | None = None
        self._cache = tempfile.TemporaryDirectory(prefix="tilewright-peer-")

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._cache.cleanup()

    def ask(self, problem: GemmProblem) -> dict[str, Any]:
        """The answer to a problem; ``failure`` says why there is none."""
        process = self._process = self._process or self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(problem.to_dict()).encode() + b"\n")
            process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], TIMEOUT_S)
        line = process.stdout.readline() if ready else b""
        if not line:
            self._stop()
            return {"failure": "its process died" if ready else f"no answer in {TIMEOUT_S:.0f} s"}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _started(self) -> subprocess.Popen[bytes]:
        folders = {"TORCHINDUCTOR_CACHE_DIR": self._cache.name, "TRITON_CACHE_DIR": self._cache.name}
        pipe = subprocess.PIPE
        return subprocess.Popen(
            self._command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=os.environ | folders
        )

    def _stop(self) -> None:
        if self._process:
            self._process.kill()
            self._process.communicate()
        self._process = None


def add_peers(
    file: RowFile,
    rows: Iterable[tuple[Row, GemmProblem]],
    tuner: FreshTuner,
    ends: Callable[[], bool],
    tell: Callable[[str], None],
) -> list[Row]:
    """Add the peers' results to rows that lack them, until ``ends``; returns these rows."""
    name, added = tuner.bench.spec.name, list[Row]()
    with Peer("torch", name) as compiler, Peer("heuristics", name) as heuristics:
        for row, problem in rows:
            if ends():
                break
            figures = _NONE | _compiled(compiler.ask(problem)) | _hinted(heuristics, tuner, problem)
            added.append(row | figures)
            file.extend(added[-1])
            tell(f"{problem}: {_line(figures)}")
    return added


def _compiled(answer: dict[str, Any]) -> dict[str, Any]:
    if "failure" in answer:
        return {"torch_failure": answer["failure"]}
    return answer | {"torch_ratio": float(f"{answer['torch_matmul_us'] / answer['torch_us']:.6g}")}


def _hinted(heuristics: Peer, tuner: FreshTuner, problem: GemmProblem) -> dict[str, Any]:
    """Times of the best of our kernels that follow the first choices, in a race with the vendor library."""
    answer = heuristics.ask(problem)
    if "failure" in answer:
        return {"heuristics_failure": answer["failure"]}
    hints = [TileHint(**one | {"cluster": tuple(one["cluster"])}) for one in answer["hints"]]
    try:
        kernels, samples = tuner.race_hints(problem, hints)
    except DeviceUnavailable:
        raise
    except TilewrightError as error:
        return {"heuristics_failure": str(error)}
    times: Sequence[float] = [median(row) for row in samples.samples_us[:-1]]
    best = min(range(len(times)), key=times.__getitem__)
    ratio = samples.ratio(-1, best)
    return {
        "heuristics_us": float(f"{times[best]:.6g}"),
        "heuristics_ratio": float(f"{ratio.value:.6g}"),
        "heuristics_kernel": kernels[best],
    }


def _line(figures: dict[str, Any]) -> str:
    ratio, seconds = figures["torch_ratio"], figures["torch_tune_s"]
    compiled = f"torch.compile {ratio} in {seconds} s" if ratio else figures["torch_failure"]
    ratio = figures["heuristics_ratio"]
    return f"{compiled}; " + (f"heuristics {ratio}" if ratio else figures["heuristics_failure"])


def merged(rows: Iterable[Row], extended: Iterable[Row]) -> list[Row]:
    """All rows, with the extended rows in place of their earlier versions."""
    found = list(extended)
    return [row for row in rows if not any(row.items() <= one.items() for one in found)] + found
