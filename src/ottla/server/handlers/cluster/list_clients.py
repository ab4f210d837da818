"""ListClients: the connections of this broker, whose they are, and what they do. Ottla's own API.

- Each broker tells of its own connections: whoever wants all asks all brokers.
- It needs DESCRIBE on the cluster, which shows topics and groups, too, as other lists do.
- Requests write down next to nothing for it (`Activity`). The rest is found out when somebody asks:
  which of the topics are there and may be read, whether a member is still one.
- A connection reads what its last Fetch asked for; it produces to what it has produced to since it
  connected. It is the member of a group if the member has spoken on it and this broker coordinates the
  group. Consumers of most clients have one connection for their group and others to read.
- Another broker is one that comes by the inter-broker listener, calls itself so and may be one
  (CLUSTER_ACTION, if there is an authorizer).
- Connections that have not proved who they are yet are listed as well.
- Ids and names that clients choose are cut off after LONGEST_NAME characters, topics counted beyond
  TOPICS_SHOWN, so that no client makes the list too long for others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import islice
from typing import TYPE_CHECKING, Final

from ottla.protocol.acls import AclOperation, AclResource
from ottla.protocol.messages.list_clients import (
    ClientMembership,
    ConnectedClient,
    ListClientsRequest,
    ListClientsResponse,
)
from ottla.server.api import Outcome, Request, handles
from ottla.server.network.traffic import bytes_sent_and_received
from ottla.server.quotas.usage import is_broker
from ottla.server.security.addresses import of_connection, plain_address
from ottla.server.sessions import FetchSession
from ottla.server.turns import ITEMS_IN_A_STEP, Steps, in_order

if TYPE_CHECKING:
    from ottla.protocol.messages.fetch import FetchTopic
    from ottla.server.broker import Broker
    from ottla.server.network.connection import Connection

# What a client may choose is up to 32 kB long.
LONGEST_NAME: Final = 255
# Of one connection, to produce to and to read.
TOPICS_SHOWN: Final = 100

_UUID_BYTES: Final = 16
# How brokers call themselves (`Peers`).
_BROKER: Final = re.compile(r"broker-([0-9]{1,9})-", re.ASCII)


class Role(IntEnum):
    CLIENT = 0
    BROKER = 1
    FOLLOWER = 2


@handles(ListClientsRequest, versions=(0, 0))
def list_clients(request: Request[ListClientsRequest]) -> Steps[Outcome]:
    broker = request.broker
    listing = _Listing(broker, request.message)
    response = ListClientsResponse(broker_id=broker.id)
    # Others come and go while this one has not its turn.
    for connection in list(broker.reactor.connections):
        yield
        client = yield from listing.client(connection)
        if client is not None:
            response.clients.append(client)
    return response


class _Listing:
    def __init__(self, broker: Broker, wanted: ListClientsRequest) -> None:
        self._broker = broker
        self._wanted = wanted
        self._address = None if wanted.address is None else plain_address(wanted.address)
        self._protocols = {each.name: each.protocol for each in broker.config.listeners}

    def client(self, connection: Connection) -> Steps[ConnectedClient | None]:
        """The connection as it is told; None if it is not wanted, or closed."""
        wanted = self._wanted
        role, number = self._role(connection)
        client_id = connection.client_id
        if role is not Role.CLIENT:
            # That of a request which is passed on says for whom, too.
            client_id = client_id.partition(" ")[0]
        host, _, port = connection.address.rpartition(":")
        host = of_connection(host)
        if (
            wanted.client_id not in (None, client_id)
            or wanted.principal not in (None, connection.principal)
            or self._address not in (None, host)
        ):
            return None
        memberships = self._memberships(connection)
        if wanted.group_id is not None and all(each[0] != wanted.group_id for each in memberships):
            return None
        produced = yield from self._produced(connection)
        read = yield from self._read(connection, role)
        topic = wanted.topic_name
        if topic is not None and topic not in produced and topic not in read:
            return None
        producing = yield from _first(produced)
        reading = yield from _first(read)
        if connection.closed:
            return None
        sent, received = bytes_sent_and_received(connection.sock)
        transactional_id = connection.activity.transactional_id
        last_api = connection.last_api
        return ConnectedClient(
            connection_id=connection.id,
            client_id=_cut(client_id),
            client_software_name=_cut(connection.software_name),
            client_software_version=_cut(connection.software_version),
            address=host,
            port=int(port),
            listener=connection.listener.name,
            security_protocol=self._protocols.get(connection.listener.name, ""),
            principal=_cut(connection.principal),
            role=role,
            peer_broker_id=number,
            is_controller=number >= 0 and number == self._broker.image.controller_id,
            connected_since_ms=int(connection.connected_at * 1000),
            idle_ms=max(0, int((self._broker.loop.time() - connection.active_at) * 1000)),
            requests=connection.requests,
            received_bytes=received,
            sent_bytes=sent,
            last_api_key=-1 if last_api is None else last_api.key,
            transactional_id=None if transactional_id is None else _cut(transactional_id),
            producing=producing,
            more_producing=len(produced) - len(producing),
            reading=reading,
            more_reading=len(read) - len(reading),
            memberships=[
                ClientMembership(group_id=_cut(group), member_id=_cut(member))
                for group, member in memberships
            ],
        )

    def _role(self, connection: Connection) -> tuple[Role, int]:
        """What the peer is, and its number if it is a broker (-1 if it does not say)."""
        if not is_broker(self._broker, connection):
            return Role.CLIENT, -1
        replica_id = connection.activity.replica_id
        if replica_id >= 0:
            return Role.FOLLOWER, replica_id
        number = _BROKER.match(connection.client_id)
        return Role.BROKER, -1 if number is None else int(number[1])

    def _memberships(self, connection: Connection) -> list[tuple[str, str]]:
        members = []
        for group_id, member_id in connection.activity.memberships or ():
            held = self._broker.groups.serving(group_id)
            if held is not None and held.shard.has_member(group_id, member_id):
                members.append((group_id, member_id))
        return members

    def _produced(self, connection: Connection) -> Steps[dict[str, None]]:
        names: dict[str, None] = {}
        for key in list(connection.activity.produced or ()):
            yield
            name = self._name_of_id(key) if len(key) == _UUID_BYTES else None
            if name is None and key in self._broker.partitions.by_raw_name:
                name = key.decode()
            if name is not None:
                names[name] = None
        return names

    def _read(self, connection: Connection, role: Role) -> Steps[dict[str, None]]:
        authorizer = self._broker.authorizer
        access = None
        if authorizer is not None and role is Role.CLIENT:
            # Not at the start of a broker that has none.
            from ottla.server.security.access import Access

            access = Access(authorizer, connection)
        names: dict[str, None] = {}
        for topic in (yield from _topics_of(connection.activity.reading)):
            yield
            name = topic if isinstance(topic, str) else self._name_of_id(topic)
            if name is None or name not in self._broker.partitions.by_name:
                continue
            if access is None or access.may(
                AclOperation.READ, AclResource.TOPIC, name, logged=False
            ):
                names[name] = None
        return names

    def _name_of_id(self, topic_id: bytes) -> str | None:
        topic = self._broker.image.topics_by_id.get(topic_id)
        return None if topic is None else topic.name


def _topics_of(reading: FetchSession | Sequence[FetchTopic]) -> Steps[dict[str | bytes, None]]:
    """Topics by their names or ids."""
    topics: dict[str | bytes, None] = {}
    if isinstance(reading, FetchSession):
        # It changes with each request.
        keys = list(reading.partitions)
        for first in range(0, len(keys), ITEMS_IN_A_STEP):
            topics.update(dict.fromkeys([key[0] for key in keys[first : first + ITEMS_IN_A_STEP]]))
            yield
        return topics
    for first in range(0, len(reading), ITEMS_IN_A_STEP):
        some = reading[first : first + ITEMS_IN_A_STEP]
        topics.update(dict.fromkeys([each.topic or each.topic_id for each in some]))
        yield
    return topics


def _first(names: Iterable[str]) -> Steps[list[str]]:
    """Those that are shown, in order."""
    return list(islice((yield from in_order(names)), TOPICS_SHOWN))


def _cut(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}…"
