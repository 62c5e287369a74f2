"""Calls for config sets, misses, and results in and out; see :mod:`tilewright.calls`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tilewright import bundle, wire
from tilewright.artifact import Artifact
from tilewright.calls import Call, Reply, model_of, params_of
from tilewright.sets import ConfigSet

JSON = "application/json"
NDJSON = "application/x-ndjson"
_JSON = {"Content-Type": JSON}


@dataclasses.dataclass(frozen=True, slots=True)
class SetAnswer:
    """A config set as it came.

    Attributes:
        config_set: checked against its digest.
        content: the bytes, to be kept.
    """

    config_set: ConfigSet
    content: bytes

    @property
    def etag(self) -> str:
        """What to send to be told whether another set is served."""
        return f'"{self.config_set.digest}"'


def current_set(device_class: str, etag: str | None = None) -> Call[SetAnswer | None]:
    """``GET /config-sets/current``; the answer is None where ``etag`` is still what is served."""
    headers = {"If-None-Match": etag} if etag else {}
    return Call("GET", "/config-sets/current", _set, {"device_class": device_class}, headers=headers)


def config_set(digest: str) -> Call[SetAnswer]:
    """``GET /config-sets/{digest}``, checked against the digest."""
    return Call("GET", f"/config-sets/{digest}", lambda reply: _checked(reply, digest))


def config_sets(device_class: str | None, page: wire.PageQuery) -> Call[wire.SetList]:
    """``GET /config-sets``."""
    params = params_of(page) | ({"device_class": device_class} if device_class else {})
    return Call("GET", "/config-sets", model_of(wire.SetList), params)


def diff(a: str, b: str) -> Call[wire.SetDiff]:
    """``GET /config-sets/{a}/diff/{b}``."""
    return Call("GET", f"/config-sets/{a}/diff/{b}", model_of(wire.SetDiff))


def pin(body: wire.PinBody) -> Call[wire.SetInfo]:
    """``POST /config-sets/current``."""
    content = body.model_dump_json().encode()
    return Call("POST", "/config-sets/current", model_of(wire.SetInfo), content=content, headers=_JSON)


def unpin(device_class: str) -> Call[None]:
    """``DELETE /config-sets/current``."""
    return Call("DELETE", "/config-sets/current", lambda _: None, {"device_class": device_class})


def artifacts(digest: str, want: Sequence[str] | None = None) -> Call[dict[str, Artifact]]:
    """The bundle of a set: all of its artifacts or those wanted, each checked against its digest."""
    path = f"/config-sets/{digest}/bundle"
    if want is None:
        return Call("GET", path, lambda reply: bundle.unpack(reply.content))
    content = wire.BundleBody(want=list(want)).model_dump_json().encode()
    return Call("POST", path, lambda reply: bundle.unpack(reply.content), content=content, headers=_JSON)


def report_misses(body: wire.MissesBody, idempotency_key: str | None = None) -> Call[wire.MissAnswer]:
    """``POST /misses``; what comes again with its key within a day is counted once."""
    headers = _JSON | ({"Idempotency-Key": idempotency_key} if idempotency_key else {})
    content = body.model_dump_json(exclude_none=True).encode()
    return Call("POST", "/misses", model_of(wire.MissAnswer), content=content, headers=headers)


def misses(query: wire.MissQuery) -> Call[wire.MissList]:
    """``GET /misses``."""
    return Call("GET", "/misses", model_of(wire.MissList), params_of(query))


def tune_misses(body: wire.TuneMissesBody) -> Call[wire.JobList]:
    """``POST /tune`` with ``from_misses``."""
    content = body.model_dump_json().encode()
    return Call("POST", "/tune", model_of(wire.JobList), content=content, headers=_JSON)


def export(query: wire.ExportQuery) -> Call[bytes]:
    """``GET /trials``, as it came."""
    return Call("GET", "/trials", lambda reply: reply.content, params_of(query))


def import_results(content: bytes, media_type: str) -> Call[wire.ImportAnswer]:
    """``POST /trials`` with whole lines, or with a T4 file."""
    headers = {"Content-Type": media_type}
    return Call("POST", "/trials", model_of(wire.ImportAnswer), content=content, headers=headers)


def _set(reply: Reply) -> SetAnswer | None:
    return None if reply.status == 304 else _checked(reply, None)


def _checked(reply: Reply, digest: str | None) -> SetAnswer:
    return SetAnswer(ConfigSet.from_bytes(reply.content, digest), reply.content)
