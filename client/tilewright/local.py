"""``matmul`` on the caller's own device, with the kernels of a service."""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Callable
from typing import Any

from tilewright import arrays
from tilewright.artifact import Artifact
from tilewright.errors import InvalidProblem, PreconditionFailed, TilewrightError
from tilewright.launch import Kernel, Operands, driver, load
from tilewright.launch.host import host_arch
from tilewright.problem import GemmProblem, Layout

Lookup = Callable[[GemmProblem, str], Artifact | None]


@dataclasses.dataclass(frozen=True, slots=True)
class _Plan:
    """A product as it lies in memory: the problem, the row strides, and where it runs.

    Attributes:
        device: ordinal of the GPU; -1 on the host.
    """

    problem: GemmProblem
    lda: int
    ldb: int
    arch: str
    device: int


class _Workspaces(threading.local):
    """Workspaces of one thread, by problem, device and stream.

    NOTE: launches of one thread on one stream run in order and may share one. Two threads may not, even
    under the same handle: host launches run at once, and so do the streams that CUDA's per-thread
    default stream stands for.
    """

    def __init__(self) -> None:
        self.arrays: dict[tuple[GemmProblem, int, int], Any] = {}


class LocalMatmul:
    """Launches tuned kernels on the arrays' device and current stream.

    What has no tuned kernel, or one that the vendor library beats, is left to the array library's own
    ``@``; so are arrays that a gradient is wanted of and arrays of another GPU than the current one. The
    service is asked once a problem and device, also where it does not answer. Safe to share between threads.

    Attributes:
        stats: how many products ran as ``tuned`` and how many as ``vendor: REASON``.
    """

    def __init__(self, lookup: Lookup) -> None:
        self.stats: collections.Counter[str] = collections.Counter()
        self._lookup = lookup
        self._kernels: dict[tuple[GemmProblem, str, int], Kernel | str] = {}
        self._workspaces = _Workspaces()
        self._lock = threading.Lock()

    def __call__(self, a: Any, b: Any) -> Any:
        """``a @ b`` for matrices of one library, element type and device."""
        plan, reason = _describe(a, b)
        if plan is None:
            return self._vendor(a, b, reason)
        kernel = self._kernel(plan)
        if isinstance(kernel, str):
            return self._vendor(a, b, kernel)
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

    def _kernel(self, plan: _Plan) -> Kernel | str:
        """The tuned kernel, or why there is none."""
        key = (plan.problem, plan.arch, plan.device)
        with self._lock:
            if key not in self._kernels:
                self._kernels[key] = self._fetch(plan)
            return self._kernels[key]

    def _fetch(self, plan: _Plan) -> Kernel | str:
        try:
            artifact = self._lookup(plan.problem, plan.arch)
            return load(artifact) if artifact else "no tuned kernel that beats it"
        except TilewrightError as error:
            return str(error)

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
        mine = self._workspaces.arrays
        key = (plan.problem, plan.device, stream)
        if key not in mine:
            mine[key] = arrays.zero_bytes_like(like, size)
        return arrays.byte_address(mine[key])


def _describe(a: Any, b: Any) -> tuple[_Plan | None, str]:
    try:
        left, right = arrays.matrix(a), arrays.matrix(b)
    except InvalidProblem as error:
        return None, str(error)
    if arrays.needs_gradient(a) or arrays.needs_gradient(b):
        return None, "a gradient is wanted"
    stored_a, stored_b = left.stored(), right.stored()
    if left.dtype is not right.dtype or left.on_gpu != right.on_gpu or left.shape[1] != right.shape[0]:
        return None, "operands do not match"
    if stored_a is None or stored_b is None or 0 in (*left.shape, *right.shape):
        return None, "no row-major matrix in memory"
    arch, current = _current(left.on_gpu)
    if left.device != current or right.device != current:
        return None, f"arrays of GPU {left.device} while GPU {current} is the current one"
    (mark_a, lda), (mark_b, ldb) = stored_a, stored_b
    (m, k), n = left.shape, right.shape[1]
    try:
        problem = GemmProblem(m, n, k, left.dtype, Layout(mark_a + mark_b))
    except InvalidProblem as error:
        return None, str(error)
    if problem.out is not left.dtype:
        return None, f"a product of {left.dtype} is {problem.out} here, the array library keeps its own type"
    return _Plan(problem, lda, ldb, arch, current), ""


def _current(on_gpu: bool) -> tuple[str, int]:
    """Architecture and ordinal of the device that launches go to."""
    if not on_gpu:
        return host_arch(), -1
    device = driver.ensure_context()
    major, minor = driver.compute_capability(device)
    return f"sm_{major}{minor}", device
