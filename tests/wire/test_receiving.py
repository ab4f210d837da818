"""Frames out of a stream, however it is cut."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.protocol.message import Buffer
from ottla.wire.receiving import SMALL, FrameReceiver, UnacceptableFrame

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


def received(receiver: FrameReceiver, number: int, size: int) -> memoryview:
    """One large frame, as it is given out."""
    stream = struct.pack(">i", size) + bytes([number]) * size
    frames: list[Buffer] = []
    at = 0
    while at < len(stream):
        buffer = receiver.buffer()
        count = min(len(buffer), len(stream) - at)
        buffer[:count] = stream[at : at + count]
        del buffer
        at += count
        frames += receiver.received(count)
    (frame,) = frames
    assert isinstance(frame, memoryview)
    return frame


@pytest.mark.parametrize("size", [(1 << 20) - 1, 1 << 20, 9 << 20])
def test_a_buffer_that_somebody_holds_is_not_written_to(size: int) -> None:
    receiver = FrameReceiver(2 * size)
    held = [received(receiver, number, size + number) for number in range(7)]
    assert [set(frame) for frame in held] == [{number} for number in range(7)]
    assert [len(frame) for frame in held] == [size + number for number in range(7)]


def test_a_large_buffer_that_nobody_holds_is_used_again() -> None:
    size = 5 << 20
    receiver = FrameReceiver(10 * size)
    first = received(receiver, 1, size - 1000)
    memory = first.obj
    assert received(receiver, 2, size).obj is not memory, "it is held"
    del first
    assert received(receiver, 3, size).obj is memory, "also for a frame that is a little larger"
    assert received(receiver, 4, size // 4).obj is not memory, "it would pin a much larger one"
    others = [received(receiver, 5, 2 * size) for _ in range(6)]
    assert len({id(frame.obj) for frame in others}) == len(others)
    del others
    memories = [received(receiver, 6, 2 * size).obj for _ in range(4)]
    assert len({id(memory) for memory in memories}) == 1, "buffers that do not fit gave way"
