"""Batches that a producer with a bug, or one that means harm, could send.

Each has a right length and a right CRC32C (unless its name says otherwise), so that only a look at what
is inside tells whether it can be read. `produced_batches_by_kafka.jsonl` beside the tests has Apache
Kafka's answer for each of them; `tools/crafted_batches.py` asks a running Kafka again.

A case is a name, the codecs for which it differs, and a function that builds the batch around a time.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ottla.record.batch import (
    ATTRIBUTES_AT,
    CRC_AT,
    HEADER,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
)
from ottla.record.checksum import crc32c
from ottla.record.compression.codecs import Codec, compress
from ottla.record.varint import encode_varint

HOUR: Final = 3_600_000
DAY: Final = 24 * HOUR

# Kinds of topics, by their settings.
TOPICS: Final[dict[str, dict[str, str]]] = {
    "plain": {},
    "compacted": {"cleanup_policy": "compact"},
    "append_time": {"message_timestamp_type": "LogAppendTime"},
    "narrow_times": {
        "message_timestamp_before_max_ms": str(HOUR),
        "message_timestamp_after_max_ms": str(HOUR),
    },
    "gzip": {"compression_type": "gzip"},
    "uncompressed": {"compression_type": "uncompressed"},
}

ALL_CODECS: Final = tuple(Codec)
COMPRESSED: Final = tuple(codec for codec in Codec if codec != Codec.NONE)


def number(value: int) -> bytes:
    return encode_varint(value)


def padded(value: int, size: int) -> bytes:
    """A varint of `size` bytes, more than it needs."""
    encoded = bytearray(encode_varint(value))
    while len(encoded) < size:
        encoded[-1] |= 0x80
        encoded.append(0)
    return bytes(encoded)


def blob(data: bytes | None, length: bytes | None = None) -> bytes:
    if length is None:
        length = number(-1 if data is None else len(data))
    return length + (data or b"")


def header(
    key: bytes | None,
    value: bytes | None,
    *,
    key_length: bytes | None = None,
    value_length: bytes | None = None,
) -> bytes:
    return blob(key, key_length) + blob(value, value_length)


def record(
    offset_delta: int,
    timestamp_delta: int | bytes = 0,
    key: bytes | None = b"key",
    value: bytes | None = b"value",
    headers: Iterable[bytes] = (),
    *,
    attributes: int = 0,
    length: bytes | int = 0,
    key_length: bytes | None = None,
    value_length: bytes | None = None,
    header_count: bytes | None = None,
    rest: bytes = b"",
    cut: int = 0,
) -> bytes:
    """One record; whatever is given replaces what would be right. A length of type int is added to
    the right one."""
    packed = list(headers)
    body = b"".join(
        (
            bytes((attributes,)),
            timestamp_delta if isinstance(timestamp_delta, bytes) else number(timestamp_delta),
            number(offset_delta),
            blob(key, key_length),
            blob(value, value_length),
            number(len(packed)) if header_count is None else header_count,
            *packed,
            rest,
        )
    )
    if cut:
        body = body[:-cut]
    return (length if isinstance(length, bytes) else number(len(body) + length)) + body


def good(count: int = 3) -> list[bytes]:
    return [record(index) for index in range(count)]


class Fields(NamedTuple):
    """The fields of a batch's header that cases change."""

    base_offset: int = 0
    leader_epoch: int = -1
    magic: int = 2
    attributes: int = 0
    last_offset_delta: int | None = None
    base_timestamp: int | None = None
    max_timestamp: int | None = None
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    count: int | None = None


def batch(
    records: Iterable[bytes],
    now: int,
    codec: int = Codec.NONE,
    *,
    mangle: Callable[[bytes], bytes] | None = None,
    length: int = 0,
    crc: int = 0,
    **fields: Any,
) -> bytes:
    """A batch of these records. `mangle` changes what the codec has made of them, `length` and `crc`
    are added to what would be right."""
    given = Fields(**fields)
    packed = list(records)
    payload = compress(codec, b"".join(packed))
    if mangle is not None:
        payload = mangle(payload)
    count = len(packed) if given.count is None else given.count
    whole = bytearray(
        HEADER.pack(
            given.base_offset,
            HEADER_SIZE - LENGTH_OVERHEAD + len(payload) + length,
            given.leader_epoch,
            given.magic,
            0,
            given.attributes | codec,
            count - 1 if given.last_offset_delta is None else given.last_offset_delta,
            now if given.base_timestamp is None else given.base_timestamp,
            now if given.max_timestamp is None else given.max_timestamp,
            given.producer_id,
            given.producer_epoch,
            given.base_sequence,
            count,
        )
        + payload
    )
    struct.pack_into(">I", whole, CRC_AT, (crc32c(memoryview(whole)[ATTRIBUTES_AT:]) + crc) % 2**32)
    return bytes(whole)


