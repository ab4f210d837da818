"""Message sets v0 and v1: read, written, upgraded, downgraded, and refused when they lie."""

from __future__ import annotations

import random
import struct
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.record.batch import (
    LOG_APPEND_TIME,
    CorruptBatch,
    InvalidBatch,
    InvalidRecord,
    Record,
    TooLarge,
    Truncated,
    UnsupportedMagic,
    WrongTimestampType,
    build_batch,
    check_batch,
    check_produced,
    headers,
    records,
)
from ottla.record.compression.codecs import Codec, compress, decompress
from ottla.record.compression.stream_frames import with_kafka_v0_lz4_checksum
from ottla.record.control import build_end_of_transaction
from ottla.record.legacy import build_message_set, downgrade, messages, upgrade

NOW = 1_700_000_000_000
OLD_CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]
WRAPPING = OLD_CODECS[1:]
SAMPLE = [
    Record(40, NOW + 3, b"key", b"value"),
    Record(41, NOW + 1, None, b"x" * 300),
    Record(45, NOW + 2, b"gone", None),
]


def as_seen(magic: int, written: list[Record]) -> list[Record]:
    """What is left of the records in a set of this magic."""
    return [
        record._replace(timestamp=record.timestamp if magic == 1 else -1, headers=())
        for record in written
    ]


def message(
    magic: int,
    offset: int,
    value: bytes | None,
    *,
    key: bytes | None = None,
    attributes: int = 0,
    timestamp: int = NOW,
) -> bytes:
    """One message, put together by other means than the ones under test."""
    body = struct.pack(">bb", magic, attributes)
    if magic == 1:
        body += struct.pack(">q", timestamp)
    for part in (key, value):
        body += struct.pack(">i", -1) if part is None else struct.pack(">i", len(part)) + part
    return struct.pack(">qiI", offset, len(body) + 4, crc32(body)) + body


CONTENTS = st.none() | st.binary(max_size=100)
RECORDS = st.lists(
    st.tuples(st.integers(1, 100), st.integers(0, 1 << 60), CONTENTS, CONTENTS),
    min_size=1,
    max_size=20,
)


def placed(drawn: list[tuple[int, int, bytes | None, bytes | None]]) -> list[Record]:
    offset = 0
    found = []
    for step, timestamp, key, value in drawn:
        offset += step
        found.append(Record(offset, timestamp, key, value))
    return found


@given(RECORDS, st.sampled_from([0, 1]), st.sampled_from(OLD_CODECS))
@settings(deadline=None)
def test_round_trip(
    drawn: list[tuple[int, int, bytes | None, bytes | None]], magic: int, codec: Codec
) -> None:
    written = placed(drawn)
    message_set = build_message_set(written, magic, codec)
    assert list(messages(message_set)) == as_seen(magic, written)
    assert list(messages(message_set * 2)) == as_seen(magic, written) * 2


@given(RECORDS, st.sampled_from([0, 1]), st.sampled_from(OLD_CODECS))
@settings(deadline=None)
def test_up_and_down_again(
    drawn: list[tuple[int, int, bytes | None, bytes | None]], magic: int, codec: Codec
) -> None:
    written = [record._replace(offset=index) for index, record in enumerate(placed(drawn))]
    message_set = build_message_set(written, magic, codec)
    upgraded = upgrade(message_set)
    header = check_batch(upgraded)
    assert check_produced(upgraded) == header
    assert header.size == len(upgraded)
    assert header.codec == codec
    assert list(records(upgraded)) == as_seen(magic, written)
    assert list(messages(downgrade(upgraded, magic))) == as_seen(magic, written)


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_as_the_format_has_them(magic: int) -> None:
    written = b"".join(
        message(magic, record.offset, record.value, key=record.key, timestamp=record.timestamp)
        for record in SAMPLE
    )
    assert list(messages(memoryview(written))) == as_seen(magic, SAMPLE)
    assert build_message_set(SAMPLE, magic) == written


def test_wrappers_of_v0_hold_absolute_offsets() -> None:
    (wrapper,) = _shallow(build_message_set(SAMPLE, 0, Codec.GZIP))
    assert wrapper[0] == 45
    inner = _shallow(decompress(Codec.GZIP, wrapper[1][14:], 10_000))
    assert [offset for offset, _ in inner] == [40, 41, 45]


def test_wrappers_of_v1_hold_relative_offsets_and_the_latest_timestamp() -> None:
    (wrapper,) = _shallow(build_message_set(SAMPLE, 1, Codec.GZIP))
    assert wrapper[0] == 45
    assert struct.unpack_from(">q", wrapper[1], 6) == (NOW + 3,)
    inner = _shallow(decompress(Codec.GZIP, wrapper[1][22:], 10_000))
    assert [offset for offset, _ in inner] == [0, 1, 5]


