"""Sessions of the page: a cookie that names a key and does not hold it, signed with the service's own key."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading
import time
from urllib.parse import urlsplit

from fastapi import Request, Response

from service.settings import Settings
from service.signing import Signer

LIFE_S = 12 * 3600
_MOST_ENDED = 10_000
_COOKIE = re.compile(r"([0-9a-f]{12})\.([0-9]{10,12})\.[0-9a-f]{16}\.([0-9a-f]{64})")


class Sessions:
    """Begins, reads and ends sessions; safe to share.

    A session outlives a restart and holds at each server that has the same signing key. One that was ended
    stays ended at this server until that restarts; revoking its key ends it everywhere.
    """

    def __init__(self, signer: Signer, settings: Settings) -> None:
        self._secret = signer.secret("sessions of the page")
        self._url = urlsplit(settings.url or "")
        self._ended: dict[str, None] = {}
        self._lock = threading.Lock()

    def begin(self, request: Request, answer: Response, key_id: str) -> None:
        """Let the browser keep a session of a key."""
        told = f"{key_id}.{int(time.time()) + LIFE_S}.{secrets.token_hex(8)}"
        answer.set_cookie(
            cookie_name(request),
            f"{told}.{self._digest(told)}",
            max_age=LIFE_S,
            httponly=True,
            samesite="strict",
            secure=self._by_https(request),
        )
        _forget_key(answer)

    def key_id(self, request: Request) -> str | None:
        """The key of the session of a request; None if it has none that holds."""
        text = request.cookies.get(cookie_name(request), "")
        found = _COOKIE.fullmatch(text)
        if found is None or not hmac.compare_digest(self._digest(text.rpartition(".")[0]), found[3]):
            return None
        return found[1] if time.time() < int(found[2]) and text not in self._ended else None

    def end(self, request: Request, answer: Response) -> None:
        """Have the browser forget its session, and take it no longer."""
        name = cookie_name(request)
        with self._lock:
            if self.key_id(request):
                self._ended[request.cookies[name]] = None
            for text in list(self._ended)[:-_MOST_ENDED]:
                del self._ended[text]
        _forget_key(answer)
        answer.delete_cookie(name, httponly=True, samesite="strict", secure=self._by_https(request))

    def token(self, request: Request) -> str:
        """What a form of this visitor must carry: others can neither guess nor read that of a session.

        Without a session it is the same for all: there the check of where a request comes from protects.
        """
        return self._digest(f"form {request.cookies.get(cookie_name(request), '')}")

    def _digest(self, text: str) -> str:
        return hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()

    def _by_https(self, request: Request) -> bool:
        """Whether the browser came by https, by its own word, the setting ``url``, or the proxy's.

        NOTE: any caller may send the header of a proxy, but it only makes that caller's cookie stricter.
        """
        proxied = request.headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower()
        told = self._url.scheme if request.url.netloc == self._url.netloc else ""
        return "https" in (request.url.scheme, proxied, told)


def cookie_name(request: Request) -> str:
    """The name of the cookie: browsers send cookies to every port of a host."""
    return f"tilewright_{request.url.port or 'session'}"


def _forget_key(answer: Response) -> None:
    """Have the browser forget the cookie of earlier releases, which held the key itself."""
    answer.delete_cookie("tilewright_key", httponly=True, samesite="strict")
