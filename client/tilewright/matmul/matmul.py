"""``matmul`` on the caller's own device, with the kernels of a service."""

from __future__ import annotations

import collections
import dataclasses
import functools
import sys
import threading
from collections.abc import Callable, Hashable
from numbers import Complex, Real
from typing import Any, Protocol

from tilewright import forks
from tilewright.artifact import Artifact
from tilewright.artifact.cache import KERNEL_BYTES
from tilewright.config_sets.counters import LaunchCounter
from tilewright.errors import InvalidProblem, TilewrightError
from tilewright.launch import driver
from tilewright.matmul import arrays
from tilewright.matmul.arrays import ArrayLibrary, Epilogue
from tilewright.matmul.cached_launch import Plan, VendorPlan, broken_rule, tuned_plan
from tilewright.matmul.loaded import LoadedKernels
from tilewright.matmul.product import Arrays, Product, describe
from tilewright.schema.problem import Activation, GemmProblem, check_factors

_MOST_PLANS = 4096
_MOST_WORKSPACE = 2**31  # bytes of all plans of a thread
_MOST_COUNTERS = 16384
_libraries, _weights = arrays.LIBRARIES.get, arrays.WEIGHTS.get  # looked up once: every launch uses them


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """The kernel to run for a problem.

    Attributes:
        artifact: the tuned kernel; None for the vendor library.
        reason: ``exact``, ``ladder`` or ``nearest`` with a kernel, else why there is none.
        miss: whether no kernel was tuned for this problem.
    """

    artifact: Artifact | None
    reason: str
    miss: bool = False


Lookup = Callable[[GemmProblem, int], Choice]


class _Threads(threading.local):
    """The plans of one thread.

    NOTE: a plan writes to its arguments and owns a workspace, so two threads must not use the same one.
    """

    def __init__(self) -> None:
        self.plans: dict[Hashable, Plan] = {}
        self._workspace = 0

    def add(self, key: Hashable, plan: Plan) -> None:
        """Keep a plan; drop all others once they are too many, or have too much workspace together."""
        self._workspace += plan.workspace_bytes
        if len(self.plans) >= _MOST_PLANS or self._workspace > _MOST_WORKSPACE:
            self.plans.clear()
            self._workspace = plan.workspace_bytes
        self.plans[key] = plan


