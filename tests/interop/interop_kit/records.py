"""The records that travel in the interop tests, and how two of them are compared.

Their JSON form, one object for each record, is what the programs of other languages read and write:

    {"partition": 0, "offset": 5, "timestamp": 1700000000000,
     "key": BASE64 | null, "value": BASE64 | null, "headers": [[NAME, BASE64 | null], ...]}
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Record:
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp: int | None = None  # milliseconds; None: whatever the writer's clock says
    partition: int = 0
    offset: int | None = None  # None: not yet written

    def to_json(self) -> dict[str, Any]:
        return {
            "partition": self.partition,
            "offset": self.offset,
            "timestamp": self.timestamp,
            "key": encode(self.key),
            "value": encode(self.value),
            "headers": [[name, encode(value)] for name, value in self.headers],
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Record:
        return cls(
            value=decode(fields["value"]),
            key=decode(fields["key"]),
            headers=tuple((name, decode(value)) for name, value in fields["headers"]),
            timestamp=fields["timestamp"],
            partition=fields["partition"],
            offset=fields["offset"],
        )


def encode(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def decode(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def plain_records(
    count: int, *, partition: int = 0, size: int = 40, start: int | None = None, step: int = 10
) -> list[Record]:
    """Keyed records of one partition, `step` milliseconds apart, the last a little before now.

    Never stamped with an old time: retention would take them away while the test looks.
    """
    first = now_ms() - count * step - 1_000 if start is None else start
    return [
        Record(
            key=f"key-{number}".encode(),
            value=f"{number:06d}:".encode().ljust(
                size, b"abcdefghij"[number % 10 : number % 10 + 1]
            ),
            timestamp=first + number * step,
            partition=partition,
        )
        for number in range(count)
    ]


def odd_records(partition: int = 0) -> list[Record]:
    """One of each kind of text record that a careless writer or reader gets wrong."""
    return stamped(
        [
            Record(key=b"plain", value=b"plain"),
            Record(key=None, value=b"no key"),
            Record(key=b"", value=b"empty key"),
            Record(key=b"tombstone", value=None),
            Record(key=b"empty value", value=b""),
            Record(key=None, value=None),
            Record(key="schlüssel-鍵".encode(), value="wert-值-🙂".encode()),
            Record(key=b"one header", value=b"v", headers=(("name", b"value"),)),
            Record(
                key=b"headers in order",
                value=b"v",
                headers=(("b", b"1"), ("a", b"2"), ("empty", b""), ("ключ", "значение".encode())),
            ),
            Record(
                key=b"one name twice", value=b"v", headers=(("b", b"1"), ("a", b"2"), ("b", b"3"))
            ),
            Record(key=b"null header", value=b"v", headers=(("none", None), ("some", b"x"))),
            Record(key=b"large", value=b"0123456789abcdef" * 20_000),
        ],
        partition,
    )


def binary_records(partition: int = 0) -> list[Record]:
    """Bytes that are no text, in every place where bytes may stand."""
    return stamped(
        [
            Record(key=b"\x00\xff\xfe\n\t\"'\\", value=bytes(range(256))),
            Record(key=b"\xc3\x28", value=b"\xe2\x82", headers=(("bytes", b"\x00\xff\x80"),)),
            Record(key=b"large", value=bytes(range(256)) * 1200),
        ],
        partition,
    )


def stamped(records: list[Record], partition: int) -> list[Record]:
    first = now_ms() - 5_000
    return [
        replace(record, timestamp=first + number * 7, partition=partition)
        for number, record in enumerate(records)
    ]


def numbered(records: Iterable[Record], first_offset: int = 0) -> list[Record]:
    """The records as they must come back, given that a partition's offsets start at the first."""
    next_offset: dict[int, int] = {}
    written = []
    for record in records:
        offset = next_offset.get(record.partition, first_offset)
        next_offset[record.partition] = offset + 1
        written.append(replace(record, offset=offset))
    return written


def assert_same(found: list[Record], expected: list[Record]) -> None:
    """Count, order, offset, key, value, headers, and the timestamps where they are known."""
    found = [
        replace(one, timestamp=None) if other.timestamp is None else one
        for one, other in zip(found, expected, strict=False)
    ] + found[len(expected) :]
    for number, (one, other) in enumerate(zip(found, expected, strict=False)):
        if one != other:
            assert brief(one) == brief(other), f"record {number} of {len(expected)} differs"
    assert len(found) == len(expected), (
        f"{len(found)} records instead of {len(expected)}: offsets "
        f"{[record.offset for record in found][:20]}..."
    )
    assert found == expected


def brief(record: Record) -> Record:
    """Short enough to print, different when the records differ."""
    value = record.value
    if value is not None and len(value) > 300:
        value = value[:40] + b"... %d bytes, hash %d" % (len(value), hash(value))
    return replace(record, value=value)
