"""Requests and responses about one partition are packed and read as the message classes do it."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol.message import MalformedMessage
from ottla.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    ReplicaState,
)
from ottla.protocol.one_partition_fetch import (
    FIRST_REQUEST_VERSION,
    FIRST_RESPONSE_VERSION,
    OnePartition,
    pack_response,
    read_response,
    template_of,
)

TOPIC_ID = bytes(range(16))
NEWEST = FetchRequest.versions[1]
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


def request(epoch: int = 5, offset: int = 7, **changes: Any) -> FetchRequest:
    partition = FetchPartition(
        partition=3,
        current_leader_epoch=2,
        fetch_offset=offset,
        last_fetched_epoch=2,
        log_start_offset=0,
        partition_max_bytes=1 << 20,
    )
    return FetchRequest(
        **{
            "replica_state": ReplicaState(replica_id=1, replica_epoch=9),
            "max_wait_ms": 500,
            "min_bytes": 1,
            "session_id": 77,
            "session_epoch": epoch,
            "topics": [FetchTopic(topic_id=TOPIC_ID, partitions=[partition])],
            **changes,
        }
    )


def response(records: bytes = b"records", **changes: Any) -> FetchResponse:
    data = PartitionData(
        **{
            "partition_index": 3,
            "high_watermark": 10,
            "last_stable_offset": 9,
            "log_start_offset": 1,
            "aborted_transactions": None,
            "records": records,
            **changes,
        }
    )
    topic = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[data])
    return FetchResponse(session_id=77, responses=[topic])


@pytest.mark.parametrize("version", range(FIRST_REQUEST_VERSION, NEWEST + 1))
@given(epoch=st.integers(1, (1 << 31) - 1), offset=INT64)
def test_requests_are_filled_in(version: int, epoch: int, offset: int) -> None:
    first, other = request(), request(epoch, offset)
    template = template_of(first.encode(version), version, first)
    assert template is not None
    assert template.filled(epoch, offset) == other.encode(version)
    assert template.places_of(other.encode(version)) == (epoch, offset)


@pytest.mark.parametrize("version", range(FIRST_REQUEST_VERSION, NEWEST + 1))
def test_whatever_else_differs_makes_another_request(version: int) -> None:
    first = request()
    body = first.encode(version)
    template = template_of(body, version, first)
    assert template is not None
    for at in range(len(body)):
        changed = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
        is_a_place = 17 <= at < 21 or 47 <= at < 55
        assert (template.places_of(changed) is not None) == is_a_place
        assert template.places_of(body[:at]) is None
    assert template.places_of(body + b"\0") is None


def test_only_requests_about_one_partition_of_a_session_have_a_template() -> None:
    (topic,) = request().topics
    others = [
        request(epoch=0),
        request(epoch=-1),
        request(topics=[]),
        request(topics=[topic, topic]),
        request(topics=[FetchTopic(topic_id=TOPIC_ID, partitions=2 * topic.partitions)]),
    ]
    for each in others:
        assert template_of(each.encode(NEWEST), NEWEST, each) is None
    old = request(replica_state=None)
    version = FIRST_REQUEST_VERSION - 1
    assert template_of(old.encode(version), version, old) is None


@pytest.mark.parametrize("version", range(FIRST_RESPONSE_VERSION, NEWEST + 1))
@given(
    numbers=st.tuples(INT32, st.binary(min_size=16, max_size=16), INT32, INT64, INT64, INT64),
    size=st.sampled_from([1, 2, 125, 126, 127, 16_382, 16_383, 70_000]),
)
def test_responses_are_packed(version: int, numbers: tuple[Any, ...], size: int) -> None:
    about = OnePartition(*numbers)
    records = b"r" * size
    message = response(
        records,
        partition_index=about.partition,
        high_watermark=about.high_watermark,
        last_stable_offset=about.last_stable_offset,
        log_start_offset=about.log_start_offset,
    )
    message.session_id = about.session_id
    message.responses[0].topic_id = about.topic_id
    before, after = pack_response(about, size)
    assert before + records + after == message.encode(version)
    assert read_response(b"head" + message.encode(version), 4) == (about, records)


def replace(message: Any, **changes: Any) -> Any:
    other = copy(message)
    for name, value in changes.items():
        setattr(other, name, value)
    return other


def others() -> Iterator[FetchResponse]:
    """Responses of which there is more to say."""
    good = response()
    yield FetchResponse(session_id=77)
    yield FetchResponse(error_code=70)
    yield replace(good, throttle_time_ms=1)
    yield replace(good, error_code=1)
    yield replace(good, responses=2 * good.responses)
    yield replace(good, node_endpoints=[NodeEndpoint(node_id=1, host="h", port=1, rack=None)])
    (topic,) = good.responses
    yield replace(good, responses=[replace(topic, partitions=2 * topic.partitions)])
    yield replace(good, responses=[replace(topic, partitions=[])])
    yield response(error_code=1)
    yield response(aborted_transactions=[])
    yield response(aborted_transactions=[AbortedTransaction(producer_id=1, first_offset=2)])
    yield response(preferred_read_replica=1)
    yield response(diverging_epoch=EpochEndOffset(epoch=1, end_offset=2))
    yield response(current_leader=LeaderIdAndEpoch(leader_id=1, leader_epoch=2))
    yield response(records=None)


def test_other_responses_are_left_alone() -> None:
    for each in others():
        assert read_response(each.encode(NEWEST), 0) is None, each


def test_what_is_read_is_what_the_class_reads() -> None:
    """With any byte changed, and cut anywhere: never more than there is, and never something else."""
    body = response(b"r" * 200).encode(NEWEST)
    for at in range(len(body)):
        assert read_response(body[:at], 0) is None
        for value in (0, 1, 2, 0x7F, 0x80, 0xFF):
            changed = body[:at] + bytes([value]) + body[at + 1 :]
            found = read_response(changed, 0)
            if found is None:
                continue
            decoded, end = FetchResponse.decode(changed, 0, NEWEST)
            about, records = found
            assert end == len(changed)
            ((data,),) = (topic.partitions for topic in decoded.responses)
            assert about == (
                decoded.session_id,
                decoded.responses[0].topic_id,
                data.partition_index,
                data.high_watermark,
                data.last_stable_offset,
                data.log_start_offset,
            )
            assert records == data.records
    for size in (b"\xff" * 5, b"\xff" * 4, b"\x80\x80\x80\x80\x10"):
        with pytest.raises(MalformedMessage):
            FetchResponse.decode(body[:63] + size + body[65:], 0, NEWEST)
        assert read_response(body[:63] + size + body[65:], 0) is None
