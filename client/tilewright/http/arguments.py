"""Arguments of the clients' methods: keyword options, misses and files."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import operator
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import IO, Any, TypedDict

from tilewright.errors import InvalidProblem, naming
from tilewright.schema.job import each_once, parse_rows
from tilewright.schema.problem import GemmProblem
from tilewright.trust import SIGNATURE_LINE

# Keyword options, for type checkers: each list names the fields of a request, as a test proves.


Rows = str | Iterable[int]
"""M of a ladder: numbers, or a text as the command line takes it, such as ``1..8192``."""


class TuneOptions(TypedDict, total=False):
    """Options of tuning: see :class:`tilewright.wire.TuneBody`; ``idempotency_key`` makes a retry safe."""

    families: Iterable[str]
    max_trials: int
    max_seconds: float
    seed: int
    sampler: str
    min_gain_per_s: float
    level: str
    device: str | None
    idempotency_key: object


class CancelOptions(TypedDict, total=False):
    """Which jobs to cancel: see :class:`tilewright.wire.CancelQuery`."""

    status: str | None
    mine: bool
    m: int | None
    n: int | None
    k: int | None
    dtype: str | None
    layout: str | None


class TargetOptions(TypedDict, total=False):
    """Where to look: see :class:`tilewright.wire.requests.TargetQuery`."""

    arch: str | None
    device_class: str | None


class BestOptions(TargetOptions, total=False):
    """Where to look and what may answer: see :class:`tilewright.wire.requests.LookupQuery`."""

    match: str
    max_regret: float
    deterministic: bool


class ListOptions(TargetOptions, total=False):
    """Where to look, and the fields of a :class:`GemmProblem` that winners of a list have in common."""

    deterministic: bool
    dtype: str
    layout: str
    batch: int
    out_dtype: str | None
    acc_dtype: str | None
    activation: str
    has_bias: bool
    has_c: bool


class ExportOptions(TypedDict, total=False):
    """Options of an export: see :class:`tilewright.wire.ExportQuery`."""

    format: str
    device_class: str | None
    family: str | None
    since: datetime | str | None
    artifacts: bool


class GemmOptions(TypedDict, total=False):
    """How to compute D = act(alpha * op(A) op(B) + beta * C + bias): see :class:`tilewright.wire.GemmQuery`.

    ``transpose_a`` says that A is stored K x M, ``transpose_b`` that B is stored N x K; ``layout`` says both.
    """

    transpose_a: bool
    transpose_b: bool
    layout: str
    dtype: str | None
    out_dtype: str | None
    acc_dtype: str | None
    activation: str
    alpha: float
    beta: float
    device: str | None
    match: str
    max_regret: float
    deterministic: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Miss:
    """A problem that ran ``count`` times without a tuned kernel, ``vendor_us`` microseconds each if known."""

    problem: GemmProblem
    count: int = 1
    vendor_us: float | None = None


def checked_problem(problem: GemmProblem) -> GemmProblem:
    """The problem.

    Raises:
        InvalidProblem: it is none.
    """
    if not isinstance(problem, GemmProblem):
        raise InvalidProblem(
            f"a problem is a GemmProblem, such as GemmProblem(512, 512, 512); got {problem!r}"
        )
    return problem


def with_problem(problem: GemmProblem, options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a request about a problem.

    Raises:
        InvalidProblem: it is not a problem, or an option is a field of the problem.
    """
    fields = checked_problem(problem).to_dict()
    twice = sorted(fields.keys() & options.keys())
    if twice:
        raise InvalidProblem(f"{', '.join(twice)}: give it in the GemmProblem, not as an option")
    return {**fields, **options}


def with_rows(problem: GemmProblem, m: Rows | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a request to tune a problem, for each ``m`` where some are given.

    Raises:
        InvalidProblem: as :func:`with_problem`, or ``m`` is no text or list of numbers.
    """
    fields = with_problem(problem, options)
    if m is None:
        return fields
    if isinstance(m, str):
        return fields | {"m": parse_rows(m)}
    try:
        return fields | {"m": each_once(map(operator.index, m))}  # also NumPy's integers
    except TypeError:
        raise InvalidProblem(
            f"m must be several integers, such as [1, 2, 4] or '1..8192', got {m!r}; one M belongs in the "
            "GemmProblem"
        ) from None


def miss_fields(miss: Miss) -> dict[str, Any]:
    """The fields of a reported miss.

    Raises:
        InvalidProblem: it is not a :class:`Miss`.
    """
    if not isinstance(miss, Miss):
        raise InvalidProblem(f"a miss is a Miss, such as Miss(GemmProblem(512, 512, 512), 3); got {miss!r}")
    return with_problem(miss.problem, {"count": miss.count, "vendor_us": miss.vendor_us})


File = IO[bytes] | str | os.PathLike[str]
"""A binary file, open or by its path."""
_PART_BYTES = 8 * 2**20
_LONGEST_LINE = 16 * 2**20  # a service refuses a longer one by its beginning


def signed_parts(source: IO[bytes]) -> Iterator[bytes]:
    """Parts of about 8 MiB that end with a signature, as exports have one every mebibyte or two; of files
    without signatures parts of about 16 MiB that end with a line."""
    lines, size = list[bytes](), 0
    while line := source.readline(_LONGEST_LINE):
        lines.append(line)
        size += len(line)
        if size >= 2 * _PART_BYTES or (size >= _PART_BYTES and line.startswith(SIGNATURE_LINE)):
            yield b"".join(lines)
            lines, size = [], 0
    if lines:
        yield b"".join(lines)


@contextlib.contextmanager
def open_to_write(file: File) -> Iterator[IO[bytes]]:
    """A file to write to; a regular file given by its path is replaced at the end of the block, by one of
    its mode. A link stays: what it leads to is replaced.

    Raises:
        InvalidProblem: it is neither an open file nor a path.
        OSError: it cannot be written; names the path that was given.
    """
    if not isinstance(file, str | os.PathLike):
        yield _opened(file, "write")
        return
    given = Path(file)
    if given.exists() and not given.is_file():  # a pipe or a terminal
        with naming(given, given), given.open("wb") as target:
            yield target
        return
    path = Path(os.path.realpath(given))
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with naming(given, beside):
            with beside.open("xb") as target:
                if path.exists():
                    os.fchmod(target.fileno(), stat.S_IMODE(path.stat().st_mode))
                yield target
            beside.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            beside.unlink()


@contextlib.contextmanager
def open_to_read(file: File) -> Iterator[IO[bytes]]:
    """A file to read from; a file that is given open stays open.

    Raises:
        InvalidProblem: it is neither an open file nor a path.
    """
    if isinstance(file, str | os.PathLike):
        with open(file, "rb") as source:
            yield source
    else:
        yield _opened(file, "readline")


def _opened(file: IO[bytes], method: str) -> IO[bytes]:
    if not hasattr(file, method) or isinstance(file, io.TextIOBase):
        raise InvalidProblem(
            f"a file must be a path or a binary file that is open, got {type(file).__name__}"
        )
    return file
