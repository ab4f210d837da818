"""The console as a process: the socket, the signals, the log."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from typing import Final

import uvicorn

from ottla.client.configuration.clients import AdminSettings, ConsumerSettings, read_settings
from ottla.console.app import make_app
from ottla.version import __version__

log = logging.getLogger("ottla.console")

STOP_PATIENCE: Final = 5  # seconds for requests that are under way
_MOST_CONNECTIONS: Final = 200
_BACKLOG: Final = 128


class CannotListen(Exception):
    """The address cannot be had; the message says why."""


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine can connect to an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections. CannotListen if there is none to be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise CannotListen(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise CannotListen(
            f"cannot listen on {host}:{port}: {error.strerror or error}; "
            "choose another address with --listen"
        ) from None
    return sock


def check_options(servers: str) -> None:
    """Raises ConfigurationError if clients could not be made for these servers."""
    for kind in (AdminSettings, ConsumerSettings):
        read_settings(kind, servers)


def run(
    servers: str, sock: socket.socket, *, hosts: Sequence[str] = (), token: str | None = None
) -> int:
    """Serve until SIGTERM or SIGINT; the exit status of the process."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s.%(msecs)03d %(levelname)s %(name)s %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
    )
    # What a client or the server says of itself is of interest if something is wrong.
    for name in ("ottla.client", "ottla.wire", "uvicorn", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
    config = uvicorn.Config(
        make_app(servers, hosts=hosts, token=token),
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=STOP_PATIENCE,
    )
    return asyncio.run(_serve(_Server(config), servers, sock))


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the caller's: this one would raise them again in the end, and the process would
        not end as one that was stopped in order."""
        yield


async def _serve(server: _Server, servers: str, sock: socket.socket) -> int:
    loop = asyncio.get_running_loop()

    def stop() -> None:
        # The second one is for those who do not want to wait.
        server.force_exit = server.should_exit
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    host, port = sock.getsockname()[:2]
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    log.info("the console of Ottla %s is at http://%s/api cluster=%s", __version__, shown, servers)
    await server.serve([sock])
    log.info("stopped")
    return 0 if server.started else 1
