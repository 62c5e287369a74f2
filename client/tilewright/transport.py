"""Between calls and httpx2: what both clients share."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

from tilewright import calls, wire
from tilewright.errors import ServiceError, ServiceUnreachable

if TYPE_CHECKING:
    import httpx2


def arguments(call: calls.Call[Any]) -> dict[str, Any]:
    """Keyword arguments of an httpx2 request."""
    return {
        "method": call.method,
        "url": call.path,
        "params": call.params,
        "content": call.content,
        "headers": call.headers,
    }


def later(call: calls.Call[Any]) -> dict[str, Any]:
    """The same for an asynchronous client, which takes the parts of a body one by one."""
    given = arguments(call)
    if isinstance(call.content, list):
        given["content"] = _each(call.content)
    return given


async def _each(parts: list[memoryview]) -> AsyncIterator[memoryview]:
    for part in parts:
        yield part


def patience(call: calls.Call[Any], timeout: float) -> httpx2.Timeout:
    """How long each step of a call may take."""
    import httpx2

    return httpx2.Timeout(timeout, read=timeout + call.answer_s)


def authorization(key: str | None) -> dict[str, str]:
    """The header that carries an API key; none without one."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def reply(response: httpx2.Response) -> calls.Reply:
    """A response that was read to its end."""
    return calls.Reply(response.status_code, response.headers, response.content)


@contextlib.contextmanager
def reaching(url: object) -> Iterator[None]:
    """Around a request to ``url``.

    Raises:
        ServiceUnreachable: the transport failed.
    """
    import httpx2

    try:
        yield
    except httpx2.TransportError as error:
        raise unreachable(url, error) from error


def unreachable(url: object, error: Exception) -> ServiceUnreachable:
    """The error for a transport that failed."""
    return ServiceUnreachable(
        f"no answer from {url} ({type(error).__name__}: {error}); "
        "start the service with 'tilewright serve' or check the URL"
    )


def ended(job: wire.JobView) -> wire.JobView:
    """A job that has ended.

    Raises:
        ServiceError: it failed.
    """
    if job.status is wire.JobStatus.FAILED:
        document = job.error or wire.ProblemDocument(type="about:blank", title="job failed", status=500)
        raise ServiceError(document.status, document.model_dump(exclude_none=True))
    return job
