"""A service of config sets that does as it is told: answers, drags, lies, breaks off."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from signers import signer

from tilewright import Artifact, GemmProblem, forks, trust
from tilewright.artifact import bundle
from tilewright.http.sets import Index
from tilewright.launch import local_device
from tilewright.schema.codec import encode
from tilewright.schema.config_set import FORMAT, ConfigSet, content_digest

CREATED = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC).isoformat()


def entry(problem: GemmProblem, artifact: Artifact, **changes: Any) -> dict[str, Any]:
    """One problem of a set, won by the kernel unless told otherwise."""
    fields = {
        "problem": problem.to_dict(),
        "config": {"family": "host", "knobs": {"mc": 64}},
        "artifact": artifact.digest,
        "artifact_bytes": len(artifact.to_bytes()),
        "median_us": 2.0,
        "low_us": 1.9,
        "high_us": 2.1,
        "baseline": {"name": "numpy", "median_us": 3.0, "detail": {}},
        "speedup": {"value": 1.5, "low": 1.4, "high": 1.6, "confidence": 0.99},
        "verdict": "kernel",
        "use_vendor": False,
        "numerics": "ieee",
        "deterministic": True,
        "staleness": "fresh",
        "job_id": "0" * 32,
        "created": CREATED,
        "preconditions": encode(artifact.plan.preconditions),
    }
    return fields | changes


def config_set(
    entries: Sequence[dict[str, Any]], near: Sequence[dict[str, Any]] = (), format: int = FORMAT
) -> bytes:
    """A set of this machine's CPU, as the service sends it."""
    place = local_device.device_class(local_device.HOST)
    raw = {
        "digest": "",
        "format": format,
        "device_class": place.id,
        "arch": place.arch,
        "created_at": CREATED,
        "entries": list(entries),
        "near": list(near),
    }
    raw["digest"] = content_digest(raw)
    return json.dumps(raw).encode()


def tampered(data: bytes) -> bytes:
    """One bit is another one."""
    return data[:-1] + bytes([data[-1] ^ 1])


@dataclasses.dataclass
class SetService:
    """What the server says.

    Attributes:
        content: the set that ``current`` answers; None if nothing was tuned.
        artifacts: what bundles are packed from.
        mode: ``ok``, ``slow``, ``drip``, ``drip-head``, ``error``, ``garbage``, ``nested``, ``truncated``,
            ``unchanged`` (to all), ``lying-set``, ``lying-artifact``, ``unsigned``, ``tree`` or ``file`` (as
            a published tree), or ``lost-answer`` (to a report of misses).
        signs_with: the number of the key that signs its sets.
        serial: under which it serves its set; None as a release that had none.
        asked: methods and paths so far.
        misses: reports so far, and under which idempotency keys they came.
        keys: what they were authorised with.
    """

    content: bytes | None
    artifacts: list[Artifact]
    mode: str = "ok"
    signs_with: int = 1
    serial: int | None = None
    asked: list[str] = dataclasses.field(default_factory=list)
    misses: list[Any] = dataclasses.field(default_factory=list)
    miss_keys: list[str | None] = dataclasses.field(default_factory=list)
    keys: set[str | None] = dataclasses.field(default_factory=set)
    stopped: threading.Event = dataclasses.field(default_factory=threading.Event)
    url: str = ""

    @property
    def digest(self) -> str:
        return self.config_set.digest

    @property
    def config_set(self) -> ConfigSet:
        assert self.content is not None
        return ConfigSet.from_bytes(self.content)

    @property
    def signature(self) -> str:
        found = self.config_set
        return signer(self.signs_with).sign(trust.About.CONFIG_SET, found.device_class, found.digest)

    @property
    def served(self) -> str:
        """The set, signed under the serial."""
        found, serial = self.config_set, str(self.serial)
        names = found.device_class, found.digest, serial
        return f"{serial} {signer(self.signs_with).sign(trust.About.SERVED, *names)}"


@contextlib.contextmanager
def serving(service: SetService) -> Iterator[SetService]:
    """Listen on a free port of loopback."""
    handler = type("Handler", (_Handler,), {"service": service})
    server = _Server(("127.0.0.1", 0), handler)
    service.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield service
    finally:
        service.stopped.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    def process_request(self, request: Any, client_address: Any) -> None:
        # NOTE: tests fork beside it, and as its threads end, OpenSSL takes a lock, as those of a client do.
        forks.start_thread(lambda: self.process_request_thread(request, client_address), "set-server")


class _Handler(BaseHTTPRequestHandler):
    service: SetService

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def _answer(self) -> None:
        service = self.service
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        service.asked.append(f"{self.command} {self.path.partition('?')[0]}")
        service.keys.add(self.headers.get("Authorization"))
        with contextlib.suppress(ConnectionError):
            if service.mode == "slow":
                service.stopped.wait(10.0)
            if service.mode == "drip-head":
                self._drip(b"HTTP/1.0 200 OK\r\nServer: " + b"." * 1000)
            elif service.mode == "error":
                self._send(500, b'{"type": "about:blank", "title": "broken", "status": 500}')
            elif service.mode == "garbage":
                self._send(200, b"\xff<html>what?</html>")
            elif service.mode == "nested":
                self._send(200, b"[" * 100_000)
            else:
                self._route(body)

    def _route(self, body: bytes) -> None:
        service, path = self.service, self.path.partition("?")[0]
        if path == "/misses":
            service.misses.append(json.loads(body))
            service.miss_keys.append(self.headers.get("Idempotency-Key"))
            if service.mode != "lost-answer":
                self._send(202, json.dumps({"noted": 1, "dropped": 0}).encode())
        elif service.content is None:
            self._send(404, b'{"type": "about:blank", "title": "nothing tuned", "status": 404}')
        elif path.endswith("/bundle"):
            self._send(200, self._bundle(json.loads(body)["want"] if body else None))
        elif service.mode == "tree" and path.endswith("/current"):
            self._send(200, Index({service.config_set.device_class: service.digest}).to_bytes())
        elif service.mode == "file":
            self._send(200, f"{service.signature}\n".encode() + service.content)
        else:
            etag = f'"{service.digest}"'
            if service.mode == "unchanged" or self.headers.get("If-None-Match") == etag:
                self._send(304, b"", etag)
            else:
                content = service.content
                lied = content.replace(b'"median_us": 2.0', b'"median_us": 1.0')
                self._send(200, lied if service.mode == "lying-set" else content, etag)

    def _bundle(self, want: list[str] | None) -> bytes:
        parts = []
        for artifact in self.service.artifacts:
            if want is None or artifact.digest in want:
                data = artifact.to_bytes()
                parts.append(bundle.head(artifact.digest, len(data)))
                parts.append(tampered(data) if self.service.mode == "lying-artifact" else data)
        return b"".join(parts)

    def _send(self, status: int, content: bytes, etag: str = "") -> None:
        self.send_response(status)
        if etag:
            self.send_header("ETag", etag)
            if self.service.mode != "unsigned":
                self.send_header(trust.HEADER, self.service.signature)
                if self.service.serial is not None:
                    self.send_header(trust.SERVED_HEADER, self.service.served)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.service.mode == "truncated":
            self.wfile.write(content[: len(content) // 2])
        elif self.service.mode == "drip":
            self._drip(content)
        else:
            self.wfile.write(content)

    def _drip(self, content: bytes) -> None:
        for at in range(len(content)):
            if self.service.stopped.is_set():
                return
            self.wfile.write(content[at : at + 1])
            self.wfile.flush()
            time.sleep(0.2)
