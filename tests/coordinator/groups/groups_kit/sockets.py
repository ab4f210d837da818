"""A broker behind sockets as the target of scenarios, one connection for each client of a scenario."""

from __future__ import annotations

import select
import time

from server_kit.wire import Wire

from groups_kit.scenarios import TOPICS, UNKNOWN, WAITS
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)


class Sockets:
    def __init__(
        self, host: str, port: int, patience: float = 0.0, *, loading: bool = False
    ) -> None:
        """`patience`: seconds to wait for an answer of which the scenario says nothing.

        `loading`: the coordinator may still be loading its groups, which are waited for.
        """
        self._address = host, port
        self._patience = patience
        self._clients: dict[str, Wire] = {}
        self._pending: dict[str, tuple[type[Message], int]] = {}
        self._topic_ids: dict[str, bytes] = {}
        if loading:
            wait_until_loaded(self._wire("metadata"))

    def _wire(self, client: str) -> Wire:
        if client not in self._clients:
            wire = self._clients[client] = Wire(*self._address)
            # Known to the broker from here on: requests are handled in the order they were sent.
            wire.call(ApiVersionsRequest(), ApiVersionsResponse, 0)
        return self._clients[client]

    def send(self, client: str, request: Message, response: type[Message], version: int) -> None:
        assert client not in self._pending, f"{client} still waits for an answer"
        self._wire(client).send(request, version, client)
        self._pending[client] = response, version

    def answer(self, client: str, expected: str) -> Message | None:
        wire = self._wire(client)
        if expected in (WAITS, UNKNOWN):
            # Long enough that the next client's request does not overtake this one.
            patience = self._patience if expected == UNKNOWN else 0.05
            if not select.select([wire.sock], [], [], patience)[0]:
                return None
        return wire.receive(*self._pending.pop(client))

    def sleep(self, milliseconds: int) -> None:
        time.sleep(milliseconds / 1000)

    def topic_id(self, name: str) -> bytes:
        if name not in TOPICS:
            return b"\1" * 16
        if name not in self._topic_ids:
            wanted = [MetadataRequestTopic(name=name)]
            answer = self._wire("metadata").call(
                MetadataRequest(topics=wanted, allow_auto_topic_creation=False),
                MetadataResponse,
                12,
            )
            self._topic_ids[name] = answer.topics[0].topic_id
        return self._topic_ids[name]

    def close(self) -> None:
        for wire in self._clients.values():
            wire.close()


def wait_until_loaded(wire: Wire) -> None:
    """Ask until every shard answers."""
    deadline = time.monotonic() + 30
    while wire.call(ListGroupsRequest(), ListGroupsResponse, 4).error_code:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def prepare(host: str, port: int) -> None:
    """Topics and a coordinator that answers."""
    with Wire(host, port) as wire:
        topics = [
            CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
            for name, partitions in TOPICS.items()
        ]
        created = wire.call(CreateTopicsRequest(topics=topics), CreateTopicsResponse, 5)
        allowed = {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}
        assert {topic.error_code for topic in created.topics} <= allowed, created
        deadline = time.monotonic() + 30
        while True:
            found = wire.call(FindCoordinatorRequest(key="any"), FindCoordinatorResponse, 2)
            if found.error_code == ErrorCode.NONE:
                break
            assert time.monotonic() < deadline, found
            time.sleep(0.1)
