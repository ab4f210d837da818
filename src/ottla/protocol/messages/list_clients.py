"""ListClients: who is connected to a broker, and what they do. An API of Ottla's own."""

from __future__ import annotations

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Part,
    String,
)


class ListClientsRequest(Message, api_key=ApiKey.LIST_CLIENTS, versions=(0, 0), flexible_since=0):
    # Only connections that fit all of these; null fits every one.
    client_id: String | None = None
    # As in entries of access control: "User:alice".
    principal: String | None = None
    # Without a port.
    address: String | None = None
    # Of which it is a member.
    group_id: String | None = None
    # To which it produces, or which it reads.
    topic_name: String | None = None


class ClientMembership(Part):
    group_id: String = ""
    member_id: String = ""


class ConnectedClient(Part):
    # No other connection of this broker has it, until the broker is started anew.
    connection_id: Int64 = 0
    client_id: String = ""
    # As the client told them in ApiVersions (v3 and later); else empty.
    client_software_name: String = ""
    client_software_version: String = ""
    address: String = ""
    port: Int32 = 0
    listener: String = ""
    security_protocol: String = ""
    principal: String = ""
    # 0: a client; 1: another broker; 2: another broker, which follows leaders here.
    role: Int8 = 0
    # The number of that broker, else -1.
    peer_broker_id: Int32 = -1
    # That broker is the cluster's controller.
    is_controller: Bool = False
    # In milliseconds since 1970.
    connected_since_ms: Int64 = 0
    # For how long nothing has come from it.
    idle_ms: Int64 = 0
    requests: Int64 = 0
    # On the wire, with what TLS adds; -1: the operating system does not count them.
    received_bytes: Int64 = -1
    sent_bytes: Int64 = -1
    # Of its last request, -1 if there was none.
    last_api_key: Int16 = -1
    transactional_id: String | None = None
    # Topics to which it has produced since it connected, and how many more there are.
    producing: list[String] = EMPTY
    more_producing: Int32 = 0
    # Topics that its last Fetch, or its fetch session, asked for, and how many more there are.
    reading: list[String] = EMPTY
    more_reading: Int32 = 0
    memberships: list[ClientMembership] = EMPTY


class ListClientsResponse(Message, api_key=ApiKey.LIST_CLIENTS, versions=(0, 0), flexible_since=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    # Who answers.
    broker_id: Int32 = 0
    clients: list[ConnectedClient] = EMPTY
