"""No length field makes the broker take memory: it goes by the bytes that came."""

from __future__ import annotations

import resource
import socket
import struct
import sys
import tracemalloc
import zlib
from pathlib import Path

import pytest
from fuzz_kit.batches import with_checksum
from fuzz_kit.harness import Harness
from fuzz_kit.requests import Requests
from server_kit.wire import Wire

from ottla.protocol.apis import ApiKey
from ottla.protocol.frame import encode_request
from ottla.protocol.message import UnencodableMessage
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from ottla.record.batch import HEADER, Record, build_batch
from ottla.server import handlers
from ottla.server.api import DECLARED
from ottla.testing import BrokerProcess

MIB = 1 << 20
# What one small request may cost for a moment: its messages, its answer, and a first buffer.
ALLOWED = 4 * MIB

handlers.load()
# In `make test` the newest version of each.
CASES = [
    pytest.param(
        key,
        version,
        id=f"{key.name}-{version}",
        marks=() if version == max(declared.versions) else pytest.mark.long,
    )
    for key, declared in sorted(DECLARED.items())
    for version in sorted({*declared.versions})
]


def spoilt(frame: bytes) -> list[bytes]:
    """The frame with a huge number in the place of each of its bytes, in every encoding."""
    found = []
    for at in range(14, min(len(frame), 90)):
        for huge in (
            b"\x7f\xff\xff\xff",
            b"\xff\xff\xff\xff\x07",
            b"\x7f\xff",
            b"\x7f\xff\xff\xff" * 2,
        ):
            data = bytearray(frame)
            data[at : at + len(huge)] = huge
            data[:4] = (len(data) - 4).to_bytes(4, "big")
            found.append(bytes(data))
    return found


@pytest.mark.parametrize(("key", "version"), CASES)
def test_lying_lengths_in_requests(harness: Harness, key: ApiKey, version: int) -> None:
    made = Requests(harness.world, zlib.crc32(f"{key} {version}".encode()))
    frames: list[bytes] = []
    while len(frames) < 20:
        try:
            message = made.message(DECLARED[key].request, version)
            frames.append(encode_request(message, version, 1, None))
        except UnencodableMessage:
            continue
    # One with something in it.
    frame = max((each for each in frames if len(each) < 300), key=len, default=frames[0])
    harness.feed(frame)  # compiles what this version needs
    worst = 0
    tracemalloc.start()
    try:
        for data in spoilt(frame):
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            harness.feed(data)
            worst = max(worst, tracemalloc.get_traced_memory()[1] - before)
            assert worst < ALLOWED, data.hex()
    finally:
        tracemalloc.stop()


def test_lying_lengths_of_frames(harness: Harness) -> None:
    tracemalloc.start()
    try:
        for size in (100 << 20, (100 << 20) - 1, 50 << 20, 1 << 20, 200_000):
            for key, version in ((0, 9), (1, 12), (3, 9), (18, 3)):
                tracemalloc.reset_peak()
                before, _ = tracemalloc.get_traced_memory()
                harness.feed(struct.pack(">ihhih", size, key, version, 1, -1) + bytes(500))
                assert tracemalloc.get_traced_memory()[1] - before < ALLOWED
                harness.hang_up()
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("topic", ["plain", "unpacked", "compacted"])
def test_lying_batches(harness: Harness, topic: str) -> None:
    """Counts of two thousand million records, lengths of as many bytes, under right checksums."""
    good = build_batch([Record(0, 1_700_000_000_000, b"k", b"v" * 100)])
    tracemalloc.start()
    try:
        for at, code in zip((8, 23, 57, 53), "iiii", strict=True):
            for value in (2**31 - 1, 2**31 - 2, 2**30, -1, -(2**31)):
                batch = bytearray(good)
                struct.pack_into(">" + code, batch, at, value)
                if at == 57:
                    struct.pack_into(">i", batch, 23, max(value - 1, -(2**31)))
                request = ProduceRequest(
                    acks=1,
                    topic_data=[
                        TopicProduceData(
                            name=topic,
                            partition_data=[
                                PartitionProduceData(index=0, records=with_checksum(batch))
                            ],
                        )
                    ],
                )
                tracemalloc.reset_peak()
                before, _ = tracemalloc.get_traced_memory()
                harness.feed(encode_request(request, 9, 1, None))
                assert tracemalloc.get_traced_memory()[1] - before < ALLOWED
    finally:
        tracemalloc.stop()
    assert HEADER.size == 61


@pytest.mark.skipif(sys.platform != "linux", reason="limits of another process are Linux's")
def test_a_process_with_little_memory(tmp_path: Path) -> None:
    """Two hundred peers announce a hundred megabytes each to a broker that may take 300 more."""
    with BrokerProcess(tmp_path / "data") as process:
        status = Path(f"/proc/{process.pid}/status").read_text()
        (size,) = [int(line.split()[1]) for line in status.splitlines() if "VmSize" in line]
        limit = size * 1024 + 300 * MIB
        resource.prlimit(process.pid, resource.RLIMIT_AS, (limit, limit))
        peers = []
        for number in range(200):
            peer = socket.create_connection((process.host, process.port), 20)
            announced = (100 << 20) - number
            peer.sendall(struct.pack(">ihhih", announced, 0, 9, 1, -1) + bytes(50 * number))
            peers.append(peer)
        with Wire(process.host, process.port) as wire:
            for _ in range(20):
                assert wire.call(MetadataRequest(topics=[]), MetadataResponse, 9).brokers
        for peer in peers:
            peer.close()
        assert process.running
        assert "MemoryError" not in process.log_text()
