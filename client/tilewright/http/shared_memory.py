"""A GEMM on the service with its operands in shared memory: segments that a client keeps between calls, and
segments that arrays lie in.

A segment is anonymous memory (a memfd), sealed so that no one can shrink it under the service, which starts
with a random token. Only processes of this user can read it: a caller that tells the token may use it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import math
import mmap
import operator
import os
import secrets
import sys
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from tilewright import forks, wire
from tilewright.errors import InvalidProblem, ServiceError
from tilewright.http.arguments import GemmOptions
from tilewright.http.calls import Call, Reply, checked, post
from tilewright.http.gemm_calls import GEMM_S, GemmAnswer, gemm_query, match_and_timing
from tilewright.http.tensors import host_array, numpy_type
from tilewright.schema.codec import gathered
from tilewright.schema.problem import DType, GemmProblem
from tilewright.wire.gemm import SEGMENT_HEADER, SharedGemmBody, SharedGemmView

_KEPT_BYTES = 2**30
_GRAIN = 2**20
_ALIGNED = 64
_BUSY = "urn:tilewright:problem:device-busy"


_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
# NOTE: mmap has a descriptor of its own otherwise, which it closes by number with the last array.
_UNTRACKED: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Memory that this process made; it stays mapped while an array lies in it.

    Attributes:
        fd: its descriptor, by which the service opens it.
        status: that of its file.
        token: what it starts with: the proof to the service that a caller may use it.
        memory: all of it.
    """

    fd: int
    status: os.stat_result
    token: str
    memory: mmap.mmap

    @property
    def size(self) -> int:
        """The bytes that tensors can take."""
        return len(self.memory) - SEGMENT_HEADER

    @property
    def open(self) -> bool:
        """Whether the descriptor is still its own; a process that becomes a daemon closes all by number."""
        try:
            return os.path.samestat(self.status, os.fstat(self.fd))
        except OSError:
            return False

    def array(self, shape: tuple[int, ...], dtype: Any, offset: int = SEGMENT_HEADER) -> Any:
        """A NumPy array in it."""
        return np.ndarray(shape, dtype, self.memory, offset)

    def location(self, offset: int = SEGMENT_HEADER) -> dict[str, Any]:
        """A :class:`tilewright.wire.gemm.SharedTensor`."""
        return {"segment": {"pid": os.getpid(), "fd": self.fd, "token": self.token}, "offset": offset}

    def remove(self) -> None:
        """Close it; the memory is freed with the last array in it."""
        if self.open:
            os.close(self.fd)


def make(size: int) -> Segment:
    """A new segment for ``size`` bytes of tensors.

    Raises:
        OSError: the machine has not so much memory.
    """
    size += SEGMENT_HEADER
    if size > os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE:
        raise OSError(errno.ENOMEM, f"{os.strerror(errno.ENOMEM)}: {size} bytes; use smaller operands")
    fd, token = (
        os.memfd_create("tilewright-segment", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING),
        secrets.token_hex(16),
    )
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        os.pwrite(fd, token.encode(), 0)
        return Segment(fd, os.fstat(fd), token, mmap.mmap(fd, size, **_UNTRACKED))
    except BaseException:
        os.close(fd)
        raise


_arrays: dict[int, Segment] = {}  # of :func:`empty`, by address


