"""Who may ask, and what is let through to the calls.

A console on loopback has no password of its own: every user of the machine may ask it. But web pages in
a browser on the machine may not, neither by a form or a script of theirs (another `Origin`, no JSON) nor
by a name that they have made point to 127.0.0.1 (DNS rebinding: a `Host` that is not ours). Elsewhere a
token is needed.

    Host            an address, localhost, or a name that was allowed          else 403
    Origin          absent, or that of the console itself                      else 403
    Sec-Fetch-Site  absent, same-origin or none (browsers say it of what       else 403
                    has no Origin, such as an image of another site's page)
    Authorization   Bearer TOKEN, where there is a token                       else 401
    Content-Type    application/json, of whatever changes something            else 415
    body            at most LARGEST_BODY bytes                                 else 413
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from ottla.console.refusals import Refusal

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LARGEST_BODY: Final = 4 << 20
_SAFE: Final = frozenset(("GET", "HEAD", "OPTIONS"))
_LOCAL: Final = frozenset(("localhost",))
_OWN_PAGES: Final = frozenset(("same-origin", "none"))
_PORTS: Final = {"http": 80, "https": 443}
# Answers are data, and of now: no browser is to guess, keep, show in a frame or run them.
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}


class Guard:
    """Middleware (ASGI) that lets through what the table above allows."""

    def __init__(
        self, app: ASGIApp, *, hosts: Iterable[str] = (), token: str | None = None
    ) -> None:
        self._app = app
        self._hosts = _LOCAL | {each.lower().rstrip(".") for each in hosts}
        self._token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        try:
            self._check(scope)
        except Refusal as refusal:
            await self._refuse(refusal, scope, receive, send_guarded)
        else:
            await self._app(scope, _bounded(receive), send_guarded)

    async def _refuse(self, refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
        # Whatever of a body is still on its way is not read: the connection cannot be used again.
        headers = {"Connection": "close"}
        if refusal.status == HTTPStatus.UNAUTHORIZED:
            headers["WWW-Authenticate"] = "Bearer"
        answer = JSONResponse({"error": refusal.error}, refusal.status, headers)
        await answer(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or (host := _host_of(hosts[0])) is None:
            raise Refusal(HTTPStatus.BAD_REQUEST, "a request has one Host header")
        if not self._is_ours(host[0]):
            raise Refusal(
                HTTPStatus.FORBIDDEN,
                f"the console does not answer to the name '{host[0]}'; "
                "start it with --allow-host if it should",
            )
        for origin in headers.getlist("origin"):
            if _host_of_origin(origin, host[1]) != host:
                raise Refusal(HTTPStatus.FORBIDDEN, "pages of other sites may not ask the console")
        if not _OWN_PAGES.issuperset(headers.getlist("sec-fetch-site")):
            raise Refusal(HTTPStatus.FORBIDDEN, "pages of other sites may not ask the console")
        self._check_token(headers.getlist("authorization"))
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            raise Refusal(HTTPStatus.BAD_REQUEST, "Content-Length is not a number")
        if len(length) > 10 or int(length) > LARGEST_BODY:
            raise _too_large()
        if scope["method"] not in _SAFE:
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                raise Refusal(
                    HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send Content-Type: application/json"
                )

    def _is_ours(self, host: str) -> bool:
        """Whether a Host is the console's: a name that was allowed, or any address. (An address is the
        user's own choice; a name is that of who runs a name server.)"""
        if host in self._hosts:
            return True
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return False
        return True

    def _check_token(self, given: list[str]) -> None:
        if self._token is None:
            return
        scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        sent = token.strip().encode("utf-8", "replace")
        if scheme.lower() != "bearer" or not hmac.compare_digest(sent, self._token):
            raise Refusal(HTTPStatus.UNAUTHORIZED, "send Authorization: Bearer and the token")


def _too_large() -> Refusal:
    return Refusal(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"the body is larger than {LARGEST_BODY:,} bytes; send several requests, or ranges of offsets",
    )


def _bounded(receive: Receive) -> Receive:
    """Limit the size of a body that does not say how long it is."""
    received = 0

    async def receive_bounded() -> Message:
        nonlocal received
        message = await receive()
        if message["type"] == "http.request":
            received += len(message.get("body", b""))
            if received > LARGEST_BODY:
                # Raised where the body is read, by which it is passed on as it is.
                large = _too_large()
                raise HTTPException(large.status, large.message)
        return message

    return receive_bounded


def _host_of(header: str, default_port: int = 80) -> tuple[str, int] | None:
    """Name and port of a Host header; None if it is none."""
    try:
        parts = urlsplit(f"//{header}")
        port = parts.port
    except ValueError:
        return None
    if not parts.hostname or parts.username is not None or parts.path or parts.query:
        return None
    return parts.hostname.rstrip("."), default_port if port is None else port


def _host_of_origin(origin: str, own_port: int) -> tuple[str, int] | None:
    """Name and port of an origin ("null" has none). Behind a proxy that ends TLS a page comes by
    https on its usual port, of which the Host header says nothing."""
    scheme, separator, rest = origin.partition("://")
    if not separator or scheme not in _PORTS:
        return None
    found = _host_of(rest, _PORTS[scheme])
    if found is not None and found[1] == _PORTS[scheme] and own_port == _PORTS["http"]:
        return found[0], own_port
    return found
