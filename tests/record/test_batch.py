"""The header of a batch: layout, checks without touching records, stamping in place."""

from __future__ import annotations

import contextlib
import pickle
import random

import pytest
from crc32c import crc32c

from ottla.record import batch as layout
from ottla.record.batch import (
    HEADER,
    HEADER_SIZE,
    BatchHeader,
    CorruptBatch,
    InvalidBatch,
    InvalidRecord,
    Record,
    TooLarge,
    Truncated,
    UnsupportedMagic,
    WrongTimestampType,
    assemble,
    build_batch,
    check_batch,
    check_produced,
    headers,
    read_header,
    read_header_fields,
    records,
    set_log_append_time,
    stamp,
)
from ottla.record.compression.codecs import Codec

RECORDS = [
    Record(0, 1_700_000_000_000, b"key", b"value"),
    Record(1, 1_700_000_000_007, None, b"x" * 100, (("name", b"text"), ("empty", None))),
    Record(2, 1_700_000_000_003, b"gone", None),
]
BATCH = build_batch(RECORDS, producer_id=9, producer_epoch=2, base_sequence=40)


def altered(batch: bytes = BATCH, payload: bytes | None = None, **fields: int) -> bytes:
    """The batch with other header fields, and a checksum and a length that fit."""
    header = read_header(batch)._replace(**fields)
    return assemble(header, batch[HEADER_SIZE:] if payload is None else payload)


def test_the_constants_name_the_places_in_the_struct() -> None:
    places = [
        layout.BASE_OFFSET_AT,
        layout.BATCH_LENGTH_AT,
        layout.LEADER_EPOCH_AT,
        layout.MAGIC_AT,
        layout.CRC_AT,
        layout.ATTRIBUTES_AT,
        layout.LAST_OFFSET_DELTA_AT,
        layout.BASE_TIMESTAMP_AT,
        layout.MAX_TIMESTAMP_AT,
        layout.PRODUCER_ID_AT,
        layout.PRODUCER_EPOCH_AT,
        layout.BASE_SEQUENCE_AT,
        layout.RECORD_COUNT_AT,
        layout.RECORDS_AT,
    ]
    sizes = [8, 4, 4, 1, 4, 2, 4, 8, 8, 8, 2, 4, 4]
    assert places == [sum(sizes[:count]) for count in range(14)]
    assert len(BatchHeader._fields) == 13


def test_header_of_a_built_batch() -> None:
    header = check_batch(BATCH)
    assert header == BatchHeader(
        base_offset=0,
        batch_length=len(BATCH) - 12,
        partition_leader_epoch=-1,
        magic=2,
        crc=crc32c(BATCH[21:]),
        attributes=0,
        last_offset_delta=2,
        base_timestamp=1_700_000_000_000,
        max_timestamp=1_700_000_000_007,
        producer_id=9,
        producer_epoch=2,
        base_sequence=40,
        record_count=3,
    )
    assert header.size == len(BATCH)
    assert (header.last_offset, header.last_sequence) == (2, 42)
    assert check_produced(BATCH) == tuple(header) == read_header_fields(BATCH)
    assert read_header(BATCH) == header


@pytest.mark.parametrize(
    ("attributes", "codec", "timestamp_type", "transactional", "control", "horizon"),
    [
        (0x00, 0, 0, False, False, False),
        (0x04, 4, 0, False, False, False),
        (0x08, 0, 1, False, False, False),
        (0x10, 0, 0, True, False, False),
        (0x30, 0, 0, True, True, False),
        (0x43, 3, 0, False, False, True),
    ],
)
def test_attributes(
    attributes: int,
    codec: int,
    timestamp_type: int,
    transactional: bool,
    control: bool,
    horizon: bool,
) -> None:
    header = check_batch(altered(attributes=attributes))
    assert header.codec == codec
    assert header.timestamp_type == timestamp_type
    assert header.is_transactional is transactional
    assert header.is_control is control
    assert header.has_delete_horizon is horizon


@pytest.mark.parametrize(
    ("base", "delta", "last"),
    [(0, 0, 0), (5, 3, 8), (2**31 - 1, 0, 2**31 - 1), (2**31 - 1, 1, 0), (-1, 4, -1)],
)
def test_sequences_wrap(base: int, delta: int, last: int) -> None:
    header = read_header(altered(base_sequence=base, last_offset_delta=delta))
    assert header.last_sequence == last


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_at_any_place(kind: type) -> None:
    buffer = kind(b"before" + BATCH + b"after")
    assert check_batch(buffer, 6) == read_header(BATCH)
    assert check_produced(buffer, 6) == read_header(BATCH)


