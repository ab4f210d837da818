"""Frames out of a stream, however it is cut."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.wire.receiving import PART, SMALL, FrameReceiver, Pull, UnacceptableFrame

LIMIT = 4 * SMALL
sizes = st.one_of(
    st.integers(0, 50), st.integers(SMALL - 10, SMALL + 10), st.integers(0, 3 * SMALL)
)


def feed(receiver: FrameReceiver, stream: bytes, cuts: random.Random) -> list[bytes]:
    frames = []
    at = 0
    while at < len(stream):
        buffer = receiver.buffer()
        assert len(buffer) > 0
        count = min(len(buffer), len(stream) - at, cuts.choice((3, 100, SMALL, 10 * SMALL)))
        buffer[:count] = stream[at : at + count]
        del buffer
        at += count
        frames += [bytes(frame) for frame in receiver.received(count)]
    return frames


@settings(max_examples=60, deadline=None)
@given(st.lists(sizes, max_size=6), st.integers(0, 2**32))
def test_frames_come_out_as_they_went_in(lengths: list[int], seed: int) -> None:
    cuts = random.Random(seed)
    frames = [cuts.randbytes(length) for length in lengths]
    stream = b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)
    assert feed(FrameReceiver(LIMIT), stream, cuts) == frames


@pytest.mark.parametrize("length", [-1, -(2**31), LIMIT + 1, 2**31 - 1])
def test_lengths_are_checked_before_anything_is_allocated(length: int) -> None:
    with pytest.raises(UnacceptableFrame):
        feed(FrameReceiver(LIMIT), struct.pack(">i", length), random.Random(1))


def test_a_buffer_that_somebody_holds_is_not_written_to() -> None:
    size = 9 << 20
    receiver = FrameReceiver(2 * size)
    held = []
    for number in range(5):
        stream = struct.pack(">i", size) + bytes([number]) * size
        at = 0
        while at < len(stream):
            buffer = receiver.buffer()
            count = min(len(buffer), len(stream) - at)
            buffer[:count] = stream[at : at + count]
            del buffer
            at += count
            held += list(receiver.received(count))
    assert [set(frame) for frame in held] == [{number} for number in range(5)]


def test_a_large_frame_is_told_of_as_it_comes() -> None:
    size = 5 * PART + 123
    frame = random.Random(3).randbytes(size)
    receiver = FrameReceiver(2 * size)
    told: list[int] = []

    def on_part(view: memoryview, arrived: int) -> None:
        assert len(view) == size
        assert view.readonly
        assert view[:arrived] == frame[:arrived]
        told.append(arrived)

    receiver.on_part = on_part
    assert feed(receiver, struct.pack(">i", size) + frame, random.Random(5)) == [frame]
    assert told == sorted(told)
    assert len(told) >= 3
    assert told[-1] < size  # then the frame itself is there
    told.clear()
    assert feed(receiver, struct.pack(">i", size) + frame, random.Random(6)) == [frame]
    assert told
    assert told[0] >= PART


def test_answers_of_like_sizes_share_a_buffer() -> None:
    receiver = FrameReceiver(16 << 20)
    places = set()
    for size in (PART + 70_000, PART + 65_000, PART + 69_999):
        stream = struct.pack(">i", size) + bytes(size)
        at = 0
        while at < len(stream):
            buffer = receiver.buffer()
            count = min(len(buffer), len(stream) - at)
            at += count
            buffer[:count] = stream[at - count : at]
            del buffer
            for frame in receiver.received(count):
                places.add(np.frombuffer(frame, np.uint8).ctypes.data)
                del frame
    assert len(places) == 1


def test_a_large_frame_may_be_received_by_who_looks_at_it() -> None:
    size = 3 * PART
    frame = random.Random(1).randbytes(size)
    receiver = FrameReceiver(2 * size)
    asked: list[tuple[int, int]] = []

    def pull(descriptor: int, arrived: int, most: int) -> int:
        assert descriptor == 77
        asked.append((arrived, most))
        taken[arrived : arrived + 1000] = frame[arrived : arrived + 1000]
        return 1000

    def on_part(view: memoryview, arrived: int) -> Pull:
        assert view.readonly
        assert bytes(view[:arrived]) == frame[:arrived]
        return pull

    taken = memoryview(b"")
    receiver.on_part = on_part
    receiver.pulls = True
    assert receiver.pull_from(77, 100) == 0, "no frame is under way"
    stream = struct.pack(">i", size) + frame
    at = 0
    while at < PART + SMALL:
        taken = receiver.buffer()
        count = min(len(taken), len(stream) - at)
        taken[:count] = stream[at : at + count]
        assert not list(receiver.received(count))
        at += count
    there = at - 4
    # The frame's memory from its beginning on: what is pulled goes after what is there.
    whole = receiver._large
    assert whole is not None
    taken = whole
    assert receiver.pull_from(77, 5000) == 1000
    assert asked == [(there, 5000)]
    there += 1000
    assert receiver.missing == size - there
    receiver.pull_from(77, 10 * size)
    there += 1000
    assert asked[-1] == (there - 1000, size - there + 1000 - 1), "never the last byte"
    frames: list[bytes] = []
    taken, whole = memoryview(b""), None
    while not frames:
        buffer = receiver.buffer()
        count = min(len(buffer), size - there)
        buffer[:count] = frame[there : there + count]
        frames += [bytes(each) for each in receiver.received(count)]
        there += count
    assert frames == [frame]
    assert receiver.pull is None


def test_a_way_to_receive_ends_when_it_says_so() -> None:
    told: list[int] = []

    def on_part(view: memoryview, arrived: int) -> Pull:
        del view
        told.append(arrived)
        return lambda *_: -1

    for pulls in (True, False):
        told.clear()
        size = 4 * PART
        receiver = FrameReceiver(2 * size)
        receiver.on_part = on_part
        receiver.pulls = pulls
        stream = struct.pack(">i", size) + bytes(size)
        at = 0
        while at < len(stream):
            assert receiver.pull_from(1, 100) == 0
            buffer = receiver.buffer()
            count = min(len(buffer), len(stream) - at)
            buffer[:count] = stream[at : at + count]
            list(receiver.received(count))
            at += count
        assert len(told) >= 3, "each part is told of"
