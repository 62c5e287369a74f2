"""What the clients' methods take: their keyword options, misses, and files."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import IO, Any, TypedDict

from tilewright.errors import InvalidProblem
from tilewright.schema.problem import GemmProblem


class TuneOptions(TypedDict, total=False):
    """How to tune: see :class:`tilewright.wire.TuneBody`; ``idempotency_key`` makes a retry safe."""

    families: Iterable[str]
    max_trials: int
    max_seconds: float
    seed: int
    sampler: str
    min_gain_per_s: float
    device: str
    idempotency_key: object


class BestOptions(TypedDict, total=False):
    """Where to look: ``arch`` or ``device_class``; ``match`` is ``exact`` or ``nearest``, then within
    ``max_regret`` where one is given; ``deterministic`` asks for the same bits at every launch."""

    arch: str
    device_class: str
    match: str
    max_regret: float
    deterministic: bool


class ExportOptions(TypedDict, total=False):
    """What to export: see :class:`tilewright.wire.ExportQuery`."""

    format: str
    device_class: str
    family: str
    since: datetime | str
    artifacts: bool


class GemmOptions(TypedDict, total=False):
    """How to compute D = act(alpha * op(A) op(B) + beta * C + bias); ``transpose_a`` says that A is
    stored K x M, ``transpose_b`` that B is stored N x K, ``dtype="tfloat32"`` that float32 operands may
    be multiplied with 10 bits of mantissa; ``match="nearest"`` allows kernels of near problems within
    ``max_regret``, a tenth unless given, ``deterministic`` only those that repeat bit by bit."""

    transpose_a: bool
    transpose_b: bool
    alpha: float
    beta: float
    activation: str
    dtype: str
    out_dtype: str
    acc_dtype: str
    device: str
    match: str
    max_regret: float
    deterministic: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Miss:
    """A problem that ran ``count`` times without a tuned kernel, ``vendor_us`` microseconds each if known."""

    problem: GemmProblem
    count: int = 1
    vendor_us: float | None = None


def with_problem(problem: GemmProblem, options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a request about a problem.

    Raises:
        InvalidProblem: it is no problem, or an option is a field of the problem.
    """
    if not isinstance(problem, GemmProblem):
        raise InvalidProblem(
            f"a problem is a GemmProblem, such as GemmProblem(512, 512, 512); got {problem!r}"
        )
    fields = problem.to_dict()
    twice = sorted(fields.keys() & options.keys())
    if twice:
        raise InvalidProblem(f"{', '.join(twice)}: give it in the GemmProblem, not as an option")
    return {**fields, **options}


def miss_fields(miss: Miss) -> dict[str, Any]:
    """The fields of a reported miss.

    Raises:
        InvalidProblem: it is no :class:`Miss`.
    """
    if not isinstance(miss, Miss):
        raise InvalidProblem(f"a miss is a Miss, such as Miss(GemmProblem(512, 512, 512), 3); got {miss!r}")
    return with_problem(miss.problem, {"count": miss.count, "vendor_us": miss.vendor_us})


File = IO[bytes] | str | os.PathLike[str]
"""A binary file, open or by its path."""
_PART_BYTES = 8 * 2**20


def whole_lines(source: IO[bytes]) -> Iterator[bytes]:
    """Parts of about 8 MiB that end with a line."""
    while lines := source.readlines(_PART_BYTES):
        yield b"".join(lines)


@contextlib.contextmanager
def open_to_write(file: File) -> Iterator[IO[bytes]]:
    """A file to write to; a regular one given by its path is replaced once all of it was written.

    Raises:
        InvalidProblem: it is neither an open file nor a path.
    """
    if not isinstance(file, str | os.PathLike):
        yield _opened(file, "write")
        return
    path = Path(file)
    if path.exists() and not path.is_file():  # a pipe or a terminal
        with path.open("wb") as target:
            yield target
        return
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with beside.open("xb") as target:
            yield target
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


@contextlib.contextmanager
def open_to_read(file: File) -> Iterator[IO[bytes]]:
    """A file to read from; one given open stays open.

    Raises:
        InvalidProblem: it is neither an open file nor a path.
    """
    if isinstance(file, str | os.PathLike):
        with open(file, "rb") as source:
            yield source
    else:
        yield _opened(file, "readlines")


def _opened(file: IO[bytes], method: str) -> IO[bytes]:
    if not hasattr(file, method):
        raise InvalidProblem(f"a file is a path or a binary file that is open, got {type(file).__name__}")
    return file
