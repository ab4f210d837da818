"""What each of several brokers of one machine is configured with, and where its data is.

The first broker has the ports, the folders and the number that a single one would have: so a folder
that one broker served can be served by several. Those after it have the next ports and numbers, and
a folder `brokers/N` in each data folder (a name that no partition's folder can have).
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Mapping
from typing import Final, NamedTuple

from ottla.server.configuration.broker_config import BrokerConfig
from ottla.server.configuration.listeners import ListenerAddress
from ottla.server.machine.folders import OTHERS
from ottla.settings import BrokerLayers, InvalidSetting

_STORE: Final = ".store"
_SOCKET: Final = "socket"
_LARGEST_PORT: Final = 65535
# The system takes up to 108 bytes, some take 104.
_LONGEST_SOCKET_PATH: Final = 100


class Planned(NamedTuple):
    """One of the brokers: its number and its settings, as text."""

    id: int
    static: Mapping[str, str]


def plan(config: BrokerConfig, count: int) -> list[Planned]:
    """The brokers of this machine. InvalidSetting if they cannot all have ports."""
    machine = machine_name()
    planned = []
    ports: dict[int, str] = {}
    for step in range(count):
        broker_id = config.node_id + step
        static = dict(config.layers.static)
        for name in ("broker.id", "log.dir"):
            static.pop(name, None)
        static["node.id"] = str(broker_id)
        static.setdefault("broker.rack", machine)
        static["log.dirs"] = ",".join(
            folder if step == 0 else os.path.join(folder, OTHERS, str(broker_id))
            for folder in config.log_dirs
        )
        listeners = [_moved(each, step) for each in config.listeners]
        static["listeners"] = ",".join(map(str, listeners))
        for listener in listeners:
            _take_port(ports, listener.port, f"{listener.name} of broker {broker_id}", static)
        if "advertised.listeners" in static:
            advertised = [_moved(each, step) for each in config.advertised_listeners]
            static["advertised.listeners"] = ",".join(map(str, advertised))
        if config.metrics_listener is not None:
            host, port = config.metrics_listener
            port = port + step if port else 0
            _take_port(ports, port, f"the metrics of broker {broker_id}", static)
            static["metrics.listener"] = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        BrokerConfig(BrokerLayers(static=static))  # raises what the broker itself would
        planned.append(Planned(broker_id, static))
    return planned


def machine_name() -> str:
    """Names this machine among those of a cluster."""
    return socket.gethostname()


def _moved(listener: ListenerAddress, step: int) -> ListenerAddress:
    return listener._replace(port=listener.port + step) if listener.port else listener


def _take_port(ports: dict[int, str], port: int, user: str, static: Mapping[str, str]) -> None:
    if not port:
        return
    if port > _LARGEST_PORT:
        raise InvalidSetting(
            "listeners", static["listeners"], f"there is no port {port}, which {user} would have"
        )
    if port in ports:
        raise InvalidSetting(
            "listeners",
            static["listeners"],
            f"port {port} would be that of {ports[port]} and of {user}; leave as many ports between "
            "two listeners as there are brokers",
        )
    ports[port] = user


def socket_path(folder: str) -> str:
    """Where the brokers find their store: in the first data folder, unless its path is too long."""
    path = os.path.join(os.path.abspath(folder), OTHERS, _STORE, _SOCKET)
    if len(os.fsencode(path)) <= _LONGEST_SOCKET_PATH:
        os.makedirs(os.path.dirname(os.path.dirname(path)), 0o700, exist_ok=True)
        return path
    return os.path.join(tempfile.mkdtemp(prefix="ottla-"), _SOCKET)
