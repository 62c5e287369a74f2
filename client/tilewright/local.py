"""``matmul`` on the caller's own device, with the kernels of a service."""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Callable
from typing import Any

from tilewright import arrays
from tilewright.artifact import Artifact
from tilewright.errors import InvalidProblem, PreconditionFailed
from tilewright.launch import Kernel, Operands, driver, load
from tilewright.launch.host import host_arch
from tilewright.problem import GemmProblem, Layout

Lookup = Callable[[GemmProblem, str], Artifact | None]


@dataclasses.dataclass(frozen=True, slots=True)
class _Plan:
    """A product as it lies in memory: the problem, the row strides, and where it runs."""

    problem: GemmProblem
    lda: int
    ldb: int
    arch: str


class LocalMatmul:
    """Launches tuned kernels on the arrays' device and current stream.

    What has no tuned kernel, or one that the vendor library beats, is left to the array library's own
    ``@``. The service is asked once a problem.

    Attributes:
        stats: how many products ran as ``tuned`` and how many as ``vendor: REASON``.
    """

    def __init__(self, lookup: Lookup) -> None:
        self.stats: collections.Counter[str] = collections.Counter()
        self._lookup = lookup
        self._kernels: dict[tuple[GemmProblem, str], Kernel | None] = {}
        self._workspaces: dict[tuple[GemmProblem, str, int], Any] = {}
        self._lock = threading.Lock()

    def __call__(self, a: Any, b: Any) -> Any:
        """``a @ b`` for matrices of one library, element type and device."""
        plan, reason = _describe(a, b)
        kernel = self._kernel(plan) if plan else None
        if plan is None or kernel is None:
            return self._vendor(a, b, reason or "no tuned kernel that beats it")
        d = arrays.empty_like(a, (plan.problem.m, plan.problem.n))
        try:
            self._launch(kernel, plan, (a, b, d))
        except PreconditionFailed as error:
            return self._vendor(a, b, f"precondition: {error}")
        self.stats["tuned"] += 1
        return d

    def _vendor(self, a: Any, b: Any, reason: str) -> Any:
        self.stats[f"vendor: {reason}"] += 1
        return a @ b

    def _kernel(self, plan: _Plan) -> Kernel | None:
        key = (plan.problem, plan.arch)
        with self._lock:
            if key not in self._kernels:
                artifact = self._lookup(plan.problem, plan.arch)
                self._kernels[key] = load(artifact) if artifact else None
            return self._kernels[key]

    def _launch(self, kernel: Kernel, plan: _Plan, operands: tuple[Any, Any, Any]) -> None:
        a, b, d = (arrays.matrix(operand) for operand in operands)
        stream = arrays.current_stream(operands[0])
        workspace = self._workspace(kernel, plan, operands[0], stream)
        addresses = Operands(a.address, b.address, d.address, workspace=workspace, lda=plan.lda, ldb=plan.ldb)
        kernel.bind(plan.problem, addresses)(stream)

    def _workspace(self, kernel: Kernel, plan: _Plan, like: Any, stream: int) -> int:
        size = kernel.artifact.plan.workspace_bytes(plan.problem)
        if not size:
            return 0
        # NOTE: launches on one stream run in order and may share it; two streams may not.
        key = (plan.problem, plan.arch, stream)
        with self._lock:
            if key not in self._workspaces:
                self._workspaces[key] = arrays.zero_bytes_like(like, size)
            return arrays.byte_address(self._workspaces[key])


def _describe(a: Any, b: Any) -> tuple[_Plan | None, str]:
    try:
        left, right = arrays.matrix(a), arrays.matrix(b)
    except InvalidProblem as error:
        return None, str(error)
    stored_a, stored_b = left.stored(), right.stored()
    if left.dtype is not right.dtype or left.on_gpu != right.on_gpu or left.shape[1] != right.shape[0]:
        return None, "operands do not match"
    if stored_a is None or stored_b is None or 0 in (*left.shape, *right.shape):
        return None, "no row-major matrix in memory"
    (mark_a, lda), (mark_b, ldb) = stored_a, stored_b
    (m, k), n = left.shape, right.shape[1]
    try:
        problem = GemmProblem(m, n, k, left.dtype, Layout(mark_a + mark_b))
    except InvalidProblem as error:
        return None, str(error)
    if problem.out is not left.dtype:
        return None, f"a product of {left.dtype} is {problem.out} here, the array library keeps its own type"
    return _Plan(problem, lda, ldb, _arch(left.on_gpu)), ""


def _arch(on_gpu: bool) -> str:
    if not on_gpu:
        return host_arch()
    major, minor = driver.compute_capability(driver.ensure_context())
    return f"sm_{major}{minor}"
