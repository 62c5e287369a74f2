"""The correctness gate before every timing.

Two runs a kernel. Integer operands, whose sums are exact in any order, must give the rounded
reference bit for bit. N(0, 1) operands must stay within a bound that grows with k, against values that
grow with sqrt(k), like the rounding errors of the running sum. Integer types must be exact in both. D is
poisoned before each run, with NaN or the lowest integer, and lies between guard bands that must stay as
they were. The second run launches twice on one workspace, because users of a kernel do: it must
leave the workspace as it needs to find it.

Whether a right kernel's launches give the same bits is a figure of it, no fault: :func:`repeats` measures it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, Literal

from tilewright.launch import Kernel
from tilewright.schema.problem import Activation, DType, GemmProblem
from tuner.devices.base import Device, Tensors
from tuner.measure.encoding import decode, encode, storage_type
from tuner.measure.operands import bind, make_tensors

_GUARD = 2048  # elements before and after D; keeps its alignment
_GUARD_BYTE = 0xA5
_LAUNCHES = {"integer": 1, "normal": 2}
_REPEATS = 3

_EPSILON = {
    DType.FLOAT16: 2**-10,
    DType.BFLOAT16: 2**-7,
    DType.FLOAT32: 2**-23,
    DType.FLOAT64: 2**-52,
    DType.INT32: 0.0,
}
# Tensor cores for 8-bit floats keep about 13 bits of each product beside the largest.
_EPSILON_FLOAT8 = 2**-13
# Tensor cores truncate while they add, so float32 sums drift more than rounding alone would.
_SUM_FACTOR = {DType.FLOAT16: 1.0, DType.FLOAT32: 8.0, DType.FLOAT64: 8.0, DType.INT32: 0.0}
_POISON = {DType.INT32: -(2**31)}


@dataclasses.dataclass(frozen=True, slots=True)
class Reference:
    """Operands of one check with what D must be and how far it may be off."""

    tensors: Tensors
    expected: Any
    tolerance: Any


def check(device: Device, kernel: Kernel, problem: GemmProblem) -> str | None:
    """The reason ``kernel`` is wrong for ``problem``, or None.

    Raises:
        LaunchError: it does not run.
    """
    kinds: tuple[Literal["integer", "normal"], ...] = ("integer", "normal")
    return next((r for kind in kinds if (r := _check(device, kernel, problem, kind))), None)


def repeats(device: Device, kernel: Kernel, problem: GemmProblem) -> bool:
    """Whether launches of a right kernel on the same N(0, 1) operands gave the same bits.

    Raises:
        LaunchError: it does not run.
    """
    _, d = _guarded(device, problem)
    tensors = dataclasses.replace(_reference(device, problem, "normal").tensors, d=d)
    bound = bind(device, kernel, problem, [tensors])

    def launched() -> Any:
        bound.launches[0]()
        device.synchronize()
        return d.view("uint8").copy()

    first = launched()
    return all(bool((launched() == first).all()) for _ in range(_REPEATS - 1))


def reference_values(device: Device, problem: GemmProblem, tensors: Tensors) -> Any:
    """D in float64, before rounding to the output type."""
    x = device.xp.matmul(_wide(tensors.a, problem, "a"), _wide(tensors.b, problem, "b"))
    x = tensors.alpha * x
    if tensors.c is not None:
        x = x + tensors.beta * decode(tensors.c, problem.out).astype("float64")
    if tensors.bias is not None:
        x = x + decode(tensors.bias, problem.out).astype("float64")
    return activate(device.xp, x, problem.activation)


def activate(xp: Any, x: Any, activation: Activation) -> Any:
    """The activation on an array of values."""
    if activation is Activation.RELU:
        return xp.maximum(x, 0)
    if activation is Activation.GELU:
        return 0.5 * x * (1 + xp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return x


def forget() -> None:
    """Give back the references of earlier problems."""
    _reference.cache_clear()


@functools.lru_cache(maxsize=2)
def _reference(device: Device, problem: GemmProblem, kind: Literal["integer", "normal"]) -> Reference:
    xp = device.xp
    tensors = make_tensors(device, problem, 20_000, kind)
    exact_sums = problem.accumulate.is_integer
    if kind == "normal":
        alpha, beta = (3.0, -2.0) if exact_sums else (0.75, -0.5)
        tensors = dataclasses.replace(tensors, alpha=alpha, beta=beta if problem.has_c else 0.0)
    exact = reference_values(device, problem, tensors)
    if exact_sums or (kind == "integer" and problem.activation is not Activation.GELU):
        return Reference(tensors, decode(encode(xp, exact, problem.out), problem.out), 0.0)
    return Reference(tensors, exact, _sum_error(problem) + 2 * _EPSILON[problem.out] * xp.abs(exact))


def _sum_error(problem: GemmProblem) -> float:
    """How far the running sum of N(0, 1) products may drift."""
    if problem.dtype in (DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2):
        return _EPSILON_FLOAT8 * problem.k
    return _EPSILON[problem.accumulate] * _SUM_FACTOR[problem.accumulate] * problem.k


def _check(
    device: Device, kernel: Kernel, problem: GemmProblem, kind: Literal["integer", "normal"]
) -> str | None:
    xp = device.xp
    reference = _reference(device, problem, kind)
    band, d = _guarded(device, problem)
    bound = bind(device, kernel, problem, [dataclasses.replace(reference.tensors, d=d)])
    for _ in range(_LAUNCHES[kind]):
        poison = _POISON.get(problem.out, math.nan)
        d[:] = encode(xp, xp.full(1, poison, dtype="float64"), problem.out)
        device.synchronize()
        bound.launches[0]()
        device.synchronize()
    result = decode(d, problem.out)
    if _broken_guards(xp, band, d):
        return f"{kind} data: wrote outside D"
    missing = int((xp.isnan(result) | (result == _POISON.get(problem.out, math.nan))).sum())
    if missing:
        return f"{kind} data: {missing} of {result.size} elements of D are NaN or were never written"
    excess = xp.abs(result - reference.expected) - reference.tolerance
    wrong = int((~(excess <= 0)).sum())
    if wrong:
        worst = float(xp.abs(result - reference.expected).max())
        return f"{kind} data: {wrong} of {result.size} elements are off, the worst by {worst:.3g}"
    return None


def _wide(stored: Any, problem: GemmProblem, operand: Literal["a", "b"]) -> Any:
    transposed = problem.layout.a_transposed if operand == "a" else problem.layout.b_transposed
    values = decode(stored, problem.dtype).astype("float64")
    return values.swapaxes(-1, -2) if transposed else values


def _guarded(device: Device, problem: GemmProblem) -> tuple[Any, Any]:
    """(all bytes, the D inside), filled with the guard's byte."""
    xp = device.xp
    elements = problem.batch * problem.m * problem.n
    band = xp.full((elements + 2 * _GUARD) * problem.out.size, _GUARD_BYTE, dtype="uint8")
    d = band.view(storage_type(problem.out))[_GUARD : _GUARD + elements]
    return band, d.reshape(problem.batch, problem.m, problem.n)


def _broken_guards(xp: Any, band: Any, d: Any) -> bool:
    edge = _GUARD * d.itemsize
    return bool(xp.any(band[:edge] != _GUARD_BYTE)) or bool(xp.any(band[-edge:] != _GUARD_BYTE))
