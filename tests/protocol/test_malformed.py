"""Whatever the bytes are, a decoder raises MalformedMessage or returns: soon, and in little memory."""

from __future__ import annotations

import random
import tracemalloc
import zlib
from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest

import ottla.protocol.messages
import ottla.protocol.records
from ottla.protocol.frame import parse_request_header, parse_response_header
from ottla.protocol.message import MalformedMessage, Message
from ottla.protocol.messages.fetch import FetchRequest, FetchTopic
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.wiretypes import unsigned_varint


def _modules() -> list[str]:
    names = []
    for package in (ottla.protocol.messages, ottla.protocol.records):
        names += [f"{package.__name__}.{each.name}" for each in iter_modules(package.__path__)]
    return names


def _samples(module: str, make_sampler: Any) -> Iterator[tuple[type[Message], int, bytes]]:
    """The oldest and the newest version of each message of a module, filled at random."""
    for cls in vars(import_module(module)).values():
        if isinstance(cls, type) and issubclass(cls, Message) and cls is not Message:
            for version in {*cls.versions, sum(cls.versions) // 2}:
                seed = zlib.crc32(f"{cls.__name__} {version}".encode())
                yield cls, version, make_sampler(seed).message(cls, version).encode(version)


@pytest.mark.parametrize("module", _modules())
def test_truncated_anywhere(module: str, make_sampler: Any) -> None:
    for cls, version, data in _samples(module, make_sampler):
        for end in range(min(len(data), 600)):
            with pytest.raises(MalformedMessage):
                cls.decode(data[:end], 0, version)
        for end in range(max(len(data) - 100, 0), len(data)):
            with pytest.raises(MalformedMessage):
                cls.decode(memoryview(data)[:end], 0, version)


@pytest.mark.parametrize("module", _modules())
def test_mutated_anyhow(module: str, make_sampler: Any) -> None:
    for cls, version, data in _samples(module, make_sampler):
        dice = random.Random(zlib.crc32(data))
        for _ in range(60):
            mutated = bytearray(data)
            for _ in range(dice.randint(1, 4)):
                at = dice.randrange(len(mutated) + 1)
                junk = dice.choice(
                    (b"\xff\xff\xff\xff\x07", b"\x7f\xff\xff\xff", b"\x80", dice.randbytes(3))
                )
                mutated[at : at + dice.choice((0, len(junk)))] = junk
            try:
                cls.decode(bytes(mutated), 0, version)
            except MalformedMessage:
                pass


@pytest.mark.parametrize("count", [b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x0f"])
@pytest.mark.parametrize("cls", [FetchRequest, ProduceRequest, MetadataRequest])
def test_a_lying_count_allocates_nothing(cls: type[Message], count: bytes) -> None:
    version = cls.versions[1]
    for before in range(60):
        data = bytes(before) + count + bytes(40)
        tracemalloc.start()
        try:
            with_error = None
            try:
                cls.decode(data, 0, version)
            except MalformedMessage as error:
                with_error = error
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        # The first decode also compiles, which takes some hundreds of kilobytes.
        assert peak < 2_000_000, (before, with_error)


def test_a_lying_count_of_an_old_version() -> None:
    data = FetchRequest(topics=[FetchTopic(topic="t")]).encode(4)
    at = 4 + 4 + 4 + 4 + 1
    assert data[at : at + 4] == b"\x00\x00\x00\x01"
    with pytest.raises(MalformedMessage, match="counts more"):
        FetchRequest.decode(data[:at] + b"\x7f\xff\xff\xff" + data[at + 4 :], 0, 4)
    with pytest.raises(MalformedMessage, match="length -2"):
        FetchRequest.decode(data[:at] + b"\xff\xff\xff\xfe" + data[at + 4 :], 0, 4)


def test_a_count_is_held_against_the_smallest_element() -> None:
    # Ten topics of at least 18 bytes do not fit into 40 bytes, though ten bytes would.
    data = FetchRequest(topics=[]).encode(13)
    at = data.index(b"\x01", 21)
    with pytest.raises(MalformedMessage, match="counts more"):
        FetchRequest.decode(data[:at] + b"\x0b" + bytes(40), 0, 13)


def test_null_where_null_is_not_allowed() -> None:
    data = FetchRequest().encode(12)
    rack_id = data[:-2] + b"\x00" + data[-1:]
    with pytest.raises(MalformedMessage, match=r"rack_id has length -1"):
        FetchRequest.decode(rack_id, 0, 12)
    assert MetadataRequest.decode(b"\xff\xff\xff\xff", 0, 1)[0].topics is None
    with pytest.raises(MalformedMessage, match=r"topics has length -1"):
        MetadataRequest.decode(b"\xff\xff\xff\xff", 0, 0)


def test_strings() -> None:
    good = MetadataRequest(topics=[MetadataRequestTopic(name="ab")]).encode(9)
    with pytest.raises(MalformedMessage, match="UTF-8"):
        MetadataRequest.decode(good.replace(b"ab", b"a\xff"), 0, 9)
    # A compact string may not be longer than the old encoding could say, even if it is there.
    for length, fits in ((32767, True), (32768, False)):
        data = b"\x02" + unsigned_varint(length + 1) + b"x" * length + b"\x00" + b"\x00" * 4
        if fits:
            topics = MetadataRequest.decode(data, 0, 9)[0].topics
            assert topics is not None
            assert topics[0].name == "x" * length
        else:
            with pytest.raises(MalformedMessage, match="32768"):
                MetadataRequest.decode(data, 0, 9)


def test_varints_are_bounded() -> None:
    with pytest.raises(MalformedMessage, match="five bytes"):
        MetadataRequest.decode(b"\x80\x80\x80\x80\x80\x01" + bytes(100), 0, 9)


def test_tagged_fields_must_have_the_size_they_say() -> None:
    data = FetchRequest(cluster_id="abc").encode(12)
    assert data.endswith(b"\x01\x00\x04\x04abc")
    with pytest.raises(MalformedMessage, match="another size"):
        FetchRequest.decode(data[:-5] + b"\x05\x04abc\x00", 0, 12)
    with pytest.raises(MalformedMessage, match="cut short"):
        FetchRequest.decode(data[:-5] + b"\x06\x04abc", 0, 12)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\x01\x00\x0c\x00\x00\x00\x01\x00",
        b"\x00\x01\x00\x0c\x00\x00\x00\x01\x00\x05abc",
        b"\x00\x01\x00\x04\x00\x00\x00\x01\x00\x05abc",
        b"\x00\x01\x00\x04\x00\x00\x00\x01\xff\xfe",
        b"\x00\x01\x00\x0c\x00\x00\x00\x01\x00\x01\xff\x00",
        b"\x00\x01\x00\x0c\x00\x00\x00\x01\xff\xff",
        b"\x00\x01\x00\x0c\x00\x00\x00\x01\xff\xff\x01\x00\x09\x00",
    ],
)
def test_request_headers(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        parse_request_header(data, 0)


def test_response_headers() -> None:
    with pytest.raises(MalformedMessage):
        parse_response_header(b"\x00\x00\x00", 0, False)
    with pytest.raises(MalformedMessage):
        parse_response_header(b"\x00\x00\x00\x01", 0, True)
