"""How large a compressed stream can become: LZ4's and Zstandard's frames, walked but not decoded.

The decoders write into a buffer of fixed size, which is what bounds them. To size that buffer well,
the frame is walked from block header to block header: each block states how many bytes it takes
and, by its kind, how many it yields at most. The walk costs a few operations per 64 or 128 KiB.

The module also knows LZ4's header checksum, because Kafka's first message format computed it over
the wrong bytes, and old clients still write and expect it so.
"""

from __future__ import annotations

import struct
from functools import lru_cache

from ottla.record.errors import CorruptBatch

_UINT32 = struct.Struct("<I")
_UINT64 = struct.Struct("<Q")

# LZ4 frame: magic, flags, block size, [content size: 8], [dictionary id: 4], header checksum,
# blocks, end mark (four zero bytes), [content checksum: 4]. A block: its size (the top bit says
# "stored"), data, [checksum: 4].
LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_VERSION_MASK = 0xC0
_LZ4_VERSION = 0x40
_LZ4_INDEPENDENT = 0x20
_LZ4_BLOCK_CHECKSUM = 0x10
_LZ4_CONTENT_SIZE = 0x08
_LZ4_CONTENT_CHECKSUM = 0x04
_LZ4_DICTIONARY = 0x01
_LZ4_PLAIN = _LZ4_VERSION | _LZ4_INDEPENDENT
_LZ4_STORED = 0x80000000
_LZ4_BLOCK_SIZES = {4: 1 << 16, 5: 1 << 18, 6: 1 << 20, 7: 1 << 22}
# One byte of a match length stands for at most 255 bytes.
_LZ4_BEST_RATIO = 255

# Zstandard frame: magic, descriptor, [window: 1], [dictionary id: 1, 2, 4],
# [content size: 1, 2, 4, 8], blocks with a header of 3 bytes (last: 1 bit, kind: 2 bits, size: 21
# bits), [checksum: 4].
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE = 0x184D2A50
_ZSTD_LARGEST_BLOCK = 1 << 17
# The reference decoder refuses larger windows, too.
_ZSTD_LARGEST_WINDOW = 1 << 27
_ZSTD_DICTIONARY_BYTES = (0, 1, 2, 4)


def lz4_bound(data: memoryview) -> int:
    """The most bytes that LZ4 frames can yield; CorruptBatch if `data` is something else."""
    bound = 0
    at = 0
    try:
        while at < len(data) or at == 0:
            yields, at = _lz4_frame(data, at)
            bound += yields
    except (IndexError, struct.error):
        raise CorruptBatch("the LZ4 frame is truncated") from None
    if at > len(data):
        raise CorruptBatch("the LZ4 frame is truncated")
    return bound


def check_single_lz4_frame(data: memoryview) -> None:
    """CorruptBatch unless `data` is one LZ4 frame from end to end, of blocks that stand alone: Kafka's
    Java client reads no further than that, and no other ones."""
    try:
        flags, _, _ = _lz4_header(data, 0)
        _, end = _lz4_frame(data, 0)
    except (IndexError, struct.error):
        raise CorruptBatch("the LZ4 frame is truncated") from None
    if end != len(data):
        raise CorruptBatch("the LZ4 frame does not end where the batch does")
    if not flags & _LZ4_INDEPENDENT:
        raise CorruptBatch("the blocks of the LZ4 frame depend on each other")


def plain_lz4_blocks(data: memoryview) -> list[tuple[int, int, int]] | None:
    """Where the blocks of an LZ4 frame begin and end, and how much each yields at most, 0 if it is
    stored as it is. None if `data` is more than one frame of blocks that stand alone: whatever has
    checksums or a content size is the decoder's."""
    try:
        flags, block_size, at = _lz4_header(data, 0)
        if flags != _LZ4_PLAIN or not _is_right_header(bytes(data[:at])):
            return None
        blocks = []
        while size := _UINT32.unpack_from(data, at)[0]:
            start = at + 4
            at = start + (size & ~_LZ4_STORED)
            most = 0 if size & _LZ4_STORED else min(block_size, size * _LZ4_BEST_RATIO)
            blocks.append((start, at, most))
    except (IndexError, struct.error):
        return None
    return blocks if at + 4 == len(data) else None


@lru_cache(64)
def _is_right_header(header: bytes) -> bool:
    """Whether the checksum of a frame's header, its last byte, is right."""
    return (_short_xxh32(header[len(LZ4_MAGIC) : -1]) >> 8) & 0xFF == header[-1]


def _lz4_frame(data: memoryview, at: int) -> tuple[int, int]:
    """The bound of one frame and the position after it."""
    flags, block_size, at = _lz4_header(data, at)
    bound = 0
    block_trailer = 4 if flags & _LZ4_BLOCK_CHECKSUM else 0
    while True:
        (size,) = _UINT32.unpack_from(data, at)
        at += 4
        if size == 0:
            break
        if size & _LZ4_STORED:
            size ^= _LZ4_STORED
            bound += size
        else:
            bound += min(block_size, size * _LZ4_BEST_RATIO)
        at += size + block_trailer
    return bound, at + (4 if flags & _LZ4_CONTENT_CHECKSUM else 0)


