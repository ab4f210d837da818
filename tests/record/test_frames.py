"""The compiled check of frames says yes to what the steps it stands for let pass, to nothing else."""

from __future__ import annotations

import random
import struct
import warnings
from collections.abc import Iterator

import pytest
from record_kit.crafted_batches import CASES, HOUR, build
from record_kit.guarded import Guarded

from ottla.protocol.wiretypes import unsigned_varint
from ottla.record.batch import (
    ATTRIBUTES,
    ATTRIBUTES_AT,
    BATCH_LENGTH,
    CRC_AT,
    LENGTH_OVERHEAD,
    MAX_TIMESTAMP,
    check_produced,
)
from ottla.record.checksum import crc32c
from ottla.record.compression.codecs import Codec
from ottla.record.errors import InvalidBatch
from ottla.record.validation import frames
from ottla.record.validation.checking import check_records
from ottla.record.validation.findings import ACCEPTED, FRAME_NUMBERS, MOST_BATCHES, Rules
from ottla.record.validation.frames import FrameCheck
from ottla.record.validation.readiness import readiness

NOW = 1_700_000_000_000
LARGEST = 1 << 20
BEFORE = b"what stands before the partition"
RULES = [Rules(), Rules(True, True, HOUR, HOUR), Rules(False, True, 2**63 - 1, HOUR)]


@pytest.fixture(scope="module")
def address() -> int:
    compiled = readiness.load()
    assert compiled is not None
    return compiled.frames_address


def framed(batch: bytes, is_compact: bool, index: int = 7) -> bytes:
    return frame_of([(index, batch)], is_compact)


def frame_of(batches: list[tuple[int, bytes]], is_compact: bool) -> bytes:
    count = len(batches)
    pieces = [BEFORE, unsigned_varint(count + 1) if is_compact else struct.pack(">i", count)]
    for index, batch in batches:
        size = unsigned_varint(len(batch) + 1) if is_compact else struct.pack(">i", len(batch))
        pieces += (struct.pack(">i", index), size, batch, b"\0" if is_compact else b"")
    return b"".join(pieces) + (bytes(2) if is_compact else b"")


def is_right(batch: bytes, rules: Rules) -> bool:
    """By the steps that the kernel stands for."""
    try:
        fields = check_produced(batch)
        if fields[ATTRIBUTES] > max(Codec) or fields[ATTRIBUTES] < 0:
            return False
        if fields[BATCH_LENGTH] + LENGTH_OVERHEAD != len(batch) or len(batch) > LARGEST:
            return False
        if fields[ATTRIBUTES]:
            return True
        largest = check_records(memoryview(bytearray(batch)), fields, rules, NOW)
        return largest == fields[MAX_TIMESTAMP]
    except InvalidBatch:
        return False


def with_checksum(batch: bytes) -> bytes:
    return batch[:CRC_AT] + struct.pack(">I", crc32c(batch[ATTRIBUTES_AT:])) + batch[ATTRIBUTES_AT:]


def interpreted(frame: bytes, is_compact: bool, rules: Rules) -> int:
    """The kernel as it stands, not compiled, with its accesses checked: how many batches it accepts."""
    import numpy as np

    from ottla.record.validation import kernel

    at, stop = 3, 3 + len(frame)
    told = [at, stop, NOW, len(BEFORE), is_compact, LARGEST, *rules]
    numbers = [np.int64(number) for number in told]
    numbers += [np.int64(0)] * (FRAME_NUMBERS - len(numbers))
    tables = struct.unpack("=2048I", frames._tables())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # times wrap
        kernel.accept(Guarded(b"..." + frame, at, stop), numbers, BEFORE, tables)
    return int(numbers[ACCEPTED])


def batches(randomness: random.Random) -> Iterator[tuple[str, bytes]]:
    """All crafted batches, and each of them with some bytes changed."""
    for name, case in CASES.items():
        for codec in case.codecs:
            batch = build(name, codec, NOW)
            yield name, batch
            for _ in range(0 if len(batch) > 5_000 else 6):
                other = bytearray(batch)
                for _ in range(randomness.choice((1, 1, 2))):
                    if other:
                        at = randomness.randrange(min(len(other), 120))
                        other[at] = randomness.choice((0, 1, 2, 0x7F, 0x80, 0xFF))
                changed = bytes(other)
                if len(changed) > ATTRIBUTES_AT and randomness.random() < 0.8:
                    changed = with_checksum(changed)
                yield name, changed