Build = Callable[[int, int], bytes]


@dataclass(frozen=True)
class Case:
    name: str
    build: Build  # of the time in milliseconds and the codec
    codecs: tuple[Codec, ...]


CASES: Final[dict[str, Case]] = {}


def case(name: str, build: Build, codecs: tuple[Codec, ...] = ALL_CODECS) -> None:
    assert name not in CASES
    CASES[name] = Case(name, build, codecs)


def of_records(name: str, *records: bytes, **options: Any) -> None:
    """A case in which only the records, or fields of the header, are unusual."""
    case(name, lambda now, codec: batch(records, now, codec, **options))


def packed_as(name: str, codec: Codec, mangle: Callable[[bytes], bytes], **options: Any) -> None:
    """A case about the compressed stream of three good records."""
    case(name, lambda now, _: batch(good(), now, codec, mangle=mangle, **options), (codec,))


# What is as it should be ----------------------------------------------------------------------------

of_records("good", *good())
of_records("good_single", *good(1))
of_records("good_hundred", *good(100))
of_records("good_without_value", record(0, value=None), record(1, value=b""))
of_records("good_with_empty_key", record(0, key=b""))
of_records(
    "good_with_headers",
    record(0, headers=[header(b"a", b"1"), header(b"", None), header(b"\xff\xfe", b"")]),
    record(1, headers=[header(b"x" * 200, b"y" * 300)]),
)
of_records("good_with_large_values", *(record(index, value=b"x" * 50_000) for index in range(4)))
of_records("without_keys", record(0, key=None), record(1), record(2, key=None))
of_records("record_attributes", record(0, attributes=0xFF))

# Lengths of records ---------------------------------------------------------------------------------

of_records("record_length_negative", record(0), record(1, length=number(-1)), record(2))
of_records("record_length_zero", record(0), record(1, length=number(0)), record(2))
of_records("record_length_one_less", record(0), record(1, length=-1), record(2))
of_records("record_length_one_more", record(0), record(1, length=1), record(2))
of_records("record_length_swallows_next", record(0, length=len(record(1))), record(1), record(2))
of_records("record_length_past_the_end", record(0), record(1), record(2, length=5))
of_records("record_length_largest", record(0), record(1, length=number(2**31 - 1)), record(2))
of_records("record_length_of_six_bytes", record(0, length=padded(12, 6)))
of_records("record_length_of_five_bytes", record(0, length=padded(len(record(0)) - 1, 5)))
of_records("record_length_beyond_32_bits", record(0, length=number(2**33)))
of_records("record_cut", record(0), record(1), record(2, cut=4))
of_records("record_cut_with_its_length", record(0), record(1), record(2, length=4, cut=4))
of_records("record_with_bytes_left", record(0), record(1, rest=b"\0\0\0"), record(2))
of_records("record_of_one_byte", b"\x02\0", count=1)
of_records("bytes_after_the_records", *good(), b"\0", count=3)
of_records("garbage_after_the_records", *good(), b"\x8b\xfe\x11" * 40, count=3)
of_records("nothing_but_garbage", bytes(range(7, 250)), count=3)
of_records("nothing_but_zeros", bytes(300), count=3)
of_records("no_records_in_no_bytes", count=3)

# Counts ---------------------------------------------------------------------------------------------

of_records("count_one_more", *good(), count=4)
of_records("count_one_less", *good(), count=2)
of_records("count_of_millions", *good(), count=200_000_000)
of_records("count_zero", count=0)
of_records("count_zero_one_offset", count=0, last_offset_delta=0)
of_records("count_zero_with_records", *good(), count=0, last_offset_delta=2)
of_records("count_negative", *good(), count=-1, last_offset_delta=2)
of_records("last_offset_delta_one_more", *good(), last_offset_delta=3)
of_records("last_offset_delta_one_less", *good(), last_offset_delta=1)
of_records("last_offset_delta_negative", *good(), last_offset_delta=-1)

# Offsets --------------------------------------------------------------------------------------------

