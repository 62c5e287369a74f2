"""Routes of artifacts and config sets: listing, pinning, comparing and bundles."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Annotated, Any, get_args

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute
from sqlalchemy.orm import Session

from service.errors import Kind, Refusal
from service.http import access, conditional
from service.http.deps import (
    AcceptEncoding,
    Digest,
    IfMatch,
    IfNoneMatch,
    Service,
    ServiceDep,
    SetDigest,
    who,
)
from service.http.openapi import binary, errors
from service.http.views import link_next, number_place, page_end, set_info
from service.results import config_sets
from service.results.served import unknown_set
from service.results.snapshots import LoadedSet
from tilewright import trust, wire
from tilewright.artifact import bundle
from tilewright.schema.codec import KeyName
from tilewright.schema.config_set import ConfigSet
from tuner.store import entities, sets
from tuner.store.access import audit
from tuner.store.access.audit import Action
from tuner.store.database import StoreError, lock_results
from tuner.store.faults import quarantine

artifacts_router = APIRouter(tags=["results"])
_MEDIA_TYPE = "application/octet-stream"


@artifacts_router.get(
    "/artifacts/{digest}",
    operation_id="artifact",
    response_class=Response,
    responses={
        200: binary(
            _MEDIA_TYPE, f"Launch plan and binary; its SHA-256 is the digest; signed in {trust.HEADER}"
        ),
        304: {"description": "The caller has it"},
        **errors(Kind.NOT_FOUND),
    },
)
def get_artifact(digest: Digest, service: ServiceDep, if_none_match: IfNoneMatch = None) -> Response:
    """A compiled kernel with its launch plan."""
    with service.store.read() as session:
        if conditional.has(if_none_match, digest) and entities.has_artifact(session, digest):
            return conditional.unchanged(digest, conditional.FOREVER)
        data = entities.get_artifact(session, digest)
    if data is None:
        raise Refusal(Kind.NOT_FOUND, f"there is no artifact {digest}; GET /best-config links those in use")
    signed = {trust.HEADER: service.signer.sign(trust.About.ARTIFACT, digest)}
    return Response(
        data, media_type=_MEDIA_TYPE, headers=signed | conditional.of(digest, conditional.FOREVER)
    )


class _CurrentRoute(APIRoute):
    """Reads the query of most callers itself, which takes a fifth less: all processes ask when a set
    changes."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler of requests that are let in or refused as those of any other route."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            query = _ONE_CLASS.fullmatch(request.scope["query_string"])
            if query is None:
                return await handle(request)
            await access.authorize(request)
            headers = request.headers
            conditions = headers.get("if-none-match"), headers.get("accept-encoding")
            return await get_current(query[1].decode(), request.app.state.service, *conditions)

        return answer


router = APIRouter(prefix="/config-sets", tags=["config sets"])
current_router = APIRouter(prefix="/config-sets", tags=["config sets"], route_class=_CurrentRoute)
_ONE_CLASS = re.compile(f"device_class=({get_args(KeyName)[1].regex})".encode())
_JSON = "application/json"
_VARY = {"Vary": "Accept-Encoding"}
_SET: dict[int | str, dict[str, Any]] = {
    200: {
        "model": wire.ConfigSet,
        "description": f"The set; its ETag is its digest; signed in {trust.HEADER} and {trust.SERVED_HEADER}",
    },
    304: {"description": "The caller has it"},
    **errors(Kind.NOT_FOUND),
}
_BUNDLE: dict[int | str, dict[str, Any]] = {
    200: binary(
        bundle.MEDIA_TYPE, "For each artifact its SHA-256 (32 bytes), its length (u64, little-endian), itself"
    ),
    **errors(Kind.NOT_FOUND),
}
DeviceClass = Annotated[KeyName, Query(description="As in GET /devices")]


class SetsQuery(wire.PageQuery, frozen=True):
    """A page of snapshots, of one device class or of all."""

    device_class: KeyName | None = None


