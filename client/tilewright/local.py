"""``matmul`` on the caller's own device, with the kernels of a service."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import threading
from collections.abc import Callable, Hashable
from typing import Any

from tilewright import arrays
from tilewright.arrays import ArrayLibrary, Epilogue
from tilewright.artifact import Artifact
from tilewright.bound import Plan, Tally, VendorPlan, Ways, broken_rule, tuned_plan
from tilewright.errors import InvalidProblem, TilewrightError
from tilewright.launch import Kernel, driver, load
from tilewright.problem import Activation, GemmProblem
from tilewright.product import Call, Product, describe

_MOST_PLANS = 4096
_MOST_TALLIES = 16384
_libraries, _weights = arrays.LIBRARIES.get, arrays.WEIGHTS.get  # bound once: they are on every launch


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """What is to run for a problem.

    Attributes:
        artifact: the tuned kernel; None for the vendor library.
        reason: ``exact`` or ``nearest`` with a kernel, else why there is none.
        miss: a kernel tuned for the very problem is missing.
    """

    artifact: Artifact | None
    reason: str
    miss: bool = False


Lookup = Callable[[GemmProblem, int], Choice]


class _Threads(threading.local):
    """The plans of one thread. NOTE: a plan patches its arguments in place and owns a workspace that host
    launches of two threads would share, so no two threads may have one in common."""

    def __init__(self) -> None:
        self.plans: dict[Hashable, Plan] = {}


class LocalMatmul:
    """Launches tuned kernels on the arrays' device and current stream.

    What has no tuned kernel, or one that the vendor library beats, is left to the array library's own
    product; so are arrays that a gradient is wanted of, and arrays of another GPU than the current one.
    ``lookup`` is asked once a problem and device until :meth:`forget`. Safe to share between threads;
    launches may be captured into CUDA graphs.

    Args:
        lookup: what to run for a problem on a device, its ordinal or -1 for the host.
    """

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self._threads = _Threads()
        self._kernels: dict[tuple[str, int], Kernel] = {}
        self._tallies: dict[tuple[str, GemmProblem | None, int], Tally] = {}
        self._lock = threading.RLock()

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
            out: (..., m, n) to write to, and to add where ``beta`` is not 0; must not overlap ``a`` or ``b``.
            bias: n elements, added to every row.
            activation: ``relu`` or ``gelu`` (the tanh approximation).

        Raises:
            InvalidProblem: the activation is unknown, or ``beta`` is given without ``out``.
            LaunchError: the device broke; the process must end.
        """
        library = _libraries(type(a)) or arrays.library_of(a)
        key = library.key(a, b, out, bias)
        if activation is not None or alpha != 1.0 or beta != 0.0:
            key = key and (key, activation, alpha, beta)
        plan = self._threads.plans.get(key)
        if plan is None:
            plan = self._plan(library, key, (a, b, out, bias), _epilogue(activation, alpha, beta, out))
        return plan(a, b, out, bias)

    def linear(self, x: Any, weight: Any, bias: Any = None, activation: str | None = None) -> Any:
        """``act(x @ weight.T + bias)`` for a weight as layers keep it, ``(n, k)``; no view is made of it.

        Raises:
            InvalidProblem: the activation is unknown.
            LaunchError: the device broke; the process must end.
        """
        library = _weights(type(x)) or arrays.weights_of(x)
        key = library.key(x, weight, None, bias)
        if activation is not None:
            key = key and (key, activation)
        plan = self._threads.plans.get(key)
        if plan is None:
            call = (x, weight.T, None, bias)
            plan = self._plan(library, key, call, _epilogue(activation, 1.0, 0.0, None))
        return plan(x, weight, None, bias)

    @property
    def stats(self) -> collections.Counter[str]:
        """How many products ran as ``tuned: exact``, ``tuned: nearest`` and ``vendor: REASON``."""
        found: collections.Counter[str] = collections.Counter()
        for tally in list(self._tallies.values()):
            if tally.count:
                found[tally.reason] += tally.count
        return found

    def misses(self) -> list[Tally]:
        """What ran without a kernel tuned for it, and how often."""
        return [tally for tally in list(self._tallies.values()) if tally.miss and tally.problem]

    def forget(self) -> None:
        """Ask ``lookup`` again from now on; kernels stay loaded."""
        self._threads = _Threads()

    def _plan(self, library: ArrayLibrary, key: Hashable | None, call: Call, epilogue: Epilogue) -> Plan:
        if key is None:
            return self._vendor(library, epilogue, "a gradient is wanted, autocast is on, or no plain tensor")
        threads = self._threads
        try:
            plan = self._tuned(library, describe(library, call, epilogue), epilogue)
        except TilewrightError as error:
            plan = self._vendor(library, epilogue, str(error))
        if len(threads.plans) >= _MOST_PLANS:
            threads.plans.clear()
        threads.plans[key] = plan
        return plan

    def _tuned(self, library: ArrayLibrary, product: Product, epilogue: Epilogue) -> Plan:
        problem, device = product.problem, product.device
        if device >= 0 and device != driver.ensure_context():
            raise InvalidProblem(f"arrays of GPU {device} while another one is current")
        choice = self._choice(problem, device)

        def instead(reason: str) -> Plan:
            return self._vendor(library, epilogue, reason, (problem, device, choice.miss))

        if choice.artifact is None:
            return instead(choice.reason)
        tally = self._tally(f"tuned: {choice.reason}", (problem, device, choice.miss))
        try:
            kernel = self._kernel(choice.artifact, device)
            return tuned_plan(kernel, library, product, epilogue, Ways(tally, instead))
        except Exception as error:  # NOTE: the plan came from a service, and may say anything
            return instead(broken_rule(error))

    def _choice(self, problem: GemmProblem, device: int) -> Choice:
        try:
            return self._lookup(problem, device)
        except TilewrightError:
            raise
        except Exception as error:  # NOTE: whatever a service sent, the product has to run
            return Choice(None, f"the lookup broke: {type(error).__name__}")

    def _vendor(
        self,
        library: ArrayLibrary,
        epilogue: Epilogue,
        reason: str,
        ran: tuple[GemmProblem | None, int, bool] = (None, -1, False),
    ) -> VendorPlan:
        return VendorPlan(library, epilogue, self._tally(f"vendor: {reason}", ran))

    def _tally(self, reason: str, ran: tuple[GemmProblem | None, int, bool]) -> Tally:
        problem, device, miss = ran
        with self._lock:
            if len(self._tallies) >= _MOST_TALLIES:
                self._sum_up()
            return self._tallies.setdefault((reason, problem, device), Tally(reason, problem, device, miss))

    def _sum_up(self) -> None:
        """One tally a reason in place of one a problem, for callers whose shapes never repeat."""
        totals: dict[tuple[str, GemmProblem | None, int], Tally] = {}
        for tally in self._tallies.values():
            key = (tally.reason, None, tally.device)
            totals.setdefault(key, Tally(tally.reason, device=tally.device)).count += tally.count
        self._tallies = totals
        self.forget()

    def _kernel(self, artifact: Artifact, device: int) -> Kernel:
        key = (artifact.digest, device)
        with self._lock:
            if key not in self._kernels:
                # NOTE: the first product of a shape may come while its stream is captured into a graph.
                with driver.outside_capture() if device >= 0 else contextlib.nullcontext():
                    self._kernels[key] = load(artifact)
            return self._kernels[key]


def _epilogue(activation: str | None, alpha: float, beta: float, out: Any) -> Epilogue:
    if beta != 0.0 and out is None:
        raise InvalidProblem("beta adds what out holds; give out, or leave beta at 0")
    try:
        return Epilogue(Activation(activation or "none"), float(alpha), float(beta))
    except ValueError:
        names = ", ".join(Activation)
        raise InvalidProblem(f"activation must be one of {names}; got {activation!r}") from None
