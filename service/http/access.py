"""Access control: the scope that each operation requires, and the keys that carry scopes.

A service on loopback for which no key was ever made is open to its machine, except for operations in
``GUARDED``. Once a key was made, even if it was revoked since, every request except those in ``OPEN`` needs a
key.
"""

from __future__ import annotations

import functools
import hashlib
import ipaddress
import logging
import time
from collections.abc import Awaitable, Callable
from enum import StrEnum

from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from sqlalchemy.exc import SQLAlchemyError

from service.errors import Kind, Refusal
from service.settings import Settings
from tilewright.errors import TilewrightError
from tuner.store.access import keys
from tuner.store.access.keys import KeyRecord, SignedIn
from tuner.store.database import Store

_REMEMBER_S = 2.0  # NOTE: also how long a revoked key, or a session that ended elsewhere, may still work
_REMEMBERED_KEYS = 1024
_AGAIN_S = 5.0  # between two looks at the key of an answer that lasts
log = logging.getLogger("tilewright.access")
_ALWAYS = (
    "bringing results in and taking them out needs a key with scope admin, also while no other request needs "
    "one; on the service's machine the command line does both without"
)


class Scope(StrEnum):
    """What a key may do."""

    READ = "read"
    RUN = "run"
    TUNE = "tune"
    ADMIN = "admin"


IMPLIED = {
    Scope.READ: {Scope.READ},
    Scope.RUN: {Scope.READ, Scope.RUN},
    Scope.TUNE: {Scope.READ, Scope.TUNE},
    Scope.ADMIN: set(Scope),
}
OPEN = frozenset(
    {"live", "ready", "startup", "page_asset", "page_sign_in", "page_sign_in_form", "page_sign_out"}
)
PAGE = "page_"  # how the operations of the page begin
_FOR_BROWSERS = frozenset({"openapi", "docs", "docs_start", "docs_file", "redoc"})
_LARGE = frozenset({"report", "explain", "export_results"})
_IN_A_WINDOW = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
# Light pages, to which the script of a site for signing in may lead.
_FIRST = frozenset({"page_start", "page_now", "page_jobs", "page_job", "page_result"})
GUARDED = frozenset({"import_results", "delete_import", "delete_best_config", "delete_problem"})
_BY_SCOPE = {
    Scope.READ: (
        "page_start page_now page_devices page_jobs page_job page_job_live page_results page_result page_why "
        "page_coverage page_roofline page_compare page_report page_knobs page_parallel "
        "openapi docs docs_start docs_file redoc families devices metrics report_misses list_misses "
        "list_jobs get_job list_trials follow_job list_quarantine list_imports get_import trust "
        "best_config lookup_best_configs explain report artifact export_results list_config_sets "
        "current_config_set config_set diff_config_sets config_set_bundle config_set_artifacts"
    ),
    Scope.RUN: "gemm gemm_shared",
    Scope.TUNE: "page_tune page_cancel tune cancel_job cancel_jobs",
    Scope.ADMIN: (
        "pin_config_set unpin_config_set list_audit release_quarantined release_device import_results "
        "delete_import delete_best_config delete_problem"
    ),
}
NEEDED = {name: scope for scope, names in _BY_SCOPE.items() for name in names.split()}


def needed(operation_id: str | None) -> Scope | None:
    """The scope that an operation requires; None if it is open. ``admin`` for an operation without an
    entry."""
    return None if operation_id in OPEN else NEEDED.get(operation_id or "", Scope.ADMIN)


def allowed(scopes: tuple[str, ...], wanted: Scope) -> bool:
    """Whether a key with these scopes may use an operation that requires ``wanted``."""
    return any(wanted in IMPLIED[Scope(scope)] for scope in scopes)