def _shallow(message_set: bytes) -> list[tuple[int, bytes]]:
    """Offset and body (from the CRC on) of each message, wrappers unopened."""
    found = []
    at = 0
    while at < len(message_set):
        offset, size = struct.unpack_from(">qi", message_set, at)
        found.append((offset, message_set[at + 12 : at + 12 + size]))
        at += 12 + size
    return found


@pytest.mark.parametrize("codec", WRAPPING)
def test_log_append_time_of_a_wrapper_holds_for_what_is_inside(codec: Codec) -> None:
    inner = b"".join(message(1, index, b"v", timestamp=index) for index in range(3))
    wrapper = message(1, 9, compress(codec, inner), attributes=codec | 0x08, timestamp=NOW)
    assert [record.timestamp for record in messages(wrapper)] == [NOW] * 3
    assert [record.offset for record in messages(wrapper)] == [7, 8, 9]


def test_a_wrapper_of_v1_at_offset_0_leaves_the_inner_offsets_alone() -> None:
    inner = b"".join(message(1, index, b"v") for index in range(3))
    wrapper = message(1, 0, compress(Codec.GZIP, inner), attributes=Codec.GZIP)
    assert [record.offset for record in messages(wrapper)] == [0, 1, 2]


@pytest.mark.parametrize("broken", [True, False])
def test_v0_takes_lz4_with_either_header_checksum(broken: bool) -> None:
    packed = compress(Codec.LZ4, message(0, 0, b"v"))
    if broken:
        packed = with_kafka_v0_lz4_checksum(memoryview(packed))
    wrapper = message(0, 0, packed, attributes=Codec.LZ4)
    assert [record.value for record in messages(wrapper)] == [b"v"]


def test_v1_takes_lz4_with_the_right_header_checksum_only() -> None:
    packed = compress(Codec.LZ4, message(1, 0, b"v"))
    assert len(list(messages(message(1, 0, packed, attributes=Codec.LZ4)))) == 1
    broken = with_kafka_v0_lz4_checksum(memoryview(packed))
    with pytest.raises(CorruptBatch):
        list(messages(message(1, 0, broken, attributes=Codec.LZ4)))


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", OLD_CODECS)
def test_a_partial_message_at_the_end(magic: int, codec: Codec) -> None:
    whole = build_message_set(SAMPLE, magic, codec)
    tail = message(magic, 46, b"last")
    for cut in range(1, len(tail)):
        torn = whole + tail[:cut]
        assert list(messages(torn, partial=True)) == as_seen(magic, SAMPLE)
        with pytest.raises(Truncated):
            list(messages(torn))
        with pytest.raises(Truncated):
            upgrade(torn)


def test_a_partial_message_inside_a_wrapper_is_an_error_for_all() -> None:
    inner = message(1, 0, b"v") + message(1, 1, b"w")[:-1]
    wrapper = message(1, 1, compress(Codec.GZIP, inner), attributes=Codec.GZIP)
    with pytest.raises(CorruptBatch):
        list(messages(wrapper, partial=True))


def test_every_flipped_bit_of_a_message_is_noticed_outside_its_offset() -> None:
    for magic in (0, 1):
        whole = message(magic, 3, b"value", key=b"key")
        for place in range(len(whole)):
            for bit in range(8):
                damaged = bytearray(whole)
                damaged[place] ^= 1 << bit
                try:
                    found = list(messages(damaged))
                except InvalidBatch:
                    assert place >= 8
                else:
                    assert place < 8
                    assert [record.value for record in found] == [b"value"]


WRAPPED_LIES = {
    "null value": message(1, 0, None, attributes=1),
    "nothing inside": message(1, 0, compress(1, b""), attributes=1),
    "no such compression": message(1, 0, b"not gzip", attributes=1),
    "zstd": message(1, 0, compress(4, message(1, 0, b"v")), attributes=4),
    "unknown codec": message(1, 0, b"?", attributes=7),
    "another magic inside": message(1, 0, compress(1, message(0, 0, b"v")), attributes=1),
    "a wrapper inside": message(
        1,
        0,
        compress(1, message(1, 0, compress(1, message(1, 0, b"v")), attributes=1)),
        attributes=1,
    ),
    "offset below the last inner one": message(
        1, 1, compress(1, message(1, 0, b"v") + message(1, 5, b"w")), attributes=1
    ),
    "a damaged message inside": message(
        1, 0, compress(1, message(1, 0, b"v")[:-1] + b"?"), attributes=1
    ),
}


