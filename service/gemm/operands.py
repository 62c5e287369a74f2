"""Operands of a GEMM request: what they are, and where their bytes lie."""

from __future__ import annotations

import dataclasses
import fcntl
import hmac
import math
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from tilewright.errors import InvalidProblem
from tilewright.schema.codec import gathered
from tilewright.schema.problem import DType, GemmProblem
from tilewright.wire.gemm import GemmPost, SharedGemmBody, SharedSegment, SharedTensor
from tilewright.wire.safetensors import places
from tuner.workers.shared_memory import Pages, Region, file_id, is_sealed


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
    problem = GemmProblem(**gathered(GemmProblem, query))
    found: dict[str, Operand] = {}
    end = 0
    for name, (dtype, shape) in shapes(problem).items():
        if name != "d":
            size = math.prod(shape) * dtype.size
            found[name] = Operand(dtype, shape, body.region.part(end, size))
            end += size
    if end != body.region.size:
        raise InvalidProblem(f"{problem} needs {end} bytes of {', '.join(found)}, got {body.region.size}")
    return found


@contextmanager
def shared(body: SharedGemmBody) -> Iterator[dict[str, Operand]]:
    """The operands of a request in shared memory and ``d``, held open meanwhile.

    Raises:
        InvalidProblem: the caller did not prove that a segment is its own, one is too short, no type is
            given, or ``d`` lies in the memory of an operand.
    """
    if body.dtype is None:
        raise InvalidProblem("shared memory tells no type: give dtype")
    given = {"has_c": body.c is not None, "has_bias": body.bias is not None}
    problem = GemmProblem(**gathered(GemmProblem, body, **given))
    with ExitStack() as open_segments:
        found: dict[str, Operand] = {}
        for name, (dtype, shape) in shapes(problem).items():
            place: SharedTensor = getattr(body, name)
            region = _region(name, place, math.prod(shape) * dtype.size, open_segments)
            found[name] = Operand(dtype, shape, region)
        _check_apart(found)
        yield found


def _region(name: str, place: SharedTensor, size: int, open_segments: ExitStack) -> Region:
    segment = place.segment
    owned = f"/proc/{segment.pid}/fd/{segment.fd}"
    fd = _proven(segment, owned, open_segments)
    if fd is None:
        raise InvalidProblem(
            f"{name}: process {segment.pid} has no memory of that token as descriptor {segment.fd}; pass a "
            "memfd of the service's user that starts with it, sealed with F_SEAL_SHRINK, F_SEAL_GROW and "
            "F_SEAL_SEAL"
        )
    held = os.fstat(fd).st_size
    if held < place.offset + size:
        raise InvalidProblem(
            f"{name} takes {size} bytes from {place.offset} on, the segment has {held}; make it larger"
        )
    return Region(f"/proc/{os.getpid()}/fd/{fd}", owned, place.offset, size)


def _proven(segment: SharedSegment, path: str, open_segments: ExitStack) -> int | None:
    """A descriptor of the memory if it starts with the caller's token, which only its user can read."""
    try:
        # NOTE: looked at before it is opened: to open a pipe or a device of another program may act on it.
        seen = os.open(path, os.O_PATH | os.O_CLOEXEC)
        open_segments.callback(os.close, seen)
        found = os.fstat(seen)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            return None
        fd = os.open(f"/proc/self/fd/{seen}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    open_segments.callback(os.close, fd)
    # NOTE: buffers of the service itself, which start with what a caller sent, can grow.
    if not is_sealed(fd, fcntl.F_SEAL_GROW):
        return None
    token = segment.token.encode()
    return fd if hmac.compare_digest(os.pread(fd, len(token), 0), token) else None


def _check_apart(found: Mapping[str, Operand]) -> None:
    files = {name: file_id(os.stat(operand.region.path)) for name, operand in found.items()}
    d = files.pop("d")
    if d in files.values():
        raise InvalidProblem("d must lie in a segment of its own, which no operand uses")
