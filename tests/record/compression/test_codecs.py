"""Every codec there and back, in the framings of Kafka's clients, and nothing but InvalidBatch."""

from __future__ import annotations

import gzip
import random
import struct
import subprocess
import sys

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.record.compression.codecs import Codec, compress, decompress, decompress_frames
from ottla.record.compression.stream_frames import (
    lz4_bound,
    plain_lz4_blocks,
    with_kafka_v0_lz4_checksum,
    with_right_lz4_checksum,
    zstd_bound,
)
from ottla.record.errors import CorruptBatch, InvalidBatch, InvalidRecord, TooLarge

PACKING = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
LEVELS = {
    Codec.NONE: [None],
    Codec.GZIP: [None, 1, 6, 9],
    Codec.SNAPPY: [None],
    Codec.LZ4: [None, 1, 5, 9, 12, 17],
    Codec.ZSTD: [None, -5, 1, 3, 12],
}
NOISE = random.Random(1).randbytes(150_000)
SAMPLES = {
    "nothing": b"",
    "one byte": b"x",
    "text": b"the quick brown fox " * 50,
    "many blocks": b"".join(b"record %d;" % number for number in range(40_000)),
    "noise": NOISE,
    "zeros": bytes(3_000_000),
}


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize(
    ("codec", "level"), [(codec, level) for codec in Codec for level in LEVELS[codec]]
)
def test_round_trip_up_to_the_limit_and_not_beyond(
    codec: Codec, level: int | None, sample: str
) -> None:
    data = SAMPLES[sample]
    packed = compress(codec, memoryview(data), level)
    assert decompress(codec, packed, len(data)) == data
    assert decompress(codec, memoryview(packed), len(data) + 1000) == data
    if data:
        with pytest.raises(TooLarge):
            decompress(codec, packed, len(data) - 1)


@pytest.mark.parametrize("sample", SAMPLES)
def test_lz4_blocks_are_decoded_one_by_one(sample: str) -> None:
    data = SAMPLES[sample]
    packed = memoryview(compress(Codec.LZ4, data))
    output = memoryview(bytearray(lz4_bound(packed)))
    assert plain_lz4_blocks(packed) is not None
    assert output[: decompress_frames(Codec.LZ4, packed, output)] == data


def test_other_lz4_frames_are_left_to_the_decoder() -> None:
    packed = compress(Codec.LZ4, SAMPLES["text"])
    wrong_checksum = packed[:6] + bytes([packed[6] ^ 1]) + packed[7:]
    with_content_checksum = bytes(cramjam.lz4.compress(SAMPLES["text"]))
    others = [packed * 2, packed + b"\0", packed[:-1], packed[:9], b"", wrong_checksum]
    for each in [*others, with_content_checksum]:
        try:
            blocks = plain_lz4_blocks(memoryview(each))
        except CorruptBatch:
            blocks = None
        assert blocks is None
    output = memoryview(bytearray(10_000))
    for each in (packed[:-1], wrong_checksum):
        with pytest.raises(CorruptBatch):
            decompress_frames(Codec.LZ4, memoryview(each), output)
    damaged = bytearray(packed)
    damaged[12:20] = bytes(8)
    with pytest.raises(CorruptBatch):
        decompress_frames(Codec.LZ4, memoryview(damaged), output)


@given(st.sampled_from(list(Codec)), st.binary(max_size=5000))
def test_round_trip_of_anything(codec: Codec, data: bytes) -> None:
    assert decompress(codec, compress(codec, data), len(data)) == data


@pytest.mark.parametrize(("codec", "low", "high"), [(1, 1, 9), (3, 1, 12), (4, 1, 19)])
def test_levels_have_an_effect(codec: int, low: int, high: int) -> None:
    text = SAMPLES["many blocks"][:100_000]
    assert len(compress(codec, text, high)) < len(compress(codec, text, low))


def test_the_other_implementations_read_what_we_write() -> None:
    data = SAMPLES["many blocks"]
    assert gzip.decompress(compress(Codec.GZIP, data)) == data
    assert bytes(cramjam.lz4.decompress(compress(Codec.LZ4, data))) == data
    assert bytes(cramjam.zstd.decompress(compress(Codec.ZSTD, data))) == data


def test_snappy_is_written_in_blocks_of_32_kib_after_a_header() -> None:
    packed = compress(Codec.SNAPPY, NOISE[:40_000])
    assert packed[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    (size,) = struct.unpack_from(">i", packed, 16)
    assert bytes(cramjam.snappy.decompress_raw(packed[20 : 20 + size])) == NOISE[:32_768]


def test_snappy_is_read_raw_and_joined() -> None:
    data = SAMPLES["text"]
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(data)), 10_000) == data
    joined = compress(Codec.SNAPPY, data) + compress(Codec.SNAPPY, b"more")
    assert decompress(Codec.SNAPPY, joined, 10_000) == data + b"more"


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_joined_frames_are_read_as_one_and_share_the_limit(codec: Codec) -> None:
    joined = compress(codec, b"first ") + compress(codec, b"second")
    assert decompress(codec, joined, 12) == b"first second"
    with pytest.raises(TooLarge):
        decompress(codec, joined, 11)


@pytest.mark.parametrize("linked", [True, False])
@pytest.mark.parametrize("content_checksum", [True, False])
def test_any_lz4_frame_is_read(linked: bool, content_checksum: bool) -> None:
    data = SAMPLES["many blocks"]
    packer = cramjam.lz4.Compressor(level=0, content_checksum=content_checksum, block_linked=linked)
    packer.compress(data)
    assert decompress(Codec.LZ4, bytes(packer.finish()), len(data)) == data


