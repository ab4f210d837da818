"""Redirects: followed where nothing is lost by it, and otherwise an error that names where they lead."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import trustme

from ottla.client.formats.errors import RegistryError
from ottla.client.formats.registry import SchemaRegistry
from ottla.wire.http import opener
from ottla.wire.oidc import ClientCredentials
from ottla.wire.sasl import RefusedByMechanism


class Server:
    """Answers as it is told to, and remembers who asked with what."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.redirect: str | None = None
        self.code = 302
        self.asked: list[tuple[str, str | None]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append((self.command, self.headers["Authorization"]))
                if outer.redirect is None or self.path == "/new":
                    self.send_response(200)
                    self.end_headers()
                    self.wfile.write(json.dumps({"id": 7, "schema": "{}"}).encode())
                else:
                    self.send_response(outer.code)
                    self.send_header("Location", outer.redirect)
                    self.end_headers()

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.do_GET()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        scheme = "http" if context is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Callable[..., Server]]:
    made: list[Server] = []

    def make(context: ssl.SSLContext | None = None) -> Server:
        made.append(Server(context))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
async def test_a_secret_is_not_sent_on(server: Callable[..., Server], code: int) -> None:
    asked, stranger = server(), server()
    asked.redirect, asked.code = f"{stranger.url}/token", code
    with pytest.raises(RefusedByMechanism, match=f"HTTP status {code} redirected to http://"):
        await ClientCredentials(f"{asked.url}/token", "robot", "s3cret")()
    assert len(asked.asked) == 1
    assert stranger.asked == []


def test_credentials_of_a_registry_stay_with_it(server: Callable[..., Server]) -> None:
    asked, stranger = server(), server()
    registry = SchemaRegistry(asked.url, username="me", password="s3cret")
    asked.redirect = f"{stranger.url}/schemas/ids/7"
    with pytest.raises(RegistryError, match="the credentials are not sent there"):
        registry.schema(7)
    with pytest.raises(RegistryError, match="what was sent is not sent there"):
        registry.register("orders-value", "{}")
    assert stranger.asked == []
    # Without any it may lead elsewhere.
    assert SchemaRegistry(asked.url).schema(7).text == "{}"
    assert stranger.asked == [("GET", None)]


def test_within_a_server_redirects_are_followed(server: Callable[..., Server]) -> None:
    asked = server()
    secret = f"Basic {base64.b64encode(b'a:b').decode()}"
    request = urllib.request.Request(f"{asked.url}/old", headers={"Authorization": secret})
    asked.redirect = "/new"
    with opener().open(request, timeout=20) as answer:
        assert json.load(answer)["id"] == 7
    assert asked.asked == [("GET", secret)] * 2


def test_https_does_not_lead_to_less(server: Callable[..., Server]) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    asked, plain = server(context), server()
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    for elsewhere in (plain.url, "ftp://127.0.0.1/keys", "file:///etc/passwd"):
        asked.redirect = elsewhere
        with pytest.raises(urllib.error.URLError):
            opener(trusting).open(asked.url, timeout=20)
    assert plain.asked == []
    # Nor does HTTP lead to a file, or to another protocol.
    first = server()
    for elsewhere in ("ftp://127.0.0.1/keys", "file:///etc/passwd"):
        first.redirect = elsewhere
        with pytest.raises(urllib.error.HTTPError):
            opener().open(first.url, timeout=20)
