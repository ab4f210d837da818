"""Tokens for OAUTHBEARER: from an OpenID Connect server by client credentials, or from a file that
somebody else keeps up to date; kept while they last.

RFC 6749, section 4.4: the client's id and secret for a token, over HTTPS.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ottla.wire.sasl import BearerToken, RefusedByMechanism, TokenSource

_PATIENCE: Final = 20.0  # seconds for the server's answer
_LARGEST_ANSWER: Final = 1024 * 1024
# A token is fetched anew when this part of its life is over, or it could expire on its way.
_USED_FOR: Final = 0.8
_EXTENSION: Final = "extension_"


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """A token source: asks the endpoint with the client's id and secret."""

    endpoint: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str | None = None
    extensions: Mapping[str, str] = field(default_factory=dict)
    context: ssl.SSLContext | None = None  # None: the system's authorities

    async def __call__(self) -> BearerToken:
        return await asyncio.to_thread(self._ask)

    def _ask(self) -> BearerToken:
        # Here, for all clients come by this module and few ever ask for a token.
        import urllib.parse
        import urllib.request

        from ottla.wire.http import opener

        form = {"grant_type": "client_credentials"}
        if self.scope:
            form["scope"] = self.scope
        secret = f"{self.client_id}:{self.client_secret}".encode()
        request = urllib.request.Request(
            self.endpoint,
            urllib.parse.urlencode(form).encode(),
            {
                "Authorization": f"Basic {base64.b64encode(secret).decode()}",
                "Content-Type": "application/x-www-form-urlencoded",
                "Accept": "application/json",
            },
        )
        asked_at = time.time()
        try:
            with opener(self.context).open(request, timeout=_PATIENCE) as response:
                answer = json.loads(response.read(_LARGEST_ANSWER))
            value = answer["access_token"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RefusedByMechanism(
                f"no token from {self.endpoint}: {_sentence_of(error)}"
            ) from error
        lifetime = answer.get("expires_in")
        expires = asked_at + float(lifetime) if isinstance(lifetime, (int, float)) else None
        return BearerToken(str(value), expires or expiry_of(str(value)), self.extensions)


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A token source: a file that holds the token and nothing else, read whenever one is asked for."""

    path: str
    extensions: Mapping[str, str] = field(default_factory=dict)

    async def __call__(self) -> BearerToken:
        return await asyncio.to_thread(self.read)

    def read(self) -> BearerToken:
        """The token in the file. Raises RefusedByMechanism, without what is in the file."""
        try:
            with open(self.path, "rb") as file:
                value = file.read(_LARGEST_ANSWER).decode("ascii").strip()
        except OSError as error:
            raise RefusedByMechanism(f"no token in {self.path}: {error.strerror}") from error
        except UnicodeDecodeError:
            raise RefusedByMechanism(f"what is in {self.path} is no token") from None
        if not value or len(value.split()) != 1:
            raise RefusedByMechanism(f"what is in {self.path} is no token")
        return BearerToken(value, expiry_of(value), self.extensions)


def file_of(endpoint: str) -> str | None:
    """The path that a token endpoint names with a file: URL; None if it is another URL."""
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    parts = urlsplit(endpoint)
    return url2pathname(parts.path) if parts.scheme.lower() == "file" else None


def extensions_of(options: Mapping[str, str]) -> dict[str, str]:
    """What is sent with a token, of the options of a login module."""
    return {
        name.removeprefix(_EXTENSION): value
        for name, value in options.items()
        if name.startswith(_EXTENSION)
    }


def _sentence_of(error: Exception) -> str:
    import urllib.error

    if isinstance(error, urllib.error.HTTPError):
        body = "" if 300 <= error.code < 400 else error.read(500).decode(errors="replace")
        return f"HTTP status {error.code} {body or error.reason}".strip()
    if isinstance(error, KeyError):
        return "its answer has no access_token"
    return str(error)


def expiry_of(token: str) -> float | None:
    """When a JSON web token says that it expires, in seconds since 1970; None if it does not."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    padded = parts[1] + "=" * (-len(parts[1]) % 4)
    try:
        claims = json.loads(base64.urlsafe_b64decode(padded))
    except ValueError:
        return None
    expiry = claims.get("exp") if isinstance(claims, dict) else None
    return float(expiry) if isinstance(expiry, (int, float)) else None


class KeptToken:
    """A token source that asks another one only when its last token has grown old."""

    def __init__(self, source: TokenSource) -> None:
        self._source = source
        self._token: BearerToken | None = None
        self._good_until = 0.0

    async def __call__(self) -> BearerToken:
        token = self._token
        now = time.time()
        if token is None or now >= self._good_until:
            token = self._token = await self._source()
            life = 0.0 if token.expires_at is None else token.expires_at - now
            self._good_until = now + _USED_FOR * life
        return token