def test_the_records_are_not_looked_at() -> None:
    check_batch(altered(payload=b"no records at all", attributes=Codec.ZSTD))
    check_produced(altered(payload=b"no records at all", attributes=Codec.ZSTD))


@pytest.mark.parametrize("check", [check_batch, check_produced])
@pytest.mark.parametrize("size", [0, 1, 16, 17, 60, 61, 62, len(BATCH) - 1])
def test_too_short_a_buffer(check: object, size: int) -> None:
    assert callable(check)
    with pytest.raises(Truncated):
        check(BATCH[:size])


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 48])
def test_lengths_below_a_header(length: int) -> None:
    batch = bytearray(BATCH)
    batch[8:12] = length.to_bytes(4, "big", signed=True)
    with pytest.raises(CorruptBatch):
        check_batch(batch)
    with pytest.raises(CorruptBatch):
        list(headers(batch))


@pytest.mark.parametrize("length", [9, 20, 48])
def test_lengths_below_a_header_with_a_checksum_that_fits(length: int) -> None:
    batch = bytearray(BATCH)
    batch[8:12] = length.to_bytes(4, "big")
    batch[17:21] = crc32c(batch[21 : 12 + length]).to_bytes(4, "big")
    with pytest.raises(CorruptBatch):
        check_batch(batch)


def test_a_wrong_checksum() -> None:
    batch = bytearray(BATCH)
    batch[-1] ^= 1
    with pytest.raises(CorruptBatch, match="CRC32C"):
        check_batch(batch)


@pytest.mark.parametrize("magic", [0, 1, 3, -1])
def test_other_magics_are_told_apart_even_if_shorter_than_a_header(magic: int) -> None:
    batch = altered(magic=magic)
    for size in (17, 30, 61, len(batch)):
        with pytest.raises(UnsupportedMagic):
            check_batch(batch[:size])


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codecs(codec: int) -> None:
    with pytest.raises(InvalidRecord, match="codec"):
        check_batch(altered(attributes=codec))


@pytest.mark.parametrize(
    "fields",
    [
        {"record_count": 4},
        {"record_count": -1},
        {"last_offset_delta": -1, "record_count": 0},
        {"last_offset_delta": -(2**31)},
    ],
)
def test_counts_that_no_batch_can_have(fields: dict[str, int]) -> None:
    for check in (check_batch, check_produced):
        with pytest.raises(InvalidRecord):
            check(altered(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"record_count": 2},
        {"last_offset_delta": 7},
        {"record_count": 0},
        {"base_offset": 1},
        {"base_offset": -1},
        {"attributes": layout.CONTROL_BIT},
        {"attributes": layout.DELETE_HORIZON_BIT},
        {"attributes": layout.TIMESTAMP_TYPE_BIT},
        {"base_sequence": -1},
        {"producer_epoch": -1},
    ],
)
def test_what_is_fine_in_a_log_but_not_from_a_producer(fields: dict[str, int]) -> None:
    batch = altered(**fields)
    check_batch(batch)
    with pytest.raises(InvalidRecord):
        check_produced(batch)


def test_a_producer_may_not_write_transactions_without_an_id() -> None:
    batch = altered(
        attributes=layout.TRANSACTIONAL_BIT, producer_id=-1, producer_epoch=-1, base_sequence=-1
    )
    with pytest.raises(InvalidRecord, match="producer id"):
        check_produced(batch)
    check_produced(altered(attributes=layout.TRANSACTIONAL_BIT))


def test_the_broker_timestamp_type_has_its_own_error() -> None:
    with pytest.raises(WrongTimestampType):
        check_produced(altered(attributes=layout.TIMESTAMP_TYPE_BIT))


def test_every_flipped_bit_is_noticed_or_harmless() -> None:
    """Outside the checksum are only the fields that a broker writes, and lengths that are checked."""
    whole = read_header(BATCH)
    for place in range(len(BATCH)):
        for bit in range(8):
            batch = bytearray(BATCH)
            batch[place] ^= 1 << bit
            try:
                found = check_batch(batch)
            except InvalidBatch:
                assert place not in range(8)
                assert place not in range(12, 16)
                continue
            assert place in range(8) or place in range(12, 16)
            assert (
                found._replace(
                    base_offset=whole.base_offset,
                    partition_leader_epoch=whole.partition_leader_epoch,
                )
                == whole
            )


