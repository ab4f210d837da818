"""The compression codecs of record batches, in the framings that Kafka's clients use.

    gzip     gzip members
    snappy   written in xerial's framing (a 16-byte header, then blocks: a 4-byte big-endian length
             and raw snappy), read in that framing or as one raw block
    lz4      the LZ4 frame format: independent blocks of 64 KiB (Kafka's Java client reads no
             others), byte for byte as that client writes it; any LZ4 frame is read
    zstd     Zstandard frames

Decompression takes a limit, and a stream that would yield more is refused without being unfolded:
the decoders write into a buffer that is never larger than the limit, and never larger than the
stream's own structure allows. (What is returned is a copy of its used part, so a stream just below
the limit needs twice its size for a moment.)

gzip comes from the standard library, whose decoder is bounded by itself and measured to be the
faster one; cramjam has the other three and is imported when the first of them is needed.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from enum import IntEnum
from typing import Any

from ottla.record.compression.stream_frames import (
    LZ4_MAGIC,
    lz4_bound,
    plain_lz4_blocks,
    zstd_bound,
)
from ottla.record.errors import CorruptBatch, InvalidRecord, TooLarge


class Codec(IntEnum):
    """The codec numbers in the attributes of batches and messages."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


# Ample for any honest batch (brokers take about 1 MiB of compressed bytes), survivable for a bomb.
DEFAULT_LIMIT = 128 * 1024 * 1024

GZIP_DEFAULT_LEVEL = 6
LZ4_DEFAULT_LEVEL = 9
ZSTD_DEFAULT_LEVEL = 3

_GZIP_WINDOW_BITS = 31  # 15 bits of window, plus 16 for the gzip wrapper

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"  # version, oldest reader
_XERIAL_BLOCK = 32 * 1024
# Three bytes of snappy copy at most 64.
_SNAPPY_BEST_RATIO = 22

# Version 1, independent blocks of at most 64 KiB, no checksums; the last byte is the header's.
_LZ4_HEADER = LZ4_MAGIC + b"\x60\x40\x82"
_LZ4_BLOCK = 64 * 1024
_LZ4_STORED = 0x80000000
# Kafka counts LZ4 levels to 17, the library to 12. Kafka's default level means the fast method.
_LZ4_HIGHEST_LEVEL = 12

# Above this size the output buffer is mapped: pages that the decoder never writes cost nothing.
_LARGEST_HEAP_BUFFER = 1024 * 1024

_INT32 = struct.Struct(">i")
_LITTLE_UINT32 = struct.Struct("<I")


def compress(codec: int, data: bytes | bytearray | memoryview, level: int | None = None) -> bytes:
    """`data` in the codec's framing. Levels are Kafka's; snappy has none."""
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            return zlib.compress(
                data, GZIP_DEFAULT_LEVEL if level is None else level, _GZIP_WINDOW_BITS
            )
        case Codec.SNAPPY:
            return _compress_snappy(memoryview(data))
        case Codec.LZ4:
            return _compress_lz4(memoryview(data), level)
        case Codec.ZSTD:
            return bytes(
                _cramjam().zstd.compress(data, ZSTD_DEFAULT_LEVEL if level is None else level)
            )
    raise InvalidRecord(f"unknown compression codec {codec}")


def decompress(codec: int, data: bytes | bytearray | memoryview, limit: int) -> bytes:
    """What a compressed stream holds: TooLarge beyond `limit` bytes, CorruptBatch if broken."""
    match codec:
        case Codec.NONE:
            if len(data) > limit:
                raise _too_large(limit)
            return bytes(data)
        case Codec.GZIP:
            return _decompress_gzip(data, limit)
        case Codec.SNAPPY:
            return _decompress_snappy(memoryview(data), limit)
        case Codec.LZ4:
            view = memoryview(data)
            return _decompress_into(_cramjam().lz4, view, lz4_bound(view), limit)
        case Codec.ZSTD:
            view = memoryview(data)
            return _decompress_into(_cramjam().zstd, view, zstd_bound(view), limit)
    raise InvalidRecord(f"unknown compression codec {codec}")


def _cramjam() -> Any:
    import cramjam  # an extension of several MB: only those who compress pay for it

    return cramjam


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"more than {limit} bytes after decompression")


def _decompress_gzip(data: bytes | bytearray | memoryview, limit: int) -> bytes:
    members: list[bytes] = []
    rest: bytes | bytearray | memoryview = data
    left = limit
    try:
        while rest or not members:
            member = zlib.decompressobj(_GZIP_WINDOW_BITS)
            # One byte more than allowed tells "just full" from "too much"; zero means no bound.
            output = member.decompress(rest, left + 1)
            if len(output) > left:
                raise _too_large(limit)
            if not member.eof:
                raise CorruptBatch("the gzip stream is truncated")
            members.append(output)
            left -= len(output)
            rest = member.unused_data
    except zlib.error as error:
        raise CorruptBatch(f"not a gzip stream: {error}") from None
    return members[0] if len(members) == 1 else b"".join(members)


