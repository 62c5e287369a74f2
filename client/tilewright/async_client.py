"""``AsyncClient``: sends what :mod:`tilewright.calls` describes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Self, TypeVar, Unpack

import httpx2

from tilewright import calls, forks, requests, transport, wire
from tilewright.artifact import Artifact
from tilewright.calls import GemmAnswer
from tilewright.follow import READ_TIMEOUT_S, Follower, OnProgress
from tilewright.problem import GemmProblem
from tilewright.requests import BestOptions, GemmOptions, TuneOptions
from tilewright.segments import Segments, empty
from tilewright.shared import SharedGemm
from tilewright.store_client import AsyncStoreMethods

T = TypeVar("T")


class AsyncClient(AsyncStoreMethods):
    """The asynchronous twin of :class:`Client`: the same methods, awaited."""

    def __init__(
        self, url: str = "http://127.0.0.1:8080", *, timeout: float = 10.0, key: str | None = None
    ) -> None:
        self._timeout, self._segments = timeout, Segments()
        headers = transport.authorization(key)
        self._connections = forks.Own(
            lambda: httpx2.AsyncClient(base_url=url, timeout=timeout, headers=headers)
        )

    @property
    def _http(self) -> httpx2.AsyncClient:
        return self._connections.get()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        self._segments.close()
        if self._connections.made:
            await self._connections.made.aclose()

    async def tune(
        self,
        problem: GemmProblem,
        *,
        on_progress: OnProgress | None = None,
        wait: bool = True,
        **options: Unpack[TuneOptions],
    ) -> wire.JobView:
        """See :meth:`Client.tune`."""
        job = await self._send(requests.tune(problem, options))
        return await self.wait(job.id, on_progress) if wait else job

    async def wait(self, job_id: str, on_progress: OnProgress | None = None) -> wire.JobView:
        """See :meth:`Client.wait`."""
        follower = Follower(job_id, on_progress)
        while not follower.done:
            reason = await self._listen(follower)
            if not follower.done:
                await asyncio.sleep(follower.pause(reason))
        return transport.ended(await self.job(job_id))

    async def job(self, job_id: str) -> wire.JobView:
        """See :meth:`Client.job`."""
        return await self._send(calls.job(job_id))

    async def cancel(self, job_id: str) -> wire.JobView:
        """See :meth:`Client.cancel`."""
        return await self._send(calls.cancel(job_id))

    async def jobs(
        self, status: wire.JobStatus | None = None, *, limit: int = 50, cursor: str | None = None
    ) -> wire.JobList:
        """See :meth:`Client.jobs`."""
        return await self._send(calls.jobs(status, requests.page(limit, cursor)))

    async def trials(self, job_id: str, *, limit: int = 50, cursor: str | None = None) -> wire.TrialList:
        """See :meth:`Client.trials`."""
        return await self._send(calls.trials(job_id, requests.page(limit, cursor)))

    async def best_config(self, problem: GemmProblem, **options: Unpack[BestOptions]) -> wire.BestConfigView:
        """See :meth:`Client.best_config`."""
        return await self._send(requests.best_config(problem, options))

    async def configs(self, **options: Unpack[BestOptions]) -> list[wire.BestConfigView]:
        """See :meth:`Client.configs`."""
        page = await self._send(requests.configs(options, None))
        found = page.items
        while page.next:
            page = await self._send(requests.configs(options, page.next))
            found += page.items
        return found

    async def lookup_many(
        self, problems: Iterable[GemmProblem], **options: Unpack[BestOptions]
    ) -> list[wire.LookupView]:
        """See :meth:`Client.lookup_many`."""
        parts = [await self._send(call) for call in requests.lookups(problems, options)]
        return [view for part in parts for view in part.items]

    async def gemm(
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
        """See :meth:`Client.gemm`."""
        operands = {"a": a, "b": b, "c": c, "bias": bias}
        if shared:
            with SharedGemm(operands, options, self._segments, out) as gemm:
                return await self._send(gemm.call)
        requests.check_out(out)
        return await self._send(requests.gemm(operands, options))

    def shared_empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """See :meth:`Client.shared_empty`."""
        return empty(shape, dtype)

    async def artifact(self, digest: str) -> Artifact:
        """See :meth:`Client.artifact`."""
        return await self._send(calls.artifact(digest))

    async def families(self) -> list[wire.FamilyView]:
        """See :meth:`Client.families`."""
        return (await self._send(calls.families())).items

    async def devices(self) -> list[wire.DeviceView]:
        """See :meth:`Client.devices`."""
        return (await self._send(calls.devices())).items

    async def ready(self) -> wire.Health:
        """See :meth:`Client.ready`."""
        return await self._send(calls.ready())

    async def _send(self, call: calls.Call[T]) -> T:
        with transport.reaching(self._http.base_url):
            timeout = transport.patience(call, self._timeout)
            response = await self._http.request(**transport.later(call), timeout=timeout)
        return calls.answer(call, transport.reply(response))

    async def _listen(self, follower: Follower) -> str:
        try:
            async with self._http.stream(
                **transport.arguments(follower.call()), timeout=READ_TIMEOUT_S
            ) as response:
                if response.status_code != 200:
                    await response.aread()
                    calls.answer(follower.call(), transport.reply(response))
                async for event in httpx2.EventSource(response):
                    follower.take(event.event, event.data, event.id)
        except httpx2.TransportError as error:
            return str(error)
        return "the stream ended early"
