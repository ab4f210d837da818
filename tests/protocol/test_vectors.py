"""Bytes that Apache Kafka's own classes read and wrote back, for what kio does not have.

vectors.txt holds one message a line: class, version, bytes in hex, and the values as JSON (bytes in
hex). They are the versions that Kafka 4 dropped (checked with the client library of 3.9.1) and the
schemas of records (checked with the coordinators of 4.3.1). The values are random; each line went
through Kafka's reader, writer and JSON converter and came out the same.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from ottla.protocol.message import Message, Part

_LINES = (Path(__file__).parent / "vectors.txt").read_text(encoding="utf-8").splitlines()

# Fields that Kafka does not have.
_OWN = {("FetchPartition", "flushed_offset")}


def _plain(value: Any) -> Any:
    if isinstance(value, Part):
        names = [name for name in value.declared if (type(value).__name__, name) not in _OWN]
        return {name: _plain(getattr(value, name)) for name in names}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, (bytes, memoryview)):
        return bytes(value).hex()
    return value


def _load(path: str) -> type[Message]:
    module, _, name = path.rpartition(".")
    cls: type[Message] = getattr(import_module(f"ottla.protocol.{module}"), name)
    return cls


@pytest.mark.parametrize(
    "line", [pytest.param(line, id=" v".join(line.split(" ")[:2])) for line in _LINES]
)
def test_vector(line: str) -> None:
    path, version_text, hexadecimal, values = line.split(" ", 3)
    cls, version, data = _load(path), int(version_text), bytes.fromhex(hexadecimal)
    message, end = cls.decode(data, 0, version)
    assert end == len(data)
    assert _plain(message) == json.loads(values)
    assert message.encode(version) == data


def test_vectors_cover_what_was_dropped() -> None:
    covered = {tuple(line.split(" ")[:2]) for line in _LINES}
    assert ("messages.produce.ProduceRequest", "0") in covered
    assert ("messages.fetch.FetchResponse", "3") in covered
    assert ("records.transaction_log.TransactionLogValue", "1") in covered
