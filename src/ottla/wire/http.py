"""HTTP requests to servers that somebody named in a setting: for tokens, for keys, for schemas.

A redirect is followed only where nothing is lost by it: credentials go to no other server than the one
that they are for, what is asked by HTTPS is not answered by less, and what is sent is not sent again.

Imported by those who ask, when they do: few ever do.
"""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from http.client import HTTPMessage
from typing import IO, Final
from urllib.parse import urlsplit

_PORTS: Final = {"http": 80, "https": 443}


class _CarefulRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        before, after = _origin(req.full_url), _origin(newurl)
        why = None
        if req.data is not None:
            why = "what was sent is not sent there"
        elif before != after and req.has_header("Authorization"):
            why = "the credentials are not sent there"
        elif after[0] != "https" and (before[0] == "https" or after[0] != "http"):
            why = "that is not HTTPS"
        if why is not None:
            raise urllib.error.HTTPError(
                req.full_url, code, f"redirected to {newurl}: {why}", headers, fp
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)


def opener(context: ssl.SSLContext | None = None) -> urllib.request.OpenerDirector:
    """Opens requests as said above; by the environment's proxies, if it names some. Without a context
    the system's authorities count."""
    return urllib.request.build_opener(
        urllib.request.HTTPSHandler(context=context), _CarefulRedirects()
    )
