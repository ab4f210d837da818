"""What there is of a cluster, as its folder keeps it in cluster.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ottla.testing.process_identity import ProcessIdentity, runs

if TYPE_CHECKING:
    from ottla.server.configuration.broker_config import BrokerConfig

HOST: Final = "127.0.0.1"
ZOOKEEPER: Final = "zookeeper"  # its name beside the numbers of brokers
_FORMAT: Final = 1


class ClusterError(RuntimeError):
    """The cluster cannot do this; the message is one sentence that says what to do."""


@dataclass(slots=True)
class ServerState:
    """One process of the cluster, as it was last started."""

    port: int
    process: ProcessIdentity | None = None  # None: stopped, or never started
    version: str | None = None  # of a broker, when it was started
    data: str | None = None  # of a broker, if its data are not in the cluster's folder
    rack: str | None = None  # of a broker, if it was given one of its own

    @property
    def running(self) -> bool:
        return self.process is not None and runs(self.process)


@dataclass(slots=True)
class ClusterState:
    """The contents of cluster.json."""

    base_port: int | None  # None: any ports that are free
    zookeeper_address: str  # with its path, as brokers are told
    zookeeper: ServerState | None  # None: somebody else runs it
    next_id: int  # of a broker to be added; ids are not used again
    brokers: dict[int, ServerState] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)  # of all brokers

    def forget_processes(self) -> None:
        """Forget all processes: none of those that are stored is this cluster's."""
        for server in (self.zookeeper, *self.brokers.values()):
            if server is not None:
                server.process = None


def encode(state: ClusterState) -> dict[str, Any]:
    return {"format": _FORMAT, **asdict(state)}


def decode(document: Mapping[str, Any]) -> ClusterState:
    if document["format"] != _FORMAT:
        raise ValueError(f"format {document['format']} is not known")

    def server(entry: Mapping[str, Any]) -> ServerState:
        process = entry["process"]
        identity = None if process is None else ProcessIdentity(int(process[0]), str(process[1]))
        return ServerState(
            int(entry["port"]), identity, entry["version"], entry.get("data"), entry.get("rack")
        )

    own = document["zookeeper"]
    return ClusterState(
        base_port=document["base_port"],
        zookeeper_address=str(document["zookeeper_address"]),
        zookeeper=None if own is None else server(own),
        next_id=int(document["next_id"]),
        brokers={int(number): server(entry) for number, entry in document["brokers"].items()},
        settings=dict(document["settings"]),
    )


def broker_config(settings: Mapping[str, str]) -> BrokerConfig:
    """What a broker makes of the settings; ClusterError if it could not start with them."""
    from ottla.server.configuration.broker_config import load
    from ottla.server.configuration.sources import ConfigurationError

    try:
        return load(
            environment={},
            listen=f"{HOST}:0",
            assignments=[f"{name}={text}" for name, text in settings.items()],
        )
    except ConfigurationError as error:
        raise ClusterError(str(error).rstrip(".")) from error
