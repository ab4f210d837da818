"""A worker: reads a topic, turns each value around, writes it to another topic, exactly once.

    python -m interop_kit.relay '{"bootstrap": ..., "group": ..., "input": ..., "output": ...,
                                   "id": ..., "open_ms": 10, "protocol": "classic" | "consumer"}'

With confluent-kafka. A record goes to the partition that it came from. Records and the offsets that
say how far the input was read are written in one transaction, which is held open for `open_ms` when
the records are in the log: there is something to interrupt. Prints {"event": "ready"}, then
{"event": "committed", "records": N} for each transaction, {"event": "aborted", "reason": ...} for those
that failed. Ends with status 3 when it was fenced: somebody else does its work.

With "gives_up" it ends with status 4 when a call takes too long, to be started anew. librdkafka 2.16
drops a broker that has left the cluster, and then waits for it for ever to send it a group's offsets,
whatever time-out it was given.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

FENCED = 3
STUCK = 4
MOST_RECORDS = 100
TIMEOUT = 30.0
LONGEST_CALL = 6.0  # of one that gives up
HEARTBEATS_IN_A_SESSION = 6
COMMON = {
    "socket.timeout.ms": 5_000,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    "retry.backoff.ms": 20,
    # librdkafka 2.16 forgets a broker that is away but keeps it as the coordinator of groups, and
    # then waits for it for ever when it sends offsets.
    "metadata.recovery.strategy": "none",
}


def tell(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def group_settings(protocol: str, session_ms: int) -> dict[str, Any]:
    """In the new protocol it is the broker who says how long a session lasts."""
    if protocol == "consumer":
        return {"group.protocol": "consumer"}
    return {
        "session.timeout.ms": session_ms,
        "heartbeat.interval.ms": session_ms // HEARTBEATS_IN_A_SESSION,
    }


def generation(metadata: bytes) -> int:
    """Out of librdkafka's text form of the group's metadata."""
    mark = b"CGMDv2:"
    assert metadata.startswith(mark), metadata
    number: int = struct.unpack_from("=i", metadata, len(mark))[0]
    return number


class Relay:
    def __init__(self, settings: dict[str, Any]) -> None:
        self._output = settings["output"]
        self._gives_up = settings.get("gives_up", False)
        self._open_seconds = settings["open_ms"] / 1000
        self._consumer = Consumer(
            {
                "bootstrap.servers": settings["bootstrap"],
                "group.id": settings["group"],
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **group_settings(settings["protocol"], 2_000),
                **COMMON,
            }
        )
        self._producer = Producer(
            {
                "bootstrap.servers": settings["bootstrap"],
                "transactional.id": settings["id"],
                "transaction.timeout.ms": 20_000,
                "linger.ms": 1,
                **COMMON,
            }
        )
        self._try(lambda: self._producer.init_transactions(TIMEOUT))
        self._consumer.subscribe([settings["input"]])
        tell("ready")

    def run(self) -> None:
        while True:
            messages = self._consumer.consume(MOST_RECORDS, 0.1)
            found = [message for message in messages if message.error() is None]
            if not found:
                continue
            metadata = self._consumer.consumer_group_metadata()
            if generation(metadata) < 0:
                continue  # the partitions were lost; whoever has them reads these records
            try:
                self._transaction(found, metadata)
            except KafkaException as problem:
                error = problem.args[0]
                if error.fatal() or not error.txn_requires_abort():
                    raise
                self._try(lambda: self._producer.abort_transaction(TIMEOUT))
                tell("aborted", reason=str(error))
                self._rewind()

    def _transaction(self, messages: list[Message], metadata: bytes) -> None:
        self._producer.begin_transaction()
        ends: dict[tuple[str, int], int] = {}
        for message in messages:
            partition = message.partition()
            self._producer.produce(self._output, message.value()[::-1], partition=partition)
            ends[message.topic(), partition] = message.offset() + 1
        self._producer.flush(TIMEOUT)
        time.sleep(self._open_seconds)
        offsets = [TopicPartition(topic, at, end) for (topic, at), end in ends.items()]
        self._try(lambda: self._producer.send_offsets_to_transaction(offsets, metadata, TIMEOUT))
        self._try(lambda: self._producer.commit_transaction(TIMEOUT))
        tell("committed", records=len(messages))

    def _rewind(self) -> None:
        """To the committed offsets, or to the start where there are none."""
        for each in self._consumer.committed(self._consumer.assignment(), TIMEOUT):
            self._consumer.seek(TopicPartition(each.topic, each.partition, max(each.offset, 0)))

    @contextmanager
    def _watched(self) -> Iterator[None]:
        watch = threading.Timer(LONGEST_CALL, os._exit, (STUCK,))
        if self._gives_up:
            watch.start()
        try:
            yield
        finally:
            watch.cancel()

    def _try(self, call: Callable[[], Any]) -> None:
        """Until it is done, or cannot be done: a broker that is away comes back."""
        while True:
            try:
                with self._watched():
                    call()
            except KafkaException as problem:
                if not problem.args[0].retriable():
                    raise
            else:
                return


def main() -> None:
    try:
        Relay(json.loads(sys.argv[1])).run()
    except KafkaException as problem:
        print(problem, file=sys.stderr, flush=True)
        if problem.args[0].fatal():
            # At once: to take leave in good order is not for one whose place is taken.
            os._exit(FENCED)
        raise


if __name__ == "__main__":
    main()
