"""`visible.when.flushed` on one broker: seen, and acknowledged, once the sync returned."""

from __future__ import annotations

import threading
from collections.abc import Callable

from server_kit.broker_thread import BrokerThread
from server_kit.calls import (
    Topic,
    batch_of,
    create_topic,
    end_offset,
    fetch,
    fetch_request,
    produce,
    produce_request,
    set_config,
    values_of,
)

from ottla.protocol.messages.fetch import FetchResponse
from ottla.protocol.messages.produce import ProduceResponse
from ottla.server.broker import Broker


class Gate:
    """Holds the syncs of a topic's log until it is opened, and counts them."""

    def __init__(self, thread: BrokerThread, topic: Topic) -> None:
        self.open = threading.Event()
        self.syncs = 0

        def put(broker: Broker) -> None:
            log = broker.partitions.by_name[topic.name][0].log
            files = log.files
            sync = files.fsync

            def fsync(fd: int) -> None:
                self.syncs += 1
                assert self.open.wait(60)
                sync(fd)

            files.fsync = fsync  # type: ignore[method-assign]

        thread.run(put)

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        self.open.set()


def test_seen_and_acknowledged_after_the_sync(start_broker: Callable[..., BrokerThread]) -> None:
    broker = start_broker()
    with broker.wire() as wire, broker.wire() as writer, broker.wire() as reader:
        topic = create_topic(wire, **{"visible.when.flushed": "true"})
        assert produce(wire, topic, batch_of(b"first"), acks=-1).error_code == 0
        with Gate(broker, topic) as gate:
            for acks in (-1, 1):
                writer.send(produce_request(topic, (0, batch_of(b"%d" % acks)), acks=acks), 9)
            reader.send(fetch_request(topic, (0, 1), max_wait_ms=60_000), 12)
            broker.until(lambda running: gate.syncs > 0 and len(running.waiting_fetches) > 0)
            assert end_offset(wire, topic) == 1
            assert not fetch(wire, topic, 1).records
        for _ in range(2):
            answer = writer.receive(ProduceResponse, 9)
            assert answer.responses[0].partition_responses[0].error_code == 0
        seen = reader.receive(FetchResponse, 12).responses[0].partitions[0]
        assert values_of(seen.records)[:1] == [b"-1"]
        assert end_offset(wire, topic) == 3


def test_many_producers_share_a_sync(start_broker: Callable[..., BrokerThread]) -> None:
    broker = start_broker()
    with broker.wire() as wire:
        topic = create_topic(wire, **{"visible.when.flushed": "true"})
        produce(wire, topic, batch_of(b"first"), acks=-1)
        writers = [broker.wire() for _ in range(20)]
        with Gate(broker, topic) as gate:
            for writer in writers:
                writer.send(produce_request(topic, (0, batch_of(b"x")), acks=-1), 9)
            broker.until(
                lambda running: running.partitions.by_name[topic.name][0].log.log_end_offset == 21
            )
        for writer in writers:
            answer = writer.receive(ProduceResponse, 9)
            assert answer.responses[0].partition_responses[0].error_code == 0
            writer.close()
        # One that was under way, and one for all the others; a file of data and an index each.
        assert gate.syncs <= 6
        assert end_offset(wire, topic) == 21


def test_it_can_be_switched_on_and_off(start_broker: Callable[..., BrokerThread]) -> None:
    broker = start_broker()
    with broker.wire() as wire:
        topic = create_topic(wire)
        assert produce(wire, topic, batch_of(b"a")).error_code == 0
        set_config(wire, topic.name, **{"visible.when.flushed": "true"})
        assert produce(wire, topic, batch_of(b"b"), acks=-1).error_code == 0
        assert end_offset(wire, topic) == 2
        with Gate(broker, topic):
            set_config(wire, topic.name, **{"visible.when.flushed": "false"})
            assert produce(wire, topic, batch_of(b"c"), acks=-1).error_code == 0
            assert end_offset(wire, topic) == 3
