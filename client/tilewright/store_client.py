"""The clients' methods for config sets, misses, and results in and out."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Sequence
from typing import IO, TYPE_CHECKING, TypeVar, Unpack

from tilewright import calls, requests, store_calls, store_requests, transport, wire
from tilewright.artifact import Artifact
from tilewright.requests import TuneOptions
from tilewright.store_calls import SetAnswer
from tilewright.store_requests import ExportOptions, Miss

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")


class StoreMethods(abc.ABC):
    """What :class:`tilewright.Client` adds to these: how a call is sent."""

    @property
    @abc.abstractmethod
    def _http(self) -> httpx2.Client: ...

    @abc.abstractmethod
    def _send(self, call: calls.Call[T]) -> T: ...

    def current_set(self, device_class: str, etag: str | None = None) -> SetAnswer | None:
        """The config set that a device class is served; None where ``etag`` still is what is served.

        Raises:
            ArtifactError: what arrived does not match its digest.
        """
        return self._send(store_calls.current_set(device_class, etag))

    def config_set(self, digest: str) -> SetAnswer:
        """A snapshot, checked against its digest.

        Raises:
            ArtifactError: what arrived does not match.
        """
        return self._send(store_calls.config_set(digest))

    def config_sets(
        self, device_class: str | None = None, *, limit: int = 50, cursor: str | None = None
    ) -> wire.SetList:
        """A page of snapshots, newest first."""
        return self._send(store_calls.config_sets(device_class, requests.page(limit, cursor)))

    def diff(self, a: str, b: str) -> wire.SetDiff:
        """What set ``b`` has other than set ``a``."""
        return self._send(store_calls.diff(a, b))

    def pin(self, device_class: str, digest: str) -> wire.SetInfo:
        """Serve a snapshot to a device class whatever changes."""
        return self._send(store_requests.pin(device_class, digest))

    def unpin(self, device_class: str) -> None:
        """Serve the latest winners again."""
        self._send(store_calls.unpin(device_class))

    def artifacts(self, digest: str, want: Sequence[str] | None = None) -> dict[str, Artifact]:
        """The kernels of a set, all or those wanted, by digest and checked against it.

        Raises:
            ArtifactError: one does not match, or the bundle ended early.
        """
        return self._send(store_calls.artifacts(digest, want))

    def report_misses(self, device_class: str, misses: Iterable[Miss]) -> wire.MissAnswer:
        """Tell the service which problems ran without a tuned kernel, at most 250 at once."""
        return self._send(store_requests.report_misses(device_class, misses))

    def misses(self, device_class: str | None = None, *, limit: int = 50) -> list[wire.MissView]:
        """Open misses, the most device time at stake first."""
        return self._send(store_requests.misses(device_class, limit)).items

    def tune_misses(
        self, device_class: str, top: int = 10, **options: Unpack[TuneOptions]
    ) -> list[wire.JobView]:
        """Start a job for each of the ``top`` open misses of a device class."""
        return self._send(store_requests.tune_misses(device_class, top, options)).items

    def export(self, file: IO[bytes], **options: Unpack[ExportOptions]) -> int:
        """Write results to a file; gives the bytes written."""
        call = store_requests.export(options)
        with (
            transport.reaching(self._http.base_url),
            self._http.stream(**transport.arguments(call)) as response,
        ):
            if response.status_code != 200:
                response.read()
                calls.answer(call, transport.reply(response))
            return sum(file.write(chunk) for chunk in response.iter_bytes())

    def import_results(self, file: IO[bytes], kind: str = "ndjson") -> wire.ImportAnswer:
        """Merge results that :meth:`export` wrote as ``ndjson`` or ``t4``: what is known changes nothing.

        Raises:
            ServiceError: a line is damaged; those of earlier parts are kept, repeating is harmless.
        """
        parts = [self._send(call) for call in store_requests.import_results(file, kind)]
        return store_requests.total(parts)


class AsyncStoreMethods(abc.ABC):
    """The same methods, awaited."""

    @property
    @abc.abstractmethod
    def _http(self) -> httpx2.AsyncClient: ...

    @abc.abstractmethod
    async def _send(self, call: calls.Call[T]) -> T: ...

    async def current_set(self, device_class: str, etag: str | None = None) -> SetAnswer | None:
        """See :meth:`StoreMethods.current_set`."""
        return await self._send(store_calls.current_set(device_class, etag))

    async def config_set(self, digest: str) -> SetAnswer:
        """See :meth:`StoreMethods.config_set`."""
        return await self._send(store_calls.config_set(digest))

    async def config_sets(
        self, device_class: str | None = None, *, limit: int = 50, cursor: str | None = None
    ) -> wire.SetList:
        """See :meth:`StoreMethods.config_sets`."""
        return await self._send(store_calls.config_sets(device_class, requests.page(limit, cursor)))

    async def diff(self, a: str, b: str) -> wire.SetDiff:
        """See :meth:`StoreMethods.diff`."""
        return await self._send(store_calls.diff(a, b))

    async def pin(self, device_class: str, digest: str) -> wire.SetInfo:
        """See :meth:`StoreMethods.pin`."""
        return await self._send(store_requests.pin(device_class, digest))

    async def unpin(self, device_class: str) -> None:
        """See :meth:`StoreMethods.unpin`."""
        await self._send(store_calls.unpin(device_class))

    async def artifacts(self, digest: str, want: Sequence[str] | None = None) -> dict[str, Artifact]:
        """See :meth:`StoreMethods.artifacts`."""
        return await self._send(store_calls.artifacts(digest, want))

    async def report_misses(self, device_class: str, misses: Iterable[Miss]) -> wire.MissAnswer:
        """See :meth:`StoreMethods.report_misses`."""
        return await self._send(store_requests.report_misses(device_class, misses))

    async def misses(self, device_class: str | None = None, *, limit: int = 50) -> list[wire.MissView]:
        """See :meth:`StoreMethods.misses`."""
        return (await self._send(store_requests.misses(device_class, limit))).items

    async def tune_misses(
        self, device_class: str, top: int = 10, **options: Unpack[TuneOptions]
    ) -> list[wire.JobView]:
        """See :meth:`StoreMethods.tune_misses`."""
        return (await self._send(store_requests.tune_misses(device_class, top, options))).items

    async def export(self, file: IO[bytes], **options: Unpack[ExportOptions]) -> int:
        """See :meth:`StoreMethods.export`."""
        call = store_requests.export(options)
        with transport.reaching(self._http.base_url):
            async with self._http.stream(**transport.arguments(call)) as response:
                if response.status_code != 200:
                    await response.aread()
                    calls.answer(call, transport.reply(response))
                return sum([file.write(chunk) async for chunk in response.aiter_bytes()])

    async def import_results(self, file: IO[bytes], kind: str = "ndjson") -> wire.ImportAnswer:
        """See :meth:`StoreMethods.import_results`."""
        parts = [await self._send(call) for call in store_requests.import_results(file, kind)]
        return store_requests.total(parts)