class LocalMatmul:
    """Launches tuned kernels on the arrays' device and current stream.

    The array library's own product runs if there is no tuned kernel, if the vendor library beats it, if a
    gradient is wanted, or if the arrays are on another GPU than the current one. Safe to share between
    threads; launches may be captured into CUDA graphs.

    Args:
        lookup: returns the kernel for a problem and a device (an ordinal, -1 for the host). It is called once
            for each problem and device until :meth:`forget`.
        kernel_bytes: most bytes of kernels that stay loaded while no launch uses them.
        overlap: whether a launch may start while the kernel before it on the stream ends.
    """

    def __init__(self, lookup: Lookup, kernel_bytes: int = KERNEL_BYTES, overlap: bool = False) -> None:
        self._lookup = lookup
        self._threads = _Threads()
        self._kernels = LoadedKernels(kernel_bytes, overlap)
        self._counters: dict[tuple[str, GemmProblem | None, int], LaunchCounter] = {}
        self.after_fork()
        forks.watch(self)

    def after_fork(self) -> None:
        """Make a new lock in a forked child: a lost thread may hold the old one. Forget the lookups, so that
        the child learns of newer results; its parent reports earlier misses."""
        self._lock = threading.RLock()
        # NOTE: kept, as they may hold memory of a device, which is not for the child to free.
        self._of_parent = self._threads
        self.forget()
        for counter in self._counters.values():
            counter.reported = counter.count

    def __call__(
        self,
        a: Any,
        b: Any,
        out: Any = None,
        bias: Any = None,
        activation: str | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> Any:
        """``act(alpha * a @ b + beta * out + bias)`` for arrays of one library, element type and device.

        Args:
            a: (..., m, k), any layout.
            b: (k, n), or (..., k, n) with the leading axes of ``a``.
            out: (..., m, n), written to, and read if ``beta`` is not 0; must not overlap ``a``, ``b`` or
                itself.
            bias: n elements, added to every row.
            activation: ``relu`` or ``gelu`` (the tanh approximation).

        Raises:
            InvalidProblem: the activation is unknown, ``beta`` is given without ``out``, elements of ``out``
                share memory, or a factor is no real number, wants a gradient or is too large for the type of
                the running sum.
            LaunchError: the device broke; the process must end.
        """
        library = _libraries(type(a)) or arrays.library_of(a)
        key = library.key(a, b, out, bias)
        if type(alpha) is not float or type(beta) is not float:
            alpha, beta = _factor("alpha", alpha), _factor("beta", beta)
        if activation is not None or alpha != 1.0 or beta != 0.0:
            key = key and (key, activation, alpha, beta)
        try:
            plan = self._threads.plans.get(key)
        except TypeError:  # an activation without a hash, which is refused below
            plan = None
        if plan is None:
            operands = (a, b, out, bias)
            plan = self._plan(library, key, operands, _epilogue(activation, alpha, beta, out))
        return plan(a, b, out, bias)

    def linear(self, x: Any, weight: Any, bias: Any = None, activation: str | None = None) -> Any:
        """``act(x @ weight.T + bias)`` for a weight in the layout of layers, ``(n, k)``, without a view.

        Raises:
            InvalidProblem: the activation is unknown.
            LaunchError: the device broke; the process must end.
        """
        library = _weights(type(x)) or arrays.weights_of(x)
        key = library.key(x, weight, None, bias)
        if activation is not None:
            key = key and (key, activation)
        try:
            plan = self._threads.plans.get(key)
        except TypeError:  # as above
            plan = None
        if plan is None:
            # NOTE: without a key they are not read, and a subclass of tensors may have no transpose.
            operands = (x, weight if key is None else weight.T, None, bias)
            plan = self._plan(library, key, operands, _epilogue(activation, 1.0, 0.0, None))
        return plan(x, weight, None, bias)

    def describe(
        self, a: Any, b: Any, bias: Any = None, activation: str | None = None, beta: float = 0.0
    ) -> Product:
        """The product that a call with these arrays asks for; with ``beta`` it reads its result first.

        Raises:
            InvalidProblem: no kernel supports the layout of the arrays, or they are none of one library; the
                message says why.
        """
        library = _libraries(type(a)) or arrays.library_of(a)
        for other in (b,) if bias is None else (b, bias):
            if type(arrays.library_of(other)) is not type(library):
                raise InvalidProblem(
                    f"operands must be arrays of one library; convert one of {type(a)} and {type(other)}"
                )
        epilogue = _epilogue(activation, 1.0, _factor("beta", beta), a)
        return describe(library, (a, b, None, bias), epilogue)

    @property
    def stats(self) -> collections.Counter[str]:
        """Numbers of products by their :attr:`LaunchCounter.reason`."""
        found: collections.Counter[str] = collections.Counter()
        for counter in list(self._counters.values()):
            if counter.count:
                found[counter.reason] += counter.count
        return found

    def misses(self) -> list[LaunchCounter]:
        """The counters of problems that ran without a kernel tuned for them."""
        return [counter for counter in list(self._counters.values()) if counter.miss and counter.problem]

    def forget(self) -> None:
        """Forget the results of ``lookup``, which is called again; kernels stay loaded within their
        bound."""
        self._threads = _Threads()

    def _plan(
        self, library: ArrayLibrary, key: Hashable | None, operands: Arrays, epilogue: Epilogue
    ) -> Plan:
        if key is None:
            return self._vendor(library, epilogue, "a gradient is wanted, autocast is on, or no plain tensor")
        threads = self._threads
        try:
            product = describe(library, operands, epilogue)
        except TilewrightError as error:
            plan: Plan = self._vendor(library, epilogue, str(error))
        else:
            check_factors(product.problem, epilogue.alpha, epilogue.beta)
            plan = self._leading(library, product, epilogue)
        threads.add(key, plan)
        return plan

    def _leading(self, library: ArrayLibrary, product: Product, epilogue: Epilogue) -> Plan:
        """The plan of a product that a kernel could compute."""
        try:
            return self._tuned(library, product, epilogue)
        except TilewrightError as error:
            return self._vendor(library, epilogue, str(error))

    def _tuned(self, library: ArrayLibrary, product: Product, epilogue: Epilogue) -> Plan:
        problem, device = product.problem, product.device
        if device >= 0 and device != driver.ensure_context():
            raise InvalidProblem(f"arrays are on GPU {device} and another one is current; make it current")
        choice = self._choice(problem, device)

        def fallback(reason: str) -> Plan:
            return self._vendor(library, epilogue, reason, (problem, device, choice.miss))

        if choice.artifact is None:
            return fallback(choice.reason)
        counter = self._counter(f"tuned: {choice.reason}", (problem, device, choice.miss))
        try:
            make = functools.partial(
                tuned_plan, library=library, product=product, counter=counter, fallback=fallback
            )
            return self._kernels.plan(choice.artifact, device, make)
        except Exception as error:  # NOTE: the plan came from a service and may be wrong
            return fallback(broken_rule(error))

    def _choice(self, problem: GemmProblem, device: int) -> Choice:
        try:
            return self._lookup(problem, device)
        except TilewrightError:
            raise
        except Exception as error:  # NOTE: the product must run, also if the service sent nonsense
            return Choice(None, f"the lookup broke: {type(error).__name__}")

    def _vendor(
        self,
        library: ArrayLibrary,
        epilogue: Epilogue,
        reason: str,
        ran: tuple[GemmProblem | None, int, bool] = (None, -1, False),
    ) -> VendorPlan:
        return VendorPlan(library, epilogue, self._counter(f"vendor: {reason}", ran))

    def _counter(self, reason: str, ran: tuple[GemmProblem | None, int, bool]) -> LaunchCounter:
        problem, device, miss = ran
        with self._lock:
            if len(self._counters) >= _MOST_COUNTERS:
                self._merge_counters()
            new = LaunchCounter(reason, problem, device, miss)
            return self._counters.setdefault((reason, problem, device), new)

    def _merge_counters(self) -> None:
        """Merge the counters to one for each reason, for callers whose shapes never repeat."""
        totals: dict[tuple[str, GemmProblem | None, int], LaunchCounter] = {}
        for counter in self._counters.values():
            new = LaunchCounter(counter.reason, device=counter.device)
            totals.setdefault((new.reason, None, new.device), new).count += counter.count
        self._counters = totals
        self.forget()


class HasMatmul(Protocol):
    """A client with kernels in this process, such as :class:`tilewright.Client`."""

    matmul: LocalMatmul


def _factor(name: str, value: Any) -> float:
    """A factor as a number; for an array or tensor with one element, its current value."""
    torch = sys.modules.get("torch")  # NOTE: imported by the code that made a tensor
    if torch is not None and getattr(value, "requires_grad", False) and torch.is_grad_enabled():
        raise InvalidProblem(f"{name} gets no gradient; give {name}.detach(), or multiply an array by it")
    try:
        if isinstance(value, str | bytes) or (isinstance(value, Complex) and not isinstance(value, Real)):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last by torch
        raise InvalidProblem(f"{name} must be a real number, such as 2.0; got {str(value)[:80]!r}") from None


def _epilogue(activation: str | None, alpha: float, beta: float, out: Any) -> Epilogue:
    if beta != 0.0 and out is None:
        raise InvalidProblem("beta adds what out holds; give out, or leave beta at 0")
    name = "none" if activation is None else activation
    if not isinstance(name, str) or name not in list(Activation):
        raise InvalidProblem(f"activation must be one of {', '.join(Activation)}; got {activation!r}")
    return Epilogue(Activation(name), alpha, beta)
