"""Operands of a GEMM request: what they are, and where their bytes lie."""

from __future__ import annotations

import dataclasses
import math
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tilewright.errors import InvalidProblem
from tilewright.schema.problem import DType, GemmProblem
from tilewright.wire.gemm import GemmPost, SharedGemmBody, SharedTensor
from tilewright.wire.safetensors import places
from tuner.workers.shared_memory import Pages, Region

_SEGMENTS = "/dev/shm"  # where POSIX shared memory is on Linux, see shm_overview(7)
_OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclasses.dataclass(frozen=True, slots=True)
class Operand:
    """A dense row-major tensor and its little-endian bytes."""

    dtype: DType
    shape: tuple[int, ...]
    region: Region


def shapes(problem: GemmProblem) -> dict[str, tuple[DType, tuple[int, ...]]]:
    """Type and shape of each operand that a problem has and of ``d``, in the order of a raw body."""
    lead = (problem.batch,) if problem.batch > 1 else ()
    d = (problem.out, (*lead, problem.m, problem.n))
    found = {"a": (problem.dtype, (*lead, *problem.a_shape)), "b": (problem.dtype, (*lead, *problem.b_shape))}
    found |= {"c": d} if problem.has_c else {}
    return found | ({"bias": (problem.out, (problem.n,))} if problem.has_bias else {}) | {"d": d}


def safetensors(body: Pages, query: GemmPost) -> dict[str, Operand]:
    """The tensors of a safetensors file by name, where they lie.

    Raises:
        InvalidProblem: it is not such a file, or the query says of what shapes its tensors are.
    """
    given = sorted(query.model_fields_set & {"m", "n", "k", "batch", "has_bias", "has_c"})
    if given:
        raise InvalidProblem(f"a safetensors file tells its shapes itself: leave {', '.join(given)} out")
    whole = body.region
    return {
        name: Operand(place.dtype, place.shape, whole.part(place.start, place.size))
        for name, place in places(body.read, whole.size).items()
    }


def raw(body: Pages, query: GemmPost) -> dict[str, Operand]:
    """The operands of a raw body.

    Raises:
        InvalidProblem: no shape or type is given, or the body has another size than they tell.
    """
    if query.m is None or query.n is None or query.k is None or query.dtype is None:
        raise InvalidProblem("a raw body tells no shape: give m, n, k and dtype in the query")
    problem = _problem(query, (query.m, query.n, query.k), has_c=query.has_c, has_bias=query.has_bias)
    found: dict[str, Operand] = {}
    end = 0
    for name, (dtype, shape) in shapes(problem).items():
        if name != "d":
            size = math.prod(shape) * dtype.size
            found[name] = Operand(dtype, shape, body.region.part(end, size))
            end += size
    if end != body.region.size:
        raise InvalidProblem(f"{problem} takes {end} bytes of {', '.join(found)}, got {body.region.size}")
    return found


@contextmanager
def shared(body: SharedGemmBody) -> Iterator[dict[str, Operand]]:
    """The operands of a request in shared memory and ``d``, held open meanwhile.

    Raises:
        InvalidProblem: a segment is not there, not this user's or too short, no type is given, or ``d``
            overlaps another one.
    """
    if body.dtype is None:
        raise InvalidProblem("shared memory tells no type: give dtype")
    extents = (body.m, body.n, body.k)
    problem = _problem(body, extents, has_c=body.c is not None, has_bias=body.bias is not None)
    with ExitStack() as open_segments:
        found: dict[str, Operand] = {}
        for name, (dtype, shape) in shapes(problem).items():
            place: SharedTensor = getattr(body, name)
            region = _region(name, place, math.prod(shape) * dtype.size, open_segments)
            found[name] = Operand(dtype, shape, region)
        _check_apart(body)
        yield found


def _problem(
    query: GemmPost | SharedGemmBody, extents: tuple[int, int, int], *, has_c: bool, has_bias: bool
) -> GemmProblem:
    return GemmProblem(
        *extents,
        dtype=query.dtype or DType.FLOAT16,
        layout=query.layout,
        batch=query.batch,
        out_dtype=query.out_dtype,
        acc_dtype=query.acc_dtype,
        activation=query.activation,
        has_bias=has_bias,
        has_c=has_c,
    )


def _region(name: str, place: SharedTensor, size: int, open_segments: ExitStack) -> Region:
    try:
        fd = os.open(f"{_SEGMENTS}/{place.segment}", _OPEN)
    except OSError as error:
        raise InvalidProblem(f"{name}: segment {place.segment} cannot be used: {error.strerror}") from error
    open_segments.callback(os.close, fd)
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        raise InvalidProblem(f"{name}: segment {place.segment} is not one of the service's own user")
    if found.st_size < place.offset + size:
        raise InvalidProblem(
            f"{name} takes {size} bytes from {place.offset} on, the segment has {found.st_size}"
        )
    return Region(f"/proc/{os.getpid()}/fd/{fd}", place.offset, size)


def _check_apart(body: SharedGemmBody) -> None:
    others = [place for place in (body.a, body.b, body.c, body.bias) if place]
    if any(place.segment == body.d.segment for place in others):
        raise InvalidProblem("d must lie in a segment of its own, which no operand uses")