of_records("offset_deltas_all_zero", record(0), record(0), record(0))
of_records("offset_deltas_from_one", record(1), record(2), record(3))
of_records("offset_deltas_with_gap", record(0), record(2), record(3))
of_records("offset_deltas_backwards", record(2), record(1), record(0))
of_records("offset_delta_negative", record(-1), record(0), record(1))
of_records("offset_delta_largest", record(0), record(1), record(2**31 - 1))
of_records("offset_delta_beyond_32_bits", record(0), record(2**33), record(2))
of_records("base_offset_of_its_own", *good(), base_offset=100)
of_records("base_offset_negative", *good(), base_offset=-1)
of_records("base_offset_largest", *good(), base_offset=2**63 - 1)

# Times ----------------------------------------------------------------------------------------------


def timed(name: str, *deltas: int, **options: int) -> None:
    """Records at these distances from now, under a header that may say something else."""
    case(
        name,
        lambda now, codec: batch(
            [record(index, delta) for index, delta in enumerate(deltas)],
            now,
            codec,
            **{key: now + value for key, value in options.items()},
        ),
    )


timed("times_rise", 0, 5, 9, max_timestamp=9)
timed("times_fall", 0, -5, -9)
timed("max_timestamp_above", 0, 1, 2, max_timestamp=500)
timed("max_timestamp_below", 0, 1, 2, max_timestamp=-500)
timed("max_timestamp_far_above", 0, 1, 2, max_timestamp=400 * DAY)
timed("one_time_too_new", 0, 2 * HOUR + 400 * DAY, 0)
timed("one_time_too_old", 0, -400 * DAY, 0)
timed("two_times_out_of_range", 2 * HOUR, 0, -2 * HOUR)
timed("base_timestamp_too_old", 400 * DAY, 400 * DAY, base_timestamp=-400 * DAY)
of_records("max_timestamp_none", *good(), max_timestamp=-1)
of_records("times_overflow", record(0), record(1, 2**63 - 1), record(2))
of_records("times_underflow", record(0, -(2**63)), base_timestamp=-1)
of_records("no_times", *good(), base_timestamp=-1, max_timestamp=-1)
of_records("negative_times", *good(), base_timestamp=-1000, max_timestamp=-1000)
case(
    "one_record_without_time",
    lambda now, codec: batch([record(0), record(1, -1 - now)], now, codec),
)
case(
    "times_relative_to_none",
    lambda now, codec: batch(
        [record(0, now + 1), record(1, now + 1)], now, codec, base_timestamp=-1
    ),
)
of_records("timestamp_delta_of_eleven_bytes", record(0, padded(0, 11)))
of_records("timestamp_delta_of_ten_bytes", record(0, padded(0, 10)))

# Keys and values ------------------------------------------------------------------------------------

of_records("key_length_minus_two", record(0), record(1, key=None, key_length=number(-2)))
of_records("key_length_past_the_record", record(0), record(1, key_length=number(14)), record(2))
of_records("key_length_past_the_batch", record(0), record(1), record(2, key_length=number(60)))
of_records("key_length_largest", record(0), record(1, key_length=number(2**31 - 1)), record(2))
of_records("key_length_smallest", record(0, key_length=number(-(2**31))))
of_records("value_length_minus_two", record(0), record(1, value=None, value_length=number(-2)))
of_records("value_length_one_less", record(0), record(1, value_length=number(4)), record(2))
of_records("value_length_past_the_record", record(0), record(1, value_length=number(9)), record(2))
of_records("value_length_past_the_batch", record(0), record(1), record(2, value_length=number(60)))
of_records("value_length_largest", record(0), record(1, value_length=number(2**31 - 1)), record(2))

# Headers of records ---------------------------------------------------------------------------------

of_records("header_count_negative", record(0, header_count=number(-1)))
of_records("header_count_one_more", record(0, headers=[header(b"a", b"b")], header_count=number(2)))
of_records(
    "header_count_one_less", record(0, headers=[header(b"a", b"b")] * 2, header_count=number(1))
)
of_records("header_count_largest", record(0, header_count=number(2**31 - 1)))
of_records(
    "header_count_of_the_next_record", record(0, header_count=number(2)), record(1), record(2)
)
of_records("header_key_null", record(0, headers=[header(None, b"value")]))
of_records(
    "header_key_length_minus_two", record(0, headers=[header(b"", b"v", key_length=number(-2))])
)
of_records(
    "header_key_past_the_record",
    record(0, headers=[header(b"k", b"v", key_length=number(9))]),
    record(1),
)
of_records(
    "header_key_length_largest",
    record(0, headers=[header(b"k", b"v", key_length=number(2**31 - 1))]),
)
of_records(
    "header_value_length_minus_two", record(0, headers=[header(b"k", b"", value_length=number(-2))])
)
of_records(
    "header_value_past_the_record",
    record(0, headers=[header(b"k", b"v", value_length=number(9))]),
    record(1),
)
of_records(
    "header_value_length_largest",
    record(0, headers=[header(b"k", b"v", value_length=number(2**31 - 1))]),
)

