"""A GEMM on the service with its operands in shared memory: segments that a client keeps between calls, and
segments that arrays lie in."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import mmap
import os
import secrets
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np

from tilewright import forks
from tilewright.errors import InvalidProblem, ServiceError
from tilewright.http.arguments import GemmOptions
from tilewright.http.calls import Call, Reply, checked, post
from tilewright.http.gemm_calls import GEMM_S, GemmAnswer, match_and_timing, with_layout
from tilewright.http.tensors import host_array, numpy_type
from tilewright.schema.problem import DType, GemmProblem
from tilewright.wire.gemm import SEGMENT_PREFIX, SharedGemmBody, SharedGemmView

_KEPT_BYTES = 2**30
_GRAIN = 2**20
_ALIGNED = 64
_BUSY = "urn:tilewright:problem:device-busy"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """A segment that this process made; its memory stays mapped while an array lies in it.

    Attributes:
        handle: its name; it maps nothing.
        owner: the process that may remove it.
    """

    handle: SharedMemory
    memory: mmap.mmap
    owner: int

    @property
    def name(self) -> str:
        """What the service knows it by."""
        return self.handle.name

    def array(self, shape: tuple[int, ...], dtype: Any, offset: int = 0) -> Any:
        """A NumPy array in it."""
        return np.ndarray(shape, dtype, self.memory, offset)

    def remove(self) -> None:
        """Take its name away; the memory goes with the last array in it."""
        if self.owner == os.getpid():
            with contextlib.suppress(FileNotFoundError):
                self.handle.unlink()


def make(size: int) -> Segment:
    """A new segment.

    Raises:
        OSError: there is not so much shared memory.
    """
    handle = SharedMemory(f"{SEGMENT_PREFIX}{secrets.token_hex(16)}", create=True, size=size)
    handle.close()
    try:
        with open(f"/dev/shm/{handle.name}", "r+b") as file:
            # NOTE: making it reserves nothing; writing beyond what there is would end this process (SIGBUS).
            os.posix_fallocate(file.fileno(), 0, size)
            return Segment(handle, mmap.mmap(file.fileno(), size), os.getpid())
    except BaseException:
        handle.unlink()
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
        """What is kept belongs to the parent."""
        self._lock = threading.Lock()
        self._free.clear()

    @contextlib.contextmanager
    def lend(self, size: int) -> Iterator[Segment]:
        """A segment of ``size`` bytes at least.

        Raises:
            OSError: there is not so much shared memory.
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
        """Give back what is kept."""
        with self._lock:
            _remove(self._free)

    def _take(self, size: int) -> Segment | None:
        with self._lock:
            fitting = [segment for segment in self._free if len(segment.memory) >= size]
            found = min(fitting, key=lambda segment: len(segment.memory), default=None)
            if found:
                self._free.remove(found)
            return found

    def _keep(self, segment: Segment) -> None:
        with self._lock:
            self._free.append(segment)
            while sum(len(one.memory) for one in self._free) > _KEPT_BYTES:
                self._free.pop(0).remove()


def empty(shape: int | Iterable[int], dtype: Any) -> Any:
    """A NumPy array in a segment of its own, which is removed with the array and its views.

    Raises:
        OSError: there is not so much shared memory.
    """
    shape = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    segment = make(max(1, math.prod(shape) * np.dtype(dtype).itemsize))
    array = segment.array(shape, dtype)
    _arrays[array.ctypes.data] = segment
    weakref.finalize(array, _forget, array.ctypes.data)
    return array


def location(array: Any) -> tuple[str, int] | None:
    """The segment's name and the offset of an array that :func:`empty` made, or of its views; else None."""
    address = array.ctypes.data
    for start, segment in list(_arrays.items()):
        if start <= address < start + len(segment.memory):
            return segment.name, address - start
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
    """``POST /gemm/shared``: operands that are not in shared memory are copied there, None is left out.

    The segments serve again once the block ends. The answer has a copy of the result, or ``out``.

    Raises:
        InvalidProblem: an array cannot be converted, or an option or a shape breaks a rule.
        OSError: there is not so much shared memory.
    """
    given = {name: host_array(name, array) for name, array in operands.items() if array is not None}
    hosts = {name: host for name, (_, host) in given.items()}
    fields, problem = _request(hosts, given["a"][0], options)
    shape, dtype = (*hosts["a"].shape[:-2], problem.m, problem.n), numpy_type(problem.out)
    with contextlib.ExitStack() as lent:
        tensors = _locate(lent, segments, hosts)
        if out is None:
            result = lent.enter_context(segments.lend(math.prod(shape) * dtype.itemsize))
            d, tensors["d"] = result.array(shape, dtype), {"segment": result.name}
        else:
            d, tensors["d"] = out, _location_of(out, shape, dtype)

        def parse(reply: Reply) -> GemmAnswer:
            view = SharedGemmView.model_validate_json(reply.content)
            found = d.copy() if out is None else out
            return GemmAnswer(found, view.ran, view.kernel_us, *match_and_timing(reply.headers))

        body = checked(SharedGemmBody, {**fields, **tensors})
        yield dataclasses.replace(post("/gemm/shared", body, parse), answer_s=GEMM_S)


def _request(
    hosts: Mapping[str, Any], dtype: DType, options: GemmOptions
) -> tuple[dict[str, Any], GemmProblem]:
    fields = with_layout(options)
    layout = fields["layout"]
    a, b = hosts["a"].shape, hosts["b"].shape
    if len(a) not in (2, 3) or len(b) != len(a):
        raise InvalidProblem(f"a and b must both be matrices or both be batches of them; got {a} and {b}")
    problem = GemmProblem(
        m=a[-1] if layout.a_transposed else a[-2],
        n=b[-2] if layout.b_transposed else b[-1],
        k=a[-2] if layout.a_transposed else a[-1],
        dtype=DType(fields.get("dtype", dtype)),
        layout=layout,
        batch=a[0] if len(a) == 3 else 1,
        out_dtype=fields.get("out_dtype"),
        acc_dtype=fields.get("acc_dtype"),
        has_bias="bias" in hosts,
        has_c="c" in hosts,
    )
    _check(problem, hosts)
    extents = {name: getattr(problem, name) for name in ("m", "n", "k", "batch", "dtype")}
    return fields | extents, problem


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
    found = {name: {"segment": there[0], "offset": there[1]} for name, there in known.items() if there}
    offsets, size = {}, 0
    for name in [name for name in hosts if name not in found]:
        offsets[name] = size
        size += -(-hosts[name].nbytes // _ALIGNED) * _ALIGNED
    if offsets:
        segment = lent.enter_context(segments.lend(size))
        for name, offset in offsets.items():
            segment.array(hosts[name].shape, hosts[name].dtype, offset)[...] = hosts[name]
            found[name] = {"segment": segment.name, "offset": offset}
    return found


def _location_of(out: Any, shape: tuple[int, ...], dtype: Any) -> dict[str, Any]:
    there = location(out) if isinstance(out, np.ndarray) and out.flags.c_contiguous else None
    if there is None or out.shape != shape or out.dtype != dtype:
        raise InvalidProblem(f"out must be what shared_empty({shape}, {str(dtype)!r}) gives")
    return {"segment": there[0], "offset": there[1]}