@router.get("", operation_id="list_config_sets", responses=errors())
def get_sets(
    query: Annotated[SetsQuery, Query()], service: ServiceDep, request: Request, response: Response
) -> wire.SetList:
    """Snapshots, the latest first."""
    before = number_place(query.cursor) or None
    with service.store.read() as session:
        found = sets.listing(session, query.device_class, query.limit, before)
        served = {name: sets.served(session, name) for name in {record.device_class for record in found}}
    following = link_next(request, response, page_end(found, query.limit))
    items = [set_info(record, served[record.device_class]) for record in found]
    return wire.SetList(items=items, next=following)


# NOTE: a coroutine, since every client asks this all the time and a thread costs as much as the answer.
@current_router.get("/current", operation_id="current_config_set", response_class=Response, responses=_SET)
async def get_current(
    device_class: DeviceClass,
    service: ServiceDep,
    if_none_match: IfNoneMatch = None,
    accept_encoding: AcceptEncoding = None,
) -> Response:
    """What a device class is served: the pinned set, else the winners as they stand."""
    found = service.served.known(device_class)
    if found is None:
        # NOTE: shielded, since others wait for the same look.
        found = await asyncio.shield(asyncio.wrap_future(service.served.look(device_class)))
        # NOTE: all who waited would be answered before the next request is read; lookups come between them.
        async with service.set_turns.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            await asyncio.sleep(0)
    if conditional.has(if_none_match, found.digest):
        return conditional.unchanged(found.digest, conditional.ASK_FIRST, _VARY)
    answer = _set(service, found, accept_encoding, conditional.ASK_FIRST)
    if found.serial:
        names = found.config_set.device_class, found.digest, str(found.serial)
        signed = service.signer.sign(trust.About.SERVED, *names)
        answer.headers[trust.SERVED_HEADER] = f"{found.serial} {signed}"
    return answer


@router.post("/current", operation_id="pin_config_set", responses=errors(Kind.NOT_FOUND, Kind.PRECONDITION))
def post_current(
    body: wire.PinBody, service: ServiceDep, request: Request, if_match: IfMatch = None
) -> wire.SetInfo:
    """Serve a snapshot to its device class from now on, also once others are tuned; not one of which a
    kernel was deleted or is quarantined."""
    wanted = service.served.loaded(body.digest)
    try:
        with service.store.begin() as session:
            lock_results(session)
            _check_served(session, body.device_class, if_match)
            _check_kernels(session, wanted.digest, wanted.artifacts)
            _check_quarantine(session, wanted.config_set)
            sets.pin(session, body.device_class, body.digest)
            audit.note(session, who(request), Action.PIN_SET, body.device_class, digest=body.digest)
    except StoreError as error:
        raise Refusal(Kind.NOT_FOUND, str(error)) from error
    with service.store.read() as session:
        record = sets.get(session, body.digest)
        served = sets.served(session, body.device_class)
    if record is None:
        raise unknown_set(body.digest)
    return set_info(record, served)


@router.delete(
    "/current",
    status_code=204,
    operation_id="unpin_config_set",
    responses=errors(Kind.NOT_FOUND, Kind.PRECONDITION),
)
def delete_current(
    device_class: DeviceClass, service: ServiceDep, request: Request, if_match: IfMatch = None
) -> None:
    """Serve the winners as they stand again. Repeating it is harmless."""
    with service.store.begin() as session:
        lock_results(session)
        _check_served(session, device_class, if_match)
        served = sets.served(session, device_class)
        if served == sets.ServedSetRecord():
            detail = (
                f"nothing was ever served to {device_class}; GET /config-sets lists the classes there are"
            )
            raise Refusal(Kind.NOT_FOUND, detail)
        if served.pinned:
            sets.pin(session, device_class, None)
            audit.note(session, who(request), Action.UNPIN_SET, device_class, digest=served.pinned)


@router.get("/{digest}", operation_id="config_set", response_class=Response, responses=_SET)
def get_set(
    digest: SetDigest,
    service: ServiceDep,
    if_none_match: IfNoneMatch = None,
    accept_encoding: AcceptEncoding = None,
) -> Response:
    """A snapshot; it never changes."""
    found = service.served.loaded(digest)
    if conditional.has(if_none_match, digest):
        return conditional.unchanged(digest, conditional.FOREVER, _VARY)
    return _set(service, found, accept_encoding, conditional.FOREVER)


