"""Frames out of a stream, however it is cut."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
