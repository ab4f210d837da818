"""The batch validator and the readers after it, with bad batches that have a right checksum."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from fuzz_kit import batches
from fuzz_kit.batches import any_records, good_batch, lying_header, message_set, with_checksum
from fuzz_kit.harness import Harness, Misbehaviour
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.protocol.frame import encode_request
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.record.batch import Codec, check_batch, check_produced, headers, records
from ottla.record.compression.recompress import recompress
from ottla.record.errors import InvalidBatch
from ottla.record.legacy import downgrade, messages, upgrade
from ottla.record.validation.findings import Rules
from ottla.server.disk import worker_jobs as jobs

LIMIT = 1 << 20

many = settings(
    deadline=None,
    derandomize=True,
    max_examples=15 * settings.default.max_examples,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

# Everything that looks into bytes from outside. Each returns, or says what is wrong.
READERS: dict[str, Callable[[bytes], Any]] = {
    "check_batch": check_batch,
    "check_produced": check_produced,
    "headers": lambda data: list(headers(data)),
    "records": lambda data: list(records(data, LIMIT)),
    "recompress": lambda data: recompress(data, Codec.GZIP, None, LIMIT),
    "check": lambda data: jobs.check_produced_batch(data, Rules(True, True), 0, LIMIT),
    "messages": lambda data: list(messages(data, LIMIT)),
    "messages, last one cut": lambda data: list(messages(data, LIMIT, partial=True)),
    "upgrade": lambda data: upgrade(data, LIMIT),
    "downgrade to 0": lambda data: downgrade(data, 0, 0, LIMIT),
    "downgrade to 1": lambda data: downgrade(data, 1, 3, LIMIT),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", ["any", "lying", "old"])
def test_readers_refuse_or_return(reader: str, kind: str) -> None:
    make = {"any": any_records, "lying": lying_header, "old": message_set}[kind]
    seed = zlib.crc32(f"{reader} {kind}".encode())
    dice = random.Random(seed)
    for number in range(1000):
        data = make(dice) or b""
        try:
            READERS[reader](data)
        except InvalidBatch:
            pass
        except Exception as error:
            raise Misbehaviour(f"seed {seed}, input {number}: {data.hex()}") from error


@many
@given(
    seed=st.integers(0, 1000),
    at=st.integers(0, 400),
    junk=st.binary(min_size=1, max_size=8),
    right=st.booleans(),
)
def test_one_change_to_a_good_batch(seed: int, at: int, junk: bytes, right: bool) -> None:
    """With a wrong checksum nothing passes that was changed after the checksum."""
    good = good_batch(random.Random(seed))
    at %= len(good)
    data = bytearray(good)
    data[at : at + len(junk)] = junk[: len(data) - at]
    changed = with_checksum(data) if right else bytes(data)
    try:
        check_produced(changed)
    except InvalidBatch:
        return
    if not right and changed[21:] != good[21:]:
        raise AssertionError("a batch passed that its checksum does not cover")


def produce(data: bytes | None, topic: str, version: int = 9) -> bytes:
    request = ProduceRequest(
        acks=1,
        timeout_ms=1000,
        topic_data=[
            TopicProduceData(
                name=topic, partition_data=[PartitionProduceData(index=2, records=data)]
            )
        ],
    )
    return encode_request(request, version, 1, "batches")


def readers_of(topic: str) -> list[bytes]:
    """Requests that make the broker look into what is stored, in every way it knows."""
    fetches = [
        encode_request(
            FetchRequest(
                topics=[
                    FetchTopic(
                        topic=topic,
                        partitions=[FetchPartition(partition=2, partition_max_bytes=100_000)],
                    )
                ]
            ),
            version,
            2,
            "batches",
        )
        for version in (0, 2, 3, 12)
    ]
    offsets = [
        encode_request(
            ListOffsetsRequest(
                topics=[
                    ListOffsetsTopic(
                        name=topic,
                        partitions=[ListOffsetsPartition(partition_index=2, timestamp=timestamp)],
                    )
                ]
            ),
            7,
            3,
            "batches",
        )
        for timestamp in (0, 1, 1 << 40, -3)
    ]
    return fetches + offsets


@pytest.mark.parametrize("inputs", [250, pytest.param(1000, marks=pytest.mark.long)])
@pytest.mark.parametrize("topic", ["plain", "packed", "unpacked", "compacted", "stamped"])
@pytest.mark.parametrize("version", [2, 9])
def test_whatever_is_stored_can_be_served(
    harness: Harness, topic: str, version: int, inputs: int
) -> None:
    """Batches as they come, then every way of reading; the broker finds fault with none of it."""
    seed = zlib.crc32(f"{topic} {version}".encode())
    dice = random.Random(seed)
    kinds = [message_set] if version == 2 else [batches.lying_records, lying_header, any_records]
    stored = 0
    for number in range(inputs):
        data = dice.choice(kinds)(dice)
        try:
            (answer,) = harness.feed(produce(data, topic, version))
            decoded, _ = ProduceResponse.decode(answer, 5 if version >= 9 else 4, version)
            stored += not decoded.responses[0].partition_responses[0].error_code
            if number % 50 == 0:
                for request in readers_of(topic):
                    harness.feed(request)
            harness.check_complaints()
        except Exception as error:
            raise Misbehaviour(f"seed {seed}, input {number}: {(data or b'').hex()}") from error
    assert stored > 10, "none of it came through: the test tests little"
    assert harness.verify_logs() >= stored
