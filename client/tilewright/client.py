"""``Client``: sends what :mod:`tilewright.calls` describes."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from tilewright import calls, forks, requests, transport, wire
from tilewright.artifact import Artifact
from tilewright.calls import GemmAnswer
from tilewright.fetch import Fetcher
from tilewright.follow import READ_TIMEOUT_S, Follower, OnProgress
from tilewright.local_client import LocalMethods, LocalOptions, start_options
from tilewright.problem import GemmProblem
from tilewright.requests import BestOptions, GemmOptions, TuneOptions
from tilewright.startup import LocalKernels
from tilewright.store_client import StoreMethods

if TYPE_CHECKING:
    import httpx2

    from tilewright.direct import Direct
    from tilewright.segments import Segments

T = TypeVar("T")


class Client(LocalMethods, StoreMethods):
    """A synchronous client; safe to share between threads.

    ``matmul(a, b)`` runs here, on the arrays' own device, with the kernel that the service tuned for the
    problem; see :class:`tilewright.local_client.LocalMethods` and its options. Everything else runs on the
    service.

    Every other method raises :class:`ServiceUnreachable` where nothing answers within ``timeout`` seconds,
    :class:`ServiceError` where the service refuses, :class:`InvalidProblem` where the request breaks a rule.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8080",
        *,
        timeout: float = 10.0,
        key: str | None = None,
        **options: Unpack[LocalOptions],
    ) -> None:
        """``key`` is an API key of the service, where it asks for one."""
        self._url, self._timeout, self._headers = url, timeout, transport.authorization(key)
        self._local = LocalKernels(Fetcher(url, self._headers), start_options(options))
        self.matmul = self._local.matmul
        self._connections = forks.Own(functools.partial(_connect, url, timeout, self._headers))

    @property
    def _http(self) -> httpx2.Client:
        return self._connections.get()

    @functools.cached_property
    def _direct(self) -> Direct | None:
        """For large bodies; None where something lies between here and the service."""
        from tilewright.direct import Direct, reaches

        return Direct(self._url, self._timeout, self._headers) if reaches(self._url) else None

    @functools.cached_property
    def _segments(self) -> Segments:
        from tilewright.segments import Segments

        return Segments()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and stop looking for newer kernels."""
        self._local.close()
        if self._connections.made:
            self._connections.made.close()
        if "_direct" in vars(self) and self._direct:
            self._direct.close()
        if "_segments" in vars(self):
            self._segments.close()

    def tune(
        self,
        problem: GemmProblem,
        *,
        on_progress: OnProgress | None = None,
        wait: bool = True,
        **options: Unpack[TuneOptions],
    ) -> wire.JobView:
        """Tune ``problem``; with ``wait`` until the job has ended, its winner is ``.best``.

        Raises:
            ServiceError: also where the job failed.
        """
        job = self._send(requests.tune(problem, options))
        return self.wait(job.id, on_progress) if wait else job

    def wait(self, job_id: str, on_progress: OnProgress | None = None) -> wire.JobView:
        """Follow a job to its end.

        Raises:
            ServiceError: also where the job failed.
        """
        follower = Follower(job_id, on_progress)
        while not follower.done:
            reason = self._listen(follower)
            if not follower.done:
                time.sleep(follower.pause(reason))
        self._local.rouse()
        return transport.ended(self.job(job_id))

    def job(self, job_id: str) -> wire.JobView:
        """One job."""
        return self._send(calls.job(job_id))

    def cancel(self, job_id: str) -> wire.JobView:
        """Ask a job to stop; its trials are kept."""
        return self._send(calls.cancel(job_id))

    def jobs(
        self, status: wire.JobStatus | None = None, *, limit: int = 50, cursor: str | None = None
    ) -> wire.JobList:
        """A page of jobs, newest first."""
        return self._send(calls.jobs(status, requests.page(limit, cursor)))

    def trials(self, job_id: str, *, limit: int = 50, cursor: str | None = None) -> wire.TrialList:
        """A page of a job's trials."""
        return self._send(calls.trials(job_id, requests.page(limit, cursor)))

    def best_config(self, problem: GemmProblem, **options: Unpack[BestOptions]) -> wire.BestConfigView:
        """The stored winner for a problem; a 404 :class:`ServiceError` where it was never tuned."""
        return self._send(requests.best_config(problem, options))

    def configs(self, **options: Unpack[BestOptions]) -> list[wire.BestConfigView]:
        """Every stored winner of an architecture or device class."""
        page = self._send(requests.configs(options, None))
        found = page.items
        while page.next:
            page = self._send(requests.configs(options, page.next))
            found += page.items
        return found

    def lookup_many(
        self, problems: Iterable[GemmProblem], **options: Unpack[BestOptions]
    ) -> list[wire.LookupView]:
        """What to run for each problem, in their order, asked of the service's current config set.

        ``policy="nearest"`` allows near matches within ``max_regret``, a tenth unless given.
        """
        parts = [self._send(call) for call in requests.lookups(problems, options)]
        return [view for part in parts for view in part.items]

    def gemm(
        self,
        a: Any,
        b: Any,
        c: Any = None,
        bias: Any = None,
        *,
        shared: bool = False,
        out: Any = None,
        **options: Unpack[GemmOptions],
    ) -> GemmAnswer:
        """Run a GEMM on the service: NumPy arrays, or what converts by DLPack or ``__array__``. They are sent
        as they lie and must not change meanwhile.

        ``shared`` passes them through shared memory: for a service of this machine and user that offers it.
        Operands that :meth:`shared_empty` made are not copied then, and the result goes to ``out``, where it
        is given, another such array; after an error the service may still write there.
        """
        operands = {"a": a, "b": b, "c": c, "bias": bias}
        if shared:
            from tilewright.shared import SharedGemm

            with SharedGemm(operands, options, self._segments, out) as gemm:
                return self._send(gemm.call)
        requests.check_out(out)
        call = requests.gemm(operands, options)
        return self._direct.send(call) if self._direct else self._send(call)

    def shared_empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """A NumPy array of any values in shared memory, for ``gemm(..., shared=True)``.

        Raises:
            OSError: there is not so much shared memory.
        """
        from tilewright.segments import empty

        return empty(shape, dtype)

    def artifact(self, digest: str) -> Artifact:
        """A compiled kernel, checked against its digest.

        Raises:
            ArtifactError: what arrived does not match.
        """
        return self._send(calls.artifact(digest))

    def families(self) -> list[wire.FamilyView]:
        """The kernel families with their knobs."""
        return self._send(calls.families()).items

    def devices(self) -> list[wire.DeviceView]:
        """The devices of the service."""
        return self._send(calls.devices()).items

    def ready(self) -> wire.Health:
        """Whether the service can do its work."""
        return self._send(calls.ready())

    def _send(self, call: calls.Call[T]) -> T:
        with transport.reaching(self._http.base_url):
            timeout = transport.patience(call, self._timeout)
            response = self._http.request(**transport.arguments(call), timeout=timeout)
        return calls.answer(call, transport.reply(response))

    def _listen(self, follower: Follower) -> str:
        import httpx2

        try:
            with self._http.stream(
                **transport.arguments(follower.call()), timeout=READ_TIMEOUT_S
            ) as response:
                if response.status_code != 200:
                    response.read()
                    calls.answer(follower.call(), transport.reply(response))
                for event in httpx2.EventSource(response):
                    follower.take(event.event, event.data, event.id)
        except httpx2.TransportError as error:
            return str(error)
        return "the stream ended early"


def _connect(url: str, timeout: float, headers: Mapping[str, str]) -> httpx2.Client:
    # NOTE: made on first use: it costs several times what a start from the cache does.
    import httpx2

    verify = not url.startswith("http://")
    return httpx2.Client(base_url=url, timeout=timeout, headers=headers, verify=verify)
