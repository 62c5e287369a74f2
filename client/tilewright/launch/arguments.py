"""``Operands``: addresses, strides and scalars of a call, the checks of them, and the values of arguments."""

from __future__ import annotations

import dataclasses

from tilewright.artifact import WORKSPACE_ALIGN, LaunchPlan, PackedPointer, Scalar, TensorMap
from tilewright.errors import PreconditionFailed
from tilewright.schema.problem import GemmProblem, reads_operands


@dataclasses.dataclass(frozen=True, slots=True)
class Operands:
    """Addresses (device pointers or host addresses), strides and scalars of a call.

    Attributes:
        a, b, d: addresses of the inputs and the result; ``c`` and ``bias`` are 0 if absent.
        workspace: address of the plan's workspace; 0 if it needs none.
        lda, ldb, ldc, ldd: row strides in storage units (elements, or bytes that several elements share);
            0 for densely packed rows.
        stride_a, stride_b, stride_c, stride_d: elements from one matrix of a batch to the next; 0 for
            matrices without gaps.
        alpha, beta: the scalars of D = act(alpha * op(A) op(B) + beta * C + bias). C is not read where beta
            is 0; kernels read A and B always, so floating-point problems with alpha = 0 are refused.
    """

    a: int
    b: int
    d: int
    c: int = 0
    bias: int = 0
    workspace: int = 0
    lda: int = 0
    ldb: int = 0
    ldc: int = 0
    ldd: int = 0
    stride_a: int = 0
    stride_b: int = 0
    stride_c: int = 0
    stride_d: int = 0
    alpha: float = 1.0
    beta: float = 0.0


def scalar_values(problem: GemmProblem, operands: Operands) -> dict[str, int | float]:
    """The values of all scalar arguments, by the names of :class:`tilewright.artifact.Scalar`."""
    lda = operands.lda or problem.a_shape[1] // problem.dtype.packing
    ldb = operands.ldb or problem.b_shape[1] // problem.dtype.packing
    ldc = operands.ldc or problem.n
    ldd = operands.ldd or problem.n
    return {
        "m": problem.m,
        "n": problem.n,
        "k": problem.k,
        "batch": problem.batch,
        "lda": lda,
        "ldb": ldb,
        "ldc": ldc,
        "ldd": ldd,
        "stride_a": operands.stride_a or problem.a_shape[0] * lda,
        "stride_b": operands.stride_b or problem.b_shape[0] * ldb,
        "stride_c": operands.stride_c or problem.m * ldc,
        "stride_d": operands.stride_d or problem.m * ldd,
        "alpha": operands.alpha,
        "beta": operands.beta,
    }


def copy_strides(plan: LaunchPlan, problem: GemmProblem) -> dict[str, int | float]:
    """The strides of the copies that the kernel reads in place of operands, by the names of scalars."""
    strides: dict[str, int | float] = {}
    read = {item.operand for item in plan.args if isinstance(item, PackedPointer)}
    for step in plan.repacks:
        if step.operand in read:
            row = step.row_bytes(problem) // problem.dtype.size
            strides |= {f"ld{step.operand}": row, f"stride_{step.operand}": row * step.shape(problem)[0]}
    return strides


def check_preconditions(plan: LaunchPlan, problem: GemmProblem, operands: Operands) -> None:
    """Raise an error for operands that break a precondition of the kernel.

    Raises:
        PreconditionFailed: with the rule that is broken.
    """
    reason = _why_not(plan, problem, operands)
    if reason:
        raise PreconditionFailed(f"{plan.entry} cannot run {problem}: {reason}")


def _why_not(plan: LaunchPlan, problem: GemmProblem, operands: Operands) -> str | None:
    packed = dataclasses.replace(operands, lda=0, ldb=0, ldc=0, ldd=0) == operands
    reason = plan.why_not(problem) if packed else _why_not_strided(plan, problem, operands)
    reason = reason or _why_not_apart(plan, problem, operands)
    if reason:
        return reason
    needed = plan.preconditions
    for name, align in (
        ("a", needed.align_a),
        ("b", needed.align_b),
        ("c", needed.align_d),
        ("d", needed.align_d),
        ("bias", problem.out.size),
        ("workspace", WORKSPACE_ALIGN if plan.format == "cubin" else 1),
    ):
        if getattr(operands, name) % align:
            return f"the address of {name} must be a multiple of {align} bytes"
    if not (operands.a and operands.b and operands.d):
        return "operands and result must have memory, not address 0"
    if problem.has_c and not operands.c:
        return "it reads C; give one"
    if problem.has_bias and not operands.bias:
        return "it adds a bias; give one"
    if not problem.has_c and operands.beta != 0.0:
        return "beta must be 0 if the problem has no C"
    if not reads_operands(problem, operands.alpha):
        return "alpha is 0, and a kernel multiplies A and B all the same; scale C and add the bias without it"
    if problem.accumulate.is_integer and not (_fits_int32(operands.alpha) and _fits_int32(operands.beta)):
        return f"alpha and beta must be whole numbers: {problem.dtype} accumulates in {problem.accumulate}"
    if plan.workspace_bytes(problem) and not operands.workspace:
        return f"it needs a workspace of {plan.workspace_bytes(problem)} bytes"
    if problem.batch > 65535 and plan.format == "cubin":
        return "a batch above 65535 does not fit the launch grid; split it"
    return None


def _fits_int32(value: float) -> bool:
    return value % 1 == 0 and abs(value) < 2**31


def _why_not_strided(plan: LaunchPlan, problem: GemmProblem, operands: Operands) -> str | None:
    reason = plan.why_not_served(problem)
    if reason:
        return reason
    values = scalar_values(problem, operands)
    needed = plan.preconditions
    rows = (
        ("lda", problem.a_shape[1], needed.align_a, problem.dtype),
        ("ldb", problem.b_shape[1], needed.align_b, problem.dtype),
        ("ldc", problem.n, needed.align_d, problem.out),
        ("ldd", problem.n, needed.align_d, problem.out),
    )
    for name, columns, align, dtype in rows:
        stride = int(values[name]) * dtype.size
        if stride < dtype.nbytes(columns):
            return f"{name} must be at least the {columns} columns of a row, got {values[name]}"
        if stride % align or dtype.nbytes(columns) % align:
            return f"{name} and the {columns} columns of a row must be multiples of {align} bytes"
    return None


def _why_not_apart(plan: LaunchPlan, problem: GemmProblem, operands: Operands) -> str | None:
    """The reason the kernel does not support the gaps between the matrices of a batch, or None."""
    taken = {item.name for item in plan.args if isinstance(item, Scalar)}
    described = {item.operand for item in plan.args if isinstance(item, (TensorMap, PackedPointer))}
    needed = plan.preconditions
    without_gaps = scalar_values(
        problem, dataclasses.replace(operands, stride_a=0, stride_b=0, stride_c=0, stride_d=0)
    )
    for name, align, size in (
        ("a", needed.align_a, problem.dtype.size),
        ("b", needed.align_b, problem.dtype.size),
        ("c", needed.align_d if problem.has_c else 1, problem.out.size),
        ("d", needed.align_d, problem.out.size),
    ):
        stride = getattr(operands, f"stride_{name}")
        if stride in (0, without_gaps[f"stride_{name}"]) or (name == "c" and not problem.has_c):
            continue
        if name in described or f"stride_{name}" not in taken:
            return f"it needs the matrices of {name} without gaps"
        if stride * size % align:
            return f"stride_{name} must be a multiple of {align} bytes"
    return None
