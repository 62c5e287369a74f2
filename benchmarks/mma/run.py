"""``tilewright bench mma``: problems one after the other, each row written as soon as it is measured."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.options import RunOptions
from benchmarks.common.results import SharedRows, now
from benchmarks.mma.opponents import Peers
from benchmarks.mma.race import ROUNDS, Ours, configs, race
from kernels.compiler.build import source_digest
from kernels.mma_sync.family import MMA_SYNC
from tilewright.errors import DeviceUnavailable
from tilewright.schema.problem import DType, GemmProblem, Layout
from tuner.devices.base import Device
from tuner.measure import correctness, operands
from tuner.workers.builder import Builder
from tuner.workers.device_worker import open_device

SHAPES = "4096x4096x4096 5376x5376x2048 8192x8192x8192 2048x8192x28672 64x4096x14336 4095x4097x4093"
TYPES = "float16 bfloat16 float16:float16 tfloat32 int8"
LAYOUTS = "nt nn tn tt"
MOST_CONFIGS = 20
_AHEAD = 3  # problems whose configs compile while one is measured
_SHAPE = re.compile("[1-9][0-9]{0,9}(x[1-9][0-9]{0,9}){2}")
_PROBLEM = ("m", "n", "k", "layout", "dtype", "accumulate")


@dataclasses.dataclass(frozen=True, slots=True)
class MmaRequest:
    """What to measure.

    Attributes:
        cache, processes: folder of compiled kernels, compilers that run at once.
        peers: shared library of other kernels (:class:`benchmarks.mma.opponents.Peers`); None races the
            instruction alone.
        configs: the most of our configs a problem.
        run: how to run; problems that the file holds are left out if they have today's source.
    """

    problems: Sequence[GemmProblem]
    cache: Path
    processes: int
    run: RunOptions = dataclasses.field(default_factory=RunOptions)
    peers: Path | None = None
    configs: int = MOST_CONFIGS


@dataclasses.dataclass(frozen=True, slots=True)
class MmaResult:
    """Where the rows are, those of this run, and the problems that are left."""

    path: Path
    rows: list[dict[str, Any]]
    failed: dict[str, str]
    left: int


class WrongWord(ValueError):
    """A word that names no problem; ``argument`` of :func:`problems` has it."""

    def __init__(self, argument: str, rule: str, word: str) -> None:
        super().__init__(f"{rule}, with blanks between several; got {word!r}")
        self.argument = argument


def problems(shapes: str, types: str, layouts: str) -> Iterator[GemmProblem]:
    """Problems of every layout (``nt``), shape (``MxNxK``) and type (``TYPE`` or ``TYPE:ACCUMULATE``), all
    separated by blanks, that mma_sync computes from sm_80 on: 8 bits in nt alone.

    Raises:
        WrongWord: a word is none of these.
    """
    each = [_extents(word) for word in shapes.split()], [_types(word) for word in types.split()]
    asked = itertools.product([_layout(word) for word in layouts.split()], *each)
    for layout, (m, n, k), (dtype, accumulate) in asked:
        if dtype.size > 1 or layout is Layout.NT:
            yield GemmProblem(m, n, k, dtype=dtype, layout=layout, acc_dtype=accumulate)


def _extents(word: str) -> list[int]:
    if not _SHAPE.fullmatch(word):
        raise WrongWord("shapes", "a shape must be MxNxK, such as 4096x4096x4096", word)
    return [int(extent) for extent in word.split("x")]


def _types(word: str) -> tuple[DType, DType | None]:
    dtype, colon, accumulate = word.partition(":")
    try:
        return DType(dtype), DType(accumulate) if colon else None
    except ValueError:
        known = ", ".join(DType)
        raise WrongWord("types", f"a type must be TYPE or TYPE:ACCUMULATE, of {known}", word) from None


def _layout(word: str) -> Layout:
    try:
        return Layout(word)
    except ValueError:
        raise WrongWord("layouts", f"a layout must be one of {', '.join(Layout)}", word) from None


def run_mma(request: MmaRequest, tell: Callable[[str], None]) -> MmaResult:
    """Measure what is to be measured and store it.

    Raises:
        DeviceUnavailable: there is no such GPU here, or the peers do not load.
        LaunchError: a kernel broke the device; the process must end.
    """
    run, ends = request.run, request.run.ends()
    todo = list(request.problems)
    device = open_device(run.device)
    if device.spec.kind != "cuda":
        raise DeviceUnavailable(f"mma.sync needs CUDA; {run.device} is not an NVIDIA GPU, use cuda:0")
    peers = Peers(request.peers) if request.peers else None
    facts = _facts(device)
    file = SharedRows(run.folder / f"mma-{device.spec.device_class.id}.json", _PROBLEM)
    if run.resume:
        todo = [problem for problem in todo if not file.holds(_names(problem) | facts)]
    rows: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    with contextlib.closing(Builder(request.processes, request.cache)) as builder:
        for problem, ours in _compiled_ahead(builder, device, todo, request.configs):
            if ends():
                break
            tell(f"{len(rows) + len(failed) + 1} of {len(todo)}: {problem}")
            try:
                rows.append(race(device, problem, ours, peers, run.rounds or ROUNDS, tell))
            except DeviceUnavailable as error:
                failed[str(problem)] = str(error)
            else:
                file.keep(rows[-1] | facts | {"date": now()})
                tell("  " + line(rows[-1]))
            operands.forget()
            correctness.forget()
    return MmaResult(file.path, rows, failed, len(todo) - len(rows) - len(failed))


def line(row: dict[str, Any]) -> str:
    """A row in words."""
    ratio = row["ratio_cutlass"]
    peer = (
        f"x {ratio:.3f} [{row['ci_low']:.3f}, {row['ci_high']:.3f}] {row['cutlass']}" if ratio else "no peer"
    )
    return f"{row['ours_us']:.2f} us, {100 * row['share_of_limit']:.1f} % of the limit, {peer}"


def summary(rows: Iterable[dict[str, Any]]) -> str:
    """The geometric mean and the least of the ratios, and the least share of the limit."""
    rows = list(rows)
    if not rows:
        return "0 rows"
    ratios = [row["ratio_cutlass"] for row in rows if row["ratio_cutlass"]]
    shares = ", ".join(f"{100 * f([row['share_of_limit'] for row in rows]):.1f} %" for f in (min, max))
    limit = f"{len(rows)} rows, {shares} (least, most) of the register-only limit"
    if not ratios:
        return limit
    mean = math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
    return f"{limit}; over the best peer {mean:.3f} (geometric mean), {min(ratios):.3f} (least)"


def _facts(device: Device) -> dict[str, str]:
    return {
        "device": device.spec.name,
        "driver": device.driver,
        "source": source_digest(MMA_SYNC.source)[:12],
    }


def _compiled_ahead(
    builder: Builder, device: Device, todo: Iterable[GemmProblem], most: int
) -> Iterator[tuple[GemmProblem, list[Ours]]]:
    """Each problem with its configs, which were queued ``_AHEAD`` problems before."""

    def queued(problem: GemmProblem) -> tuple[GemmProblem, list[Ours]]:
        chosen = configs(problem, device.spec, most)
        return problem, [Ours(one, builder.submit("mma_sync", one, problem, device.spec)) for one in chosen]

    waiting: deque[tuple[GemmProblem, list[Ours]]] = deque()
    for problem in todo:
        waiting.append(queued(problem))
        if len(waiting) > _AHEAD:
            yield waiting.popleft()
    yield from waiting


def _names(problem: GemmProblem) -> dict[str, Any]:
    return {
        "m": problem.m, "n": problem.n, "k": problem.k, "layout": str(problem.layout),
        "dtype": str(problem.dtype), "accumulate": str(problem.accumulate),
    }  # fmt: skip
