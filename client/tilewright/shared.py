"""A GEMM on a service of this machine, its tensors in shared memory: only their places travel."""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Mapping
from contextlib import ExitStack
from multiprocessing.shared_memory import SharedMemory
from types import TracebackType
from typing import Any, Self

import numpy as np

from tilewright import calls
from tilewright.calls import Call, GemmAnswer
from tilewright.errors import InvalidProblem
from tilewright.problem import DType, GemmProblem, Layout
from tilewright.requests import GemmOptions, checked
from tilewright.tensors import host_array, numpy_type
from tilewright.wire.gemm import SEGMENT_PREFIX, SharedGemmBody, SharedGemmView

_ALIGNED = 64


class SharedGemm:
    """The operands of one GEMM in a segment of shared memory, and another one for the result.

    A context manager: at its end both segments are given back.

    Attributes:
        call: what to send to the service.
    """

    def __init__(self, operands: Mapping[str, Any], options: GemmOptions) -> None:
        """Copy the operands into shared memory; those that are None are left out.

        Raises:
            InvalidProblem: an array cannot be converted, or an option or a shape breaks a rule.
            OSError: there is not so much shared memory.
        """
        given = {name: host_array(name, array) for name, array in operands.items() if array is not None}
        fields, problem = _request({name: host for name, (_, host) in given.items()}, given["a"][0], options)
        lead = given["a"][1].shape[:-2]
        self._out, self._shape = numpy_type(problem.out), (*lead, problem.m, problem.n)
        with ExitStack() as made:
            place = _copy_in(made, {name: host for name, (_, host) in given.items()})
            self._d = _segment(made, math.prod(self._shape) * self._out.itemsize)
            body = checked(SharedGemmBody, {**fields, **place, "d": {"segment": self._d.name}})
            self._close = made.pop_all()
        content = body.model_dump_json(exclude_none=True).encode()
        headers = {"Content-Type": "application/json"}
        self.call: Call[SharedGemmView] = Call(
            "POST", "/gemm/shared", calls.model_of(SharedGemmView), content=content, headers=headers
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close.close()

    def answer(self, view: SharedGemmView) -> GemmAnswer:
        """The answer to :attr:`call` with a copy of the result."""
        d = np.ndarray(self._shape, self._out, self._d.buf).copy()
        return GemmAnswer(d, view.ran, view.kernel_us)


def _request(
    hosts: Mapping[str, Any], dtype: DType, options: GemmOptions
) -> tuple[dict[str, Any], GemmProblem]:
    fields: dict[str, Any] = dict(options)
    layout = Layout("".join("t" if fields.pop(f"transpose_{name}", False) else "n" for name in "ab"))
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
    return {**fields, **extents, "layout": layout}, problem


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


def _copy_in(made: ExitStack, hosts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    offsets, size = {}, 0
    for name, host in hosts.items():
        offsets[name] = size
        size += -(-host.nbytes // _ALIGNED) * _ALIGNED
    segment = _segment(made, size)
    for name, host in hosts.items():
        np.ndarray(host.shape, host.dtype, segment.buf, offsets[name])[...] = host
    return {name: {"segment": segment.name, "offset": offset} for name, offset in offsets.items()}


def _segment(made: ExitStack, size: int) -> SharedMemory:
    segment = SharedMemory(f"{SEGMENT_PREFIX}{secrets.token_hex(16)}", create=True, size=size)
    made.callback(segment.unlink)
    made.callback(segment.close)
    # NOTE: creating it reserves nothing; writing to more than there is would end this process by SIGBUS.
    with open(f"/dev/shm/{segment.name}", "r+b") as file:
        os.posix_fallocate(file.fileno(), 0, size)
    return segment
