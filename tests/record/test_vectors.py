"""Bytes made by Kafka itself: all formats, codecs and timestamp types, and its down-conversion.

`vectors.jsonl` beside this file has one JSON object per line: the bytes (base64) that the record
builders of Kafka's Java client 3.9.1 wrote, the last one that also knew how to down-convert, and the
records that its readers found in them: offset, timestamp, key, value (hex) and headers.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from ottla.record.batch import Record, build_batch, check_batch, records
from ottla.record.compression.codecs import Codec
from ottla.record.control import EndOfTransaction, read_end_of_transaction
from ottla.record.legacy import build_message_set, downgrade, messages

VECTORS: list[dict[str, Any]] = [
    json.loads(line)
    for line in Path(__file__).with_name("vectors.jsonl").read_text("utf-8").splitlines()
]
# Other builds of zlib, snappy and zstd may choose other bytes for the same contents.
SAME_BYTES = {Codec.NONE, Codec.LZ4}


def vectors(*magics: int, downgraded: bool = False) -> list[Any]:
    return [
        pytest.param(
            vector,
            id=f"{vector['name']}-v{vector['magic']}-{Codec(vector['codec']).name.lower()}"
            f"-{vector['timestamp_type']}",
        )
        for vector in VECTORS
        if vector["magic"] in magics and (vector["name"] == "downgrade") is downgraded
    ]


def large_value() -> bytes:
    """150,000 bytes that compress well; Java's 32-bit arithmetic, rounding towards zero."""
    value = bytearray()
    for index in range(150_000):
        square = (index * index + 2**31) % 2**32 - 2**31
        number = (square // 7 if square >= 0 else -(-square // 7)) + index % 13
        value.append((number % 5 if number >= 0 else -(-number % 5)) + 65)
    return bytes(value)


def expected(vector: dict[str, Any]) -> list[Record]:
    def content(text: str | None) -> bytes | None:
        if text == "BIG":
            return large_value()
        return None if text is None else bytes.fromhex(text)

    return [
        Record(
            offset,
            timestamp,
            content(key),
            content(value),
            tuple((name, content(text)) for name, text in headers),
        )
        for offset, timestamp, key, value, headers in vector["records"]
    ]


@pytest.mark.parametrize("vector", vectors(2))
def test_batches(vector: dict[str, Any]) -> None:
    batch = base64.b64decode(vector["bytes"])
    wanted = expected(vector)
    header = check_batch(batch)
    assert header.size == len(batch)
    assert (header.codec, header.timestamp_type) == (vector["codec"], vector["timestamp_type"])
    assert list(records(batch)) == wanted
    if vector["timestamp_type"] == 0:
        built = build_batch(
            wanted,
            base_offset=header.base_offset,
            codec=header.codec,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            leader_epoch=header.partition_leader_epoch,
            transactional=header.is_transactional,
            control=header.is_control,
        )
        assert list(records(built)) == wanted
        if header.codec in SAME_BYTES:
            assert built == batch


def test_transaction_markers() -> None:
    found = {
        vector["name"]: read_end_of_transaction(*records(base64.b64decode(vector["bytes"])))
        for vector in VECTORS
        if vector["name"].endswith("marker")
    }
    assert found == {
        "commit marker": EndOfTransaction(True, 11),
        "abort marker": EndOfTransaction(False, 12),
    }


@pytest.mark.parametrize("vector", vectors(0, 1))
def test_message_sets(vector: dict[str, Any]) -> None:
    message_set = base64.b64decode(vector["bytes"])
    wanted = expected(vector)
    assert list(messages(message_set)) == wanted
    built = build_message_set(wanted, vector["magic"], vector["codec"], vector["timestamp_type"])
    assert list(messages(built)) == wanted
    if vector["codec"] in SAME_BYTES:
        assert built == message_set


@pytest.mark.parametrize("vector", vectors(0, 1, downgraded=True))
def test_down_conversion(vector: dict[str, Any]) -> None:
    theirs = base64.b64decode(vector["bytes"])
    ours = downgrade(base64.b64decode(vector["v2"]), vector["magic"], vector["first_offset"])
    assert list(messages(ours)) == list(messages(theirs))
    if vector["codec"] in SAME_BYTES:
        assert ours == theirs


def test_no_vector_is_missing() -> None:
    assert len(vectors(2)) == 21
    assert len(vectors(0, 1)) == 14
    assert len(vectors(0, 1, downgraded=True)) == 16
