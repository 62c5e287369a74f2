"""Plans of ``matmul`` for operands of one shape: the cached launch of a kernel, or the library's product."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tilewright.config_sets.counters import LaunchCounter
from tilewright.errors import LaunchError, PreconditionFailed, TilewrightError
from tilewright.launch import CachedLaunch, Kernel, Operands, driver
from tilewright.launch.arguments import check_preconditions
from tilewright.matmul.arrays import ArrayLibrary, Epilogue
from tilewright.matmul.product import Product

_ALIGNED = 256
Fallback = Callable[[str], Callable[[Any, Any, Any, Any], Any]]


class VendorPlan:
    """Runs the product of the array library, and so the vendor library."""

    __slots__ = ("_counter", "_epilogue", "_product")
    workspace_bytes = 0

    def __init__(self, library: ArrayLibrary, epilogue: Epilogue, counter: LaunchCounter) -> None:
        self._product, self._epilogue, self._counter = library.product, epilogue, counter

    def __call__(self, a: Any, b: Any, out: Any, bias: Any) -> Any:
        """Run on the library's current stream."""
        self._counter.count += 1
        return self._product(a, b, out, bias, self._epilogue)


class TunedPlan:
    """A tuned kernel with the arguments of one shape, for one thread.

    A launch has its arguments patched, so it is taken out while it is in use: a signal handler or a finalizer
    that multiplies meanwhile binds one of its own.

    Args:
        kernel: a loaded kernel that computes the product's problem.
        library: the array library.
        product: the problem and the layout of the arrays.
        counter: counts the launches.
        fallback: returns the plan for arrays that the kernel cannot run, given the reason.

    Attributes:
        workspace_bytes: of its workspace on one stream.
    """

    def __init__(
        self,
        kernel: Kernel,
        library: ArrayLibrary,
        product: Product,
        counter: LaunchCounter,
        fallback: Fallback,
    ) -> None:
        self._kernel, self._library, self._product = kernel, library, product
        self._counter, self._fallback = counter, fallback
        self._empty, self._address, self._stream = library.empty, library.address, library.stream
        self._written = library.written
        self._shape, self._device = product.shape, product.device
        self._reads_d = product.epilogue.beta != 0.0
        self._a_bytes, self._b_bytes, self._d_bytes, self._bias_bytes = product.spans
        self.workspace_bytes = kernel.artifact.plan.workspace_bytes(product.problem)
        self._launch: CachedLaunch | None = None

    def __call__(self, a: Any, b: Any, out: Any, bias: Any) -> Any:
        """Enqueue on the library's current stream and return D."""
        address = self._address
        d = self._empty(a, self._shape) if out is None else out
        to = address(d)
        c, vector = to if self._reads_d else 0, 0 if bias is None else address(bias)
        addresses = (address(a), address(b), to, c, vector)
        if out is not None and self._overlaps(addresses):
            return self._overlapping(a, b, out, bias)
        launch, self._launch = self._launch, None
        try:
            if launch is None:
                self._launch_first(addresses, a)
            else:
                launch.move(*addresses)
                launch(self._stream(self._device))
                self._launch = launch
        except LaunchError as error:
            if error.sticky:
                raise
            if isinstance(error, PreconditionFailed):  # it did not start
                self._launch = launch
            return self._fallback(broken_rule(error))(a, b, out, bias)
        self._counter.count += 1
        if out is not None:
            self._written(out)
        return d

    def _overlaps(self, addresses: tuple[int, ...]) -> bool:
        """Whether the memory of D overlaps the span of A, B or the bias."""
        a, b, d, _, bias = addresses
        end = d + self._d_bytes
        return (
            (a < end and d < a + self._a_bytes)
            or (b < end and d < b + self._b_bytes)
            or (bias < end and d < bias + self._bias_bytes and bias != 0)
        )

    def _overlapping(self, a: Any, b: Any, out: Any, bias: Any) -> Any:
        """The product in memory of its own, then copied to ``out``."""
        run = self._fallback("out overlaps an operand")
        if self._reads_d:  # so the library itself computes it beside C
            return run(a, b, out, bias)
        out[...] = run(a, b, None, bias)
        return out

    def _launch_first(self, addresses: tuple[int, ...], like: Any) -> None:  # noqa: ARG002
        launch = self._bind(addresses, 0)
        launch(self._stream(self._device))
        self._launch = launch

    def _bind(self, addresses: tuple[int, ...], workspace: int) -> CachedLaunch:
        operands = _operands(self._product, addresses, workspace)
        try:
            return self._kernel.bind(self._product.problem, operands)
        except LaunchError:
            raise
        except Exception as error:  # NOTE: the plan came from a service and may be wrong
            raise LaunchError(broken_rule(error)) from error


class ScratchPlan(TunedPlan):
    """A tuned kernel that needs a workspace: one for each stream, as launches on one stream run in order.

    A graph gets memory of its own, because it may be replayed at any time, also while others run.
    """

    @functools.cached_property
    def _by_stream(self) -> dict[int, tuple[CachedLaunch, Any]]:
        return {}

    @functools.cached_property
    def _capturing(self) -> driver.CaptureQuery | None:
        return driver.CaptureQuery() if self._device >= 0 else None

    def _launch_first(self, addresses: tuple[int, ...], like: Any) -> None:
        stream = self._stream(self._device)
        if self._capturing is not None and self._capturing(stream):
            self._capture(addresses, stream)
            return
        held = self._by_stream.pop(stream, None)
        if held is None:
            workspace = self._library.zero_bytes(like, self.workspace_bytes)
            held = self._bind(addresses, self._address(workspace)), workspace
        launch, _ = held
        try:
            launch.move(*addresses)
        except PreconditionFailed:  # it did not start
            self._by_stream[stream] = held
            raise
        launch(stream)
        # NOTE: not after an error: a part of the launch may have run and left semaphores that are not zero.
        self._by_stream[stream] = held

    def _capture(self, addresses: tuple[int, ...], stream: int) -> None:
        plan, problem = self._kernel.artifact.plan, self._product.problem
        zero = plan.workspace_zero_bytes(problem)
        with driver.stream_memory(self.workspace_bytes, zero, stream) as workspace:
            self._bind(addresses, workspace)(stream)


Plan = VendorPlan | TunedPlan


def broken_rule(error: Exception) -> str:
    """The reason a kernel could not run, without the problem, so that equal reasons are counted together."""
    if isinstance(error, PreconditionFailed):
        return f"precondition: {str(error).partition(': ')[2] or error}"
    return str(error) if isinstance(error, TilewrightError) else f"its plan broke: {type(error).__name__}"


def tuned_plan(
    kernel: Kernel, library: ArrayLibrary, product: Product, counter: LaunchCounter, fallback: Fallback
) -> TunedPlan:
    """The plan for a kernel, with a workspace if the kernel needs one.

    Raises:
        PreconditionFailed: the kernel does not support these shapes and strides at any address.
    """
    aligned = _operands(product, (_ALIGNED,) * 5, _ALIGNED)
    check_preconditions(kernel.artifact.plan, product.problem, aligned)
    needs = kernel.artifact.plan.workspace_bytes(product.problem)
    return (ScratchPlan if needs else TunedPlan)(kernel, library, product, counter, fallback)


def _operands(product: Product, addresses: tuple[int, ...], workspace: int) -> Operands:
    (a, b, d, c, bias), epilogue = addresses, product.epilogue
    return Operands(a, b, d, c, bias, workspace, alpha=epilogue.alpha, beta=epilogue.beta, **product.strides)
