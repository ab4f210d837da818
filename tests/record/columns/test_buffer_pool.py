"""Buffers that are used again, but never while a view of them is left, however it was had."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ottla.record.columns import BufferPool
from ottla.wire.channel import PlainChannel
from ottla.wire.receiving import FrameReceiver

SIZE = 4096


def address(buffer: Any) -> int:
    return int(np.frombuffer(buffer, np.uint8).ctypes.data)


VIEWS: list[Callable[[Any], Any]] = [
    lambda buffer: buffer,
    lambda buffer: buffer.data,
    lambda buffer: buffer.data[10:20],
    lambda buffer: memoryview(buffer.data[5:]).cast("b")[1:3],
    lambda buffer: buffer[100:],
    lambda buffer: buffer[100:][::2],
    lambda buffer: buffer.view(np.int32)[3:],
    lambda buffer: np.frombuffer(buffer[64:].data, np.uint16),
    lambda buffer: buffer[8:].reshape(-1, 8)[4].data,
]


@pytest.mark.parametrize("view", VIEWS)
def test_a_buffer_is_used_again_when_its_last_view_is_gone(view: Callable[[Any], Any]) -> None:
    pool = BufferPool(SIZE, 4)
    taken = pool.take()
    place = address(taken)
    seen = view(taken)
    del taken
    assert pool.free == 0
    others = [pool.take() for _ in range(5)]
    assert place not in map(address, others)
    del seen
    assert pool.free == 1
    assert address(pool.take()) == place


def test_the_one_last_used_comes_first() -> None:
    pool = BufferPool(SIZE, 4)
    first, second = pool.take(), pool.take()
    places = address(first), address(second)
    del first
    del second
    again = pool.take(), pool.take()
    assert (address(again[0]), address(again[1])) == places[::-1]


def test_no_more_are_kept_than_was_said() -> None:
    pool = BufferPool(SIZE, 3)
    taken = [pool.take() for _ in range(10)]
    taken.clear()
    assert pool.free == 3
    assert BufferPool(SIZE, 0).take().nbytes == SIZE


def test_threads_never_have_the_same_buffer() -> None:
    pool = BufferPool(SIZE, 4)
    wrong: list[int] = []

    def use(number: int) -> None:
        held = []
        for turn in range(2000):
            buffer = pool.take()
            buffer[:] = number
            held.append(buffer.data[turn % 7 :])
            if len(held) > turn % 5:
                view = held.pop(0)
                if bytes(view) != bytes([number]) * len(view):
                    wrong.append(turn)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_a_channel_has_still_to_send_stays_as_it_is() -> None:
    """Whoever asked for it may have forgotten it long ago."""
    asyncio.run(_send_to_one_who_does_not_read())


async def _send_to_one_who_does_not_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        mine = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
    mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    mine.setblocking(False)
    peer.setblocking(False)
    size = 300_000
    pool = BufferPool(size, 16)
    contents = [random.Random(number).randbytes(size) for number in range(6)]
    with mine, peer:
        channel = PlainChannel(mine, FrameReceiver(1 << 20), lambda _: None, lambda _: None)
        for content in contents:
            buffer = pool.take()
            buffer[:] = np.frombuffer(content, np.uint8)
            channel.write([buffer.data[: size // 2], buffer.data[size // 2 :]])
            del buffer
        assert channel.unsent > size
        others = [pool.take() for _ in range(20)]
        for other in others:
            other[:] = 0xEE
        received = bytearray()
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(30):
            while len(received) < len(contents) * size:
                received += await loop.sock_recv(peer, 1 << 16)
        assert received == b"".join(contents)
        # All of it was sent, or is given up: either way nobody sees it any more.
        channel.close()
        others.clear()
        assert pool.free == 16
