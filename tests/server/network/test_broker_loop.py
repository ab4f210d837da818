"""The loop of a broker: sockets are served as by asyncio's, one look earlier."""

from __future__ import annotations

import asyncio
import selectors
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ottla.server.network.loop import BrokerLoop, new_loop

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def loop() -> Iterator[BrokerLoop]:
    made = BrokerLoop()
    yield made
    made.close()


@pytest.fixture
def pairs() -> Iterator[Callable[[], Pair]]:
    made: list[socket.socket] = []

    def pair() -> Pair:
        both = socket.socketpair()
        for each in both:
            each.setblocking(False)
        made.extend(both)
        return both

    yield pair
    for each in made:
        each.close()


def turn(loop: BrokerLoop) -> None:
    """One look at the sockets, and what was called soon."""
    loop.call_soon(loop.stop)
    loop.run_forever()


def test_is_the_loop_of_this_system() -> None:
    loop = new_loop()
    assert isinstance(loop, BrokerLoop)
    loop.close()


def test_readers_and_what_they_call_soon_run_in_one_turn(
    loop: BrokerLoop, pairs: Callable[[], Pair]
) -> None:
    seen: list[str] = []

    def read(sock: socket.socket, name: str) -> None:
        seen.append(name + sock.recv(10).decode())
        if len(seen) == 1:
            loop.call_soon(seen.append, "soon")

    for name in "ab":
        left, right = pairs()
        loop.add_reader(left, read, left, name)
        right.send(b"1")
    turn(loop)
    assert sorted(seen[:2]) == ["a1", "b1"]
    assert seen[2] == "soon"


def test_a_reader_that_was_removed_by_another_is_not_called(
    loop: BrokerLoop, pairs: Callable[[], Pair]
) -> None:
    (first, to_first), (second, to_second) = pairs(), pairs()
    called: list[socket.socket] = []

    def read(own: socket.socket, other: socket.socket) -> None:
        called.append(own)
        assert loop.remove_reader(other)
        other.close()

    loop.add_reader(first.fileno(), read, first, second)
    loop.add_reader(second.fileno(), read, second, first)
    to_first.send(b"1")
    to_second.send(b"1")
    turn(loop)
    assert len(called) == 1


def test_a_reader_and_a_writer_of_one_socket(loop: BrokerLoop, pairs: Callable[[], Pair]) -> None:
    left, right = pairs()
    seen: list[str] = []
    loop.add_reader(left, lambda: seen.append("read" + left.recv(9).decode()))
    loop.add_writer(left, lambda: seen.append("write"))
    turn(loop)
    assert seen == ["write"]
    right.send(b"!")
    turn(loop)
    assert seen == ["write", "read!", "write"]
    assert loop.remove_writer(left)
    assert not loop.remove_writer(left)
    turn(loop)
    assert seen == ["write", "read!", "write"]
    loop.add_reader(left, lambda: seen.append("other" + left.recv(9).decode()))
    right.send(b"?")
    turn(loop)
    assert seen[3:] == ["other?"]
    assert loop.remove_reader(left)
    assert not loop.remove_reader(left)


def test_of_sockets_that_give_way_one_is_served_in_a_turn_and_after_the_others(
    loop: BrokerLoop, pairs: Callable[[], Pair]
) -> None:
    seen: list[str] = []
    for name in ("slow 1", "slow 2", "slow 3", "quick 1", "quick 2"):
        left, right = pairs()
        # Nobody reads, so that each is found in every turn.
        loop.add_reader(left, seen.append, name)
        if name.startswith("slow"):
            loop.serve_after_others(left.fileno())
        right.send(b"1")
    for _ in range(6):
        turn(loop)
    turns = [seen[at : at + 3] for at in range(0, len(seen), 3)]
    assert [sorted(each[:2]) for each in turns] == [["quick 1", "quick 2"]] * 6
    assert sorted(each[2] for each in turns[:3]) == ["slow 1", "slow 2", "slow 3"]
    assert [each[2] for each in turns[3:]] == [each[2] for each in turns[:3]]


def test_a_socket_gives_way_for_as_long_as_was_said(
    loop: BrokerLoop, pairs: Callable[[], Pair]
) -> None:
    seen: list[str] = []
    numbers = []
    for name in "abc":
        left, right = pairs()
        loop.add_reader(left, seen.append, name)
        loop.serve_after_others(left.fileno(), -1.0 if name == "a" else 1000.0)
        numbers.append(left.fileno())
        right.send(b"1")
    turn(loop)
    assert len(seen) == 2
    assert seen[0] == "a"
    loop.serve_like_others(numbers[1])
    seen.clear()
    turn(loop)
    assert sorted(seen) == ["a", "b", "c"]