def test_random_bytes_raise_nothing_but_invalid_batch() -> None:
    chance = random.Random(3)
    for _ in range(3000):
        noise = bytearray(chance.randbytes(chance.randrange(150)))
        if len(noise) > 16 and chance.random() < 0.8:
            noise[16] = 2
            noise[8:12] = chance.randrange(-1, 200).to_bytes(4, "big", signed=True)
        for check in (check_batch, check_produced):
            with pytest.raises(InvalidBatch):
                check(noise)
        with contextlib.suppress(InvalidBatch):  # no checksum here, so noise may pass
            list(headers(noise))
        with contextlib.suppress(InvalidBatch):
            list(records(noise))


def test_headers_of_several_batches() -> None:
    second = build_batch(RECORDS[:1], codec=Codec.GZIP)
    found = list(headers(BATCH + second + BATCH))
    assert [position for position, _ in found] == [0, len(BATCH), len(BATCH) + len(second)]
    assert [header.record_count for _, header in found] == [3, 1, 3]
    assert list(headers(b"")) == []


def test_headers_notice_a_partial_batch_after_whole_ones() -> None:
    for cut in (10, 61, len(BATCH) - 1):
        walk = headers(BATCH + BATCH[:cut])
        assert next(walk)[0] == 0
        with pytest.raises(Truncated):
            next(walk)


def test_stamping_leaves_the_checksum_right() -> None:
    buffer = bytearray(b"head" + BATCH + b"tail")
    stamp(memoryview(buffer), 4, 2**40 + 1, 77)
    header = check_batch(buffer, 4)
    assert (header.base_offset, header.partition_leader_epoch) == (2**40 + 1, 77)
    assert header.last_offset == 2**40 + 3
    assert (buffer[:4], buffer[-4:]) == (b"head", b"tail")
    assert [record.offset for record in records(buffer[4:-4])] == [2**40 + i for i in (1, 2, 3)]


@pytest.mark.parametrize("codec", list(Codec))
def test_log_append_time_holds_for_all_records(codec: Codec) -> None:
    batch = build_batch(RECORDS, codec=codec)
    buffer = bytearray(b"head" + batch)
    set_log_append_time(buffer, 4, 1_800_000_000_000)
    header = check_batch(buffer, 4)
    assert (header.timestamp_type, header.max_timestamp) == (1, 1_800_000_000_000)
    assert header.codec == codec
    assert header.base_timestamp == 1_700_000_000_000
    assert list(records(buffer[4:])) == [
        record._replace(timestamp=1_800_000_000_000) for record in RECORDS
    ]


@pytest.mark.parametrize(
    "kind", [InvalidBatch, CorruptBatch, Truncated, InvalidRecord, UnsupportedMagic, TooLarge]
)
def test_errors_have_a_reason_and_survive_pickling(kind: type[InvalidBatch]) -> None:
    error = pickle.loads(pickle.dumps(kind("why")))
    assert type(error) is kind
    assert error.reason == str(error) == "why"
    assert isinstance(error, ValueError)


def test_the_struct_is_the_header() -> None:
    assert HEADER.unpack_from(BATCH) == read_header(BATCH)


@pytest.mark.parametrize(
    ("codec", "count", "content"),
    [
        (0, 1, b""),
        (4, 1, b""),
        (0, 10, bytes([12]) * 69),  # room for nine
        (0, 1, bytes(100)),
        (0, 1, b"\x01" + b"x" * 100),
        (0, 1, b"\xff" * 100),
        (0, 1, b"\x0a" + bytes(100)),
    ],
)
def test_what_cannot_be_records_is_refused_from_clients(
    codec: int, count: int, content: bytes
) -> None:
    """With a right checksum. What else is not looked at: docs/adr/0008-records-of-producers.md."""
    header = read_header(build_batch([Record(n, 1, None, b"v") for n in range(count)]))
    batch = assemble(header._replace(attributes=codec), content)
    with pytest.raises(InvalidRecord, match="records"):
        check_produced(batch)
