"""The address that --server names: whether it is one, whether anybody is there, and what to say."""

from __future__ import annotations

import socket

from ottla.cli.failures import Failure, Misuse

DEFAULT_PORT = 9092
CONNECT_TIMEOUT = 3.0  # seconds for one TCP connection


def parse_servers(text: str) -> list[tuple[str, int]]:
    """`HOST[:PORT],…`; an IPv6 address stands in brackets."""
    servers = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        if "/" in part:
            raise Misuse(f"--server takes HOST:PORT, without a protocol or a path, not '{part}'")
        host, port = part, str(DEFAULT_PORT)
        if not part.endswith("]") and ":" in part:
            host, _, port = part.rpartition(":")
        if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
            raise Misuse(f"--server takes HOST:PORT, not '{part}'")
        servers.append((host.strip("[]"), int(port)))
    if not servers:
        raise Misuse("--server takes HOST:PORT, and it is empty")
    return servers


def check_servers(text: str) -> str:
    """The addresses in a form for clients, of which one at least takes connections.

    Clients go on trying for a while; a wrong address should be told at once.
    """
    addresses = parse_servers(text)
    shown = ",".join(
        f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in addresses
    )
    if not any(takes_connections(address) for address in addresses):
        raise Failure(
            f"nothing answers at {shown}; start one with `ottla serve`, "
            "or name another with --server HOST:PORT"
        )
    return shown


def takes_connections(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, CONNECT_TIMEOUT).close()
    except OSError:
        return False
    return True


def no_answer(servers: str, reason: str) -> Failure:
    return Failure(
        f"{servers} takes connections but does not answer ({reason}); "
        "is it a Kafka listener, and is the address it advertises reachable from here?"
    )


def no_such_topic(topic: str) -> Failure:
    return Failure(
        f"there is no topic '{topic}'; `ottla topic list` shows those there are, "
        f"`ottla topic create {topic}` makes it"
    )
