"""``Product``: arrays as a GEMM problem with layouts, row strides and batches."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from tilewright.errors import InvalidProblem
from tilewright.matmul.arrays import ArrayLibrary, Epilogue, Strided
from tilewright.schema.problem import GemmProblem, Layout

Arrays = tuple[Any, Any, Any, Any]
"""a, b, out and bias; the last two may be None."""


@dataclasses.dataclass(frozen=True, slots=True)
class Product:
    """A product that a kernel can compute without copying the arrays.

    Attributes:
        problem: the GEMM problem.
        shape: shape of D for the caller.
        device: ordinal of the GPU; -1 on the host.
        strides: fields of :class:`tilewright.launch.Operands` by name.
        epilogue: the epilogue of D.
        spans: bytes from the first to past the last element of a, b, D and the bias.
    """

    problem: GemmProblem
    shape: tuple[int, ...]
    device: int
    strides: dict[str, int]
    epilogue: Epilogue
    spans: tuple[int, int, int, int]


@dataclasses.dataclass(frozen=True, slots=True)
class _Stack:
    """Row-major matrices in memory; ``mark`` is ``t`` if they are stored transposed, else ``n``."""

    mark: str
    row_stride: int
    batch_stride: int


def describe(library: ArrayLibrary, arrays: Arrays, epilogue: Epilogue) -> Product:
    """The product of two arrays: ``(..., m, k)`` by ``(k, n)``, or ``(..., m, k)`` by ``(..., k, n)``.

    Raises:
        InvalidProblem: no kernel supports the layout of the arrays; the message says why.
    """
    a, b, out, bias = arrays
    left, right = library.describe(a), library.describe(b)
    _check_together(left, right)
    left = _as_one_matrix(left) if len(right.shape) == 2 else left
    (m, k), n = left.shape[-2:], right.shape[-1]
    stack_a, stack_b = _stack(left, "a"), _stack(right, "b")
    dtype = library.operand_type(left.dtype) if left.device >= 0 else left.dtype
    problem = GemmProblem(
        m,
        n,
        k,
        dtype,
        Layout(stack_a.mark + stack_b.mark),
        math.prod(left.shape[:-2]),
        activation=epilogue.activation,
        has_bias=bias is not None,
        has_c=epilogue.beta != 0.0,
    )
    if problem.out.value != left.dtype.value:
        raise InvalidProblem(
            f"the result must have the type of the operands; a kernel's of {left.dtype} is {problem.out}"
        )
    if bias is not None:
        _check_bias(library.describe(bias), left, n)
    shape = (*a.shape[:-1], n)
    extent = math.prod(shape)
    strides = {"lda": stack_a.row_stride, "ldb": stack_b.row_stride}
    strides |= {"stride_a": stack_a.batch_stride, "stride_b": stack_b.batch_stride}
    if out is not None:
        result = library.describe(out)
        strides |= _of_result(result, shape, left, len(right.shape) == 2)
        extent = _extent(result)
    size = left.dtype.size
    spans = _extent(left) * size, _extent(right) * size, extent * size, n * size
    return Product(problem, tuple(shape), left.device, strides, epilogue, spans)


def _check_together(left: Strided, right: Strided) -> None:
    if min(len(left.shape), len(right.shape)) < 2:
        raise InvalidProblem("operands must be matrices for a kernel; use reshape for a vector")
    if left.dtype is not right.dtype or left.device != right.device or left.shape[-1] != right.shape[-2]:
        raise InvalidProblem("a and b must have one type, one device and one k")
    if len(right.shape) > 2 and left.shape[:-2] != right.shape[:-2]:
        raise InvalidProblem("b must be one matrix, or a batch as long as a; a kernel does not broadcast")
    if 0 in (*left.shape, *right.shape):
        raise InvalidProblem("extents must not be 0 for a kernel: there is nothing to multiply")


def _check_bias(bias: Strided, left: Strided, n: int) -> None:
    if bias.shape != (n,) or (n > 1 and bias.strides != (1,)):
        raise InvalidProblem(f"the bias must be a dense vector of {n} elements")
    if bias.dtype is not left.dtype or bias.device != left.device:
        raise InvalidProblem("the bias must have the type and device of the operands")


def _of_result(out: Strided, shape: tuple[int, ...], left: Strided, one: bool) -> dict[str, int]:
    if out.shape != shape or out.dtype is not left.dtype or out.device != left.device:
        raise InvalidProblem("out must have the shape, type and device of the result")
    if not out.writable:
        raise InvalidProblem("out must be writable; give another array")
    whole = _as_one_matrix(out) if one else out
    stack = _stack(whole, "out")
    if stack.mark != "n":
        raise InvalidProblem("out must be row-major; give another array")
    if 0 < stack.batch_stride < (whole.shape[-2] - 1) * stack.row_stride + whole.shape[-1]:
        raise InvalidProblem("the matrices of out must not overlap; give another array")
    row, batch = stack.row_stride, stack.batch_stride
    return {"ldc": row, "ldd": row, "stride_c": batch, "stride_d": batch}


def _extent(array: Strided) -> int:
    """Elements from the first to past the last one in memory; strides are not negative."""
    return 1 + sum((count - 1) * step for count, step in zip(array.shape, array.strides, strict=True))


def _as_one_matrix(array: Strided) -> Strided:
    """The array with all axes except the last as rows."""
    rows, stride = _folded(array.shape[:-1], array.strides[:-1])
    return dataclasses.replace(array, shape=(rows, array.shape[-1]), strides=(stride, array.strides[-1]))


def _stack(array: Strided, name: str) -> _Stack:
    rows, columns = array.shape[-2:]
    down, right = array.strides[-2:]
    count, batch_stride = _folded(array.shape[:-2], array.strides[:-2])
    if (right == 1 or columns == 1) and (down >= columns or rows == 1):
        mark, row_stride, packed = "n", columns if rows == 1 else down, rows
    elif (down == 1 or rows == 1) and (right >= rows or columns == 1):
        mark, row_stride, packed = "t", rows if columns == 1 else right, columns
    else:
        raise InvalidProblem(f"{name} must be a row-major matrix or a transposed one; copy it")
    if count > 1 and batch_stride < 1:
        raise InvalidProblem(f"the matrices of {name} must not share memory; copy them")
    return _Stack(mark, row_stride, 0 if count == 1 or batch_stride == packed * row_stride else batch_stride)


def _folded(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int]:
    """The extent and the stride of several axes as one."""
    count, stride = 1, 0
    for extent, step in zip(reversed(shape), reversed(strides), strict=True):
        if extent == 1:
            continue
        if count > 1 and step != stride * count:
            raise InvalidProblem("leading axes must follow one another in memory; copy the array")
        stride = stride if count > 1 else step
        count *= extent
    return count, stride
