"""The correctness gate around every timing.

Before it, :func:`check` launches a kernel on small integer operands, which add up exactly in any order and
must give the rounded reference bit for bit, and on N(0, 1) operands, which must stay within a bound that
grows with k, while the values of D grow with sqrt(k) like the rounding errors of the running sum. Integer
types must be exact in both. D is poisoned before each launch, with NaN or the lowest integer, and lies
between guard bytes that must stay unchanged. Problems with C also run with D in the memory of C, and with
beta = 0 over a C of NaN. The workspace holds NaN where it need not be zero; the rest must be zero after each
launch, as the next one relies on it, and the bytes behind it must stay unchanged. The second of two launches
shares the device with work that leaves room for a few CTAs at a time, so that a kernel which relies on the
order or the speed of its CTAs is found.

D is compared a slice of rows at a time, so that beside what is kept a check needs little memory.

After it, :func:`check_replays` looks at what the timed launches left: they follow each other without a pause,
alternate between operands, and share one workspace; and at what they leave where they may overlap.

A correct kernel may give different bits from launch to launch; :func:`repeats` measures that.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, cast

from tilewright.launch import Kernel, Launch
from tilewright.schema.problem import Activation, DType, GemmProblem
from tuner.devices.base import Device, Tensors
from tuner.measure.encoding import decode, encode, storage_type
from tuner.measure.operands import bind, make_tensors, row_slices, scratch

_GUARD = 2048  # elements before and after D; keeps its alignment
_GUARD_BYTE = 0xA5
_REPEATS = 3
_SETS_LOOKED_AT = 16

Data = Literal["integer", "normal"]

_EPSILON = {
    DType.FLOAT16: 2**-10,
    DType.BFLOAT16: 2**-7,
    DType.FLOAT32: 2**-23,
    DType.FLOAT64: 2**-52,
    DType.INT32: 0.0,
}
# Tensor cores for 8-bit floats keep about 13 bits of each product below the largest.
_EPSILON_FLOAT8 = 2**-13
# Tensor cores truncate while they add, so float32 accumulators drift more than by rounding alone: by up to an
# epsilon of the sum, which grows with sqrt(k), in each step of 8 products, of 4 in tfloat32, or twice that.
_SUM_FACTOR = {DType.FLOAT16: 1.0, DType.FLOAT32: 8.0, DType.FLOAT64: 8.0, DType.INT32: 0.0}
_DRIFT_FACTOR = 1.5
# Of gelu in float32 by ex2.approx and rcp.approx: relative to its value, and beside that.
GELU_ERROR = (2**-20, 2**-24)
_POISON = {DType.INT32: -(2**31)}
_NAN_BYTE = 0xFF  # in every floating-point type
_LAUNCHES = 2


@dataclasses.dataclass(frozen=True, slots=True)
class _Case:
    """What one launch of the check differs in.

    Attributes:
        reads_c: whether beta is other than 0; if it is 0, C is NaN.
        in_place: whether D is the memory of C.
    """

    name: str
    data: Data
    reads_c: bool = True
    in_place: bool = False

    @property
    def needs_c(self) -> bool:
        """Whether the case needs C: for a problem without C it would only repeat another case."""
        return self.in_place or not self.reads_c


class _Tolerance(NamedTuple):
    """The largest error allowed for a value of D: ``fixed + relative * abs(value)``."""

    fixed: float = 0.0
    relative: float = 0.0


_CASES = (
    _Case("integer data", "integer"),
    _Case("normal data", "normal"),
    _Case("normal data, D in the memory of C", "normal", in_place=True),
    _Case("integer data, beta = 0 and C of NaN", "integer", reads_c=False),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Reference:
    """Operands of one check, and the expected D.

    Attributes:
        expected: in float64, one array for each slice of rows.
        allowed: by how much D may be off.
    """

    tensors: Tensors
    expected: Sequence[Any]
    allowed: _Tolerance


def check(device: Device, kernel: Kernel, problem: GemmProblem) -> str | None:
    """The reason ``kernel`` is wrong for ``problem``, or None.

    Raises:
        LaunchError: the kernel does not run.
    """
    cases = _CASES if problem.has_c else [case for case in _CASES if not case.needs_c]
    return next((reason for case in cases if (reason := _check(device, kernel, problem, case))), None)


def check_replays(
    device: Device,
    problem: GemmProblem,
    sets: Sequence[Tensors],
    launches: Sequence[Launch],
    replay: Callable[[], object],
) -> str | None:
    """The reason the launches of a replay are wrong, or None: each must give what it gives alone.

    Args:
        sets, launches: operands, and the launch of a checked kernel on each.
        replay: runs all of the launches as they are timed.

    Raises:
        LaunchError: the kernel does not run.
    """
    looked_at = range(0, len(sets), max(1, len(sets) // _SETS_LOOKED_AT))
    for index in looked_at:
        _poison(device, problem, sets[index].d)
    device.synchronize()
    replay()
    device.synchronize()
    for index in looked_at:
        d = sets[index].d
        replayed = d.copy()
        _poison(device, problem, d)
        device.synchronize()
        for _ in range(_LAUNCHES):
            device.once(launches[index])  # on the stream of the replays, to which a workspace belongs
        if reason := _unlike(device, problem, replayed, d):
            return f"launches that follow each other without a pause: {reason}"
    return None


def check_replays_in_place(
    device: Device, kernel: Kernel, problem: GemmProblem, sets: Sequence[Tensors]
) -> str | None:
    """The reason launches of a checked kernel that follow each other are wrong where D is the memory of C, as
    in a client's call with ``beta``, or None. Each operand set has two launches, the second of which reads
    what the first one wrote: forwards, then backwards, so that on the last set it follows at once.

    Raises:
        LaunchError: the kernel does not run.
    """
    sets = sets[:_SETS_LOOKED_AT]
    bound = bind(device, kernel, problem, [dataclasses.replace(one, c=one.d) for one in sets])
    replay = device.timer([*bound.launches, *reversed(bound.launches)])

    def refill() -> None:
        for one in sets:
            one.d[...] = one.c
        device.synchronize()

    refill()
    replay()
    device.synchronize()
    replayed = [one.d.copy() for one in sets]
    refill()
    for one, found, launch in zip(sets, replayed, bound.launches, strict=True):
        for _ in range(_LAUNCHES):
            device.once(launch)
        if reason := _unlike(device, problem, found, one.d):
            return f"launches with D in the memory of C that follow each other without a pause: {reason}"
    return None


def _unlike(device: Device, problem: GemmProblem, replayed: Any, alone: Any) -> str | None:
    """The reason the D of a replay is not that of a launch alone, or None."""
    if not _differ(replayed, alone):
        return None
    allowed = _tolerance(problem, launches=2)
    return _difference(device.xp, problem, replayed, _slices(problem, alone), allowed)


def _slices(problem: GemmProblem, d: Any) -> Iterator[Any]:
    """D in float64, by slices of rows."""
    return (decode(d[:, rows], problem.out).astype("float64") for rows in row_slices(problem))


def repeats(device: Device, kernel: Kernel, problem: GemmProblem) -> bool:
    """Whether launches of a correct kernel on the same N(0, 1) operands gave the same bits.

    Raises:
        LaunchError: the kernel does not run.
    """
    _, d = _guarded(device, problem)
    tensors = dataclasses.replace(_reference(device, problem, "normal", True).tensors, d=d)
    bound = bind(device, kernel, problem, [tensors])

    def launched() -> Any:
        bound.launches[0]()
        device.synchronize()
        return d.copy()

    first = launched()
    return not any(_differ(launched(), first) for _ in range(_REPEATS - 1))


def exact_slices(xp: Any, problem: GemmProblem, tensors: Tensors) -> Iterator[Any]:
    """D in float64, before rounding to the output type, by slices of rows."""
    a, b = _wide(tensors.a, problem, "a"), _wide(tensors.b, problem, "b")
    # NOTE: CuPy would make a transposed B of a batch contiguous for each slice anew, but not a matrix.
    a, b = (a[0], b[0]) if problem.batch == 1 else (a, xp.ascontiguousarray(b))
    for rows in row_slices(problem):
        part = dataclasses.replace(tensors, c=None if tensors.c is None else tensors.c[:, rows])
        product = xp.matmul(a[..., rows, :], b).reshape(problem.batch, -1, problem.n)
        yield finished(xp, tensors.alpha * product, problem, part)


def finished(xp: Any, x: Any, problem: GemmProblem, tensors: Tensors) -> Any:
    """act(x + beta * C + bias) in float64; C is not read where beta is 0."""
    if tensors.c is not None and tensors.beta != 0.0:
        x = x + tensors.beta * decode(tensors.c, problem.out).astype("float64")
    if tensors.bias is not None:
        x = x + decode(tensors.bias, problem.out).astype("float64")
    return activate(xp, x, problem.activation)


def activate(xp: Any, x: Any, activation: Activation) -> Any:
    """The activation on an array of values."""
    if activation is Activation.RELU:
        return xp.maximum(x, 0)
    if activation is Activation.GELU:
        return 0.5 * x * (1 + xp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return x


def forget() -> None:
    """Release the references of earlier problems."""
    _reference.cache_clear()


@functools.lru_cache(maxsize=3)
def _reference(device: Device, problem: GemmProblem, data: Data, reads_c: bool) -> Reference:
    tensors = make_tensors(device, problem, 20_000, data)
    integers = problem.accumulate.is_integer
    if data == "normal":
        alpha, beta = (3.0, -2.0) if integers else (0.75, -0.5)
        tensors = dataclasses.replace(tensors, alpha=alpha, beta=beta if problem.has_c else 0.0)
    if not reads_c:
        tensors = dataclasses.replace(tensors, beta=0.0)
        _poison(device, problem, tensors.c)
    exact = exact_slices(device.xp, problem, tensors)
    if integers or (data == "integer" and problem.activation is not Activation.GELU):
        rounded = (decode(encode(device.xp, values, problem.out), problem.out) for values in exact)
        return Reference(tensors, tuple(rounded), _Tolerance())
    return Reference(tensors, tuple(exact), _tolerance(problem))


def _tolerance(problem: GemmProblem, launches: int = 1) -> _Tolerance:
    """By how much D may be off with N(0, 1) operands; by that of both where it is compared with another of
    two ``launches``."""
    approximate = problem.activation is Activation.GELU and problem.accumulate is not DType.FLOAT64
    relative, least = GELU_ERROR if approximate else (0.0, 0.0)
    fixed, relative = _sum_error(problem) + least, 2 * _EPSILON[problem.out] + relative
    return _Tolerance(launches * fixed, launches * relative)


def _sum_error(problem: GemmProblem) -> float:
    """The largest drift allowed for the running sum of N(0, 1) products."""
    if problem.dtype in (DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2):
        return _EPSILON_FLOAT8 * problem.k
    factor = _SUM_FACTOR[problem.accumulate]
    if problem.accumulate is DType.FLOAT32 and problem.dtype is not DType.FLOAT32:
        step = 4 if problem.dtype is DType.TFLOAT32 else 8
        factor = max(factor, _DRIFT_FACTOR * math.sqrt(problem.k) / step)
    return _EPSILON[problem.accumulate] * factor * problem.k


def _check(device: Device, kernel: Kernel, problem: GemmProblem, case: _Case) -> str | None:
    xp = device.xp
    reference = _reference(device, problem, case.data, case.reads_c)
    guarded, d = _guarded(device, problem)
    c = d if case.in_place else reference.tensors.c
    memory = scratch(device, [kernel], problem)
    bound = bind(device, kernel, problem, [dataclasses.replace(reference.tensors, d=d, c=c)], memory)
    for number in range(_LAUNCHES):
        memory.memory[memory.front :] = _NAN_BYTE
        if case.in_place:
            d[:] = reference.tensors.c
        else:
            _poison(device, problem, d)
        device.synchronize()
        if number:
            device.crowd()
        bound.launches[0]()
        device.synchronize()
        if _broken_guards(xp, guarded, d):
            return f"{case.name}: wrote outside D"
        reason = _difference(xp, problem, d, reference.expected, reference.allowed)
        if reason:
            return f"{case.name}: {reason}"
        if xp.any(memory.memory[: memory.front]):
            return f"{case.name}: left values other than zero in the workspace, where launches need zeros"
        if xp.any(memory.memory[memory.end :] != _NAN_BYTE):
            return f"{case.name}: wrote behind its workspace"
    return None


def _difference(
    xp: Any, problem: GemmProblem, d: Any, expected: Iterable[Any], allowed: _Tolerance
) -> str | None:
    """In words, how D differs from the expected values by more than is allowed; None if it does not.

    Args:
        expected: one array for each slice of rows.
    """
    missing, wrong, worst, off = 0, 0, 0.0, _off(xp)
    for rows, values in zip(row_slices(problem), expected, strict=True):
        result = decode(d[:, rows], problem.out)
        if here := _count(off(result, values, *allowed)):
            missing += _count(xp.isnan(result) | (result == _POISON.get(problem.out, math.nan)))
            wrong, worst = wrong + here, float(xp.maximum(worst, xp.abs(result - values).max()))
    if missing:
        return f"{missing} of {d.size} elements of D are NaN or were never written"
    if wrong:
        return f"{wrong} of {d.size} elements are off, the worst by {worst:.3g}"
    return None


@functools.cache
def _off(xp: Any) -> Callable[[Any, Any, float, float], Any]:
    """Which results are off by more than is allowed. On a GPU it is one kernel; one for each operation would
    take most of the time of a check of a large D."""

    def off(result: Any, values: Any, fixed: float, relative: float) -> Any:
        return xp.logical_not(xp.abs(result - values) - (fixed + relative * xp.abs(values)) <= 0)

    return cast("Callable[[Any, Any, float, float], Any]", xp.fuse()(off) if hasattr(xp, "fuse") else off)


def _differ(one: Any, other: Any) -> bool:
    """Whether two D differ in any bit."""
    row_bytes = one.shape[-1] * one.itemsize
    widest = next(f"uint{8 * size}" for size in (8, 4, 2, 1) if row_bytes % size == 0)
    return _count(one.view(widest) != other.view(widest)) > 0


def _count(marked: Any) -> int:
    """How many elements are True. CuPy adds up a whole array on one SM, but each row on its own."""
    return int(marked.sum(axis=-1).sum())


def _poison(device: Device, problem: GemmProblem, d: Any) -> None:
    """Fill D with NaN, or with the lowest integer."""
    value = _POISON.get(problem.out, math.nan)
    d[:] = encode(device.xp, device.xp.full(1, value, dtype="float64"), problem.out)


def _wide(stored: Any, problem: GemmProblem, operand: Literal["a", "b"]) -> Any:
    transposed = problem.layout.a_transposed if operand == "a" else problem.layout.b_transposed
    values = decode(stored, problem.dtype).astype("float64")
    return values.swapaxes(-1, -2) if transposed else values


def _guarded(device: Device, problem: GemmProblem) -> tuple[Any, Any]:
    """(all bytes, the D between the guard bytes), filled with the guard byte."""
    xp = device.xp
    elements = problem.batch * problem.m * problem.n
    guarded = xp.full((elements + 2 * _GUARD) * problem.out.size, _GUARD_BYTE, dtype="uint8")
    d = guarded.view(storage_type(problem.out))[_GUARD : _GUARD + elements]
    return guarded, d.reshape(problem.batch, problem.m, problem.n)


def _broken_guards(xp: Any, guarded: Any, d: Any) -> bool:
    edge = _GUARD * d.itemsize
    return bool(xp.any(guarded[:edge] != _GUARD_BYTE)) or bool(xp.any(guarded[-edge:] != _GUARD_BYTE))
