"""One of several brokers of a machine, as a process: what the supervisor starts.

Its settings and the place of the store come over stdin, which is a socket to the supervisor; over the
same socket it says when it is ready. When the supervisor is gone, however it ended, so is this process:
the kernel kills it where it can be asked to (Linux), and elsewhere it stops once the socket is closed.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
from functools import partial
from typing import TYPE_CHECKING, Final

from ottla.server.configuration.broker_config import BrokerConfig
from ottla.server.machine.place import Place
from ottla.server.run import run
from ottla.settings import BrokerLayers

if TYPE_CHECKING:
    from ottla.server.broker import Broker

_PR_SET_PDEATHSIG: Final = 1


def main() -> int:
    """Serve until the supervisor says or is gone; the exit status of the process."""
    gc.disable()  # see `ottla serve`
    channel = _take_channel()
    with channel.makefile("r", encoding="utf-8") as lines:
        order = json.loads(lines.readline() or "null")
    if order is None:
        return 1  # the supervisor ended before it said anything
    _end_with(order["supervisor"])
    place = Place(order["machine"], order["store"])
    config = BrokerConfig(BrokerLayers(static=order["static"]))
    return run(config, place=place, on_ready=partial(_ready, channel))


def _take_channel() -> socket.socket:
    """The socket that is stdin here. Processes that this one starts do not get it."""
    channel = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return channel


def _end_with(supervisor: int) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != supervisor:
        # It had ended before the kernel was asked to end this process with it.
        raise SystemExit(1)


def _ready(channel: socket.socket, broker: Broker) -> None:
    addresses = [[each.host, each.port] for each in broker.bound]
    channel.setblocking(False)
    broker.loop.add_reader(channel, broker.lost.set)  # nothing is ever said here but the end
    channel.send(json.dumps(addresses).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
