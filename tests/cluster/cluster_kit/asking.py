"""What one broker, and no other, says of the cluster.

Clients ask whichever broker they are connected to. A broker that was cut off may tell of a leader that
was replaced long ago, so a test that waits for the whole cluster has to hear each of them.
"""

from __future__ import annotations

import socket
from typing import Final, NamedTuple

from ottla.protocol.frame import encode_request, parse_response_header
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)

_VERSION: Final = 9  # flexible, with leader epochs, topics by name
_TIMEOUT: Final = 2.0


class Seen(NamedTuple):
    """A partition as a broker knows it."""

    leader: int  # -1: there is none
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: frozenset[int]


class View(NamedTuple):
    """What a broker knows."""

    controller: int  # -1: there is none
    partitions: dict[int, Seen]  # of the topic that was asked for; none if it is not known


def ask(address: str, topic: str) -> View | None:
    """What the broker at HOST:PORT answers; None if it does not, or not soon."""
    try:
        answer = _call(address, topic)
    except (OSError, EOFError):
        return None
    (found,) = answer.topics
    return View(
        answer.controller_id,
        {
            each.partition_index: Seen(
                each.leader_id,
                each.leader_epoch,
                tuple(each.replica_nodes),
                frozenset(each.isr_nodes),
            )
            for each in found.partitions
        },
    )


def _call(address: str, topic: str) -> MetadataResponse:
    host, _, port = address.rpartition(":")
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
    )
    with socket.create_connection((host, int(port)), _TIMEOUT) as connection:
        connection.sendall(encode_request(request, _VERSION, 1, "tests"))
        with connection.makefile("rb") as received:
            frame = _exactly(received.read(4), 4)
            size = int.from_bytes(frame, "big")
            frame = _exactly(received.read(size), size)
    _, at = parse_response_header(frame, 0, flexible=True)
    answer, _ = MetadataResponse.decode(frame, at, _VERSION)
    return answer


def _exactly(read: bytes, size: int) -> bytes:
    if len(read) < size:
        raise EOFError("the broker closed the connection")
    return read
