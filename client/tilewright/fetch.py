"""One request at a time to a service that may be down, slow, endless or lying."""

from __future__ import annotations

import dataclasses
import hashlib
import queue
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tilewright import bundle, calls, forks, store_calls, transport
from tilewright.artifact import Artifact
from tilewright.errors import ArtifactError, ServiceUnreachable
from tilewright.line import Line

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")
_MOST_BYTES = 2**30
_MOST_WANTED = 900
_CONNECT_S = 5.0


@dataclasses.dataclass(frozen=True, slots=True)
class Fetcher:
    """Sends each call over a connection of its own, so that a forked child never shares one.

    Attributes:
        url: of the service.
        headers: sent along, for instance the key.
        seconds: bound of one request as a whole, from looking up the name to the last byte of the answer.
    """

    url: str
    headers: Mapping[str, str]
    seconds: float = 30.0

    def send(self, call: calls.Call[T]) -> T:
        """The answer.

        Raises:
            ServiceUnreachable: nothing, too much or something else came, or it came too slowly.
            ServiceError: the service refused.
            ArtifactError: what came does not match its digest.
        """
        return calls.answer(call, self._reply(call))

    def bundle(self, digest: str, want: Sequence[str], everything: bool) -> dict[str, bytes]:
        """Artifacts of a set in one request (one for every 900 where not all are wanted), by digest: those
        that arrived whole and match.

        Raises:
            ServiceUnreachable, ServiceError: see :meth:`send`.
        """
        if everything:
            return self._sound(store_calls.artifacts(digest), want)
        found: dict[str, bytes] = {}
        for start in range(0, len(want), _MOST_WANTED):
            part = want[start : start + _MOST_WANTED]
            found |= self._sound(store_calls.artifacts(digest, part), part)
        return found

    def _sound(self, call: calls.Call[dict[str, Artifact]], want: Sequence[str]) -> dict[str, bytes]:
        reply = self._reply(call)
        calls.answer(dataclasses.replace(call, parse=lambda _: {}), reply)
        found: dict[str, bytes] = {}
        wanted = set(want)
        try:
            for digest, data in bundle.frames(reply.content):
                if digest in wanted and hashlib.sha256(data).hexdigest() == digest:
                    found[digest] = bytes(data)
        except ArtifactError:  # it ended early: what came before that stands
            return found
        return found

    def _reply(self, call: calls.Call[Any]) -> calls.Reply:
        # NOTE: the timeouts of httpx2 are for one step each; a service that drips would meet all of them, and
        # looking up a name has none. So the request has a thread of its own, which may be left behind.
        line, outcome = Line(), queue.SimpleQueue[calls.Reply | Exception]()

        def request() -> None:
            try:
                outcome.put(self._exchange(call, line))
            except Exception as error:  # raised where the answer is waited for
                outcome.put(error)

        threading.Thread(target=request, name="tilewright-request", daemon=True).start()
        try:
            found = outcome.get(timeout=self.seconds)
        except queue.Empty:
            line.cut()
            raise ServiceUnreachable(f"{self.url} took more than {self.seconds:g} s to answer") from None
        if isinstance(found, Exception):
            raise found
        return found

    def _exchange(self, call: calls.Call[Any], line: Line) -> calls.Reply:
        with forks.importing():
            import httpx2

        try:
            with (
                self._http() as http,
                http.stream(**transport.arguments(call), extensions={"trace": line.follow}) as response,
            ):
                content = bytearray()
                for chunk in response.iter_bytes():
                    content += chunk
                    if len(content) > _MOST_BYTES:
                        raise ServiceUnreachable(f"{self.url} sends too much")
                return calls.Reply(response.status_code, response.headers, bytes(content))
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise transport.unreachable(self.url, error) from error

    def _http(self) -> httpx2.Client:
        import httpx2

        with forks.importing():  # making the first client of a process imports, too
            return httpx2.Client(
                base_url=self.url,
                headers=dict(self.headers),
                timeout=httpx2.Timeout(self.seconds, connect=min(_CONNECT_S, self.seconds)),
                # NOTE: not a matter of trust: without TLS there is no certificate, and reading the
                # system's authorities costs more than the whole fetch.
                verify=not self.url.startswith("http://"),
            )
