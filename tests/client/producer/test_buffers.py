"""Tables and the memory they are sent from: nothing is written over that may still be sent."""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from producer_kit.behind_meddler import meddled, meddler, topic
from producer_kit.meddler import Decision, Fate, Meddler, Produced
from producer_kit.reading import read_all

from ottla import Admin, Producer
from ottla.client.errors import DeliveryTimeout
from ottla.protocol.errors import ErrorCode
from ottla.record.columns import compile_kernels

__all__ = ["meddled", "meddler", "topic"]


@pytest.fixture(scope="module", autouse=True)
def kernels() -> None:
    assert compile_kernels()


def some_values(count: int, size: int = 1000) -> list[bytes]:
    dice = random.Random(count)
    return [dice.randbytes(size) for _ in range(count)]


@pytest.mark.parametrize(
    "decision",
    [
        Fate.LOSE_REQUEST,
        Fate.LOSE_ANSWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.MESSAGE_TOO_LARGE,
    ],
)
@pytest.mark.parametrize("batch_size", [90_000, 700_000])
def test_what_is_sent_again_is_what_was_written(
    meddler: Meddler, topic: str, decision: Decision, batch_size: int
) -> None:
    values = some_values(6000)
    fates = random.Random(1)

    def decide(produced: Produced) -> Decision:
        if decision is ErrorCode.MESSAGE_TOO_LARGE and produced.batches[0].record_count < 50:
            return Fate.FORWARD
        return decision if fates.random() < 0.2 else Fate.FORWARD

    meddler.begin(decide)
    options = {"retry_backoff_ms": 5, "retry_backoff_max_ms": 20, "buffer_memory": 4 << 20}
    with Producer(meddler.address, batch_size=batch_size, **options) as producer:
        # Several tables, so that buffers come back between them.
        for first in range(0, len(values), 1500):
            table = pa.table({"value": values[first : first + 1500]})
            assert producer.write(topic, table).result(60).records == 1500
        pool = producer._core._buffers
        assert pool is not None
        assert 0 < pool.free <= 4
    meddler.begin(lambda _: Fate.FORWARD)
    assert [each.value for each in read_all(meddler.address, topic)] == values


def test_a_half_that_has_to_be_halved_stays_before_the_other(meddler: Meddler, topic: str) -> None:
    values = [b"%06d" % number + bytes(1000) for number in range(801)]

    def decide(produced: Produced) -> Decision:
        # The whole, its first half of 400, that one's halves: not the second half of 401.
        large = produced.batches[0].record_count in (801, 400, 200)
        return ErrorCode.MESSAGE_TOO_LARGE if large else Fate.FORWARD

    meddler.begin(decide)
    with Producer(meddler.address) as producer:
        producer.send(topic, b"first").result(30)
        assert producer.write(topic, pa.table({"value": values})).result(30).records == 801
    assert [each.value for each in read_all(meddler.address, topic)] == [b"first", *values]


@pytest.mark.parametrize("largest", [60_000, 250_000])
def test_batches_that_a_topic_does_not_take_are_cut_until_it_does(
    meddler: Meddler, largest: int
) -> None:
    topic = f"cut-{uuid.uuid4().hex[:10]}"
    with Admin(meddler.address) as admin:
        admin.create_topic(topic, partitions=1, settings={"max.message.bytes": str(largest)})
    values = [b"%06d" % number + bytes(1000) for number in range(4000)]
    with Producer(meddler.address) as producer:
        assert producer.write(topic, pa.table({"value": values})).result(60).records == 4000
    assert [each.value for each in read_all(meddler.address, topic)] == values


def waiting_views(producer: Producer) -> list[memoryview]:
    """What the producer's connections have not been able to send."""
    channels: list[Any] = [each._channel for each in producer._core.sender._connections.values()]
    return [view for channel in channels for view in channel._waiting]