class Segments:
    """Lends segments and keeps those that come back, 1 GiB at most; safe to share between threads."""

    def __init__(self) -> None:
        self._free: list[Segment] = []
        self._lock = threading.Lock()
        weakref.finalize(self, _remove, self._free)
        forks.watch(self)

    def after_fork(self) -> None:
        """Drop the kept segments, which the parent uses."""
        self._lock = threading.Lock()
        _remove(self._free)

    @contextlib.contextmanager
    def lend(self, size: int) -> Iterator[Segment]:
        """A segment of ``size`` bytes at least.

        Raises:
            OSError: the machine has not so much memory.
        """
        segment = self._take(size) or make(-(-size // _GRAIN) * _GRAIN)
        try:
            yield segment
        except BaseException as error:
            # NOTE: the device may still write to it unless the service says that it had not begun.
            if isinstance(error, ServiceError) and _not_begun(error):
                self._keep(segment)
            else:
                segment.remove()
            raise
        self._keep(segment)

    def close(self) -> None:
        """Free the kept segments."""
        with self._lock:
            _remove(self._free)

    def _take(self, size: int) -> Segment | None:
        with self._lock:
            fitting = [segment for segment in self._free if segment.size >= size and segment.open]
            found = min(fitting, key=lambda segment: segment.size, default=None)
            if found:
                self._free.remove(found)
            return found

    def _keep(self, segment: Segment) -> None:
        with self._lock:
            self._free.append(segment)
            while sum(one.size for one in self._free) > _KEPT_BYTES:
                self._free.pop(0).remove()


def empty(shape: int | Iterable[int], dtype: Any) -> Any:
    """A NumPy array in a segment of its own, which is removed with the array and its views.

    Raises:
        InvalidProblem: the shape or the type is none.
        OSError: the machine has not so much memory.
    """
    try:
        extents = tuple(map(operator.index, shape if isinstance(shape, Iterable) else (shape,)))
        kind = np.dtype(dtype)
    except TypeError as error:
        raise InvalidProblem(f"give a shape and the type of its elements: {error}") from None
    if min(extents, default=0) < 0 or kind.hasobject:
        raise InvalidProblem(f"shared memory needs extents from 0 on and plain elements, got {shape}, {kind}")
    segment = make(max(1, math.prod(extents) * kind.itemsize))
    try:
        array = segment.array(extents, kind)
    except ValueError as error:  # more axes or a longer one than arrays have
        segment.remove()
        raise InvalidProblem(f"give a shape that NumPy has: {error}") from None
    _arrays[array.ctypes.data] = segment
    weakref.finalize(array, _forget, array.ctypes.data)
    return array


def location(array: Any) -> dict[str, Any] | None:
    """Where an array lies that :func:`empty` made, or a view of it; else None."""
    address = array.ctypes.data
    for start, segment in list(_arrays.items()):
        if start <= address < start + segment.size and segment.open:
            return segment.location(SEGMENT_HEADER + address - start)
    return None


def _not_begun(error: ServiceError) -> bool:
    return 400 <= error.status < 500 or error.problem.get("type") == _BUSY


def _remove(segments: list[Segment]) -> None:
    while segments:
        segments.pop().remove()


def _forget(address: int) -> None:
    _arrays.pop(address).remove()


@contextlib.contextmanager
def shared_gemm(
    operands: Mapping[str, Any], options: GemmOptions, segments: Segments, out: Any = None
) -> Iterator[Call[GemmAnswer]]:
    """``POST /gemm/shared``: operands that are not in shared memory are copied there.

    The segments serve again once the block ends. The answer has a copy of the result, or ``out``.

    Raises:
        InvalidProblem: an array cannot be converted, or an option or a shape breaks a rule.
        OSError: the machine has not so much memory.
    """
    given = {name: host_array(name, array) for name, array in operands.items()}
    hosts = {name: host for name, (_, host) in given.items()}
    query = gemm_query(options)
    problem = _problem(hosts, given["a"][0], query)
    shape, dtype = (*hosts["a"].shape[:-2], problem.m, problem.n), numpy_type(problem.out)
    with contextlib.ExitStack() as lent:
        tensors = _locate(lent, segments, hosts)
        if out is None:
            result = lent.enter_context(segments.lend(math.prod(shape) * dtype.itemsize))
            d, tensors["d"] = result.array(shape, dtype), result.location()
        else:
            d, tensors["d"] = out, _location_of(out, shape, dtype)

        def parse(reply: Reply) -> GemmAnswer:
            view = SharedGemmView.model_validate_json(reply.content)
            found = d.copy() if out is None else out
            return GemmAnswer(found, view.ran, view.kernel_us, *match_and_timing(reply.headers))

        shown = query.model_dump(exclude_unset=True) | gathered(SharedGemmBody, problem)
        body = checked(SharedGemmBody, shown | tensors)
        yield dataclasses.replace(post("/gemm/shared", body, parse), answer_s=GEMM_S)


def _problem(hosts: Mapping[str, Any], dtype: DType, query: wire.GemmQuery) -> GemmProblem:
    a, b = hosts["a"].shape, hosts["b"].shape
    if len(a) not in (2, 3) or len(b) != len(a):
        raise InvalidProblem(f"a and b must both be matrices or both be batches of them; got {a} and {b}")
    m, n, k = query.layout.extents(a, b)
    told = {"dtype": query.dtype or dtype, "batch": a[0] if len(a) == 3 else 1}
    told |= {"has_bias": "bias" in hosts, "has_c": "c" in hosts}
    problem = GemmProblem(**gathered(GemmProblem, query, m=m, n=n, k=k, **told))
    _check(problem, hosts)
    return problem


def _check(problem: GemmProblem, hosts: Mapping[str, Any]) -> None:
    # NOTE: the service sees bytes alone: a wrong shape of the right size would give a wrong product.
    lead = hosts["a"].shape[:-2]
    d = (*lead, problem.m, problem.n)
    wanted = {"b": (*lead, *problem.b_shape), "c": d, "bias": (problem.n,)}
    for name, shape in wanted.items():
        dtype = numpy_type(problem.dtype if name == "b" else problem.out)
        host = hosts.get(name)
        if host is not None and (host.shape != shape or host.dtype != dtype):
            raise InvalidProblem(f"{name} must be {dtype} {list(shape)}, got {host.dtype} {list(host.shape)}")


def _locate(
    lent: contextlib.ExitStack, segments: Segments, hosts: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Where each operand lies in shared memory; those that lie elsewhere are copied there."""
    known = {name: location(host) for name, host in hosts.items()}
    found = {name: there for name, there in known.items() if there}
    offsets, size = {}, SEGMENT_HEADER
    for name in [name for name in hosts if name not in found]:
        offsets[name] = size
        size += -(-hosts[name].nbytes // _ALIGNED) * _ALIGNED
    if offsets:
        segment = lent.enter_context(segments.lend(size - SEGMENT_HEADER))
        for name, offset in offsets.items():
            segment.array(hosts[name].shape, hosts[name].dtype, offset)[...] = hosts[name]
            found[name] = segment.location(offset)
    return found


def _location_of(out: Any, shape: tuple[int, ...], dtype: Any) -> dict[str, Any]:
    there = location(out) if isinstance(out, np.ndarray) and out.flags.c_contiguous else None
    if there is None or out.shape != shape or out.dtype != dtype or not out.flags.writeable:
        raise InvalidProblem(f"out must be writable and what shared_empty({shape}, {str(dtype)!r}) gives")
    return there
