"""The class system: construction, defaults, absent fields, nulls, tags, records."""

from __future__ import annotations

import copy

import pytest

from ottla.protocol.apis import ApiKey
from ottla.protocol.message import (
    EMPTY,
    ZERO_UUID,
    Bool,
    Int16,
    Int32,
    Int64,
    MalformedMessage,
    Message,
    Part,
    Records,
    String,
    UnencodableMessage,
    Uuid,
    field,
    uuid_from_text,
    uuid_text,
)
from ottla.protocol.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatResponse,
)
from ottla.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from ottla.protocol.records.consumer_group import (
    ClassicMemberMetadata,
    ConsumerGroupMemberMetadataValue,
)


class Inner(Part):
    number: Int32 = -1
    flag: Bool = field(default=False, since=2, ignorable=True)


class Example(Message, api_key=ApiKey.FETCH, versions=(0, 3), flexible_since=2):
    name: String = ""
    nick: String | None = field(default=None, since=1)
    old: Int16 = field(default=7, until=1)
    inner: Inner = EMPTY
    inners: list[Inner] | None = field(default=EMPTY, nullable_since=3)
    topic_id: Uuid = field(default=ZERO_UUID, since=3, ignorable=True)
    late: Int64 = field(default=-1, since=2, tag=5)
    payload: Records | None = field(default=None, since=1, ignorable=True)


def test_construction_fills_in_defaults() -> None:
    first, second = Example(), Example()
    assert (first.name, first.nick, first.old, first.late) == ("", None, 7, -1)
    assert first.inners == []
    assert first.inners is not second.inners
    assert first.inner == Inner()
    assert first.inner is not second.inner
    assert Example(name="x", late=3).late == 3


def test_construction_refuses_strangers() -> None:
    with pytest.raises(TypeError, match="unknown"):
        Example(unknown=1)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        Example().unknown = 1  # type: ignore[attr-defined]


def test_class_facts() -> None:
    assert Example.api_key == ApiKey.FETCH
    assert Example.versions == (0, 3)
    assert Example.flexible_since == 2
    assert not hasattr(Example(), "__dict__")


def test_equality_repr_and_copies() -> None:
    message = Example(name="x", inners=[Inner(number=2)])
    assert message == Example(name="x", inners=[Inner(number=2)])
    assert message != Example(name="x", inners=[Inner(number=3)])
    assert message != "x"
    assert repr(Inner(number=2)) == "Inner(number=2, flag=False)"
    assert "inners=[Inner(number=2, flag=False)]" in repr(message)
    assert copy.deepcopy(message) == message
    with pytest.raises(TypeError):
        hash(message)


def test_hand_checked_bytes() -> None:
    message = Example(name="ab", old=1, inner=Inner(number=3), inners=[Inner(number=4)])
    assert message.encode(0) == (
        b"\x00\x02ab"  # name
        b"\x00\x01"  # old
        b"\x00\x00\x00\x03"  # inner
        b"\x00\x00\x00\x01\x00\x00\x00\x04"  # inners
    )
    message = Example(name="ab", inner=Inner(number=3, flag=True), inners=[], late=9, payload=b"r")
    assert (
        message.encode(3)
        == (
            b"\x03ab\x00"  # name, nick
            b"\x00\x00\x00\x03\x01\x00"  # inner: number, flag, no tags
            b"\x01" + bytes(16) + b"\x02r"  # inners  # payload
            b"\x01\x05\x08\x00\x00\x00\x00\x00\x00\x00\x09"  # one tag
        )
    )
    assert Example.decode(message.encode(3), 0, 3) == (message, len(message.encode(3)))


def test_decoding_starts_anywhere_and_leaves_the_rest() -> None:
    data = Example(name="ab").encode(2)
    message, end = Example.decode(b"junk" + data + b"rest", 4, 2)
    assert message == Example(name="ab")
    assert end == 4 + len(data)


def test_a_field_that_the_version_lacks_decodes_to_its_default() -> None:
    message, _ = Example.decode(Example(old=1).encode(1), 0, 1)
    assert message == Example(old=1)
    message, _ = Example.decode(Example().encode(2), 0, 2)
    assert message.old == 7