def _compress_snappy(data: memoryview) -> bytes:
    compress_block = _cramjam().snappy.compress_raw
    parts: list[Any] = [_XERIAL_HEADER]
    for at in range(0, len(data), _XERIAL_BLOCK):
        block = compress_block(data[at : at + _XERIAL_BLOCK])
        parts += (_INT32.pack(len(block)), block)
    return b"".join(parts)


def _decompress_snappy(data: memoryview, limit: int) -> bytes:
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return bytes(_decompress_snappy_block(data, limit, limit))
    parts = []
    left = limit
    at = len(_XERIAL_HEADER)
    end = len(data)
    while at < end:
        if data[at : at + len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:
            at += len(_XERIAL_HEADER)  # streams may be joined, header and all
            continue
        if end - at < 4:
            raise CorruptBatch("the snappy stream is truncated")
        (size,) = _INT32.unpack_from(data, at)
        at += 4
        if not 0 <= size <= end - at:
            raise CorruptBatch(f"a snappy block of {size} bytes, {end - at} are left")
        block = _decompress_snappy_block(data[at : at + size], left, limit)
        parts.append(block)
        left -= len(block)
        at += size
    if at != end:
        raise CorruptBatch("the snappy stream is truncated")
    return b"".join(parts)


def _decompress_snappy_block(block: memoryview, left: int, limit: int) -> Any:
    """One raw block, whose first bytes state its decompressed size."""
    cramjam = _cramjam()
    if not block:
        raise CorruptBatch("an empty snappy block")
    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > len(block) * _SNAPPY_BEST_RATIO:
            raise CorruptBatch(f"a snappy block of {len(block)} bytes claims to hold {size}")
        if size > left:
            raise _too_large(limit)
        return cramjam.snappy.decompress_raw(block)
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"not a snappy block: {error}") from None


def _compress_lz4(data: memoryview, level: int | None) -> bytes:
    lz4 = _cramjam().lz4
    if level is not None and level != LZ4_DEFAULT_LEVEL:
        # The library has levels only in its frame writer, which adds a checksum to each block.
        packer = lz4.Compressor(
            level=min(level, _LZ4_HIGHEST_LEVEL), content_checksum=False, block_linked=False
        )
        packer.compress(bytes(data))
        return bytes(packer.finish())
    parts: list[Any] = [_LZ4_HEADER]
    for at in range(0, len(data), _LZ4_BLOCK):
        plain = data[at : at + _LZ4_BLOCK]
        block = lz4.compress_block(plain, store_size=False)
        if len(block) < len(plain):
            parts += (_LITTLE_UINT32.pack(len(block)), block)
        else:
            parts += (_LITTLE_UINT32.pack(len(plain) | _LZ4_STORED), plain)
    parts.append(b"\x00\x00\x00\x00")
    return b"".join(parts)


def _decompress_into(decoder: Any, data: memoryview, bound: int, limit: int) -> bytes:
    """Decode into a buffer of `bound` bytes, or of `limit` where that is less."""
    size = min(bound, limit)
    buffer: bytearray | mmap.mmap
    if size <= _LARGEST_HEAP_BUFFER:
        buffer = bytearray(size)
    else:
        buffer = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        written = decoder.decompress_into(data, buffer)
    except _cramjam().DecompressionError as error:
        if bound > limit and "write whole buffer" in str(error):
            raise _too_large(limit) from None
        raise _damaged(error) from None
    return bytes(buffer[:written])


def frame_bound(codec: int, data: memoryview) -> int | None:
    """The most bytes that an LZ4 or Zstandard stream can yield; None for the other codecs."""
    match codec:
        case Codec.LZ4:
            return lz4_bound(data)
        case Codec.ZSTD:
            return zstd_bound(data)
    return None


def decompress_frames(codec: int, data: memoryview, output: memoryview) -> int:
    """Decode an LZ4 or Zstandard stream into `output`, which has room for `frame_bound` bytes.

    Gives the number of bytes written; for callers that own a buffer and want no copy.
    """
    cramjam = _cramjam()
    try:
        if codec != Codec.LZ4:
            return int(cramjam.zstd.decompress_into(data, output))
        size = decompress_plain_lz4(data, output)
        return int(cramjam.lz4.decompress_into(data, output)) if size is None else size
    except cramjam.DecompressionError as error:
        raise _damaged(error) from None


def decompress_plain_lz4(data: memoryview, output: memoryview) -> int | None:
    """Decode one LZ4 frame of the kind that nearly all producers write, block by block, which takes
    half the time: the bytes written, or None if it is of another kind or may not fit. CorruptBatch."""
    blocks = plain_lz4_blocks(data)
    if blocks is None:
        return None
    cramjam = _cramjam()
    decode = cramjam.lz4.decompress_block_into
    room = len(output)
    end = 0
    try:
        for start, stop, most in blocks:
            if end + (most or stop - start) > room:
                return None
            if most:
                end += decode(data[start:stop], output[end : end + most])
            else:
                output[end : end + stop - start] = data[start:stop]
                end += stop - start
    except cramjam.DecompressionError as error:
        raise _damaged(error) from None
    return end


def _damaged(error: Exception) -> CorruptBatch:
    return CorruptBatch(f"the compressed records are damaged: {error}")