@pytest.mark.parametrize("lie", WRAPPED_LIES)
def test_lies_about_wrappers(lie: str) -> None:
    for read in (lambda data: list(messages(data)), upgrade):
        with pytest.raises(InvalidBatch):
            read(WRAPPED_LIES[lie])


def _signed(body: bytes) -> bytes:
    return struct.pack(">qiI", 0, len(body) + 4, crc32(body)) + body


@pytest.mark.parametrize(
    "body",
    [
        struct.pack(">bbii", 0, 0, 5, -1),
        struct.pack(">bbii", 0, 0, -2, -1),
        struct.pack(">bbii", 0, 0, -1, -2),
        struct.pack(">bbii", 0, 0, -1, 2**31 - 1),
        struct.pack(">bbiib", 0, 0, -1, -1, 0),
        struct.pack(">bbib", 0, 0, 4, 1) + b"abc",
        struct.pack(">bbqib", 1, 0, NOW, 1, 65) + b"abc",
        struct.pack(">bbii", 1, 0, -1, -1),
    ],
)
def test_lies_about_lengths_inside_a_message(body: bytes) -> None:
    with pytest.raises(InvalidBatch):
        list(messages(_signed(body)))


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 13])
def test_sizes_that_no_message_has(size: int) -> None:
    with pytest.raises(CorruptBatch):
        list(messages(struct.pack(">qi", 0, size) + bytes(30), partial=True))


@pytest.mark.parametrize("magic", [2, 3, -1])
def test_other_magics(magic: int) -> None:
    with pytest.raises(UnsupportedMagic):
        list(messages(_signed(struct.pack(">bbii", magic, 0, -1, -1))))
    with pytest.raises(UnsupportedMagic):
        build_message_set(SAMPLE, magic)


def test_a_bomb_in_a_wrapper_is_bounded() -> None:
    wrapper = build_message_set([Record(0, NOW, None, bytes(1_000_000))], 1, Codec.GZIP)
    assert len(wrapper) < 2000
    with pytest.raises(TooLarge):
        list(messages(wrapper, 500_000))
    with pytest.raises(TooLarge):
        upgrade(wrapper, 500_000)


def test_damage_ends_in_messages_or_invalid_batch() -> None:
    chance = random.Random(5)
    sets = [build_message_set(SAMPLE, magic, codec) for magic in (0, 1) for codec in OLD_CODECS]
    for _ in range(4000):
        damaged = bytearray(chance.choice(sets))
        for _ in range(chance.choice((1, 1, 4))):
            damaged[chance.randrange(len(damaged))] = chance.choice((0, 0x7F, 0x80, 0xFF, 2))
        size = int.from_bytes(damaged[8:12], "big")
        if chance.random() < 0.7 and 14 <= size <= len(damaged) - 12:
            # With the checksum made right, the damage gets as far as the lengths and the codecs.
            damaged[12:16] = crc32(damaged[16 : 12 + size]).to_bytes(4, "big")
        for read in (lambda data: list(messages(data, 10_000)), lambda data: upgrade(data, 10_000)):
            try:
                read(damaged)
            except InvalidBatch:
                pass


# --- up -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("magic", [0, 1])
def test_upgrade_keeps_order_and_codecs_and_counts_offsets_anew(magic: int) -> None:
    plain = build_message_set(SAMPLE[:2], magic)
    snappy = build_message_set(SAMPLE, magic, Codec.SNAPPY)
    lz4 = build_message_set(SAMPLE[1:], magic, Codec.LZ4)
    upgraded = upgrade(plain + snappy + lz4 + plain)
    assert isinstance(upgraded, bytearray)
    found = list(headers(upgraded))
    assert [header.codec for _, header in found] == [0, 2, 3, 0]
    assert [header.record_count for _, header in found] == [2, 3, 2, 2]
    values = []
    for at, header in found:
        assert check_produced(upgraded, at) == header
        batch = list(records(upgraded[at : at + header.size]))
        assert [record.offset for record in batch] == list(range(header.record_count))
        values += [record.value for record in batch]
    source = SAMPLE[:2] + SAMPLE + SAMPLE[1:] + SAMPLE[:2]
    assert values == [record.value for record in source]


def test_upgrade_of_nothing() -> None:
    assert upgrade(b"") == b""


def test_v0_has_no_timestamps_to_bring_along() -> None:
    header = check_batch(upgrade(build_message_set(SAMPLE, 0)))
    assert (header.base_timestamp, header.max_timestamp) == (-1, -1)
    header = check_batch(upgrade(build_message_set(SAMPLE, 1)))
    assert (header.base_timestamp, header.max_timestamp) == (NOW + 3, NOW + 3)


