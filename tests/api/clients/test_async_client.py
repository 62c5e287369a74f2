"""The asynchronous client, and both clients where there is no service."""

from __future__ import annotations

import asyncio
import inspect
import socket
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
from api_server import TUNED, Server

from tilewright import AsyncClient, Client, GemmProblem, wire
from tilewright.errors import InvalidProblem, ServiceError, ServiceUnreachable


async def use_everything(url: str, tuned: wire.JobView) -> list[wire.JobProgress]:
    seen: list[wire.JobProgress] = []
    async with AsyncClient(url, timeout=60.0) as client:
        job = await client.tune(
            GemmProblem(19, 16, 16, "float32"), max_trials=2, seed=5, on_progress=seen.append
        )
        assert job.status is wire.JobStatus.SUCCEEDED
        assert (await client.job(job.id)).best == job.best
        assert tuned.best is not None
        with Client(url) as waiting:
            stored = waiting.best_config(TUNED, arch=tuned.best.arch)
        assert await client.best_config(TUNED, arch=tuned.best.arch) == stored
        assert stored in await client.configs(arch=tuned.best.arch)
        answer = await client.gemm(np.eye(4), np.full((4, 3), 2.0))
        assert (answer.d == 2.0).all()
        assert (await client.artifact(tuned.best.artifact.digest)).digest == tuned.best.artifact.digest
        assert [device.name for device in await client.devices()] == ["host"]
        assert "host" in [family.name for family in await client.families()]
        assert (await client.ready()).status == "ok"
        assert (await client.jobs(limit=1)).items[0].id == job.id
        assert len((await client.trials(job.id)).items) >= 2
        assert (await client.cancel(job.id)).status is wire.JobStatus.SUCCEEDED
        with pytest.raises(ServiceError):
            await client.wait("0" * 32)
    return seen


def test_the_async_client_does_what_the_client_does(server: Server, tuned: wire.JobView) -> None:
    seen = asyncio.run(use_everything(server.url, tuned))
    assert seen[-1].measured == 2


LOCAL = {"start", "lookup", "refresh", "explain"}  # with matmul, which launches here: nothing to wait for


def test_both_clients_have_the_same_methods() -> None:
    def methods(kind: type) -> set[str]:
        return {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}

    assert methods(Client) - methods(AsyncClient) == LOCAL
    assert methods(AsyncClient) <= methods(Client)


@pytest.fixture
def nobody() -> Iterator[str]:
    """The URL of a port that is taken and silent."""
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_no_service_is_told_with_what_to_do(nobody: str) -> None:
    with Client(nobody, timeout=1.0) as client, pytest.raises(ServiceUnreachable, match="tilewright serve"):
        client.devices()

    async def ask() -> None:
        async with AsyncClient(nobody, timeout=1.0) as client:
            await client.devices()

    with pytest.raises(ServiceUnreachable, match="tilewright serve"):
        asyncio.run(ask())


def test_a_wrong_option_never_leaves_the_client(nobody: str) -> None:
    with Client(nobody) as client:
        with pytest.raises(InvalidProblem, match="max_trials"):
            client.tune(TUNED, max_trials=0)
        with pytest.raises(InvalidProblem, match="arch or device_class"):
            client.best_config(TUNED)
        with pytest.raises(InvalidProblem, match="limit"):
            client.jobs(limit=0)
