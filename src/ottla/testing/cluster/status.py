"""How a cluster is: which processes do their work, and what its brokers and its ZooKeeper tell."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from ottla.testing.cluster.state import (
    HOST,
    ZOOKEEPER,
    ClusterError,
    ClusterState,
    ServerState,
    broker_config,
)
from ottla.testing.zookeeper import server_mode

STATUS_TIMEOUT: Final = 5.0
_ZOOKEEPER_TIMEOUT: Final = 3.0
_UNDECIDED: Final = (
    "until it serves again no leader can be elected and no topic be made; "
    "reads and writes with acks=all go on where all in-sync replicas run"
)


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """One process, as it is now."""

    name: str  # "zookeeper", or the broker's number
    address: str
    running: bool  # and at its work: ZooKeeper serves, the other brokers know this one
    pid: int | None
    state: str  # in a word or two; of ZooKeeper the mode in which it serves
    version: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The cluster as it is now. What only brokers can tell is None when none of them answers."""

    servers: list[ServerStatus]
    controller: int | None = None
    partitions: int | None = None
    offline: list[str] | None = None  # partitions that nobody leads, as topic-N
    under_replicated: list[str] | None = (
        None  # partitions with fewer in sync than they have replicas
    )
    problem: str | None = None  # why the brokers did not tell
    zookeeper_problem: str | None = None  # why nothing can be decided, in a sentence

    @property
    def healthy(self) -> bool:
        return (
            self.zookeeper_problem is None
            and all(server.running for server in self.servers)
            and self.offline == []
            and self.under_replicated == []
        )


def status_of(state: ClusterState) -> ClusterStatus:
    """Asks every process and the brokers of a cluster."""
    with ThreadPoolExecutor(1) as beside:
        asked = beside.submit(_ask_zookeeper, state)
        known, answer = _ask_brokers(state)
        zookeeper, problem = asked.result()
    servers = [zookeeper]
    for number, broker in state.brokers.items():
        if not broker.running:
            servers.append(_status(str(number), broker, False, "stopped"))
        elif known is None:
            servers.append(_status(str(number), broker, False, "silent"))
        else:
            at_work = number in known
            condition = "running" if at_work else "not in the cluster"
            servers.append(_status(str(number), broker, at_work, condition))
    return ClusterStatus(servers, **answer, zookeeper_problem=problem)


def _ask_brokers(state: ClusterState) -> tuple[set[int] | None, dict[str, Any]]:
    """The brokers that the cluster knows, and what they tell of it."""
    from ottla.client.admin.client import Admin
    from ottla.client.errors import OttlaError

    addresses = [f"{HOST}:{broker.port}" for broker in state.brokers.values() if broker.running]
    if not addresses:
        return None, {"problem": "no broker runs"}
    admin = Admin(
        ",".join(addresses),
        client_id="ottla-cluster",
        default_api_timeout_ms=STATUS_TIMEOUT * 1000,
        request_timeout_ms=STATUS_TIMEOUT * 1000,
    )
    try:
        cluster = admin.describe_cluster()
        topics = admin.list_topics(internal=True)
    except OttlaError as error:
        return None, {"problem": str(error)}
    finally:
        admin.close()
    partitions = [(topic.name, each) for topic in topics for each in topic.partitions]
    return {node.id for node in cluster.brokers}, {
        "controller": cluster.controller,
        "partitions": len(partitions),
        "offline": [f"{name}-{each.partition}" for name, each in partitions if each.leader is None],
        "under_replicated": [
            f"{name}-{each.partition}"
            for name, each in partitions
            if len(each.in_sync) < len(each.replicas)
        ],
    }


def _status(name: str, server: ServerState, running: bool, condition: str) -> ServerStatus:
    pid = None if server.process is None or condition == "stopped" else server.process.pid
    version = None if pid is None else server.version
    return ServerStatus(name, f"{HOST}:{server.port}", running, pid, condition, version)


def _ask_zookeeper(state: ClusterState) -> tuple[ServerStatus, str | None]:
    """How ZooKeeper is, and if it serves nobody, a sentence about that. A cluster nothing of which runs
    needs none."""
    from ottla.cluster.zookeeper import parse_address

    servers = parse_address(state.zookeeper_address).servers
    named = ", ".join(f"{host}:{port}" for host, port in servers)
    own = state.zookeeper
    if own is not None and not own.running:
        needed = any(broker.running for broker in state.brokers.values())
        problem = f"the ZooKeeper on {named} does not run: {_UNDECIDED}" if needed else None
        return _status(ZOOKEEPER, own, False, "stopped"), problem
    tls = _tls_for_zookeeper(state.settings) if own is None else None
    with ThreadPoolExecutor(len(servers)) as asking:
        asked = [
            asking.submit(server_mode, host, port, _ZOOKEEPER_TIMEOUT, tls)
            for host, port in servers
        ]
        modes = [mode for each in asked if (mode := each.result()) is not None]
    problem = None
    if not modes:
        what = f"the ZooKeeper on {named} does not answer, or serves nobody"
        if len(servers) > 1:
            what = f"of the ZooKeeper servers on {named} none answers, or none has a majority"
        problem = f"{what}: {_UNDECIDED}"
    elif 2 * len(modes) <= len(servers):
        problem = (
            f"of the {len(servers)} ZooKeeper servers on {named} only {len(modes)} "
            f"{'answers' if len(modes) == 1 else 'answer'}, which is no majority: {_UNDECIDED}"
        )
    condition = ", ".join(modes) or "silent"
    if own is not None:
        return _status(ZOOKEEPER, own, problem is None, condition), problem
    return (
        ServerStatus(ZOOKEEPER, state.zookeeper_address, problem is None, None, condition),
        problem,
    )


def _tls_for_zookeeper(settings: Mapping[str, str]) -> ssl.SSLContext | None:
    """As brokers speak to ZooKeeper; None if they do so in plain text. ClusterError if a file that is
    named cannot be used."""
    from ottla.cluster.store import StoreError
    from ottla.server.configuration.zookeeper_access import tls_context

    try:
        return tls_context(broker_config(settings))
    except StoreError as error:
        raise ClusterError(str(error)) from error
