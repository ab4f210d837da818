"""`compression.type`: batches are stored with the topic's codec, by way of worker processes."""

from __future__ import annotations

import asyncio
import os
import random
import select
import signal
import threading
from collections.abc import Callable
from functools import partial

import pytest
from server_kit.broker_thread import BrokerThread
from server_kit.calls import (
    Topic,
    batch_of,
    create_topic,
    end_offset,
    fetch,
    fill,
    now_ms,
    produce,
    produce_request,
    read_all,
    set_config,
    whole_batches,
)
from server_kit.wire import Wire

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.produce import ProduceResponse
from ottla.record.batch import (
    ATTRIBUTES_AT,
    Codec,
    Record,
    assemble,
    build_batch,
    check_batch,
    read_header,
    records,
)
from ottla.record.compression.codecs import compress

NAMES = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
# The larger one is beyond what is done on the loop: it goes to a worker process.
SIZES = {"inline": 20, "worker": 3000}


def some_records(count: int) -> list[Record]:
    at = now_ms()
    return [
        Record(each, at + each, b"key %d" % each, b"value %d " % each * 3, (("h", b"%d" % each),))
        for each in range(count)
    ]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("given", list(Codec))
def test_every_codec_to_every_codec(wire: Wire, name: str, given: Codec, size: str) -> None:
    topic = create_topic(wire, compression_type=name)
    sent = some_records(SIZES[size])
    answer = produce(wire, topic, build_batch(sent, codec=given))
    assert (answer.error_code, answer.base_offset) == (0, 0)
    (stored,) = whole_batches(fetch(wire, topic, 0).records)
    header = check_batch(stored)
    assert header.codec == NAMES[name]
    assert header.record_count == len(sent)
    assert list(records(stored)) == sent


def test_order_is_kept_over_worker_processes(wire: Wire) -> None:
    """Large and small ones in turn, pipelined: the small ones do not overtake."""
    topic = create_topic(wire, compression_type="gzip")
    sizes = [2000, 1, 1500, 1, 1, 900]
    wire.send_raw(
        b"".join(
            wire.encode(
                produce_request(topic, (0, batch_of(*(b"%d" % number for _ in range(size))))), 9
            )
            for number, size in enumerate(sizes)
        )
    )
    offset = 0
    for size in sizes:
        answer = wire.receive(ProduceResponse, 9).responses[0].partition_responses[0]
        assert (answer.error_code, answer.base_offset) == (0, offset)
        offset += size
    assert read_all(wire, topic) == [
        b"%d" % number for number, size in enumerate(sizes) for _ in range(size)
    ]


@pytest.mark.parametrize("name", ["gzip", "uncompressed"])
def test_large_batches_close_behind_each_other(
    inside: BrokerThread, connect: Callable[[], Wire], name: str
) -> None:
    """They wait in the memory that they were received in, while the next ones are received. What
    becomes of them may be smaller (gzip) or larger (unpacked) than that."""
    topics = [create_topic(connect(), compression_type=name) for _ in range(2)]
    given = Codec.NONE if name == "gzip" else Codec.GZIP
    sizes = (900_000, 300, 600_000, 950_000, 40_000, 700_000)
    values = [bytes([65 + at]) * size for at, size in enumerate(sizes)]
    if given is Codec.GZIP:
        # Hardly to be packed, so that as much comes over the wire.
        values = [random.Random(size).randbytes(size) for size in sizes]
    senders = []
    for topic in topics:
        wire = connect()
        requests = [produce_request(topic, (0, batch_of(value, codec=given))) for value in values]
        frames = b"".join(wire.encode(request, 7) for request in requests)
        sender = threading.Thread(target=wire.send_raw, args=(frames,))
        sender.start()
        senders.append((wire, sender))
    for wire, sender in senders:
        for offset in range(len(values)):
            (answer,) = wire.receive(ProduceResponse, 7).responses[0].partition_responses
            assert (answer.error_code, answer.base_offset) == (0, offset)
        sender.join()
    for topic in topics:
        assert read_all(connect(), topic) == values
    # Nothing is held for requests that are done.
    inside.until(lambda broker: all(not each.held_bytes for each in broker.reactor.connections))
    assert inside.run(lambda broker: broker.reactor.partial_bytes) == 0


def test_change_while_running(wire: Wire, topic: Topic) -> None:
    fill(wire, topic, batch_of(b"a" * 200, codec=Codec.GZIP))
    set_config(wire, topic.name, compression_type="lz4")
    fill(wire, topic, batch_of(b"b" * 200, codec=Codec.GZIP))
    set_config(wire, topic.name, compression_type="producer")
    fill(wire, topic, batch_of(b"c" * 200, codec=Codec.SNAPPY))
    stored = whole_batches(fetch(wire, topic, 0).records)
    assert [read_header(each).codec for each in stored] == [Codec.GZIP, Codec.LZ4, Codec.SNAPPY]


def test_log_append_time_and_codec(wire: Wire) -> None:
    topic = create_topic(wire, compression_type="zstd", message_timestamp_type="LogAppendTime")
    answer = produce(wire, topic, batch_of(b"a" * 99, b"b" * 99, timestamp=5))
    (stored,) = whole_batches(fetch(wire, topic, 0).records)
    assert check_batch(stored).codec == Codec.ZSTD
    assert [each.timestamp for each in records(stored)] == [answer.log_append_time_ms] * 2


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("config", [{"compression_type": "gzip"}, {"cleanup_policy": "compact"}])
def test_bad_records_under_a_right_checksum(wire: Wire, config: dict[str, str], size: str) -> None:
    """Where every record is looked at anyway, one that lies about its length is refused."""
    topic = create_topic(wire, **config)
    good = build_batch(some_records(SIZES[size]))
    payload = bytearray(good[61:])
    payload[1] = 0x7E  # attributes of the first record are unused: still good
    payload[0] ^= 0x40
    bad = assemble(read_header(good), bytes(payload))
    answer = produce(wire, topic, bad)
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert end_offset(wire, topic) == 0
    assert produce(wire, topic, good).error_code == 0


