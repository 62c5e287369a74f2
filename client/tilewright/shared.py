"""A GEMM on a service of this machine, its tensors in shared memory: only their places travel."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import numpy as np

from tilewright import calls
from tilewright.calls import Call, GemmAnswer, Reply
from tilewright.errors import InvalidProblem
from tilewright.problem import DType, GemmProblem, Layout
from tilewright.requests import GemmOptions, checked
from tilewright.segments import Segments, place
from tilewright.tensors import host_array, numpy_type
from tilewright.wire.gemm import SharedGemmBody, SharedGemmView

_ALIGNED = 64


class SharedGemm:
    """The operands of one GEMM in shared memory, and room for the result.

    A context manager: at its end its segments may be used for another one.
    """

    def __init__(
        self, operands: Mapping[str, Any], options: GemmOptions, segments: Segments, out: Any = None
    ) -> None:
        """Copy those operands into shared memory that are not there; those that are None are left out.

        Raises:
            InvalidProblem: an array cannot be converted, or an option or a shape breaks a rule.
            OSError: there is not so much shared memory.
        """
        given = {name: host_array(name, array) for name, array in operands.items() if array is not None}
        hosts = {name: host for name, (_, host) in given.items()}
        fields, problem = _request(hosts, given["a"][0], options)
        shape, dtype = (*hosts["a"].shape[:-2], problem.m, problem.n), numpy_type(problem.out)
        with ExitStack() as lent:
            places = _places(lent, segments, hosts)
            if out is None:
                result = lent.enter_context(segments.lend(math.prod(shape) * dtype.itemsize))
                self._d, places["d"] = result.array(shape, dtype), {"segment": result.name}
            else:
                self._d, places["d"] = out, _place_of(out, shape, dtype)
            self._body = checked(SharedGemmBody, {**fields, **places})
            self._lent = lent.pop_all()
        self._copied = out is None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lent.__exit__(kind, error, trace)

    @property
    def call(self) -> Call[GemmAnswer]:
        """What to send to the service; its answer has a copy of the result, or ``out``."""
        content = self._body.model_dump_json(exclude_none=True, exclude_unset=True).encode()
        headers = {"Content-Type": "application/json"}
        return Call("POST", "/gemm/shared", self._answer, {}, content, headers, calls.GEMM_S)

    def _answer(self, reply: Reply) -> GemmAnswer:
        view = SharedGemmView.model_validate_json(reply.content)
        d = self._d.copy() if self._copied else self._d
        return GemmAnswer(d, view.ran, view.kernel_us, *calls.told(reply.headers))


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


def _places(lent: ExitStack, segments: Segments, hosts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Where the operands lie, those of other memory once they were copied."""
    known = {name: place(host) for name, host in hosts.items()}
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


def _place_of(out: Any, shape: tuple[int, ...], dtype: Any) -> dict[str, Any]:
    there = place(out) if isinstance(out, np.ndarray) and out.flags.c_contiguous else None
    if there is None or out.shape != shape or out.dtype != dtype:
        raise InvalidProblem(f"out must be what shared_empty({shape}, {str(dtype)!r}) gives")
    return {"segment": there[0], "offset": there[1]}