@router.get("/{a}/diff/{b}", operation_id="diff_config_sets", responses=errors(Kind.NOT_FOUND))
def get_diff(a: SetDigest, b: SetDigest, service: ServiceDep) -> wire.SetDiff:
    """What set ``b`` has other than set ``a``, with the measured difference of each change."""
    before, after = service.served.loaded(a), service.served.loaded(b)
    return config_sets.difference(before.config_set, after.config_set)


@router.get("/{digest}/bundle", operation_id="config_set_bundle", response_class=Response, responses=_BUNDLE)
def get_bundle(digest: SetDigest, service: ServiceDep) -> StreamingResponse:
    """Every artifact of a set in one answer."""
    return _bundle(service, digest, service.served.loaded(digest).artifacts, conditional.FOREVER)


@router.post(
    "/{digest}/bundle", operation_id="config_set_artifacts", response_class=Response, responses=_BUNDLE
)
def post_bundle(digest: SetDigest, body: wire.BundleBody, service: ServiceDep) -> StreamingResponse:
    """Those artifacts of a set that the caller lacks, in one answer."""
    wanted = config_sets.wanted(service.served.loaded(digest), body.want)
    return _bundle(service, digest, wanted, "no-store")


def _check_served(session: Session, device_class: str, if_match: str | None) -> None:
    """Refuse to change what the caller does not know.

    Raises:
        Refusal: another set is served than ``If-Match`` names.
    """
    served = sets.locked(session, device_class)
    digest = served.pinned or served.latest
    if if_match is not None and not (digest and conditional.matches(if_match, digest)):
        detail = f"{device_class} is served {digest or 'nothing'}; look at it and decide anew"
        raise Refusal(Kind.PRECONDITION, detail)


def _check_kernels(session: Session, digest: str, kernels: Iterable[str]) -> None:
    """Refuse to hand out a set without some of its kernels.

    Raises:
        Refusal: one was deleted, with the import that brought it.
    """
    if gone := entities.lacking(session, kernels):
        detail = (
            f"kernel {gone[0]} of {digest} was deleted with its import; use another one of GET /config-sets"
        )
        raise Refusal(Kind.NOT_FOUND, detail)


def _check_quarantine(session: Session, config_set: ConfigSet) -> None:
    """Refuse to serve a kernel that broke its device class.

    Raises:
        Refusal: one of the set is quarantined.
    """
    if held := quarantine.of_set(session, config_set):
        entry_id, kernel = held
        detail = (
            f"kernel {kernel} of {config_set.digest} is quarantined; use another one of GET /config-sets, or"
            f" have it served again with 'tilewright quarantine release {entry_id}'"
        )
        raise Refusal(Kind.NOT_FOUND, detail)


def _set(service: Service, found: LoadedSet, accept_encoding: str | None, caching: str) -> Response:
    device_class = found.config_set.device_class
    signature = service.signer.sign(trust.About.CONFIG_SET, device_class, found.digest)
    headers = conditional.of(found.digest, caching) | _VARY | {trust.HEADER: signature}
    if conditional.takes(accept_encoding, "deflate"):
        return Response(found.packed, media_type=_JSON, headers=headers | {"Content-Encoding": "deflate"})
    return Response(sets.unpack(found.packed), media_type=_JSON, headers=headers)


def _bundle(service: Service, digest: str, sizes: Mapping[str, int], caching: str) -> StreamingResponse:
    with service.store.read() as session:
        _check_kernels(session, digest, sizes)
    length = sum(sizes.values()) + bundle.HEAD_BYTES * len(sizes)
    headers = {"Content-Length": str(length), "Cache-Control": caching}
    return StreamingResponse(
        config_sets.packed(service.store, sizes), media_type=bundle.MEDIA_TYPE, headers=headers
    )