def test_a_field_that_the_version_lacks_is_dropped_if_ignorable_and_refused_otherwise() -> None:
    ignorable = Example(topic_id=b"1" * 16, payload=b"x", inner=Inner(flag=True))
    assert ignorable.encode(0) == Example().encode(0)
    with pytest.raises(UnencodableMessage, match=r"Example\.nick does not exist in version 0"):
        Example(nick="n").encode(0)
    with pytest.raises(UnencodableMessage, match=r"Example\.old does not exist in version 2"):
        Example(old=1).encode(2)
    with pytest.raises(UnencodableMessage, match=r"Example\.late"):
        Example(late=1).encode(1)
    with pytest.raises(UnencodableMessage, match=r"FetchRequest\.forgotten_topics_data"):
        FetchRequest(forgotten_topics_data=[None]).encode(6)  # type: ignore[list-item]


def test_null_only_where_the_version_allows_it() -> None:
    assert Example(inners=None).encode(3) != Example().encode(3)
    assert Example.decode(Example(inners=None).encode(3), 0, 3)[0].inners is None
    with pytest.raises(UnencodableMessage):
        Example(inners=None).encode(2)
    with pytest.raises(UnencodableMessage):
        Example(name=None).encode(2)  # type: ignore[arg-type]
    # "All topics" is null since version 1 and an empty list in version 0.
    assert MetadataRequest(topics=None).encode(1) == b"\xff\xff\xff\xff"
    with pytest.raises(UnencodableMessage):
        MetadataRequest(topics=None).encode(0)


def test_values_that_no_version_can_carry() -> None:
    with pytest.raises(UnencodableMessage):
        Example(inner=Inner(number=2**31)).encode(3)
    with pytest.raises(UnencodableMessage):
        Example(name="x" * 32768).encode(3)
    with pytest.raises(UnencodableMessage):
        Example(name="x" * 32768).encode(0)
    with pytest.raises(UnencodableMessage):
        Example(name="\ud800").encode(3)
    assert Example.decode(Example(name="x" * 32767).encode(3), 0, 3)[0].name == "x" * 32767


def test_versions_out_of_range() -> None:
    for version in (-1, 4):
        with pytest.raises(ValueError, match="versions 0 to 3"):
            Example().encode(version)
        with pytest.raises(ValueError, match="versions 0 to 3"):
            Example.decode(b"", 0, version)


def test_unknown_tags_are_skipped() -> None:
    data = Example(name="ab").encode(3)
    assert data[-1] == 0
    tags = b"\x03" + b"\x04\x02zz" + b"\x05\x08" + bytes(7) + b"\x09" + b"\x90\x01\x01z"
    message, end = Example.decode(data[:-1] + tags + b"rest", 0, 3)
    assert message == Example(name="ab", late=9)
    assert end == len(data) - 1 + len(tags)


def test_tags_at_their_default_are_not_written() -> None:
    assert Example(late=-1).encode(3) == Example().encode(3)
    assert FetchRequest(cluster_id=None).encode(12)[-1] == 0


def test_many_unknown_tags() -> None:
    # 200 of them: the count itself takes two bytes.
    tags = b"\xc8\x01" + b"".join(bytes((each % 100 + 10, 0)) for each in range(200))
    for cls, version in ((Example, 3), (MetadataRequest, 12)):
        data = cls().encode(version)
        assert cls.decode(data[:-1] + tags, 0, version) == (cls(), len(data) - 1 + len(tags))


def test_records_are_views_and_bytes_are_bytes() -> None:
    request = ProduceRequest(
        topic_data=[
            TopicProduceData(
                name="t", partition_data=[PartitionProduceData(index=1, records=b"batch")]
            )
        ]
    )
    for version in (3, 9):
        buffer = bytearray(request.encode(version))
        decoded, _ = ProduceRequest.decode(buffer, 0, version)
        records = decoded.topic_data[0].partition_data[0].records
        assert isinstance(records, memoryview)
        assert bytes(records) == b"batch"
        records[0] = ord("B")
        assert b"Batch" in buffer
        assert decoded != request
        assert ProduceRequest.decode(bytes(request.encode(version)), 0, version)[0] == request


def test_records_of_other_kinds_pass_through_encoding() -> None:
    class FileRange:
        def __len__(self) -> int:
            return 300

    records = FileRange()
    topic = FetchableTopicResponse(
        topic="t", partitions=[PartitionData(partition_index=3, records=records)]
    )
    for version in (4, 12):
        parts = FetchResponse(responses=[topic]).encode_parts(version)
        at = parts.index(records)
        length = b"\x00\x00\x01\x2c" if version == 4 else b"\xad\x02"
        assert b"".join(parts[:at]).endswith(length)
        with pytest.raises(TypeError):
            FetchResponse(responses=[topic]).encode(version)


