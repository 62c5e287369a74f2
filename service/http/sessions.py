"""Sessions of the page: a cookie that names a key and does not hold it, signed with the service's own key."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from datetime import UTC, datetime
from urllib.parse import urlsplit

from fastapi import Request, Response

from service.settings import Settings
from service.signing import Signer
from tuner.store.access.keys import SignedIn

LIFE_S = 12 * 3600
_COOKIE = re.compile(r"([0-9a-f]{12})\.([0-9]{10,12})\.([0-9a-f]{16})\.([0-9a-f]{64})")


class Sessions:
    """Begins and reads sessions; safe to share.

    A session outlives a restart, and is valid at each server with the same signing key. The database records
    the sessions that were ended; :class:`service.http.access.Gate` looks there.
    """

    def __init__(self, signer: Signer, settings: Settings) -> None:
        self._secret = signer.secret("sessions of the page")
        self._url = urlsplit(settings.url or "")

    def begin(self, request: Request, answer: Response, key_id: str) -> None:
        """Let the browser keep a session of a key."""
        payload = f"{key_id}.{int(time.time()) + LIFE_S}.{secrets.token_hex(8)}"
        answer.set_cookie(
            cookie_name(request),
            f"{payload}.{self._digest(payload)}",
            max_age=LIFE_S,
            httponly=True,
            samesite="strict",
            secure=self._by_https(request),
        )
        _forget_key(answer)

    def signed_in(self, request: Request) -> SignedIn | None:
        """The session of a request; None if it has none that this service began and that lasts still."""
        text = request.cookies.get(cookie_name(request), "")
        found = _COOKIE.fullmatch(text)
        if found is None or not hmac.compare_digest(self._digest(text.rpartition(".")[0]), found[4]):
            return None
        ends = int(found[2])
        return SignedIn(found[3], found[1], datetime.fromtimestamp(ends, UTC)) if time.time() < ends else None

    def forget(self, request: Request, answer: Response) -> None:
        """Have the browser forget its session."""
        _forget_key(answer)
        secure = self._by_https(request)
        answer.delete_cookie(cookie_name(request), httponly=True, samesite="strict", secure=secure)

    def token(self, request: Request) -> str:
        """The token that a form of this visitor must carry. Other sites can neither guess nor read the token
        of a session. Without a session the token is the same for all visitors; then the check of the
        request's origin protects.
        """
        return self._digest(f"form {request.cookies.get(cookie_name(request), '')}")

    def _digest(self, text: str) -> str:
        return hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()

    def _by_https(self, request: Request) -> bool:
        """Whether the browser came by https, by its own word, the setting ``url``, or the proxy's.

        NOTE: any caller may send the header of a proxy, but it only makes that caller's cookie stricter.
        """
        proxied = request.headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower()
        configured = self._url.scheme if request.url.netloc == self._url.netloc else ""
        return "https" in (request.url.scheme, proxied, configured)


def cookie_name(request: Request) -> str:
    """The name of the cookie: browsers send cookies to every port of a host."""
    return f"tilewright_{request.url.port or 'session'}"


def _forget_key(answer: Response) -> None:
    """Have the browser forget the cookie of earlier releases, which held the key itself."""
    answer.delete_cookie("tilewright_key", httponly=True, samesite="strict")
