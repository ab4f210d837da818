"""A peer that answers as a test tells it to: what a real broker does only when it is broken."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from ottla.protocol.apis import ApiKey
from ottla.protocol.frame import frame_response, parse_request_header
from ottla.protocol.message import Message
from ottla.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse

OFFERED = [
    ApiVersion(api_key=ApiKey.API_VERSIONS, max_version=4),
    ApiVersion(api_key=ApiKey.METADATA, max_version=13),
    ApiVersion(api_key=ApiKey.FETCH, min_version=4, max_version=17),
    ApiVersion(api_key=ApiKey.PRODUCE, min_version=3, max_version=12),
]


@dataclass
class Asked:
    """A request as it came."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body: bytes
    writer: asyncio.StreamWriter = field(repr=False)

    def answer(self, message: Message, version: int | None = None) -> None:
        self.writer.write(
            frame_response(
                message, self.version if version is None else version, self.correlation_id
            )
        )


# Called for every request but ApiVersions (unless it wants that, too: see `serving`).
Script = Callable[[Asked], Awaitable[None]]


@asynccontextmanager
async def serving(
    script: Script, *, handshake: Script | None = None
) -> AsyncIterator[tuple[int, list[Asked]]]:
    """The port of the peer, and what it was asked so far. `handshake` answers ApiVersions."""
    asked: list[Asked] = []
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = await reader.readexactly(size)
                api_key, version, correlation_id, client_id, at = parse_request_header(frame)
                request = Asked(api_key, version, correlation_id, client_id, frame[at:], writer)
                asked.append(request)
                if api_key != ApiKey.API_VERSIONS:
                    await script(request)
                elif handshake is not None:
                    await handshake(request)
                else:
                    request.answer(ApiVersionsResponse(api_keys=OFFERED))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], asked
    finally:
        server.close()
        for writer in writers:
            writer.close()
