"""Ports for servers that are about to start.

They are below those that the system gives to outgoing connections, and to whoever asks for any port.
While a server starts, or is down, nobody else gets its port by chance: no listener of another test,
which would be taken for the server, and no connection, least of all the one with which a client tries to
reach it.
"""

from __future__ import annotations

import contextlib
import random
import socket
from typing import Final

_PORTS: Final = range(10_000, 32_000)


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nothing listens on now. Another process may take it before the server does."""
    return free_ports(1, host)[0]


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ports that nothing listens on now, all different."""
    # Not the shared generator, which tests and their workers seed.
    chance = random.Random()
    with contextlib.ExitStack() as held:
        ports: list[int] = []
        while len(ports) < count:
            port = chance.choice(_PORTS)
            probe = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind((host, port))
                ports.append(port)
        return ports


def free_ports_in_a_row(count: int, host: str = "127.0.0.1") -> int:
    """The first of so many ports, one after the other, that nothing listens on now."""
    chance = random.Random()
    while True:
        first = chance.choice(_PORTS[: 1 - count or None])
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for port in range(first, first + count):
                held.enter_context(socket.socket()).bind((host, port))
            return first