def test_what_timed_out_is_not_written_over_while_a_connection_has_it(
    meddler: Meddler, topic: str
) -> None:
    meddler.begin(lambda produced: Fate.HANG if produced.number else Fate.FORWARD)
    table = pa.table({"value": some_values(20_000)})
    # More than the buffers of the operating system take.
    in_flight = {"enable_idempotence": False, "max_in_flight": 100}
    producer = Producer(
        meddler.address, delivery_timeout_ms=500, socket_send_buffer_bytes=100_000, **in_flight
    )
    producer.send(topic, b"first").result(30)
    with pytest.raises(DeliveryTimeout):
        producer.write(topic, table).result(30)
    assert producer._core.accumulator.used == 0  # to the buffer's bounds they are gone …
    waiting = waiting_views(producer)
    assert sum(map(len, waiting)) > 2_000_000  # … but the connection has some of them
    before = [bytes(view) for view in waiting]
    with pytest.raises(DeliveryTimeout):
        producer.write(topic, pa.table({"value": [bytes(1000)] * 9000})).result(30)
    pool = producer._core._buffers
    assert pool is not None
    taken = [pool.take() for _ in range(pool.free + 1)]
    unsent = [np.frombuffer(view, np.uint8) for view in waiting]
    for buffer in taken:
        assert not any(np.shares_memory(buffer, each) for each in unsent)
        buffer[:] = 0xEE
    assert [bytes(view) for view in waiting] == before
    with pytest.raises((TimeoutError, DeliveryTimeout)):
        producer.close(0.1)


def test_a_sender_that_stands_still_does_not_hold_up_the_writer(
    meddler: Meddler, topic: str
) -> None:
    """He waits a moment for it to catch up, and then only for room."""
    meddler.begin(lambda produced: Fate.HANG if produced.number else Fate.FORWARD)
    producer = Producer(meddler.address)
    producer.send(topic, b"first").result(30)
    written = producer.write(topic, pa.table({"value": some_values(20_000)}))
    assert not written.done()
    assert producer._core.accumulator.used > 20_000_000
    with pytest.raises(TimeoutError):
        producer.close(0.1)


def test_a_function_is_asked_even_about_one_partition(meddler: Meddler, topic: str) -> None:
    def refuse(keys: pa.Array, count: int) -> pa.Array:
        raise ZeroDivisionError(f"{len(keys)} keys, {count} partition")

    with (
        Producer(meddler.address, partitioner=refuse) as producer,
        pytest.raises(ZeroDivisionError, match="2 keys, 1 partition"),
    ):
        producer.write(topic, pa.table({"value": [b"a", b"b"]}))


def test_tables_are_written_without_pandas() -> None:
    """Arrow imports it for many a conversion, which takes longer than to write a table."""
    script = """
        import sys
        import numpy as np
        import pyarrow as pa
        from ottla.client.producer.partitioners import checked, partitioner_for
        from ottla.client.producer.tables import by_partition, by_topic, columns_of
        from ottla.record.columns import encode_in_turn

        def column(count):
            offsets = pa.py_buffer(np.arange(count + 1, dtype=np.int32))
            valid = pa.py_buffer(np.full((count + 7) // 8, 0b01111111, np.uint8))
            data = pa.py_buffer(bytes(count))
            return pa.Array.from_buffers(pa.binary(), count, [valid, offsets, data])

        numbers = pa.Array.from_buffers(pa.int32(), 100, [None, pa.py_buffer(np.zeros(100, np.int32))])
        topics = column(100).drop_null().slice(0, 1)
        topics = pa.concat_arrays([topics] * 100)
        columns = [column(100), column(100), topics]
        batch = pa.RecordBatch.from_arrays(columns, ["key", "value", "topic"])
        columns = columns_of(batch, None, None)
        list(by_topic(columns, "t"))
        sizes = columns.sizes()
        partitions = partitioner_for("murmur2", 1000).many(columns.keys, sizes, 3, [0, 1, 2])
        assert len(checked(numbers, 100, 1)) == 100
        for _, rows in by_partition(partitions, None):
            list(encode_in_turn(columns.values, keys=columns.keys, count=columns.count, rows=rows))
        assert "pandas" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=60)