def test_nullable_parts() -> None:
    for assignment in (None, Assignment(), Assignment(topic_partitions=[])):
        message = ConsumerGroupHeartbeatResponse(member_epoch=3, assignment=assignment)
        assert ConsumerGroupHeartbeatResponse.decode(message.encode(0), 0, 0)[0] == message
    # Null and absent differ in a tagged part: Kafka reads an absent one as an empty one.
    absent = ConsumerGroupMemberMetadataValue()
    null = ConsumerGroupMemberMetadataValue(classic_member_metadata=None)
    some = ConsumerGroupMemberMetadataValue(
        classic_member_metadata=ClassicMemberMetadata(session_timeout_ms=7)
    )
    assert absent.encode(0)[-1:] == b"\x00"
    assert null.encode(0)[-4:] == b"\x01\x00\x01\x00"
    assert some.encode(0)[-10:] == b"\x01\x00\x07\x01\x00\x00\x00\x07\x01\x00"
    for value in (absent, null, some):
        assert ConsumerGroupMemberMetadataValue.decode(value.encode(0), 0, 0)[0] == value


class Odd(Message, versions=(0, 2), flexible_since=1):
    # Tagged only from version 2 on, declared out of order, and an array of identifiers.
    second: Int32 = field(default=-1, tag=1, tagged_since=2)
    first: Int32 = field(default=-1, tag=0, tagged_since=2)
    ids: list[Uuid] = EMPTY


def test_tags_come_in_their_own_order_and_from_their_own_version() -> None:
    message = Odd(first=1, second=2)
    assert message.encode(1) == b"\x00\x00\x00\x02\x00\x00\x00\x01\x01\x00"
    tags = b"\x02\x00\x04\x00\x00\x00\x01\x01\x04\x00\x00\x00\x02"
    assert message.encode(2) == b"\x01" + tags
    for version in (0, 1, 2):
        assert Odd.decode(message.encode(version), 0, version)[0] == message


def test_arrays_of_identifiers() -> None:
    for count in (0, 1, 3, 127):
        message = Odd(ids=[bytes((each,)) * 16 for each in range(count)])
        for version in (0, 2):
            data = message.encode(version)
            assert Odd.decode(data, 0, version) == (message, len(data))
    assert Odd(ids=[b"a" * 16, b"b" * 16]).encode(2) == b"\x03" + b"a" * 16 + b"b" * 16 + b"\x00"


def test_long_arrays() -> None:
    # One byte of compact length holds up to 126 elements; layouts are kept for short arrays only.
    for count in (0, 1, 64, 65, 126, 127, 128, 20_000):
        message = FetchRequest(
            topics=[
                FetchTopic(
                    topic="t", partitions=[FetchPartition(partition=each) for each in range(count)]
                )
            ],
        )
        for version in (4, 12):
            assert FetchRequest.decode(message.encode(version), 0, version)[0] == message


def test_wide_bodies_of_metadata() -> None:
    from ottla.protocol.messages.metadata import MetadataResponsePartition, MetadataResponseTopic

    for count in (0, 1, 127, 300):
        partition = MetadataResponsePartition(
            replica_nodes=list(range(count)), isr_nodes=[1], offline_replicas=list(range(count))
        )
        message = MetadataResponse(topics=[MetadataResponseTopic(partitions=[partition])])
        for version in (8, 12):
            data = message.encode(version)
            assert MetadataResponse.decode(data, 0, version) == (message, len(data))


def test_uuid_text() -> None:
    identifier = bytes(range(240, 256))
    assert uuid_text(identifier) == "8PHy8_T19vf4-fr7_P3-_w"
    assert uuid_from_text(uuid_text(identifier)) == identifier
    assert uuid_text(ZERO_UUID) == "A" * 22
    for text in ("", "A" * 21, "A" * 23, "A" * 21 + "!", "ü" * 22):
        with pytest.raises(ValueError, match="topic id"):
            uuid_from_text(text)


def test_malformed_is_a_value_error() -> None:
    assert issubclass(MalformedMessage, ValueError)
    assert issubclass(UnencodableMessage, ValueError)