def test_lz4_is_written_as_independent_blocks_of_64_kib() -> None:
    assert compress(Codec.LZ4, b"abc")[:7] == b"\x04\x22\x4d\x18\x60\x40\x82"
    packed = compress(Codec.LZ4, NOISE[:70_000])
    (size,) = struct.unpack_from("<I", packed, 7)
    assert size == 65_536 | 0x80000000  # noise does not shrink, so the block is stored


def test_lz4_blocks_are_independent_at_every_level_because_java_reads_no_others() -> None:
    for level in LEVELS[Codec.LZ4]:
        packed = compress(Codec.LZ4, SAMPLES["many blocks"], level)
        assert packed[4] & 0x20, level
        assert packed[5] == 0x40, level


def test_the_default_level_of_lz4_is_the_fast_method() -> None:
    text = SAMPLES["many blocks"]
    assert compress(Codec.LZ4, text, 9) == compress(Codec.LZ4, text)


def test_an_lz4_frame_that_needs_a_dictionary_is_refused() -> None:
    with pytest.raises(CorruptBatch, match="dictionary"):
        lz4_bound(memoryview(b"\x04\x22\x4d\x18\x61\x40" + bytes(4) + b"\x00" + bytes(4)))


def test_zstd_frames_to_be_skipped_are_skipped() -> None:
    skipped = b"\x53\x2a\x4d\x18" + struct.pack("<I", 5) + b"notes"
    packed = skipped + compress(Codec.ZSTD, b"abc") + skipped
    assert zstd_bound(memoryview(skipped)) == 0
    assert decompress(Codec.ZSTD, packed, 3) == b"abc"


def test_the_lz4_header_checksum_of_message_format_v0() -> None:
    frame = compress(Codec.LZ4, b"abc" * 100)
    broken = with_kafka_v0_lz4_checksum(memoryview(frame))
    assert broken[6] == 0x1A  # as Kafka's own v0 builder has it
    assert broken[:6] + broken[7:] == frame[:6] + frame[7:]
    with pytest.raises(CorruptBatch):
        decompress(Codec.LZ4, broken, 1000)
    assert with_right_lz4_checksum(memoryview(broken)) == frame


def test_the_lz4_header_checksum_covers_a_content_size() -> None:
    # 0x68: independent blocks, and eight bytes of content size before the checksum.
    size = struct.pack("<Q", 3)
    block = struct.pack("<I", 3 | 0x80000000) + b"abc"
    unsigned = b"\x04\x22\x4d\x18\x68\x40" + size + b"\x00" + block + bytes(4)
    frame = with_right_lz4_checksum(memoryview(unsigned))
    assert decompress(Codec.LZ4, frame, 3) == b"abc"


@pytest.mark.parametrize("sample", SAMPLES)
def test_bounds_are_never_below_what_comes_out(sample: str) -> None:
    data = SAMPLES[sample]
    for level in LEVELS[Codec.LZ4]:
        assert lz4_bound(memoryview(compress(Codec.LZ4, data, level))) >= len(data)
    for level in LEVELS[Codec.ZSTD]:
        bound = zstd_bound(memoryview(compress(Codec.ZSTD, data, level)))
        assert len(data) <= bound <= len(data) + 131_072


@pytest.mark.parametrize("codec", PACKING)
def test_every_truncation_is_refused(codec: Codec) -> None:
    packed = compress(codec, b"abcdefgh" * 20)
    for size in range(len(packed)):
        if codec == Codec.SNAPPY and size == 16:
            continue  # the header of an empty stream
        with pytest.raises(CorruptBatch):
            decompress(codec, packed[:size], 1000)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_bytes_after_the_end_are_refused(codec: Codec) -> None:
    with pytest.raises(CorruptBatch):
        decompress(codec, compress(codec, b"abc") + b"xyz", 1000)


@pytest.mark.parametrize("codec", PACKING)
@pytest.mark.parametrize("seed", range(3))
def test_damage_ends_in_bytes_or_invalid_batch(codec: Codec, seed: int) -> None:
    chance = random.Random(seed)
    whole = [compress(codec, data) for data in (b"", b"hello " * 30, NOISE[:400], bytes(100_000))]
    for _ in range(1500):
        damaged = bytearray(chance.choice(whole))
        for _ in range(chance.choice((1, 1, 3))):
            at = chance.randrange(min(len(damaged), 40) if chance.random() < 0.6 else len(damaged))
            damaged[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        try:
            found = decompress(codec, damaged, 200_000)
        except InvalidBatch:
            continue
        assert len(found) <= 200_000


@pytest.mark.parametrize("codec", [5, 6, 7, -1])
def test_unknown_codecs(codec: int) -> None:
    with pytest.raises(InvalidRecord):
        compress(codec, b"")
    with pytest.raises(InvalidRecord):
        decompress(codec, b"", 10)


def test_the_native_codecs_are_imported_at_first_use() -> None:
    program = (
        "import sys\n"
        "from ottla.record import batch, control, legacy\n"
        "from ottla.record.compression import codecs, recompress\n"
        "codecs.decompress(1, codecs.compress(1, b'abc'), 3)\n"
        "assert 'cramjam' not in sys.modules, 'too early'\n"
        "codecs.compress(2, b'abc')\n"
        "assert 'cramjam' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