@pytest.mark.differs("Kafka answers UNKNOWN_SERVER_ERROR")
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_contents_that_cannot_be_unpacked(wire: Wire, codec: Codec) -> None:
    topic = create_topic(wire, compression_type="uncompressed")
    header = read_header(batch_of(b"a"))
    for junk in (b"", b"\0", b"junk that no codec knows" * 3):
        bad = assemble(header._replace(attributes=int(codec)), junk)
        answer = produce(wire, topic, bad)
        assert answer.error_code in (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE)
    assert end_offset(wire, topic) == 0


@pytest.mark.differs("Kafka meets the bad record in the bomb before its end")
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_bombs_are_bounded(
    wire: Wire, connect: Callable[[], Wire], codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Little on the wire, very much inside. Others are served while a worker is at it."""
    from ottla.server.disk import workers

    monkeypatch.setattr(workers, "DECOMPRESSED_LIMIT", 16 << 20)
    topic = create_topic(wire, compression_type="uncompressed")
    header = read_header(batch_of(b"a"))
    bomb = assemble(header._replace(attributes=int(codec)), compress(codec, bytes(64 << 20)))
    assert len(bomb) < 1_000_000
    wire.send(produce_request(topic, (0, bomb)), 9)
    assert end_offset(connect(), topic) == 0
    answer = wire.receive(ProduceResponse, 9).responses[0].partition_responses[0]
    assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert end_offset(wire, topic) == 0


def test_recompressed_batch_may_be_too_large(wire: Wire) -> None:
    """It is the stored size that counts."""
    topic = create_topic(wire, compression_type="uncompressed", max_message_bytes="5000")
    packed = batch_of(b"x" * 20_000, codec=Codec.GZIP)
    assert len(packed) < 500
    assert produce(wire, topic, packed).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert end_offset(wire, topic) == 0


def test_a_worker_that_dies_is_replaced(inside: BrokerThread, wire: Wire) -> None:
    """Those that have nothing to do are not missed."""
    topic = create_topic(wire, compression_type="gzip")
    large = build_batch(some_records(3000))
    fill(wire, topic, large)
    run = inside.broker.workers.run

    async def workers() -> set[int]:
        # All at once, so that no worker gets by without.
        return set(await asyncio.gather(*(run(os.getpid) for _ in range(20))))

    killed = inside.run_async(workers())
    for pid in killed:
        end = os.pidfd_open(pid)
        os.kill(pid, signal.SIGKILL)
        assert select.select([end], [], [], 30)[0]
        os.close(end)
    for _ in range(4):
        assert produce(wire, topic, large).error_code == 0
    assert not killed & inside.run_async(workers())


def test_a_worker_that_dies_over_its_job(inside: BrokerThread, wire: Wire) -> None:
    """The job is lost, and its client told so; the next one has a new worker."""
    topic = create_topic(wire, compression_type="gzip")
    run = inside.broker.workers.run
    for _ in range(3):
        with pytest.raises(OSError, match="a worker process died"):
            inside.run_async(run(partial(os._exit, 1)))
        assert produce(wire, topic, build_batch(some_records(3000))).error_code == 0


def test_what_a_job_raises_is_told(inside: BrokerThread) -> None:
    run = inside.broker.workers.run
    with pytest.raises(ZeroDivisionError):
        inside.run_async(run(partial(divmod, 1, 0)))
    # Neither a result nor an error that cannot travel stops a worker.
    with pytest.raises((TypeError, AttributeError, RuntimeError)):
        inside.run_async(run(threading.Lock))
    assert inside.run_async(run(partial(divmod, 7, 2))) == (3, 1)


def test_topic_deleted_while_a_batch_is_recompressed(
    inside: BrokerThread, wire: Wire, connect: Callable[[], Wire]
) -> None:
    from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse

    topic = create_topic(wire, compression_type="gzip")
    large = build_batch(some_records(4000))
    for _ in range(3):
        wire.send(produce_request(topic, (0, large)), 9)
    inside.until(lambda broker: bool(broker.lanes.open))
    other = connect()
    deleted = other.call(DeleteTopicsRequest(topic_names=[topic.name]), DeleteTopicsResponse, 5)
    assert deleted.responses[0].error_code == 0
    for _ in range(3):
        answer = wire.receive(ProduceResponse, 9).responses[0].partition_responses[0]
        assert answer.error_code in (
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.KAFKA_STORAGE_ERROR,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
        )
    again = create_topic(wire, name=topic.name)
    assert produce(wire, again, batch_of(b"new")).base_offset == 0
    assert read_all(wire, again) == [b"new"]


def test_attributes_keep_their_place(wire: Wire) -> None:
    """Recompression changes the codec bits and nothing else of the attributes."""
    topic = create_topic(wire, compression_type="lz4")
    sent = build_batch(some_records(5), producer_id=1, producer_epoch=2, base_sequence=3)
    fill(wire, topic, sent)
    (stored,) = whole_batches(fetch(wire, topic, 0).records)
    assert stored[ATTRIBUTES_AT : ATTRIBUTES_AT + 2] == bytes([0, Codec.LZ4])
    before, after = read_header(sent), read_header(stored)
    assert before._replace(
        attributes=0, crc=0, batch_length=0, partition_leader_epoch=0
    ) == after._replace(attributes=0, crc=0, batch_length=0, partition_leader_epoch=0)