def check_exposure(settings: Settings, store: Store) -> None:
    """Refuse to listen where others reach the service before a key guards it.

    Raises:
        Exposed: the host is not loopback, no key is active and nothing allows that.
    """
    if settings.allow_remote or is_loopback(settings.host):
        return
    with store.read() as session:
        guarded = any(key.active for key in keys.listing(session))
    if not guarded:
        raise Exposed(
            f"host {settings.host} is not a loopback address and no API key guards the service: anyone who "
            "reaches the port could use it. Make a key with 'tilewright keys create', or pass --allow-remote "
            "(TILEWRIGHT_ALLOW_REMOTE=1) where the network or a proxy keeps others away"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


@functools.lru_cache(maxsize=4096)
def counted_address(host: str) -> str:
    """The address that a caller without a key is counted by: one for all of loopback, where a process chooses
    the address that it sends from."""
    return "127.0.0.1" if is_loopback(host) else host


class Exposed(TilewrightError):
    """The service would be open to a network; the message says how to guard it."""


class Gate:
    """Admits requests; caches the database's answers for two seconds."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[bytes, tuple[float, KeyRecord]] = {}
        self._open_until = 0.0

    async def admit(
        self,
        authorization: str | None,
        wanted: Scope | None,
        *,
        guarded: bool = False,
        signed_in: SignedIn | None = None,
    ) -> KeyRecord | None:
        """The key of a request; None if it needs none. A ``guarded`` operation always needs one.

        Args:
            authorization: the header of that name.
            signed_in: its session, whose key counts then.

        Raises:
            Refusal: it needs a key and has no valid one, or the key lacks the scope.
        """
        if wanted is None:
            return None
        now = time.monotonic()
        nothing = authorization is None and signed_in is None
        if nothing and guarded:
            raise _unauthenticated(_ALWAYS)
        if nothing:
            if now < self._open_until or await run_in_threadpool(self.is_open):
                return None
            raise _unauthenticated("send 'Authorization: Bearer tw_...'")
        key = await self._key(authorization or "", signed_in, now)
        if key is None and authorization is None and not guarded and await run_in_threadpool(self.is_open):
            return None  # the session is of another database
        if key is None:
            raise _unauthenticated("the key is not known here, has expired or was revoked")
        if not allowed(key.scopes, wanted):
            raise _forbidden(key, wanted)
        return key

    def is_open(self) -> bool:
        """Whether requests need no key, as none was ever made."""
        with self._store.read() as session:
            open_to_all = not keys.any_made(session)
        if open_to_all:
            self._open_until = time.monotonic() + _REMEMBER_S
        return open_to_all

    def end(self, signed_in: SignedIn) -> None:
        """End a session: here at once, and at every other server of the database within seconds."""
        with self._store.begin() as session:
            keys.end_sign_in(session, signed_in)
        self._known.pop(_name(signed_in.id, ""), None)

    async def holder(self, signed_in: SignedIn) -> KeyRecord | None:
        """The key of a session; None if the session ended or the key opens nothing."""
        return await self._key("", signed_in, time.monotonic())

    async def _key(self, authorization: str, signed_in: SignedIn | None, now: float) -> KeyRecord | None:
        scheme, _, text = authorization.partition(" ")
        if signed_in is None and scheme.lower() != "bearer":
            return None
        name = _name(signed_in.id, "") if signed_in else _name("", text.strip())
        until, key = self._known.get(name, (0.0, None))
        if key is None or now >= until:
            key = await run_in_threadpool(self._verified, text.strip(), signed_in)
            if len(self._known) >= _REMEMBERED_KEYS or key is None:
                self._known.pop(name, None) if key is None else self._known.clear()
            if key:
                self._known[name] = (now + _REMEMBER_S, key)
        return key if key and key.active else None

    def _verified(self, text: str, signed_in: SignedIn | None) -> KeyRecord | None:
        with self._store.read() as session:
            if signed_in is None:
                return keys.verify(session, text)
            return None if keys.ended(session, signed_in) else keys.find(session, signed_in.key_id)


def _name(sign_in: str, key: str) -> bytes:
    """The name under which a session, or the text of a key, is cached."""
    return hashlib.sha256(f"{sign_in} {key}".encode()).digest()


class Admitted:
    """The key or session that admitted a request, to be checked again while its answer lasts."""

    def __init__(self, ask: Callable[[], Awaitable[KeyRecord | None]]) -> None:
        self._ask, self._until = ask, time.monotonic() + _AGAIN_S

    async def still(self) -> bool:
        """Whether it would let the request in now; it is asked every ``_AGAIN_S``. A database that fails
        is asked again then."""
        now = time.monotonic()
        if now < self._until:
            return True
        self._until = now + _AGAIN_S
        try:
            await self._ask()
        except Refusal:
            return False
        except SQLAlchemyError as error:
            log.warning("whether a key still opens is asked again later: the database: %s", error)
        return True


async def authorize(request: Request) -> None:
    """Dependency of every route: the request's key may do what the route does."""
    operation = request.scope["route"].operation_id or ""
    _refuse_foreign_use(request, operation)
    gate: Gate = request.app.state.gate
    header, signed_in = request.headers.get("authorization"), None
    if operation.startswith(PAGE) or operation in _FOR_BROWSERS:
        signed_in = request.app.state.sessions.signed_in(request)
        request.scope["holder"] = await _shown(gate, operation, signed_in)
        # NOTE: a proxy before the service may have the browser send a header of its own.
        header = header if header and header.lower().startswith("bearer ") else None
    guarded = operation in GUARDED
    ask = functools.partial(gate.admit, header, needed(operation), guarded=guarded, signed_in=signed_in)
    key = await ask()
    request.scope["key_id"] = key.id if key else None
    request.scope["admitted"] = Admitted(ask)


async def _shown(gate: Gate, operation: str, signed_in: SignedIn | None) -> str | None:
    """The key that a page names as the one that signed in."""
    if signed_in is None or operation == "page_asset":
        return None
    holder = await gate.holder(signed_in)
    return holder.id if holder else None


def _refuse_foreign_use(request: Request, operation: str) -> None:
    """Refuse requests that images, frames and scripts of other sites make for views, although they could not
    read the answer. A click on a link is allowed; light pages need no click.

    Raises:
        Refusal: the request comes from such a page.
    """
    large = operation in _LARGE or (operation.startswith(PAGE) and operation not in OPEN)
    headers = request.headers
    if not large or headers.get("sec-fetch-site", "none") in ("same-origin", "none"):
        return
    shown = all(headers.get(name) == value for name, value in _IN_A_WINDOW.items())
    clicked = headers.get("sec-fetch-user") == "?1" or operation in _FIRST
    if not shown or not clicked or "sec-purpose" in headers:  # the last: to have it before it is shown
        detail = "a page of another site asks for this without a click; use the address itself"
        raise Refusal(Kind.FOREIGN_ORIGIN, detail)


def _unauthenticated(detail: str) -> Refusal:
    headers = {"WWW-Authenticate": "Bearer"}
    return Refusal(Kind.UNAUTHENTICATED, f"{detail}; 'tilewright keys create' makes one", headers=headers)


def _forbidden(key: KeyRecord, wanted: Scope) -> Refusal:
    headers = {"WWW-Authenticate": f'Bearer error="insufficient_scope", scope="{wanted}"'}
    detail = f"key {key.id} has {', '.join(key.scopes)}; this needs a key with scope {wanted}"
    return Refusal(Kind.FORBIDDEN, detail, headers=headers)
