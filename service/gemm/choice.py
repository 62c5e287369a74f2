"""A GEMM on request: from tensors to a problem, and the kernel that runs it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from service.gemm.operands import Operand
from service.results.served import ServedSets
from tilewright.artifact import Artifact
from tilewright.errors import ArtifactError, InvalidProblem
from tilewright.http.tensors import check_wire
from tilewright.schema.codec import gathered
from tilewright.schema.config import Config
from tilewright.schema.match import LookupResult
from tilewright.schema.problem import DType, GemmProblem, reads_operands
from tilewright.wire import GemmQuery
from tuner.store import entities


def problem_of(tensors: Mapping[str, Operand], query: GemmQuery) -> GemmProblem:
    """The problem that the tensors and the query describe.

    Raises:
        InvalidProblem: a tensor is missing, unknown, or of the wrong shape or type.
    """
    if query.dtype:
        check_wire(query.dtype)
    unknown = sorted(set(tensors) - {"a", "b", "c", "bias"})
    if unknown or not {"a", "b"} <= set(tensors):
        raise InvalidProblem(f"give tensors a and b, and c and bias where wanted; got {sorted(tensors)}")
    a, b = _stored("a", tensors["a"]), _stored("b", tensors["b"])
    m, n, k = query.layout.extents(a, b)
    fields = {"dtype": _operand_type(tensors["a"].dtype, query.dtype), "batch": a[0] if len(a) == 3 else 1}
    fields |= {"has_bias": "bias" in tensors, "has_c": "c" in tensors}
    problem = GemmProblem(**gathered(GemmProblem, query, m=m, n=n, k=k, **fields))
    _check(problem, tensors, query)
    return problem


def result_shape(problem: GemmProblem, tensors: Mapping[str, Operand]) -> tuple[int, ...]:
    """Shape of D: with a batch axis where A has one."""
    matrix = (problem.m, problem.n)
    return (problem.batch, *matrix) if len(tensors["a"].shape) == 3 else matrix


@dataclasses.dataclass(frozen=True, slots=True)
class Chosen:
    """What runs a problem.

    Attributes:
        match: how it was found: ``exact``, ``ladder`` or ``nearest`` with distance and expected regret, or
            ``vendor`` with the reason.
        config, artifact: the tuned kernel; None for the vendor library.
    """

    match: str
    config: Config | None = None
    artifact: Artifact | None = None


def choose(served: ServedSets, device_class: str, problem: GemmProblem, query: GemmQuery) -> Chosen:
    """The kernel that may run a problem, else the vendor library."""
    if not reads_operands(problem, query.alpha):
        return Chosen("vendor; alpha is 0, nothing is multiplied")
    [selection] = served.select(device_class, [problem], query.limits)
    result = selection.result
    if result.kind == "vendor" or result.entry is None:
        return Chosen(f"vendor; {result.reason}")
    with served.store.read() as session:
        data = entities.get_artifact(session, result.entry.artifact)
    try:
        artifact = Artifact.from_bytes(data, result.entry.artifact) if data else None
    except ArtifactError:
        return Chosen("vendor; its kernel is damaged in the database")
    reason = artifact.plan.why_not(problem) if artifact else "its kernel is not stored"
    return Chosen(f"vendor; {reason}") if reason else Chosen(_match(result), result.entry.config, artifact)


def _match(result: LookupResult) -> str:
    if result.kind == "exact":
        return result.kind
    return f"{result.kind}; distance={result.distance:.3f}; expected_regret={result.expected_regret:.4f}"


def _operand_type(stored: DType, wanted: DType | None) -> DType:
    if wanted in (None, stored) or (wanted, stored) == (DType.TFLOAT32, DType.FLOAT32):
        return wanted or stored
    raise InvalidProblem(f"a is {stored}; dtype={wanted} does not go with it, leave it out or send {wanted}")


def _stored(name: str, tensor: Operand) -> tuple[int, ...]:
    """The shape of a matrix or of a stack of them."""
    if len(tensor.shape) not in (2, 3) or 0 in tensor.shape:
        raise InvalidProblem(
            f"{name} must be (rows, columns) or (batch, rows, columns), none of them 0; got {tensor.shape}"
        )
    return tensor.shape


def _check(problem: GemmProblem, tensors: Mapping[str, Operand], query: GemmQuery) -> None:
    lead = tensors["a"].shape[:-2]
    expected: dict[str, tuple[tuple[int, ...], DType]] = {
        "b": ((*lead, *problem.b_shape), tensors["a"].dtype),
        "c": ((*lead, problem.m, problem.n), problem.out),
        "bias": ((problem.n,), problem.out),
    }
    for name, (shape, dtype) in expected.items():
        tensor = tensors.get(name)
        if tensor and (tensor.shape != shape or tensor.dtype != dtype):
            raise InvalidProblem(
                f"{name} must be {dtype} {list(shape)} to go with a of {list(tensors['a'].shape)} in layout "
                f"{problem.layout}; got {tensor.dtype} {list(tensor.shape)}"
            )
    if query.beta != 0.0 and not problem.has_c:
        raise InvalidProblem("beta must be 0 if there is no tensor c")