# The header of the batch ----------------------------------------------------------------------------

of_records("attribute_append_time", *good(), attributes=0x08)
of_records("attribute_control", *good(), attributes=0x20)
of_records("attribute_delete_horizon", *good(), attributes=0x40)
of_records("attributes_unused", *good(), attributes=0x0180)
of_records("attribute_sign", *good(), attributes=-0x8000)
of_records("transactional_without_producer", *good(), attributes=0x10)
of_records("producer_without_sequence", *good(), producer_id=900_001, producer_epoch=0)
of_records("producer_without_epoch", *good(), producer_id=900_002, base_sequence=0)
of_records("sequence_without_producer", *good(), producer_epoch=3, base_sequence=7)
of_records("producer_id_minus_two", *good(), producer_id=-2, producer_epoch=0, base_sequence=0)
of_records("magic_3", *good(), magic=3)
of_records("crc_wrong", *good(), crc=1)
of_records("batch_length_one_more", *good(), length=1)
of_records("batch_length_one_less", *good(), length=-1)
of_records("batch_length_zero", *good(), length=-200)
of_records("batch_length_negative", *good(), length=-100_000)
case("two_batches", lambda now, codec: batch(good(), now, codec) * 2)
for unknown in (5, 6, 7):
    case(
        f"codec_{unknown}",
        lambda now, _, unknown=unknown: batch(good(), now, attributes=unknown),  # type: ignore[misc]
        (Codec.NONE,),
    )

# What codecs make of it -----------------------------------------------------------------------------


def flipped(at: int) -> Callable[[bytes], bytes]:
    """One byte other than it was; negative places count from the end."""

    def flip(stream: bytes) -> bytes:
        changed = bytearray(stream)
        changed[at] ^= 0x55
        return bytes(changed)

    return flip


