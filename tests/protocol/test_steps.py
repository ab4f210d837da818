"""Decoding and encoding in steps give what the ordinary way gives, and pause at every element."""

from __future__ import annotations

import random
import zlib
from collections.abc import Generator, Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, TypeVar

import pytest

import ottla.protocol.messages
from ottla.protocol.message import MalformedMessage, Message, UnencodableMessage
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic

T = TypeVar("T")

MODULES = [each.name for each in iter_modules(ottla.protocol.messages.__path__)]


def _all_at_once(steps: Generator[None, None, T]) -> tuple[T, int]:
    """The result, and how many pauses there were."""
    pauses = 0
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value, pauses
        pauses += 1


def _messages(module: str, make_sampler: Any) -> Iterator[tuple[Message, int]]:
    for cls in vars(import_module(f"ottla.protocol.messages.{module}")).values():
        if isinstance(cls, type) and issubclass(cls, Message) and cls is not Message:
            for version in range(cls.versions[0], cls.versions[1] + 1):
                seed = zlib.crc32(f"{cls.__name__} {version}".encode())
                yield make_sampler(seed).message(cls, version), version


@pytest.mark.parametrize("module", MODULES)
def test_the_same_bytes_and_the_same_message(module: str, make_sampler: Any) -> None:
    for message, version in _messages(module, make_sampler):
        data = message.encode(version)
        pieces: list[Any] = []
        _all_at_once(message.encode_in_steps(version, pieces.append))
        assert b"".join(pieces) == data
        decoded, _ = _all_at_once(type(message).decode_in_steps(data, 0, version))
        assert decoded == type(message).decode(data, 0, version)


@pytest.mark.parametrize("module", MODULES)
def test_the_same_refusals(module: str, make_sampler: Any) -> None:
    for message, version in _messages(module, make_sampler):
        data, cls = message.encode(version), type(message)
        if not data:
            continue
        dice = random.Random(zlib.crc32(data))
        for _ in range(10):
            with pytest.raises(MalformedMessage):
                _all_at_once(cls.decode_in_steps(data[: dice.randrange(len(data))], 0, version))


def test_what_cannot_be_encoded() -> None:
    with pytest.raises(UnencodableMessage):
        _all_at_once(ListOffsetsRequest(replica_id=1 << 40).encode_in_steps(5, [].append))


def test_a_pause_for_every_element() -> None:
    wanted = [ListOffsetsPartition(partition_index=index) for index in range(500)]
    request = ListOffsetsRequest(
        topics=[ListOffsetsTopic(name="a", partitions=wanted), ListOffsetsTopic(name="b")]
    )
    pieces: list[bytes] = []
    _, pauses = _all_at_once(request.encode_in_steps(7, pieces.append))
    assert pauses >= 502
    _, pauses = _all_at_once(ListOffsetsRequest.decode_in_steps(b"".join(pieces), 0, 7))
    assert pauses >= 502


@pytest.mark.parametrize("version", [1, 7])
def test_elements_of_fixed_size_come_in_portions(version: int) -> None:
    indexes = list(range(100_000))
    request = OffsetFetchRequest(
        group_id="g", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=indexes)]
    )
    pieces: list[bytes] = []
    _, pauses = _all_at_once(request.encode_in_steps(version, pieces.append))
    assert pauses > 20
    data = b"".join(pieces)
    assert data == request.encode(version)
    (decoded, _), pauses = _all_at_once(OffsetFetchRequest.decode_in_steps(data, 0, version))
    assert pauses > 20
    assert decoded == request
