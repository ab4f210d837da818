"""Frames and headers, both sides, against hand-checked bytes and kio's headers."""

from __future__ import annotations

import io
from pkgutil import iter_modules

import pytest
from kio.schema.request_header.v1.header import RequestHeader as HeaderV1
from kio.schema.request_header.v2.header import RequestHeader as HeaderV2
from kio.serial import entity_reader
from kio.static.primitive import i16, i32

from ottla.protocol import messages
from ottla.protocol.apis import FLEXIBLE_SINCE, ApiKey, api_name
from ottla.protocol.frame import (
    COPY_BELOW,
    encode_request,
    encode_response,
    encode_response_parts,
    frame_response,
    frame_response_parts,
    has_flexible_response_header,
    is_flexible,
    parse_request_header,
    parse_response_header,
)
from ottla.protocol.message import NEVER, UnencodableMessage
from ottla.protocol.messages import message_classes
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse


@pytest.mark.parametrize(("version", "kio_header"), [(1, HeaderV1), (9, HeaderV2)])
@pytest.mark.parametrize("client_id", [None, "", "clïent"])
def test_request_frames(version: int, kio_header: type, client_id: str | None) -> None:
    message = MetadataRequest(topics=None)
    frame = encode_request(message, version, 77, client_id)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    header, size = entity_reader(kio_header)(frame[4:], 0)
    assert header == kio_header(
        request_api_key=i16(3),
        request_api_version=i16(version),
        correlation_id=i32(77),
        client_id=client_id,
    )
    for buffer in (frame[4:], bytearray(frame[4:]), memoryview(frame)[4:]):
        assert parse_request_header(buffer, 0) == (3, version, 77, client_id, size)
    assert MetadataRequest.decode(frame, 4 + size, version) == (message, len(frame))


def test_request_header_with_tags() -> None:
    header = b"\x00\x03\x00\x09\x00\x00\x00\x01\xff\xff\x02\x00\x01x\x07\x00"
    assert parse_request_header(header + b"body", 0) == (3, 9, 1, None, len(header))
    assert parse_request_header(b"junk" + header, 4) == (3, 9, 1, None, 4 + len(header))


def test_request_header_of_an_unknown_api() -> None:
    assert parse_request_header(b"\x27\x0f\x00\x63\x00\x00\x00\x01\x00\x01cbody", 0) == (
        9999,
        99,
        1,
        "c",
        11,
    )


def test_a_client_id_that_does_not_fit() -> None:
    with pytest.raises(UnencodableMessage):
        encode_request(MetadataRequest(), 9, 1, "x" * 40_000)


def test_response_frames() -> None:
    message = MetadataResponse(cluster_id="c")
    body = message.encode(8)
    size = (len(body) + 4).to_bytes(4, "big")
    assert frame_response(message, 8, 5) == size + b"\x00\x00\x00\x05" + body
    body = message.encode(9)
    size = (len(body) + 5).to_bytes(4, "big")
    frame = frame_response(message, 9, 5)
    assert frame == size + b"\x00\x00\x00\x05\x00" + body
    assert parse_response_header(frame, 4, True) == (5, 9)
    assert parse_response_header(frame, 4, False) == (5, 8)
    assert parse_response_header(b"\x00\x00\x00\x05\x01\x09\x01xrest", 0, True) == (5, 8)


def test_the_header_of_api_versions_never_has_tags() -> None:
    body = ApiVersionsResponse().encode(4)
    assert frame_response(ApiVersionsResponse(), 4, 5)[4:] == b"\x00\x00\x00\x05" + body
    assert not has_flexible_response_header(ApiKey.API_VERSIONS, 4)
    assert is_flexible(ApiKey.API_VERSIONS, 4)
    # The request's header does have them.
    assert encode_request(ApiVersionsRequest(), 3, 1, None)[14] == 0


def test_large_records_are_not_copied() -> None:
    class FileRange:
        def __len__(self) -> int:
            return 10

    small, large, file_range = b"s" * 10, memoryview(b"l" * COPY_BELOW), FileRange()
    topic = FetchableTopicResponse(
        topic="t",
        partitions=[PartitionData(records=each) for each in (small, large, file_range)],
    )
    for version in (11, 12):
        message = FetchResponse(responses=[topic])
        parts = frame_response_parts(message, version, 9)
        # Up to version 11 nothing follows the records of the last partition.
        after = [bytes] if version == 12 else []
        assert [type(part) for part in parts] == [bytes, memoryview, bytes, FileRange, *after]
        assert parts[1] is large
        assert parts[3] is file_range
        assert int.from_bytes(parts[0][:4], "big") == sum(map(len, parts)) - 4
        topic.partitions[2].records = b"f" * 10
        whole = frame_response(message, version, 9)
        parts[3] = b"f" * 10
        assert b"".join(parts) == whole
        assert b"".join(frame_response_parts(message, version, 9)) == whole
        topic.partitions[2].records = file_range


def test_pieces_of_nothing() -> None:
    assert encode_response(1, True, []) == b"\x00\x00\x00\x05\x00\x00\x00\x01\x00"
    assert encode_response_parts(1, False, []) == [b"\x00\x00\x00\x04\x00\x00\x00\x01"]


def test_the_table_of_flexible_versions_agrees_with_the_classes() -> None:
    assert set(FLEXIBLE_SINCE) == set(ApiKey)
    seen = 0
    for key in ApiKey:
        try:
            request, response = message_classes(key)
        except LookupError:
            continue
        assert request.api_key == response.api_key == key
        assert request.versions == response.versions
        assert request.flexible_since == response.flexible_since == FLEXIBLE_SINCE[key]
        seen += 1
    assert seen == len(list(iter_modules(messages.__path__)))
    assert FLEXIBLE_SINCE[ApiKey.SASL_HANDSHAKE] == NEVER


def test_names() -> None:
    assert api_name(ApiKey.OFFSET_FOR_LEADER_EPOCH) == "OffsetForLeaderEpoch"
    assert api_name(9999) == "api-9999"


@pytest.mark.parametrize("api_key", [ApiKey.VOTE, ApiKey.LEADER_AND_ISR, 9999])
def test_apis_without_messages(api_key: int) -> None:
    with pytest.raises(LookupError):
        message_classes(api_key)


def test_kio_reads_a_whole_response() -> None:
    from kio.schema.metadata.v12.response import MetadataResponse as Theirs
    from kio.serial import entity_writer

    frame = frame_response(MetadataResponse(cluster_id="c", controller_id=4), 12, 1)
    theirs, size = entity_reader(Theirs)(frame[9:], 0)
    assert size == len(frame) - 9
    assert theirs.cluster_id == "c"
    again = io.BytesIO()
    entity_writer(Theirs)(again, theirs)
    assert again.getvalue() == frame[9:]