def test_a_socket_that_gives_way_and_was_closed_by_another_is_not_served(
    loop: BrokerLoop, pairs: Callable[[], Pair]
) -> None:
    (slow, to_slow), (quick, to_quick) = pairs(), pairs()
    seen: list[str] = []

    def end_it() -> None:
        seen.append("quick")
        quick.recv(9)
        loop.remove_reader(slow)
        slow.close()

    loop.add_reader(slow, seen.append, "slow")
    loop.serve_after_others(slow.fileno())
    loop.add_reader(quick, end_it)
    to_slow.send(b"1")
    to_quick.send(b"1")
    turn(loop)
    assert seen == ["quick"]


def test_the_end_of_the_peer_is_told_to_the_reader(
    loop: BrokerLoop, pairs: Callable[[], Pair]
) -> None:
    left, right = pairs()
    seen: list[bytes] = []
    loop.add_reader(left, lambda: seen.append(left.recv(9)))
    right.close()
    turn(loop)
    assert seen == [b""]


def test_a_reader_that_fails_is_told_and_the_others_are_served(
    loop: BrokerLoop, pairs: Callable[[], Pair]
) -> None:
    told: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: told.append(context))
    (bad, to_bad), (good, to_good) = pairs(), pairs()
    seen: list[bytes] = []

    def fail() -> None:
        bad.recv(9)
        raise ValueError("broken")

    loop.add_reader(bad, fail)
    loop.add_reader(good, lambda: seen.append(good.recv(9)))
    for each in (to_bad, to_good):
        each.send(b"x")
    turn(loop)
    assert seen == [b"x"]
    (context,) = told
    assert str(context["exception"]) == "broken"
    assert "fail" in context["message"]


def test_a_socket_that_was_closed_without_a_word_may_come_again(
    loop: BrokerLoop, pairs: Callable[[], Pair]
) -> None:
    left, _ = pairs()
    number = left.fileno()
    loop.add_reader(number, lambda: None)
    left.close()
    assert loop.remove_reader(number)
    again, to_again = pairs()
    seen: list[bytes] = []
    loop.add_reader(again, lambda: seen.append(again.recv(9)))
    to_again.send(b"x")
    turn(loop)
    assert seen == [b"x"]


def test_asyncio_itself_works_on_it(loop: BrokerLoop) -> None:
    """Streams, threads, timers, signals and processes are asyncio's own."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(5))
        await writer.drain()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"hello")
        assert await reader.read() == b"hello"
        writer.close()
        server.close()
        await server.wait_closed()
        assert await asyncio.to_thread(lambda: 7) == 7
        rung = asyncio.Event()
        loop.add_signal_handler(signal.SIGUSR1, rung.set)
        signal.raise_signal(signal.SIGUSR1)
        await rung.wait()
        loop.remove_signal_handler(signal.SIGUSR1)
        began = loop.time()
        await asyncio.sleep(0.01)
        assert loop.time() - began >= 0.01
        left, right = socket.socketpair()
        with left, right:
            left.setblocking(False)
            right.setblocking(False)
            waiting = asyncio.ensure_future(loop.sock_recv(left, 9))
            await loop.sock_sendall(right, b"x")
            assert await waiting == b"x"
            assert not loop._sockets.get_map().keys() & {left.fileno(), right.fileno()}
            # It is asyncio's while asyncio waits for it, and then anybody's.
            waiting = asyncio.ensure_future(loop.sock_recv(left, 9))
            await asyncio.sleep(0)
            loop.add_writer(left, rung.set)
            rung.clear()
            await rung.wait()
            assert loop.remove_writer(left)
            right.send(b"y")
            assert await waiting == b"y"
            assert not loop.remove_reader(left)
            seen: list[bytes] = []
            loop.add_reader(left, lambda: seen.append(left.recv(9)))
            right.send(b"z")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert seen == [b"z"]
            assert loop.remove_reader(left)

    loop.run_until_complete(main())


def test_what_asyncio_registers_is_kept_apart(loop: BrokerLoop, pairs: Callable[[], Pair]) -> None:
    sockets = loop._sockets
    left, _ = pairs()
    sockets.register(left, selectors.EVENT_READ, "data")
    with pytest.raises(KeyError):
        sockets.register(left, selectors.EVENT_READ)
    key = sockets.modify(left, selectors.EVENT_READ | selectors.EVENT_WRITE, "more")
    assert sockets.get_key(left.fileno()) == key
    assert sockets.select(0) == [(key, selectors.EVENT_WRITE)]
    assert sockets.unregister(left) == key
    with pytest.raises(KeyError):
        sockets.unregister(left)


def test_nothing_is_missed_once_it_is_closed(pairs: Callable[[], Pair]) -> None:
    loop = BrokerLoop()
    left, _ = pairs()
    loop.add_reader(left, lambda: None)
    loop.close()
    assert not loop.remove_reader(left)
