"""Listeners as they are written in a configuration: `NAME://host:port`, and what they may be.

The name stands for a security protocol by way of listener.security.protocol.map, which is how one
broker can have several listeners of the same protocol (one for the containers beside it, one for
the machine around them). No I/O.
"""

# Annotations are not postponed here: as strings they would be compiled one by one at import.

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from ottla.server.configuration.broker_settings import SECURITY_PROTOCOLS
from ottla.server.security.addresses import plain_address
from ottla.settings import InvalidSetting

EVERY_INTERFACE = ("", "0.0.0.0", "::")


class ListenerAddress(NamedTuple):
    """An address to listen on or to be told to clients."""

    name: str  # upper case
    host: str  # IPv6 without brackets; empty: every interface, or the machine's own name
    port: int  # 0: any free one, or the one that was bound
    protocol: str  # of SECURITY_PROTOCOLS

    @property
    def takes_every_interface(self) -> bool:
        return self.host in EVERY_INTERFACE

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def with_default_name(text: str) -> str:
    """`--listen` and `--advertise` in Kafka's form: HOST:PORT and PORT get the name PLAINTEXT."""
    listeners = []
    for part in text.split(","):
        part = part.strip()
        if "://" not in part:
            part = f"PLAINTEXT://:{part}" if part.isdigit() else f"PLAINTEXT://{part}"
        listeners.append(part)
    return ",".join(listeners)


def parse_protocol_map(text: str) -> dict[str, str]:
    """listener.security.protocol.map: protocol by listener name, both in upper case."""
    setting = "listener.security.protocol.map"
    protocols: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, colon, protocol = (part.strip().upper() for part in pair.rpartition(":"))
        name, protocol = (name, protocol) if colon else (protocol, "")
        if not (name and protocol):
            raise InvalidSetting(setting, text, "must be NAME:PROTOCOL pairs separated by commas")
        if protocol not in SECURITY_PROTOCOLS:
            raise InvalidSetting(
                setting, text, f"{protocol} must be one of {', '.join(SECURITY_PROTOCOLS)}"
            )
        if name in protocols:
            raise InvalidSetting(setting, text, f"must not name {name} twice")
        protocols[name] = protocol
    return protocols


def parse_listeners(
    setting: str, texts: Sequence[str], protocols: Mapping[str, str], dropped: Collection[str]
) -> tuple[ListenerAddress, ...]:
    """The listeners of `setting` without those whose name is in `dropped`. Raises InvalidSetting.

    Only what any list of listeners must fulfil is checked: form, names, protocols.
    """
    listeners: list[ListenerAddress] = []
    for text in texts:
        name, host, port = _take_apart(setting, text)
        if name in dropped:
            continue
        if any(name == other.name for other in listeners):
            raise InvalidSetting(setting, ",".join(texts), f"must not name {name} twice")
        protocol = protocols.get(name)
        if protocol is None:
            raise InvalidSetting(
                setting,
                text,
                f"{name} must have a security protocol in listener.security.protocol.map",
            )
        listeners.append(ListenerAddress(name, host, port, protocol))
    if not listeners:
        raise InvalidSetting(
            setting,
            ",".join(texts),
            "must have at least one listener beside those of controller.listener.names",
        )
    return tuple(listeners)


def parse_address(setting: str, text: str) -> tuple[str, int]:
    """HOST:PORT, where IPv6 stands in brackets; an empty host is every interface."""
    try:
        _, host, port = _take_apart(setting, f"ADDRESS://{text}")
    except InvalidSetting as error:
        raise InvalidSetting(setting, text, "must be written as HOST:PORT") from error
    return host, port


def _take_apart(setting: str, text: str) -> tuple[str, str, int]:
    name, separator, address = text.partition("://")
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not (separator and colon and _is_name(name) and _is_host(host) and port.isascii()):
        raise InvalidSetting(setting, text, "must be written as NAME://host:port")
    if not (port.isdigit() and len(port) <= 5 and int(port) <= 65535):
        raise InvalidSetting(setting, text, "the port must be from 0 to 65535")
    return name.upper(), host, int(port)


def _is_name(text: str) -> bool:
    return bool(text) and all(letter.isalnum() or letter in "-_." for letter in text)


def _is_host(text: str) -> bool:
    return text.isascii() and all(letter.isalnum() or letter in "-_.:%" for letter in text)


def check_ports(listeners: Collection[ListenerAddress], text: str) -> None:
    """No two listeners on one port, unless one is IPv4 and the other IPv6 (as in Kafka)."""
    by_port: dict[int, list[ListenerAddress]] = {}
    for listener in listeners:
        if listener.port:
            by_port.setdefault(listener.port, []).append(listener)
    for port, sharers in by_port.items():
        families = sorted(_address_family(listener.host) for listener in sharers)
        if len(sharers) > 1 and families != [4, 6]:
            names = " and ".join(listener.name for listener in sharers)
            raise InvalidSetting(
                "listeners",
                text,
                f"{names} must have different ports ({port} is shared; only an IPv4 and an IPv6 "
                f"address may do that)",
            )


def _address_family(host: str) -> int:
    """4 or 6 for an address, 0 for a name."""
    if ":" in host:
        return 6
    parts = host.split(".")
    return 4 if len(parts) == 4 and all(part.isdigit() for part in parts) else 0


def check_advertised(
    advertised: Collection[ListenerAddress],
    listeners: Collection[ListenerAddress],
    text: str | None,
) -> None:
    """Clients can be sent only to listeners that exist, and to addresses that mean something."""
    names = [listener.name for listener in listeners]
    for listener in advertised:
        if listener.name not in names:
            raise InvalidSetting(
                "advertised.listeners",
                text,
                f"{listener.name} must be one of the listeners ({', '.join(names)})",
            )
        if listener.host in EVERY_INTERFACE[1:]:
            raise InvalidSetting(
                "advertised.listeners",
                text,
                f"{listener.host} must not be told to clients, it is no address to connect to",
            )


def parse_connection_overrides(text: str) -> dict[str, int]:
    """max.connections.per.ip.overrides: the limit by address."""
    limits: dict[str, int] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        host, colon, limit = (part.strip() for part in pair.rpartition(":"))
        host = host.removeprefix("[").removesuffix("]")
        if not (colon and host and limit.isascii() and limit.isdigit() and len(limit) <= 10):
            raise InvalidSetting(
                "max.connections.per.ip.overrides",
                text,
                "must be address:number pairs separated by commas",
            )
        limits[plain_address(host)] = int(limit)
    return limits
