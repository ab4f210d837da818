"""A producer that waits for each of its records, and hands on what the broker says, word for word.

Clients hide much of that: librdkafka tries a record again, however few retries it may make, when it is
told of another leader.
"""

from __future__ import annotations

import socket
import time
from typing import Final, TypeVar

from cluster_kit.history import Outcome, Write
from cluster_kit.scene import Brokers
from cluster_kit.workload import Workload
from ottla.protocol.errors import ErrorCode
from ottla.protocol.frame import encode_request, parse_response_header
from ottla.protocol.message import Message
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.record.batch import Record, build_batch

# Flexible, topics by name.
_PRODUCE_VERSION: Final = 9
_FETCH_VERSION: Final = 12
_ANSWER_SECONDS: Final = 30.0
_REQUEST_MS: Final = 2000

R = TypeVar("R", bound=Message)


class Writer:
    """Writes to one partition: one record after the other, none of them twice. It knows the leader
    that it found first, and asks nobody else before it is told to (`look`)."""

    def __init__(
        self, scene: Brokers, workload: Workload, name: str, *, acks: int, partition: int = 0
    ) -> None:
        self.leader = -1
        self._scene = scene
        self._workload = workload
        self._name = name
        self._acks = acks
        self._partition = partition
        self._number = 0
        self._connection: socket.socket | None = None
        self.look()

    def look(self) -> None:
        """Finds the leader that there is now."""
        self.close()
        self.leader = self._scene.leader(self._partition)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def write(self, *, durable: bool = True) -> ErrorCode:
        """What the broker says. `durable`: if it acknowledges the record, that has to be there in the
        end."""
        write = Write(self._name, self._partition, self._number, durable=durable)
        self._number += 1
        self._workload.history.began(write)
        (answer,) = self._ask(write).responses[0].partition_responses
        error = ErrorCode(answer.error_code)
        if error is ErrorCode.NONE:
            write.offset, write.outcome = answer.base_offset, Outcome.ACKNOWLEDGED
        else:
            write.error = error.name
        return error

    def _ask(self, write: Write) -> ProduceResponse:
        batch = build_batch([Record(0, _now_ms(), None, write.value.encode())])
        data = PartitionProduceData(index=self._partition, records=batch)
        request = ProduceRequest(
            acks=self._acks,
            timeout_ms=_REQUEST_MS,
            topic_data=[TopicProduceData(name=self._workload.topic, partition_data=[data])],
        )
        return self._call(request, ProduceResponse, _PRODUCE_VERSION)

    def high_watermark(self) -> int:
        """Up to where the leader lets consumers read."""
        place = FetchPartition(partition=self._partition, fetch_offset=0, partition_max_bytes=1)
        request = FetchRequest(
            max_bytes=1, topics=[FetchTopic(topic=self._workload.topic, partitions=[place])]
        )
        answer = self._call(request, FetchResponse, _FETCH_VERSION)
        (found,) = answer.responses[0].partitions
        assert found.error_code == 0, ErrorCode(found.error_code)
        return found.high_watermark

    def _call(self, request: Message, response: type[R], version: int) -> R:
        if self._connection is None:
            host, _, port = self._scene.address(self.leader).rpartition(":")
            self._connection = socket.create_connection((host, int(port)), _ANSWER_SECONDS)
        self._connection.sendall(encode_request(request, version, 1, self._name))
        with self._connection.makefile("rb") as received:
            frame = received.read(int.from_bytes(received.read(4), "big"))
        _, at = parse_response_header(frame, 0, flexible=True)
        answer, _ = response.decode(frame, at, version)
        return answer


class Writers:
    """One for each partition."""

    def __init__(self, scene: Brokers, workload: Workload, name: str, *, acks: int) -> None:
        self._writers = [
            Writer(scene, workload, name, acks=acks, partition=each) for each in workload.partitions
        ]

    def write(self, *, durable: bool = True) -> set[ErrorCode]:
        """What the brokers say to a record for each partition."""
        return {each.write(durable=durable) for each in self._writers}

    def high_watermarks(self) -> list[int]:
        return [each.high_watermark() for each in self._writers]

    def look(self) -> None:
        for each in self._writers:
            each.look()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
