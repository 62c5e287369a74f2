"""A GEMM on the service with its operands in the body of the request, as safetensors."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

from tilewright import wire
from tilewright.errors import InvalidProblem
from tilewright.http.arguments import GemmOptions
from tilewright.http.calls import Call, Reply, checked, checked_flag, params_of
from tilewright.http.tensors import MEDIA_TYPE, Tensor, from_array, pieces, to_array, unpack
from tilewright.schema.dtype import OUT_TYPES, DType

# A GEMM waits for a busy device (``gemm_wait_s`` of the service, 10 s unless set), and may run for 30 s.
GEMM_S = 60.0
_MOST_HEADER = 2**16 + 8
_WIDEST = 8  # bytes of an element


@dataclasses.dataclass(frozen=True, slots=True)
class GemmAnswer:
    """A GEMM that ran on the service.

    Attributes:
        d: the result, a NumPy array that may be written to.
        ran: the config of the kernel, or the name of the vendor library.
        kernel_us: microseconds of the kernel alone.
        match: how the kernel was found: ``exact``, ``ladder``, ``nearest`` or ``vendor``, with what
            is known of it.
        timing: milliseconds of the steps at the service, by name.
    """

    d: Any
    ran: str
    kernel_us: float
    match: str
    timing: dict[str, float]


def gemm_call(operands: Mapping[str, Any], options: GemmOptions) -> Call[GemmAnswer]:
    """``POST /gemm``.

    Raises:
        InvalidProblem: an array cannot be converted or an option is unknown.
    """
    tensors = {name: from_array(name, array) for name, array in operands.items()}
    query = gemm_query(options)
    content = pieces(tensors)
    headers = {"Content-Type": MEDIA_TYPE, "Accept": MEDIA_TYPE}
    headers["Content-Length"] = str(sum(map(len, content)))
    result = _result(tensors, query)
    most = _MOST_HEADER + (math.prod(result[1]) * _WIDEST if result else 0)
    parse = functools.partial(_parse, result=result)
    return Call("POST", "/gemm", parse, params_of(query), content, headers, GEMM_S, most)


def gemm_query(options: GemmOptions) -> wire.GemmQuery:
    """The options as the service takes them, with ``layout`` in place of ``transpose_a`` and ``transpose_b``.

    Raises:
        InvalidProblem: they have both, or an option breaks a rule.
    """
    fields: dict[str, Any] = dict(options)
    names = ("transpose_a", "transpose_b")
    given = {name: checked_flag(name, fields.pop(name)) for name in names if name in fields}
    if given:
        if "layout" in fields:
            raise InvalidProblem(f"give layout or {' and '.join(given)}, not both")
        fields["layout"] = "".join("t" if given.get(name) else "n" for name in names)
    return checked(wire.GemmQuery, fields)


def match_and_timing(headers: Mapping[str, str]) -> tuple[str, dict[str, float]]:
    """``match`` and ``timing`` of a :class:`GemmAnswer`, from the headers that have them."""
    parts = (part.strip().partition(";dur=") for part in headers.get("server-timing", "").split(","))
    return headers.get("tilewright-match", ""), {name: float(value) for name, _, value in parts if value}


_Result = tuple[DType, tuple[int, ...]]


def _result(operands: Mapping[str, Tensor], query: wire.GemmQuery) -> _Result | None:
    """Type and shape of the result of these operands; None for operands that the service refuses."""
    shapes = [operands[name].shape if name in operands else () for name in ("a", "b")]
    dtype = query.dtype or operands["a"].dtype
    if min(map(len, shapes)) < 2 or dtype not in OUT_TYPES:
        return None
    m, n, _ = query.layout.extents(*shapes)
    return query.out_dtype or OUT_TYPES[dtype][0], (*shapes[0][:-2], m, n)


def _parse(reply: Reply, result: _Result | None) -> GemmAnswer:
    tensor, headers = unpack(reply.content)["d"], reply.headers
    if (tensor.dtype, tensor.shape) != result:
        wanted = f"{result[0]} {list(result[1])}" if result else "refused for these operands"
        raise InvalidProblem(f"d must be {wanted}, got {tensor.dtype} {list(tensor.shape)}")
    d = to_array(tensor)
    if not d.flags.writeable:  # httpx2 gives bytes
        d = d.copy()
    ran, kernel_us = headers["tilewright-ran"], float(headers["tilewright-kernel-us"])
    return GemmAnswer(d, ran, kernel_us, *match_and_timing(headers))
