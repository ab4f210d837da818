"""The records inside a batch: built and read back, and every lie about a length refused."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.record import batch as layout
from ottla.record.batch import (
    CorruptBatch,
    InvalidBatch,
    InvalidRecord,
    Record,
    assemble,
    build_batch,
    check_batch,
    check_produced,
    read_header,
    records,
)
from ottla.record.compression.codecs import Codec, compress
from ottla.record.varint import encode_varint

NOW = 1_700_000_000_000

CONTENTS = st.none() | st.binary(max_size=200)
RECORD_LISTS = st.lists(
    st.tuples(
        st.integers(1, 1 << 20),  # steps between offsets
        st.integers(0, 1 << 60),  # timestamps
        CONTENTS,
        CONTENTS,
        st.lists(st.tuples(st.text(max_size=20), CONTENTS), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=30,
)


def placed(base_offset: int, drawn: list[tuple[int, int, object, object, object]]) -> list[Record]:
    offset = base_offset - 1
    found = []
    for step, timestamp, key, value, headers in drawn:
        offset += step
        found.append(Record(offset, timestamp, key, value, headers))  # type: ignore[arg-type]
    return found


@given(
    RECORD_LISTS,
    st.integers(0, 1 << 60),
    st.sampled_from(list(Codec)),
    st.tuples(st.integers(-1, 2**63 - 1), st.integers(-1, 2**15 - 1), st.integers(-1, 2**31 - 1)),
    st.booleans(),
    st.booleans(),
)
@settings(deadline=None)
def test_round_trip(
    drawn: list[tuple[int, int, object, object, object]],
    base_offset: int,
    codec: Codec,
    producer: tuple[int, int, int],
    transactional: bool,
    control: bool,
) -> None:
    written = placed(base_offset, drawn)
    batch = build_batch(
        written,
        base_offset=base_offset,
        codec=codec,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        leader_epoch=6,
        transactional=transactional,
        control=control,
    )
    header = check_batch(batch)
    assert list(records(batch)) == written
    assert header.size == len(batch)
    assert (header.base_offset, header.last_offset) == (base_offset, written[-1].offset)
    assert header.record_count == len(written)
    assert header.base_timestamp == written[0].timestamp
    assert header.max_timestamp == max(record.timestamp for record in written)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == producer
    assert header.partition_leader_epoch == 6
    assert header.codec == codec
    assert (header.is_transactional, header.is_control) == (transactional, control)


def test_a_batch_of_consecutive_offsets_is_what_a_producer_sends() -> None:
    batch = build_batch([Record(index, NOW, None, b"v") for index in range(5)])
    assert check_produced(batch) == read_header(batch)


def test_a_known_batch() -> None:
    batch = build_batch([Record(0, NOW, b"k", b"v", (("h", None),))], codec=Codec.NONE)
    assert batch[61:].hex() == "16" + "00" + "00" + "00" + "026b" + "0276" + "02" + "0268" + "01"


def test_header_keys_that_are_no_utf8_survive() -> None:
    key = b"\xff\xfeabc".decode("utf-8", "surrogateescape")
    batch = build_batch([Record(0, NOW, None, None, ((key, b"1"),))])
    assert b"\xff\xfeabc" in batch
    assert next(records(batch)).headers == ((key, b"1"),)


def test_log_append_time_is_the_max_timestamp_for_all() -> None:
    written = [Record(0, NOW, None, b"a"), Record(1, NOW + 9, None, b"b")]
    batch = build_batch(written, timestamp_type=layout.LOG_APPEND_TIME)
    assert [record.timestamp for record in records(batch)] == [NOW + 9, NOW + 9]


def test_compacted_batches_keep_what_they_spanned() -> None:
    batch = build_batch(
        [Record(12, NOW, b"k", None)],
        base_offset=10,
        last_offset=19,
        max_timestamp=NOW + 5,
        delete_horizon=NOW + 86_400_000,
        codec=Codec.LZ4,
    )
    header = check_batch(batch)
    assert (header.base_offset, header.last_offset, header.record_count) == (10, 19, 1)
    assert header.has_delete_horizon
    assert header.base_timestamp == NOW + 86_400_000
    assert header.max_timestamp == NOW + 5
    assert list(records(batch)) == [Record(12, NOW, b"k", None)]


def test_emptied_batches() -> None:
    batch = build_batch(
        [], base_offset=10, last_offset=19, max_timestamp=NOW, producer_id=3, codec=Codec.ZSTD
    )
    header = check_batch(batch)
    assert len(batch) == layout.HEADER_SIZE
    assert (header.last_offset, header.record_count, header.codec) == (19, 0, 0)
    assert (header.base_timestamp, header.max_timestamp) == (-1, NOW)
    assert list(records(batch)) == []
    # Others leave the codec in the attributes of a batch that they have emptied.
    assert list(records(assemble(header._replace(attributes=Codec.ZSTD), b""))) == []


def test_what_build_batch_refuses() -> None:
    record = Record(5, NOW, None, None)
    with pytest.raises(ValueError, match="last offset"):
        build_batch([])
    with pytest.raises(ValueError, match="offset 5 follows 5"):
        build_batch([record, record], base_offset=5)
    with pytest.raises(ValueError, match="offset 5 follows 5"):
        build_batch([record], base_offset=6)
    with pytest.raises(ValueError, match="below"):
        build_batch([record], base_offset=5, last_offset=4)


# --- lies -----------------------------------------------------------------------------------------


def body(
    *,
    timestamp: bytes = b"\x00",
    offset: bytes = b"\x00",
    key: bytes = b"\x02k",
    value: bytes = b"\x02v",
    headers: bytes = b"\x00",
) -> bytes:
    return b"\x00" + timestamp + offset + key + value + headers


def framed(contents: bytes, length: int | None = None) -> bytes:
    return encode_varint(len(contents) if length is None else length) + contents


def crafted(payload: bytes, count: int = 1, **fields: int) -> bytes:
    sample = build_batch([Record(0, NOW, None, None)])
    header = read_header(sample)._replace(record_count=count, last_offset_delta=count - 1, **fields)
    return assemble(header, payload)


GOOD = body()


def test_the_crafted_record_is_good() -> None:
    assert list(records(crafted(framed(GOOD)))) == [Record(0, NOW, b"k", b"v")]


INT32_MAX = encode_varint(2**31 - 1)
LIES = {
    "length too long": framed(GOOD, len(GOOD) + 1),
    "length too short": framed(GOOD, len(GOOD) - 1),
    "length zero": framed(GOOD, 0),
    "length negative": framed(GOOD, -1),
    "length huge": INT32_MAX + GOOD,
    "length overlong": b"\xff\xff\xff\xff\xff\xff\x01" + GOOD,
    "length with too many bits": b"\xff\xff\xff\xff\x7f" + GOOD,
    "timestamp overlong": framed(body(timestamp=b"\x80" * 10 + b"\x00")),
    "offset delta overlong": framed(body(offset=b"\x80" * 5 + b"\x00")),
    "offset delta beyond the last": framed(body(offset=b"\x02")),
    "offset delta negative": framed(body(offset=b"\x01")),
    "key longer than the record": framed(body(key=b"\x7ek")),
    "key huge": framed(body(key=INT32_MAX)),
    "key length below -1": framed(body(key=b"\x03")),
    "value longer than the record": framed(body(value=b"\x7ev")),
    "value huge": framed(body(value=INT32_MAX)),
    "value length below -1": framed(body(value=b"\x03")),
    "header count negative": framed(body(headers=b"\x01")),
    "header count huge": framed(body(headers=INT32_MAX)),
    "header count too large": framed(body(headers=b"\x04" + b"\x02h\x00")),
    "header count too small": framed(body(headers=b"\x02" + b"\x02h\x00" * 2)),
    "header key null": framed(body(headers=b"\x02" + b"\x01\x00")),
    # These two step back and would read a byte twice, ending exactly where the record does.
    "header key null, hidden": framed(body(headers=b"\x04" + b"\x01" + b"\x02h\x00")),
    "header value below -1, hidden": framed(body(headers=b"\x04" + b"\x02\x02\x03\x01")),
    "header key too long": framed(body(headers=b"\x02" + b"\x08h\x00")),
    "header value too long": framed(body(headers=b"\x02" + b"\x02h\x08")),
    "header value below -1": framed(body(headers=b"\x02" + b"\x02h\x03")),
    "bytes after the last record": framed(GOOD) + b"\x00",
    "bytes inside the record": framed(GOOD + b"\x00"),
    "nothing": b"",
    "end inside a varint": b"\x80" * 3,
}


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("lie", LIES)
def test_lies_are_refused(lie: str, codec: Codec) -> None:
    batch = crafted(compress(codec, LIES[lie]), attributes=codec)
    check_batch(batch)  # nothing of it shows in the header
    with pytest.raises(InvalidRecord):
        list(records(batch))


def test_a_lie_in_a_later_record_does_not_reach_into_the_next() -> None:
    second = framed(body(offset=b"\x02", key=b"\x14k"))
    third = framed(body(offset=b"\x04"))
    walk = records(crafted(framed(GOOD) + second + third, 3))
    assert next(walk).offset == 0
    with pytest.raises(InvalidRecord):
        next(walk)


@pytest.mark.parametrize("deltas", [(0, 0), (1, 0), (0, 2)])
def test_offset_deltas_must_increase_within_the_batch(deltas: tuple[int, int]) -> None:
    payload = b"".join(framed(body(offset=encode_varint(delta))) for delta in deltas)
    with pytest.raises(InvalidRecord, match="offset delta"):
        list(records(crafted(payload, 2)))


@pytest.mark.parametrize("count", [0, 2, 3, 2**31 - 1, -1, -(2**31)])
def test_another_count_than_there_are_records(count: int) -> None:
    header = read_header(crafted(framed(GOOD)))._replace(
        record_count=count, last_offset_delta=2**31 - 1
    )
    with pytest.raises(InvalidRecord):
        list(records(assemble(header, framed(GOOD))))


def test_a_negative_count_of_nothing() -> None:
    header = read_header(crafted(b""))._replace(record_count=-1)
    with pytest.raises(InvalidRecord):
        list(records(assemble(header, b"")))


def test_a_buffer_that_is_not_exactly_one_batch() -> None:
    batch = crafted(framed(GOOD))
    with pytest.raises(CorruptBatch):
        records(batch + b"\x00")
    with pytest.raises(CorruptBatch):
        records(batch[:-1])


@pytest.mark.parametrize("codec", list(Codec))
def test_damaged_records_end_in_records_or_invalid_batch(codec: Codec) -> None:
    """The checksum would notice; this is for those who read without it, and for wily producers."""
    chance = random.Random(int(codec))
    written = [
        Record(index, NOW + index, b"key %d" % index, b"v" * index, (("h", b"x"), ("n", None)))
        for index in range(8)
    ]
    whole = build_batch(written, codec=codec)
    for place in range(61, len(whole)):
        for value in (0, 1, 0x7F, 0x80, 0xFF, whole[place] ^ 1, chance.randrange(256)):
            batch = bytearray(whole)
            batch[place] = value
            try:
                found = list(records(batch, 100_000))
            except InvalidBatch:
                continue
            assert len(found) == len(written)
            assert [record.offset for record in found] == list(range(8))
