"""The frame parser: any stream of bytes, in any pieces."""

from __future__ import annotations

import random
import struct
from itertools import pairwise

from fuzz_kit.batches import good_batch
from fuzz_kit.harness import Harness
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.protocol.frame import encode_request
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

# The harness is the session's on purpose: a broker has more than one connection in its life.
many = settings(
    deadline=None,
    derandomize=True,
    max_examples=5 * settings.default.max_examples,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def frames_of(seed: int) -> list[bytes]:
    """A few requests of different kinds, among them some that wait."""
    dice = random.Random(seed)
    made = []
    for number in range(dice.randint(1, 6)):
        request = dice.choice(
            (
                ApiVersionsRequest(),
                MetadataRequest(topics=[]),
                MetadataRequest(topics=None),
                FetchRequest(
                    max_wait_ms=dice.choice((0, 1)),
                    min_bytes=1,
                    topics=[
                        FetchTopic(
                            topic="plain",
                            partitions=[FetchPartition(partition=1, partition_max_bytes=9999)],
                        )
                    ],
                ),
                ProduceRequest(
                    acks=dice.choice((1, -1)),
                    topic_data=[
                        TopicProduceData(
                            name=dice.choice(("plain", "packed")),
                            partition_data=[
                                PartitionProduceData(index=1, records=good_batch(dice))
                            ],
                        )
                    ],
                ),
            )
        )
        version = 4 if isinstance(request, FetchRequest) else dice.choice((0, 1, 3))
        if isinstance(request, ProduceRequest):
            version = 9
        if isinstance(request, MetadataRequest):
            version = dice.choice((1, 9))
        made.append(encode_request(request, version, number, "frames"))
    return made


@many
@given(seed=st.integers(0, 10_000), cuts=st.lists(st.integers(0, 4000), max_size=12))
def test_pieces_make_no_difference(harness: Harness, seed: int, cuts: list[int]) -> None:
    """Every request is answered, in order, wherever the stream was cut."""
    frames = frames_of(seed)
    stream = b"".join(frames)
    places = sorted({0, len(stream), *(cut % len(stream) for cut in cuts)})
    pieces = [stream[a:b] for a, b in pairwise(places)]
    answers = harness.feed(*pieces)
    assert [struct.unpack_from(">i", answer)[0] for answer in answers] == list(range(len(frames)))


@many
@given(data=st.binary(max_size=200), cut=st.integers(0, 200))
def test_any_bytes(harness: Harness, data: bytes, cut: int) -> None:
    harness.feed(data[:cut], data[cut:])
    harness.hang_up()


@many
@given(
    size=st.one_of(st.integers(-(2**31), 2**31 - 1), st.integers(0, 60)),
    key=st.one_of(st.integers(-(2**15), 2**15 - 1), st.integers(0, 75)),
    version=st.one_of(st.integers(-(2**15), 2**15 - 1), st.integers(0, 18)),
    client=st.one_of(st.integers(-(2**15), 2**15 - 1), st.integers(-2, 20)),
    body=st.binary(max_size=60),
    fits=st.booleans(),
)
def test_any_header(
    harness: Harness, size: int, key: int, version: int, client: int, body: bytes, fits: bool
) -> None:
    if fits:
        size = 10 + len(body)
    harness.feed(struct.pack(">ihhih", size, key, version, 7, client) + body)
    harness.hang_up()


@many
@given(
    seed=st.integers(0, 10_000),
    junk=st.binary(min_size=1, max_size=30),
    at=st.integers(0, 5),
)
def test_junk_between_requests(harness: Harness, seed: int, junk: bytes, at: int) -> None:
    """What came before the junk is answered; what comes after it may be."""
    frames = frames_of(seed)
    at = min(at, len(frames))
    answers = harness.feed(*frames[:at], junk, *frames[at:])
    got = [struct.unpack_from(">i", answer)[0] for answer in answers[:at]]
    assert got == list(range(at))
    harness.hang_up()
