"""What ``matmul`` keeps for operands of one shape: the bound launch, or the way to the vendor library."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from tilewright.arrays import ArrayLibrary, Epilogue
from tilewright.errors import LaunchError, PreconditionFailed, TilewrightError
from tilewright.launch import BoundLaunch, Kernel, Operands, driver
from tilewright.launch.arguments import check_preconditions
from tilewright.problem import GemmProblem
from tilewright.product import Product

_ALIGNED = 256


@dataclasses.dataclass(slots=True)
class Tally:
    """How often something happened.

    Attributes:
        reason: ``tuned: exact``, ``tuned: nearest`` or ``vendor: REASON``.
        problem: what ran; None where the arrays make none.
        device: ordinal of the GPU; -1 on the host.
        miss: a kernel tuned for the very problem is missing.
        count: products so far. NOTE: the interpreter does not switch threads between its read and write.
        reported: how many of them the service was told of.
    """

    reason: str
    problem: GemmProblem | None = None
    device: int = -1
    miss: bool = False
    count: int = 0
    reported: int = 0


class VendorPlan:
    """The library's own product."""

    __slots__ = ("_epilogue", "_product", "_tally")

    def __init__(self, library: ArrayLibrary, epilogue: Epilogue, tally: Tally) -> None:
        self._product, self._epilogue, self._tally = library.product, epilogue, tally

    def __call__(self, a: Any, b: Any, out: Any, bias: Any) -> Any:
        """Run on the library's current stream."""
        self._tally.count += 1
        return self._product(a, b, out, bias, self._epilogue)


class TunedPlan:
    """A tuned kernel bound to operands of one shape. NOTE: of one thread, as it patches its arguments.

    Args:
        kernel: a loaded kernel that computes the product's problem.
        library: of the arrays.
        product: how they lie.
        epilogue: alpha and beta are part of the binding.
        ways: what it counts, and whom it asks where it cannot run.
    """

    def __init__(
        self, kernel: Kernel, library: ArrayLibrary, product: Product, epilogue: Epilogue, ways: Ways
    ) -> None:
        self._kernel, self._library, self._product, self._epilogue = kernel, library, product, epilogue
        self._tally, self._instead = ways.tally, ways.instead
        self._empty, self._address, self._stream = library.empty, library.address, library.stream
        self._shape, self._device = product.shape, product.device
        self._reads_d = epilogue.beta != 0.0
        self._launch: BoundLaunch | None = None

    def __call__(self, a: Any, b: Any, out: Any, bias: Any) -> Any:
        """Enqueue on the library's current stream; gives D."""
        address = self._address
        d = self._empty(a, self._shape) if out is None else out
        to = address(d)
        c, vector = to if self._reads_d else 0, 0 if bias is None else address(bias)
        places = (address(a), address(b), to, c, vector)
        try:
            launch = self._launch
            if launch is None:
                self._first(places, a)
            else:
                launch.move(*places)
                launch(self._stream(self._device))
        except LaunchError as error:
            if error.sticky:
                raise
            return self._instead(broken_rule(error))(a, b, out, bias)
        self._tally.count += 1
        return d

    def _first(self, places: tuple[int, ...], like: Any) -> None:  # noqa: ARG002
        launch = self._bind(places, 0)
        launch(self._stream(self._device))
        self._launch = launch

    def _bind(self, places: tuple[int, ...], workspace: int) -> BoundLaunch:
        operands = _operands(self._product, self._epilogue, places, workspace)
        try:
            return self._kernel.bind(self._product.problem, operands)
        except LaunchError:
            raise
        except Exception as error:  # NOTE: the plan came from a service, and may ask for what cannot be
            raise LaunchError(broken_rule(error)) from error


class ScratchPlan(TunedPlan):
    """A tuned kernel that needs a workspace: one a stream, as launches on one stream run in order.

    Into a graph goes memory of its own, since a graph may be replayed at any time and beside others.
    """

    def __init__(
        self, kernel: Kernel, library: ArrayLibrary, product: Product, epilogue: Epilogue, ways: Ways
    ) -> None:
        super().__init__(kernel, library, product, epilogue, ways)
        self._by_stream: dict[int, tuple[BoundLaunch, Any]] = {}
        self._capturing = driver.CaptureQuery() if product.device >= 0 else None

    def _first(self, places: tuple[int, ...], like: Any) -> None:
        stream = self._stream(self._device)
        if self._capturing is not None and self._capturing(stream):
            self._capture(places, stream)
            return
        if stream not in self._by_stream:
            size = self._kernel.artifact.plan.workspace_bytes(self._product.problem)
            workspace = self._library.zero_bytes(like, size)
            self._by_stream[stream] = self._bind(places, self._address(workspace)), workspace
        launch, _ = self._by_stream[stream]
        launch.move(*places)
        launch(stream)

    def _capture(self, places: tuple[int, ...], stream: int) -> None:
        plan, problem = self._kernel.artifact.plan, self._product.problem
        size, zero = plan.workspace_bytes(problem), plan.workspace_zero_bytes(problem)
        with driver.stream_memory(size, zero, stream) as workspace:
            self._bind(places, workspace)(stream)


@dataclasses.dataclass(frozen=True, slots=True)
class Ways:
    """What a tuned plan counts, and whom it asks for the plan of arrays that it cannot take."""

    tally: Tally
    instead: Callable[[str], Callable[[Any, Any, Any, Any], Any]]


Plan = VendorPlan | TunedPlan


def broken_rule(error: Exception) -> str:
    """What a kernel could not be run for, without the problem, so that equal reasons count as one."""
    if isinstance(error, PreconditionFailed):
        return f"precondition: {str(error).partition(': ')[2] or error}"
    return str(error) if isinstance(error, TilewrightError) else f"its plan broke: {type(error).__name__}"


def tuned_plan(
    kernel: Kernel, library: ArrayLibrary, product: Product, epilogue: Epilogue, ways: Ways
) -> TunedPlan:
    """The plan for a kernel, with a workspace where it needs one.

    Raises:
        PreconditionFailed: the kernel does not take these shapes and strides, wherever they lie.
    """
    aligned = _operands(product, epilogue, (_ALIGNED,) * 5, _ALIGNED)
    check_preconditions(kernel.artifact.plan, product.problem, aligned)
    needs = kernel.artifact.plan.workspace_bytes(product.problem)
    return (ScratchPlan if needs else TunedPlan)(kernel, library, product, epilogue, ways)


def _operands(product: Product, epilogue: Epilogue, places: tuple[int, ...], workspace: int) -> Operands:
    a, b, d, c, bias = places
    return Operands(a, b, d, c, bias, workspace, alpha=epilogue.alpha, beta=epilogue.beta, **product.strides)