for each in COMPRESSED:
    packed_as(f"{each.name.lower()}_stream_of_garbage", each, lambda _: b"\x99garbage" * 20)
    packed_as(f"{each.name.lower()}_stream_of_zeros", each, lambda stream: bytes(len(stream)))
    packed_as(f"{each.name.lower()}_stream_empty", each, lambda _: b"")
    packed_as(
        f"{each.name.lower()}_stream_cut_in_half", each, lambda stream: stream[: len(stream) // 2]
    )
    packed_as(f"{each.name.lower()}_stream_without_its_last_byte", each, lambda stream: stream[:-1])
    packed_as(f"{each.name.lower()}_stream_without_its_last_five", each, lambda stream: stream[:-5])
    packed_as(
        f"{each.name.lower()}_stream_with_garbage_after_it",
        each,
        lambda stream: stream + b"\x99xyz",
    )
    packed_as(
        f"{each.name.lower()}_stream_with_zeros_after_it", each, lambda stream: stream + bytes(9)
    )
    packed_as(f"{each.name.lower()}_records_not_packed", each, lambda _: b"".join(good()))
    packed_as(f"{each.name.lower()}_first_byte_flipped", each, flipped(0))
    packed_as(f"{each.name.lower()}_middle_flipped", each, flipped(24))
    packed_as(f"{each.name.lower()}_last_byte_flipped", each, flipped(-1))
    packed_as(
        f"{each.name.lower()}_stream_of_another_codec",
        each,
        lambda _, other=Codec.ZSTD if each == Codec.GZIP else Codec.GZIP: compress(  # type: ignore[misc]
            other, b"".join(good())
        ),
    )
    packed_as(f"{each.name.lower()}_stream_twice", each, lambda stream: stream * 2)
    packed_as(
        f"{each.name.lower()}_stream_in_two_parts",
        each,
        lambda _, codec=each: compress(codec, good()[0]) + compress(codec, b"".join(good()[1:])),  # type: ignore[misc]
    )
    packed_as(
        f"{each.name.lower()}_zeros_after_the_records",
        each,
        lambda _, codec=each: compress(codec, b"".join(good()) + bytes(3_000_000)),  # type: ignore[misc]
    )
    packed_as(
        f"{each.name.lower()}_nothing_inside", each, lambda _, codec=each: compress(codec, b"")
    )  # type: ignore[misc]


def raw_snappy(data: bytes) -> bytes:
    import cramjam

    return bytes(cramjam.snappy.compress_raw(data))


def lz4_of_others(records: Iterable[bytes] | None = None, **options: Any) -> bytes:
    import lz4.frame  # type: ignore[import-untyped]

    return bytes(lz4.frame.compress(b"".join(records or good()), **options))


def zstd_of_others(**options: Any) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(**options).compress(b"".join(good()))


def zstd_as_a_stream() -> bytes:
    import zstandard

    packer = zstandard.ZstdCompressor().compressobj()
    return packer.compress(b"".join(good())) + packer.flush()


def large() -> list[bytes]:
    """Records for several blocks of any codec."""
    texts = (f"record {number} of a batch in several blocks ".encode() for number in range(400))
    return [record(index, value=text * 12) for index, text in enumerate(texts)]


def large_lz4(name: str, **options: Any) -> None:
    case(
        name,
        lambda now, codec: batch(
            large(), now, codec, mangle=lambda _: lz4_of_others(large(), **options)
        ),
        (Codec.LZ4,),
    )


of_records("good_in_several_blocks", *large())
packed_as("snappy_raw", Codec.SNAPPY, lambda _: raw_snappy(b"".join(good())))
packed_as("snappy_raw_cut", Codec.SNAPPY, lambda _: raw_snappy(b"".join(good()))[:-3])
packed_as(
    "snappy_raw_claims_a_gigabyte", Codec.SNAPPY, lambda _: b"\x80\x80\x80\x80\x04" + bytes(40)
)
packed_as(
    "snappy_block_length_largest", Codec.SNAPPY, lambda s: s[:16] + b"\x7f\xff\xff\xff" + s[20:]
)
packed_as(
    "snappy_block_length_negative", Codec.SNAPPY, lambda s: s[:16] + b"\xff\xff\xff\xff" + s[20:]
)
packed_as(
    "snappy_version_of_the_future", Codec.SNAPPY, lambda s: s[:11] + b"\x09\0\0\0\x09" + s[16:]
)
packed_as(
    "lz4_with_checksums",
    Codec.LZ4,
    lambda _: lz4_of_others(content_checksum=True, block_checksum=True),
)
packed_as(
    "lz4_with_wrong_content_checksum",
    Codec.LZ4,
    lambda _: flipped(-1)(lz4_of_others(content_checksum=True)),
)
packed_as("lz4_with_content_size", Codec.LZ4, lambda _: lz4_of_others(store_size=True))
packed_as("lz4_without_content_size", Codec.LZ4, lambda _: lz4_of_others(store_size=False))
packed_as("lz4_header_checksum_wrong", Codec.LZ4, flipped(6))
packed_as("lz4_without_end_mark", Codec.LZ4, lambda stream: stream[:-4])
large_lz4("lz4_of_independent_blocks", block_linked=False, block_size=4)
large_lz4("lz4_of_linked_blocks", block_linked=True, block_size=4)
large_lz4("lz4_of_blocks_of_4_mebibytes", block_linked=False, block_size=7)
large_lz4("lz4_of_blocks_with_checksums", block_linked=False, block_size=5, block_checksum=True)
packed_as("zstd_with_checksum", Codec.ZSTD, lambda _: zstd_of_others(write_checksum=True))
packed_as(
    "zstd_with_wrong_checksum",
    Codec.ZSTD,
    lambda _: flipped(-2)(zstd_of_others(write_checksum=True)),
)
packed_as("zstd_without_content_size", Codec.ZSTD, lambda _: zstd_as_a_stream())
packed_as(
    "zstd_with_skippable_frame",
    Codec.ZSTD,
    lambda stream: b"\x50\x2a\x4d\x18\x04\0\0\0skip" + stream,
)
packed_as("gzip_checksum_wrong", Codec.GZIP, flipped(-6))
packed_as("gzip_length_wrong", Codec.GZIP, flipped(-3))
packed_as(
    "gzip_without_wrapper",
    Codec.GZIP,
    lambda _: zlib.compress(b"".join(good()), wbits=-15),
)


def crafted() -> Iterator[tuple[str, Codec, str]]:
    """Every case with every codec and kind of topic that it is meant for."""
    for each in CASES.values():
        for codec in each.codecs:
            for topic in TOPICS:
                yield each.name, codec, topic


def build(name: str, codec: int, now: int) -> bytes:
    return CASES[name].build(now, codec)
