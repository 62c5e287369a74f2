"""``Client`` and ``AsyncClient``: the endpoints of the service, and ``matmul`` with its kernels here."""

from __future__ import annotations

import collections
import functools
import math
import weakref
from numbers import Real
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar, Unpack

from tilewright import wire
from tilewright.artifact.cache import default_folder
from tilewright.config_sets.options import LocalOptions, StartOptions
from tilewright.errors import InvalidProblem, ServiceUnreachable, TilewrightError
from tilewright.forks import PerProcess
from tilewright.http.arguments import BestOptions, checked_problem
from tilewright.http.calls import AsyncSender, Call, Sender, checked_timeout, checked_url
from tilewright.http.endpoints import Endpoints
from tilewright.http.fetch import Fetcher
from tilewright.launch import local_device
from tilewright.lazy import LazyModule
from tilewright.matmul.kernels import LocalKernels
from tilewright.schema.match import LookupResult
from tilewright.schema.problem import GemmProblem
from tilewright.trust import ServiceKey

if TYPE_CHECKING:
    import asyncio

    from tilewright.http import raw_socket, transport
else:
    asyncio = LazyModule("asyncio")
    raw_socket = LazyModule("tilewright.http.raw_socket")
    transport = LazyModule("tilewright.http.transport")

T = TypeVar("T")
_URL = "http://127.0.0.1:8080"


class Client(Endpoints, Sender):
    """A synchronous client; safe to share between threads.

    ``matmul(a, b)`` runs here, on the arrays' own device, with the kernel that the service tuned for the
    problem. Every method of :class:`tilewright.http.endpoints.Endpoints` runs on the service.

    Attributes:
        matmul: ``matmul(a, b, out=None, bias=None, activation=None, alpha=1, beta=0)`` on the arrays' own
            device, see :class:`tilewright.matmul.matmul.LocalMatmul`.
        url: of the service, without the user and password that it was given with.
        service_key: whose signatures of kernels and config sets count.

    Args:
        timeout: seconds that each step of a request may take.
        key: an API key of the service, if it asks for one.
        options: how to get the kernels: :class:`tilewright.config_sets.options.StartOptions`.

    Raises:
        InvalidProblem: the URL is none of a service, or an option is out of range.
    """

    def __init__(
        self,
        url: str = _URL,
        *,
        timeout: float = 10.0,
        key: str | None = None,
        **options: Unpack[LocalOptions],
    ) -> None:
        self.url, self._headers = checked_url(url, key)
        self._timeout = checked_timeout(timeout)
        self._is_closed = False
        self._http = PerProcess(lambda: transport.connect(self.url, self._timeout, self._headers))
        start = StartOptions(**options)
        self.service_key = ServiceKey(self.url, start.folder, start.trust, formerly=url)
        self._limits = start.limits
        self._local = LocalKernels(Fetcher(self.url, self._headers, self.service_key), start)
        self.matmul = self._local.matmul

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a client belongs to its process; use its arguments to make one in each process")

    def close(self) -> None:
        """Close the connections and stop looking for newer kernels; the client cannot be used afterwards."""
        self._is_closed = True
        self._local.close()
        self._close_segments()
        if self._http.made:
            self._http.made.close()
        if "_raw_socket" in vars(self) and self._raw_socket:
            self._raw_socket.close()

    def start(self, device: int | str | None = None) -> Self:
        """Get the kernels of a device: from the cache at once, else from the service.

        Blocks at most ``start_timeout`` seconds, and does not raise an error if the service is down: problems
        without a kernel run with the vendor library until the service answers. Without this call, the first
        :meth:`matmul` does the same.

        Args:
            device: ``cuda:0`` or the ordinal of a GPU, ``host`` or -1 for the CPU; the current GPU, or the
                CPU where there is none, unless given.

        Raises:
            DeviceUnavailable: there is no such device.
            TilewrightError: the client is closed.
        """
        if self._is_closed:
            raise _closed(self)
        self._local.refresher(local_device.ordinal(device))
        return self

    def lookup(self, problem: GemmProblem, device: int | str | None = None) -> LookupResult:
        """What :meth:`matmul` would run for a problem on a device, without asking the service.

        Raises:
            DeviceUnavailable: there is no such device.
            InvalidProblem: the problem is none.
        """
        return self._local.lookup(checked_problem(problem), local_device.ordinal(device))

    def explain(
        self,
        a: Any,
        b: Any,
        bias: Any = None,
        activation: str | None = None,
        beta: float = 0.0,
    ) -> wire.ExplainView:
        """Which kernel :meth:`matmul` would run for two arrays, and why: the result that the service has for
        their problem on their device within the client's limits, and its explanation. A pinned config set
        may be older.

        Raises:
            InvalidProblem: no kernel supports the layout of the arrays; the message says why.
            ServiceError: no result may answer for the problem.
        """
        product = self.matmul.describe(a, b, bias, activation, beta)
        device_class = local_device.device_class(product.device).id
        options: BestOptions = {"device_class": device_class, "deterministic": self._limits.deterministic}
        if self._limits.max_regret is not None:
            options |= {"match": "nearest", "max_regret": self._limits.max_regret}
        return self.explain_result(product.problem, **options)

    def refresh(self, timeout: float = 2.0) -> bool:
        """Look for a newer config set now; False if the service did not answer within ``timeout`` seconds, or
        has failed so often that it is not asked for a while. Does what :meth:`start` does, if need be.

        Raises:
            DeviceUnavailable: nothing was started yet, and the driver of the GPU failed.
            InvalidProblem: ``timeout`` is no number.
        """
        if not isinstance(timeout, Real) or math.isnan(timeout):  # the wait for NaN seconds has no end
            raise InvalidProblem(f"timeout must be seconds, such as 2.0; got {timeout!r}")
        return self._local.refresh(timeout)

    @property
    def stats(self) -> collections.Counter[str]:
        """How many products :meth:`matmul` ran for each
        :attr:`~tilewright.config_sets.counters.LaunchCounter.reason`."""
        return self.matmul.stats

    def _job_ended(self) -> None:
        self._local.request_refresh()

    def _send(self, call: Call[T]) -> T:
        if self._is_closed:
            raise _closed(self)
        try:
            if isinstance(call.content, list) and self._raw_socket:
                return self._raw_socket.send(call)
            return transport.send(self._http.get(), call)
        except (RuntimeError, ServiceUnreachable) as error:  # by closed connections, the first by httpx2
            if self._is_closed:
                raise _closed(self) from error
            raise

    @functools.cached_property
    def _raw_socket(self) -> raw_socket.RawSocketSender | None:
        """Sends large bodies; None if a proxy or TLS lies between here and the service."""
        if not raw_socket.reaches(self.url):
            return None
        return raw_socket.RawSocketSender(self.url, self._timeout, self._headers)


