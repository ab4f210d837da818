"""The channel in the clear: frames of all sizes come whole, however slowly, in whatever buffers."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import Iterator

import pytest

from ottla.protocol.message import Buffer
from ottla.wire.channel import PlainChannel, tune
from ottla.wire.receiving import FrameReceiver

SIZES = (10, 3 << 20, 0, 70_000, 100, 600_000, 5 << 20, 1)


@pytest.fixture(params=[None, 4096], ids=["a growing buffer", "a small buffer"])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a TCP connection; the first one receives."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        if request.param is not None:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, request.param)
        peer = socket.create_connection(server.getsockname())
        mine, _ = server.accept()
    mine.setblocking(False)
    peer.setblocking(False)
    with mine, peer:
        yield mine, peer


class Listener:
    """Frames that have come, and the end."""

    def __init__(self, mine: socket.socket) -> None:
        self.frames: list[bytes] = []
        self.ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.news = asyncio.Event()
        self.channel = PlainChannel(mine, FrameReceiver(8 << 20), self._take, self.ended.set_result)

    def _take(self, frame: Buffer) -> None:
        self.frames.append(bytes(frame))
        self.news.set()

    async def until(self, count: int) -> None:
        while len(self.frames) < count:
            self.news.clear()
            await self.news.wait()


@pytest.mark.parametrize("piece", [1000, 64 * 1024, 16 << 20])
async def test_every_frame_comes_as_soon_as_it_is_whole(
    ends: tuple[socket.socket, socket.socket], piece: int
) -> None:
    mine, peer = ends
    loop = asyncio.get_running_loop()
    listener = Listener(mine)
    contents = random.Random(1)
    sizes = SIZES if piece > 1000 else SIZES[3:6]
    async with asyncio.timeout(30):
        for number, size in enumerate(sizes, 1):
            frame = contents.randbytes(size)
            stream = struct.pack(">i", size) + frame
            for at in range(0, len(stream), piece):
                await loop.sock_sendall(peer, stream[at : at + piece])
            # The next one is sent only then: nobody may wait for what comes after a frame.
            await listener.until(number)
            assert listener.frames[-1] == frame
    listener.channel.close()


async def test_an_end_in_the_middle_of_a_frame_is_told(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    mine, peer = ends
    listener = Listener(mine)
    async with asyncio.timeout(30):
        await asyncio.get_running_loop().sock_sendall(
            peer, struct.pack(">i", 5 << 20) + bytes(9999)
        )
        peer.close()
        assert await listener.ended is None
    assert not listener.frames


def test_buffers_are_as_asked_for_or_the_kernels() -> None:
    """Kafka's clients and brokers write -1 for "as the system sees fit"."""
    sizes = {}
    for asked in (50_000, 0, -1):
        with socket.socket() as plug:
            tune(plug, asked, asked)
            sizes[asked] = [
                plug.getsockopt(socket.SOL_SOCKET, kind)
                for kind in (socket.SO_SNDBUF, socket.SO_RCVBUF)
            ]
    assert sizes[-1] == sizes[0]
    assert all(fixed != own for fixed, own in zip(sizes[50_000], sizes[0], strict=True))
