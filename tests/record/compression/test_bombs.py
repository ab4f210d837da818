"""Decompression bombs: refused, and the memory for it stays within the limit.

Each bomb is unpacked in a process of its own, whose peak memory the kernel keeps (VmHWM). The bombs
are made of repeated pieces, so that making one costs neither time nor memory.
"""

from __future__ import annotations

import subprocess
import sys
import zlib
from pathlib import Path

import cramjam
import pytest

from ottla.record.batch import InvalidBatch, assemble, read_header, records
from ottla.record.compression.codecs import Codec, decompress
from ottla.record.compression.stream_frames import with_right_lz4_checksum, zstd_bound
from ottla.record.errors import CorruptBatch, TooLarge

MIB = 1024 * 1024
LIMIT = 8 * MIB
# What the interpreter, the codec library and the decoder's own window may take beside the buffer.
ALLOWANCE = 24 * MIB

PROGRAM = """
import sys
from ottla.record.compression.codecs import compress, decompress
from ottla.record.errors import TooLarge

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))

codec, limit = int(sys.argv[1]), int(sys.argv[2])
bomb = sys.stdin.buffer.read()
decompress(codec, compress(codec, b"warm up"), 10)
before = peak()
try:
    decompress(codec, bomb, limit)
except TooLarge:
    print(peak() - before)
"""


def gzip_bomb() -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    zeros = bytes(MIB)
    return b"".join(packer.compress(zeros) for _ in range(200)) + packer.flush()


def snappy_bomb() -> bytes:
    block = bytes(cramjam.snappy.compress_raw(bytes(32 * 1024)))
    header = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    return header + (len(block).to_bytes(4, "big") + block) * 6000


def lz4_bomb() -> bytes:
    block = bytes(cramjam.lz4.compress_block(bytes(4 * MIB), store_size=False))
    header = b"\x04\x22\x4d\x18\x60\x70\x00"  # blocks of up to 4 MiB
    frame = header + (len(block).to_bytes(4, "little") + block) * 60 + bytes(4)
    return with_right_lz4_checksum(memoryview(frame))


def zstd_block(kind: int, size: int, *, last: bool = False) -> bytes:
    return (size << 3 | kind << 1 | last).to_bytes(3, "little")


def zstd_repeat_bomb(blocks: int = 20_000) -> bytes:
    """One byte, 128 KiB times, in four bytes: the best ratio there is."""
    window_of_2_mib = b"\x28\xb5\x2f\xfd\x00\x58"
    repeated = zstd_block(1, 128 * 1024) + b"\x00"
    return window_of_2_mib + repeated * blocks + zstd_block(1, 128 * 1024, last=True) + b"\x00"


def zstd_nested_bomb() -> bytes:
    """Compressed blocks, whose size no header tells."""
    return bytes(cramjam.zstd.compress(bytes(200 * MIB), 1))


BOMBS = {
    "gzip": (Codec.GZIP, gzip_bomb),
    "snappy": (Codec.SNAPPY, snappy_bomb),
    "lz4": (Codec.LZ4, lz4_bomb),
    "zstd, repeated": (Codec.ZSTD, zstd_repeat_bomb),
    "zstd, compressed": (Codec.ZSTD, zstd_nested_bomb),
}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_within_the_limit(name: str) -> None:
    codec, make = BOMBS[name]
    outcome = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(int(codec)), str(LIMIT)],
        input=make(),
        capture_output=True,
        check=True,
    )
    assert outcome.stdout, f"not refused: {outcome.stderr.decode()}"
    assert int(outcome.stdout) <= LIMIT + ALLOWANCE


def test_a_snappy_block_that_lies_about_its_size_is_refused() -> None:
    claim = b"\xff\xff\xff\x7f"  # 256 MiB
    with pytest.raises(CorruptBatch):
        decompress(Codec.SNAPPY, claim + b"\x00a", 1 << 30)


def test_a_zstd_frame_that_lies_about_its_size_is_refused() -> None:
    single_segment_of_4_gib = b"\x28\xb5\x2f\xfd\xa0" + b"\xff\xff\xff\xff"
    frame = single_segment_of_4_gib + zstd_block(0, 3, last=True) + b"abc"
    # Before the decoder sees it, which would believe the claim and set the memory aside.
    with pytest.raises(CorruptBatch):
        zstd_bound(memoryview(frame))
    with pytest.raises(CorruptBatch):
        decompress(Codec.ZSTD, frame, 1 << 40)


def test_a_zstd_frame_with_a_huge_window_is_refused() -> None:
    window_of_256_mib = b"\x28\xb5\x2f\xfd\x00" + bytes((18 << 3,))
    frame = window_of_256_mib + zstd_block(0, 3, last=True) + b"abc"
    with pytest.raises(CorruptBatch):
        zstd_bound(memoryview(frame))
    with pytest.raises(CorruptBatch):
        decompress(Codec.ZSTD, frame, 1 << 40)


def test_a_batch_with_a_bomb_inside_is_refused_before_its_records() -> None:
    empty = bytes(61)
    header = read_header(empty)._replace(magic=2, attributes=Codec.ZSTD, record_count=1)
    batch = assemble(header, zstd_repeat_bomb(200))
    with pytest.raises(TooLarge):
        records(batch, LIMIT)
    # The contents are zeros, no records; with enough room that comes out, and nothing worse.
    with pytest.raises(InvalidBatch):
        list(records(batch, 64 * MIB))
