"""Who is connected. An API of Ottla's own: Apache Kafka has none for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from ottla.client.admin.base import AdminPart
from ottla.client.cluster import OneBroker
from ottla.client.errors import raise_for
from ottla.protocol.apis import api_name
from ottla.protocol.messages.list_clients import (
    ConnectedClient as ListedClient,
)
from ottla.protocol.messages.list_clients import ListClientsRequest, ListClientsResponse

Role = Literal["client", "broker", "follower"]

_ROLES: Final[dict[int, Role]] = {0: "client", 1: "broker", 2: "follower"}
# Topics that `doing` names.
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class Membership:
    """A member of a group that has spoken on a connection to the group's coordinator."""

    group: str
    member_id: str


@dataclass(frozen=True, slots=True)
class ConnectedClient:
    """One connection of a client (or of another broker) to a broker.

    Clients choose their ids: they may be empty, alike, or hold characters that a terminal obeys. Very
    long ones are cut off.
    """

    broker: int
    connection: int  # its number at this broker, for as long as the broker runs
    client_id: str
    software_name: str  # empty: it did not say, as clients before Kafka 2.4
    software_version: str
    address: str
    port: int
    listener: str
    security_protocol: str
    principal: str
    role: Role
    peer_broker: int | None  # the number of a broker or follower
    is_controller: bool  # that broker is the controller
    connected_since_ms: int
    idle_ms: int  # for how long nothing has come from it
    requests: int
    received_bytes: int | None  # None: the broker's operating system does not count them
    sent_bytes: int | None
    last_api: str | None  # of its last request; None: there was none
    transactional_id: str | None
    producing: tuple[str, ...]  # topics, since it connected
    more_producing: int  # topics that are not named
    reading: tuple[str, ...]  # topics that its last Fetch asked for
    more_reading: int
    memberships: tuple[Membership, ...]

    @property
    def peer(self) -> str:
        """Address and port: `127.0.0.1:54321`, `[::1]:54321`."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}"

    @property
    def software(self) -> str:
        """Name and version: `librdkafka 2.14.2`."""
        return f"{self.software_name} {self.software_version}".strip()

    @property
    def doing(self) -> str:
        """What it does, in words: `produces to orders`, `reads orders; member of billing`."""
        said = []
        if self.peer_broker is not None:
            controller = ", the controller" if self.is_controller else ""
            said.append(f"broker {self.peer_broker}{controller}")
        if self.producing:
            said.append(f"produces to {_named(self.producing, self.more_producing)}")
        if self.transactional_id is not None:
            said.append(f"transactional id {self.transactional_id}")
        if self.reading:
            verb = "replicates" if self.role == "follower" else "reads"
            said.append(f"{verb} {_named(self.reading, self.more_reading)}")
        if self.memberships:
            groups = dict.fromkeys(each.group for each in self.memberships)
            said.append(f"member of {_named(tuple(groups), 0)}")
        if self.last_api is not None and (not said or self.role == "broker"):
            said.append(self.last_api)
        return "; ".join(said) or "no request yet"

    def document(self) -> dict[str, Any]:
        """All of it for JSON, as `ottla client list --json` and the console show it."""
        return {
            "broker": self.broker,
            "connection": self.connection,
            "client_id": self.client_id,
            "software_name": self.software_name or None,
            "software_version": self.software_version or None,
            "address": self.address,
            "port": self.port,
            "listener": self.listener,
            "security_protocol": self.security_protocol,
            "principal": self.principal,
            "role": self.role,
            "peer_broker": self.peer_broker,
            "controller": self.is_controller,
            "connected_since": self.connected_since_ms,
            "idle_ms": self.idle_ms,
            "requests": self.requests,
            "received_bytes": self.received_bytes,
            "sent_bytes": self.sent_bytes,
            "last_api": self.last_api,
            "doing": self.doing,
            "transactional_id": self.transactional_id,
            "producing": list(self.producing),
            "more_producing": self.more_producing,
            "reading": list(self.reading),
            "more_reading": self.more_reading,
            "groups": [
                {"group": each.group, "member": each.member_id} for each in self.memberships
            ],
        }


class ClientsAdmin(AdminPart):
    """The call about connected clients."""

    async def list_clients(
        self,
        *,
        client_id: str | None = None,
        principal: str | None = None,
        address: str | None = None,
        group: str | None = None,
        topic: str | None = None,
        timeout: float | None = None,
    ) -> list[ConnectedClient]:
        """The connections of all brokers: clients by their ids, who has sent nothing, other brokers.

        All, or those with this client id, principal (`User:alice`) and address (without a port), of
        members of a group, of those who produce to a topic or read it. Unsupported where a broker is no
        Ottla, or an older one.
        """
        request = ListClientsRequest(
            client_id=client_id,
            principal=principal,
            address=address,
            group_id=group,
            topic_name=topic,
        )

        async def ask(node: int) -> list[ConnectedClient]:
            answer = await self.cluster.ask(
                request, ListClientsResponse, at=OneBroker(node), timeout=timeout
            )
            raise_for(answer.error_code, answer.error_message, "listing clients")
            return [_client(each, node) for each in answer.clients]

        listed = await self.cluster.of_every_broker(ask, timeout=timeout)
        return sorted((each for some in listed for each in some), key=_order)


def _client(listed: ListedClient, broker: int) -> ConnectedClient:
    return ConnectedClient(
        broker=broker,
        connection=listed.connection_id,
        client_id=listed.client_id,
        software_name=listed.client_software_name,
        software_version=listed.client_software_version,
        address=listed.address,
        port=listed.port,
        listener=listed.listener,
        security_protocol=listed.security_protocol,
        principal=listed.principal,
        role=_ROLES.get(listed.role, "broker"),
        peer_broker=listed.peer_broker_id if listed.peer_broker_id >= 0 else None,
        is_controller=listed.is_controller,
        connected_since_ms=listed.connected_since_ms,
        idle_ms=listed.idle_ms,
        requests=listed.requests,
        received_bytes=listed.received_bytes if listed.received_bytes >= 0 else None,
        sent_bytes=listed.sent_bytes if listed.sent_bytes >= 0 else None,
        last_api=api_name(listed.last_api_key) if listed.last_api_key >= 0 else None,
        transactional_id=listed.transactional_id,
        producing=tuple(listed.producing),
        more_producing=listed.more_producing,
        reading=tuple(listed.reading),
        more_reading=listed.more_reading,
        memberships=tuple(Membership(each.group_id, each.member_id) for each in listed.memberships),
    )


def _order(client: ConnectedClient) -> tuple[bool, bool, str, str, int, int]:
    return (
        client.role != "client",
        client.last_api is None,
        client.client_id,
        client.address,
        client.broker,
        client.connection,
    )


def _named(names: tuple[str, ...], more: int) -> str:
    rest = len(names) - _NAMED + more
    shown = ", ".join(names[:_NAMED])
    return f"{shown} and {rest:,} more" if rest > 0 else shown
