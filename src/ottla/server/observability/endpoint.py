"""The small HTTP server that hands out metrics: `GET /metrics`, and `GET /healthz` for probes.

It runs on the broker's loop, which is the point of `/healthz`: whoever gets an answer knows that the
loop turns. One answer to a connection, no keep-alive; what is not a short GET is refused.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ottla.server.observability import metrics
from ottla.server.observability.limited_log import LimitedLog

if TYPE_CHECKING:
    from ottla.server.broker import Broker

log = logging.getLogger("ottla.metrics")
limited_log = LimitedLog(log)

# A scraper's request is a few hundred bytes.
REQUEST_BYTES = 16 << 10
# For a request to arrive whole, and for each piece of an answer to be taken.
PATIENCE_SECONDS = 10.0
# Scrapers served at once; further ones are closed. Their descriptors are not those of Kafka clients.
SCRAPERS = 16


class MetricsEndpoint:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._server: asyncio.Server | None = None
        self._scrapers = 0

    async def start(self, host: str, port: int) -> None:
        """Starts to listen. OSError if the address is not available."""
        self._server = await asyncio.start_server(
            self._serve, host or None, port, limit=REQUEST_BYTES, backlog=SCRAPERS
        )

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._scrapers >= SCRAPERS:
            limited_log.warning("too many metrics requests at once: open=%d", self._scrapers)
            writer.close()
            return
        self._scrapers += 1
        try:
            await self._answer(reader, writer)
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError) as error:
            log.debug("metrics request given up: %r", error)
        finally:
            await self._close(writer)
            self._scrapers -= 1

    async def _close(self, writer: asyncio.StreamWriter) -> None:
        """Closes the connection once everything is sent, or after a time limit."""
        writer.close()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await writer.wait_closed()
        except (TimeoutError, ConnectionError):
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            writer.write(_response("431 Request Header Fields Too Large"))
            return
        words = head.partition(b"\r\n")[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/"):
            writer.write(_response("400 Bad Request"))
            return
        method, path = words[0], words[1].partition(b"?")[0]
        if path not in (b"/metrics", b"/healthz"):
            writer.write(_response("404 Not Found"))
        elif method not in (b"GET", b"HEAD"):
            writer.write(_response("405 Method Not Allowed", "Allow: GET, HEAD\r\n"))
        elif path == b"/healthz":
            writer.write(_response("200 OK", body="" if method == b"HEAD" else "ok\n"))
        else:
            writer.write(_head("200 OK", metrics.CONTENT_TYPE))
            if method == b"GET":
                await self._send_metrics(writer)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await writer.drain()

    async def _send_metrics(self, writer: asyncio.StreamWriter) -> None:
        async for piece in metrics.pieces(self._broker):
            writer.write(piece.encode())
            async with asyncio.timeout(PATIENCE_SECONDS):
                await writer.drain()


def _head(status: str, content_type: str, more: str = "") -> bytes:
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\n{more}Connection: close\r\n\r\n"
    ).encode()


def _response(status: str, more: str = "", body: str | None = None) -> bytes:
    text = f"{status}\n" if body is None else body
    return _head(status, "text/plain; charset=utf-8", more) + text.encode()