def _lz4_header(data: memoryview, at: int) -> tuple[int, int, int]:
    """Flags, largest block and the position after the header; its checksum is the decoder's."""
    if data[at : at + 4] != LZ4_MAGIC:
        raise CorruptBatch("not an LZ4 frame")
    flags = data[at + 4]
    block_size = _LZ4_BLOCK_SIZES.get(data[at + 5] >> 4)
    if flags & _LZ4_VERSION_MASK != _LZ4_VERSION or block_size is None:
        raise CorruptBatch("unknown kind of LZ4 frame")
    if flags & _LZ4_DICTIONARY:
        raise CorruptBatch("the LZ4 frame needs a dictionary")
    return flags, block_size, at + 7 + (8 if flags & _LZ4_CONTENT_SIZE else 0)


def with_right_lz4_checksum(data: memoryview) -> bytes:
    """The LZ4 frame with the header checksum of the standard, whichever it has."""
    return _with_lz4_checksum(data, len(LZ4_MAGIC))


def with_kafka_v0_lz4_checksum(data: memoryview) -> bytes:
    """The LZ4 frame with the header checksum of message format v0: taken from the magic on."""
    return _with_lz4_checksum(data, 0)


def _with_lz4_checksum(data: memoryview, start: int) -> bytes:
    try:
        _, _, after = _lz4_header(data, 0)
        checksum_at = after - 1
        data[checksum_at]
    except IndexError:
        raise CorruptBatch("the LZ4 frame is truncated") from None
    checksum = (_short_xxh32(bytes(data[start:checksum_at])) >> 8) & 0xFF
    return b"".join((data[:checksum_at], bytes((checksum,)), data[after:]))


def _short_xxh32(data: bytes) -> int:
    """xxHash-32 with seed 0 of fewer than 16 bytes; a frame header never has more."""
    assert len(data) < 16
    mask = 0xFFFFFFFF
    prime_1, prime_2, prime_3, prime_4, prime_5 = (
        2654435761,
        2246822519,
        3266489917,
        668265263,
        374761393,
    )
    accumulator = prime_5 + len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        accumulator = (accumulator + _UINT32.unpack_from(data, at)[0] * prime_3) & mask
        accumulator = (((accumulator << 17) | (accumulator >> 15)) * prime_4) & mask
    for byte in data[whole:]:
        accumulator = (accumulator + byte * prime_5) & mask
        accumulator = (((accumulator << 11) | (accumulator >> 21)) * prime_1) & mask
    accumulator = ((accumulator ^ (accumulator >> 15)) * prime_2) & mask
    accumulator = ((accumulator ^ (accumulator >> 13)) * prime_3) & mask
    return accumulator ^ (accumulator >> 16)


def zstd_bound(data: memoryview) -> int:
    """The most bytes that Zstandard frames can yield; CorruptBatch if `data` is something else."""
    bound = 0
    at = 0
    try:
        while at < len(data) or at == 0:
            yields, at = _zstd_frame(data, at)
            bound += yields
    except (IndexError, struct.error):
        raise CorruptBatch("the Zstandard frame is truncated") from None
    if at > len(data):
        raise CorruptBatch("the Zstandard frame is truncated")
    return bound


def _zstd_frame(data: memoryview, at: int) -> tuple[int, int]:
    """The bound of one frame and the position after it."""
    (magic,) = _UINT32.unpack_from(data, at)
    if magic & 0xFFFFFFF0 == _ZSTD_SKIPPABLE:
        return 0, at + 8 + int(_UINT32.unpack_from(data, at + 4)[0])
    if data[at : at + 4] != _ZSTD_MAGIC:
        raise CorruptBatch("not a Zstandard frame")
    descriptor = data[at + 4]
    single_segment = descriptor & 0x20
    at += 5
    window = 0
    if not single_segment:
        base = 1 << (10 + (data[at] >> 3))
        window = base + (base >> 3) * (data[at] & 7)
        at += 1
    at += _ZSTD_DICTIONARY_BYTES[descriptor & 3]
    content_size: int | None = None
    match descriptor >> 6:
        case 0 if single_segment:
            content_size = data[at]
            at += 1
        case 1:
            content_size = 256 + data[at] + (data[at + 1] << 8)
            at += 2
        case 2:
            content_size = int(_UINT32.unpack_from(data, at)[0])
            at += 4
        case 3:
            content_size = int(_UINT64.unpack_from(data, at)[0])
            at += 8
    if single_segment:
        window = content_size or 0
    elif window > _ZSTD_LARGEST_WINDOW:
        # A decoder allocates the window it is told of before it sees a block.
        raise CorruptBatch(f"the Zstandard frame wants a window of {window} bytes")
    bound, at = _zstd_blocks(data, at, min(window, _ZSTD_LARGEST_BLOCK))
    if content_size is not None:
        if content_size > bound:
            raise CorruptBatch("the Zstandard frame promises more than its blocks can hold")
        bound = content_size
    return bound, at + (4 if descriptor & 4 else 0)


def _zstd_blocks(data: memoryview, at: int, largest_block: int) -> tuple[int, int]:
    bound = 0
    last = 0
    while not last:
        header = data[at] | data[at + 1] << 8 | data[at + 2] << 16
        at += 3
        last = header & 1
        size = header >> 3
        match header >> 1 & 3:
            case 0:  # raw
                bound += size
                at += size
            case 1:  # one byte, repeated
                bound += size
                at += 1
            case 2:  # compressed
                bound += largest_block
                at += size
            case _:
                raise CorruptBatch("unknown kind of Zstandard block")
    return bound, at