class AsyncClient(Endpoints, AsyncSender):
    """An asynchronous client: the endpoints as coroutines, without ``matmul``. Event loops may share it.

    Attributes:
        url: of the service, without the user and password that it was given with.
        service_key: whose signatures of kernels and config sets count.

    Args:
        timeout: seconds that each step of a request may take.
        key: an API key of the service, if it asks for one.
        trust: the key that signs its kernels, see :class:`tilewright.config_sets.options.StartOptions`.

    Raises:
        InvalidProblem: the URL is none of a service, ``timeout`` is out of range, or ``trust`` is no key.
    """

    def __init__(
        self, url: str = _URL, *, timeout: float = 10.0, key: str | None = None, trust: str | None = None
    ) -> None:
        self.url, headers = checked_url(url, key)
        seconds = checked_timeout(timeout)
        self.service_key = ServiceKey(self.url, default_folder(), trust, formerly=url)
        self._closed_in = weakref.WeakSet[asyncio.AbstractEventLoop]()
        self._http = PerProcess(
            lambda: transport.LoopConnections(lambda: transport.connect_async(self.url, seconds, headers))
        )

    __reduce__ = Client.__reduce__

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections of this event loop; the client cannot be used in it afterwards."""
        self._closed_in.add(asyncio.get_running_loop())
        self._close_segments()
        if self._http.made:
            await self._http.made.close()

    async def _send(self, call: Call[T]) -> T:
        if asyncio.get_running_loop() in self._closed_in:
            raise _closed(self)
        try:
            return await transport.send_async(self._http.get().here(), call)
        except (RuntimeError, ServiceUnreachable) as error:  # as above
            if asyncio.get_running_loop() in self._closed_in:
                raise _closed(self) from error
            raise


def _closed(client: Client | AsyncClient) -> TilewrightError:
    return TilewrightError(f"this client of {client.url} is closed; use a new one")