@pytest.mark.parametrize("seed", [0, 1, 2, pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.parametrize("is_compact", [False, True], ids=["sizes", "compact sizes"])
def test_it_agrees_with_the_steps(address: int, seed: int, is_compact: bool) -> None:
    randomness = random.Random(seed)
    rules = RULES[seed % len(RULES)]
    check = FrameCheck(address, BEFORE, is_compact, LARGEST, rules)
    accepted = refused = 0
    for name, batch in batches(randomness):
        frame = framed(batch, is_compact)
        buffer = memoryview(bytearray(b"..." + frame + b"behind"))
        found = check.accept(buffer, 3, 3 + len(frame), NOW)
        assert (found is not None) == is_right(batch, rules), (name, batch)
        if found is None:
            refused += 1
        else:
            ((index, start, end, fields),) = found
            assert (index, bytes(buffer[start:end])) == (7, batch)
            assert fields == check_produced(batch)
            accepted += 1
        if len(batch) < 400 and randomness.random() < 0.2:
            assert interpreted(frame, is_compact, rules) == (found is not None), (name, batch)
    assert accepted > 50
    assert refused > 50


@pytest.mark.parametrize("is_compact", [False, True], ids=["sizes", "compact sizes"])
def test_a_frame_that_is_cut_or_longer_is_another_one(address: int, is_compact: bool) -> None:
    check = FrameCheck(address, BEFORE, is_compact, LARGEST, Rules())
    frame = framed(build("good", Codec.NONE, NOW), is_compact)
    for stop in range(len(frame)):
        assert check.accept(memoryview(bytearray(frame)), 0, stop, NOW) is None
        assert not interpreted(frame[:stop], is_compact, Rules())
    longer = memoryview(bytearray(frame + b"\0"))
    assert check.accept(longer, 0, len(frame) + 1, NOW) is None
    assert check.accept(longer, 0, len(frame), NOW) is not None


def test_the_checksum_of_batches_of_all_sizes(address: int) -> None:
    """Short ones are checked by the kernel, long ones by the library."""
    from ottla.record.batch import Record, build_batch

    check = FrameCheck(address, BEFORE, False, LARGEST, Rules())
    for size in [*range(40), *range(900, 1000), 5_000]:
        batch = bytes(build_batch([Record(0, NOW, None, b"v" * size)]))
        frame = framed(batch, False)
        assert check.accept(memoryview(bytearray(frame)), 0, len(frame), NOW) is not None
        wrong = bytearray(frame)
        wrong[-2] ^= 0x10
        assert check.accept(memoryview(wrong), 0, len(frame), NOW) is None


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("is_compact", [False, True], ids=["sizes", "compact sizes"])
def test_all_batches_of_a_frame_are_looked_at(address: int, seed: int, is_compact: bool) -> None:
    randomness = random.Random(seed)
    rules = RULES[seed % len(RULES)]
    check = FrameCheck(address, BEFORE, is_compact, LARGEST, rules)
    right, wrong = [], []
    for _, batch in batches(randomness):
        (right if is_right(batch, rules) else wrong).append(batch)
    for count in (1, 2, 3, 20, MOST_BATCHES - 1, MOST_BATCHES, MOST_BATCHES + 1, 126, 127, 300):
        chosen = [(randomness.randrange(-9, 99), randomness.choice(right)) for _ in range(count)]
        frame = frame_of(chosen, is_compact)
        buffer = memoryview(bytearray(b"..." + frame + b"behind"))
        found = check.accept(buffer, 3, 3 + len(frame), NOW)
        if count > MOST_BATCHES:
            assert found is None
            continue
        assert found is not None
        assert [(each[0], bytes(buffer[each[1] : each[2]])) for each in found] == chosen
        assert [each[3] for each in found] == [check_produced(batch) for _, batch in chosen]
        # One that is not right, wherever it is, and all of it goes to those who know what to say.
        chosen[randomness.randrange(count)] = (5, randomness.choice(wrong))
        frame = frame_of(chosen, is_compact)
        assert check.accept(memoryview(bytearray(frame)), 0, len(frame), NOW) is None


@pytest.mark.parametrize("is_compact", [False, True], ids=["sizes", "compact sizes"])
def test_a_frame_of_several_batches_with_any_byte_changed(address: int, is_compact: bool) -> None:
    """It is another frame then, or the same batches for other numbers; never is anything looked at
    outside of it."""
    check = FrameCheck(address, BEFORE, is_compact, LARGEST, Rules())
    batch = build("good", Codec.NONE, NOW)
    frame = frame_of([(1, batch), (2, batch), (3, batch)], is_compact)
    for stop in range(len(frame)):
        assert check.accept(memoryview(bytearray(frame)), 0, stop, NOW) is None
        assert not interpreted(frame[:stop], is_compact, Rules())
    for at in range(len(frame)):
        for value in (0, 1, 0x7F, 0x80, 0xFF, frame[at] ^ 1):
            changed = frame[:at] + bytes([value]) + frame[at + 1 :]
            found = check.accept(memoryview(bytearray(changed)), 0, len(frame), NOW)
            assert interpreted(changed, is_compact, Rules()) == len(found or ())
            if found is not None:
                assert len(found) == 3
                for _, start, end, fields in found:
                    # The leader epoch is the broker's, and under no checksum.
                    assert check_produced(changed[start:end]) == fields