@pytest.mark.parametrize("codec", OLD_CODECS)
def test_producers_may_not_claim_log_append_time(codec: Codec) -> None:
    claimed = build_message_set(SAMPLE, 1, codec, LOG_APPEND_TIME)
    assert len(list(messages(claimed))) == 3
    with pytest.raises(WrongTimestampType):
        upgrade(claimed)


# --- down -----------------------------------------------------------------------------------------


HEADED = [record._replace(headers=(("name", b"value"),)) for record in SAMPLE]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", list(Codec))
def test_downgrade_keeps_offsets_and_drops_headers(magic: int, codec: Codec) -> None:
    batch = build_batch(HEADED, base_offset=40, codec=codec)
    downgraded = downgrade(batch, magic)
    assert list(messages(downgraded)) == as_seen(magic, SAMPLE)
    codecs = {body[5] & 7 for _, body in _shallow(downgraded)}
    # There is no zstd in these formats; gzip takes its place.
    assert codecs == {Codec.GZIP if codec == Codec.ZSTD else codec}


@pytest.mark.parametrize("magic", [0, 1])
def test_downgrade_leaves_out_control_batches(magic: int) -> None:
    marker = build_end_of_transaction(
        committed=True,
        producer_id=1,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp=NOW,
        base_offset=46,
    )
    batches = build_batch(HEADED, base_offset=40) + marker
    later = build_batch([Record(47, NOW, None, b"later")], base_offset=47)
    found = list(messages(downgrade(batches + later, magic)))
    assert [record.offset for record in found] == [40, 41, 45, 47]
    assert downgrade(marker, magic) == b""


def test_downgrade_starts_at_the_offset_asked_for_unless_compressed() -> None:
    for codec, offsets in ((Codec.NONE, [45]), (Codec.LZ4, [40, 41, 45])):
        batch = build_batch(HEADED, base_offset=40, codec=codec)
        found = list(messages(downgrade(batch, 1, 42)))
        assert [record.offset for record in found] == offsets
    assert downgrade(build_batch(HEADED, base_offset=40), 1, 46) == b""


@pytest.mark.parametrize("codec", OLD_CODECS)
def test_downgrade_keeps_log_append_time(codec: Codec) -> None:
    batch = build_batch(HEADED, base_offset=40, codec=codec, timestamp_type=LOG_APPEND_TIME)
    downgraded = downgrade(batch, 1)
    assert [record.timestamp for record in messages(downgraded)] == [NOW + 3] * 3
    assert all(body[5] & 0x08 for _, body in _shallow(downgraded))
    assert not any(body[5] & 0x08 for _, body in _shallow(downgrade(batch, 0)))


def test_downgrade_leaves_out_a_partial_batch_at_the_end() -> None:
    batch = build_batch(HEADED, base_offset=40)
    for cut in (1, 20, 61, len(batch) - 1):
        assert downgrade(batch + batch[:cut], 1) == downgrade(batch, 1)


def test_downgrade_does_not_put_a_new_checksum_on_damage() -> None:
    batch = bytearray(build_batch(HEADED, base_offset=40))
    batch[-1] ^= 1
    with pytest.raises(CorruptBatch):
        downgrade(batch, 1)


def test_downgrade_of_timestamps_beyond_64_bits() -> None:
    batch = build_batch(
        [Record(0, 2**62, None, b"v"), Record(1, 2**63 + 5, None, b"v")], max_timestamp=2**62
    )
    with pytest.raises(InvalidRecord):
        downgrade(batch, 1)


@pytest.mark.parametrize("codec", OLD_CODECS)
def test_downgrade_among_older_messages(codec: Codec) -> None:
    """A log taken over from an older broker may hold all three formats."""
    v0 = build_message_set(SAMPLE, 0, codec)
    v1 = build_message_set(
        [record._replace(offset=record.offset + 10) for record in SAMPLE], 1, codec
    )
    v2 = build_batch([Record(60, NOW, None, b"new")], base_offset=60)
    assert downgrade(v0 + v1 + v2, 1) == v0 + v1 + downgrade(v2, 1)
    down = downgrade(v0 + v1 + v2, 0)
    assert down.startswith(v0)
    assert {body[4] for _, body in _shallow(down)} == {0}
    assert [record.offset for record in messages(down)] == [40, 41, 45, 50, 51, 55, 60]
    assert {body[5] & 7 for _, body in _shallow(down)} == {codec, Codec.NONE}
    for cut in (5, 14, 20, len(v1) - 1):
        torn = v0 + v1[:cut]
        assert list(messages(downgrade(torn, 1))) == list(messages(torn, partial=True))
    damaged = bytearray(v1)
    damaged[-1] ^= 1
    with pytest.raises(CorruptBatch):
        downgrade(damaged, 1)
