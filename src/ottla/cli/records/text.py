"""Records as lines of text and as JSON, in both directions.

A record as a JSON object, one on a line:

    {"partition": 0, "offset": 7, "timestamp": 1794733200000, "key": "a", "value": "hello",
     "headers": [{"key": "trace", "value": "1"}]}

Bytes that are not UTF-8 stand under `key_base64` and `value_base64` instead of `key` and `value`,
in headers too. What is written can be read again and gives the same record. On the way in more is
allowed: every field may be absent, `headers` may be an object, and a value that is not a string
(a number, an object, a list) becomes its JSON text.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any, NamedTuple

from ottla.cli.failures import Failure, Misuse
from ottla.cli.records.positions import show_time
from ottla.record.bytes_json import bytes_to_json

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}
_KNOWN = frozenset(
    {
        "topic",
        "partition",
        "offset",
        "timestamp",
        "key",
        "key_base64",
        "value",
        "value_base64",
        "headers",
    }
)


Headers = tuple[tuple[str, bytes | None], ...]


# One encoder for all: `json.dumps` makes one for each value unless it has its default separators.
_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class IncomingRecord(NamedTuple):
    partition: int
    offset: int
    timestamp: int  # milliseconds since 1970; -1 where the record has none
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class OutgoingRecord(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    partition: int | None = None
    timestamp: int | None = None


def unescape(text: str, option: str) -> bytes:
    r"""A separator as typed in a shell: `\t`, `\n`, `\0` and `\\` are understood."""
    out = []
    characters = iter(text)
    for character in characters:
        if character == "\\":
            escaped = next(characters, "")
            if escaped not in _ESCAPES:
                raise Misuse(f"{option}: '\\{escaped}' means nothing; \\t, \\n, \\0 and \\\\ do")
            character = _ESCAPES[escaped]
        out.append(character)
    return "".join(out).encode("utf-8", "surrogateescape")


def parse_header(text: str) -> tuple[str, bytes | None]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise Misuse(f"--header takes NAME=VALUE, not '{text}'")
    return name, value.encode("utf-8", "surrogateescape")


def record_to_json(record: IncomingRecord) -> bytes:
    document: dict[str, Any] = {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp if record.timestamp >= 0 else None,
        **bytes_to_json("key", record.key),
        **bytes_to_json("value", record.value),
        "headers": [
            {"key": name, **bytes_to_json("value", value)} for name, value in record.headers
        ],
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "replace"
    )


def record_from_json(line: bytes, where: str) -> OutgoingRecord:
    """`where` names the line in the sentence that tells of a mistake."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as problem:
        reason = problem.msg if isinstance(problem, json.JSONDecodeError) else "not UTF-8"
        raise Failure(f"{where} is not JSON ({reason}); each line is one object") from None
    if not isinstance(document, dict):
        raise Failure(f'{where} is not a JSON object; write {{"value": …}}')
    if not document.keys() <= _KNOWN:
        unknown = min(document.keys() - _KNOWN)
        raise Failure(
            f"{where} has a field '{unknown}'; a record has key, value, headers, "
            "partition and timestamp"
        )
    return OutgoingRecord(
        _from_json(document, "key", where),
        _from_json(document, "value", where),
        _headers_from_json(document.get("headers"), where),
        _number(document, "partition", where),
        _number(document, "timestamp", where),
    )


def _from_json(document: dict[str, Any], name: str, where: str) -> bytes | None:
    encoded = document.get(f"{name}_base64")
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise Failure(f"{where}: {name}_base64 is not base64") from None
    value = document.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        value = _compact(value)
    try:
        return bytes(value, "utf-8")
    except UnicodeEncodeError:
        raise Failure(f"{where}: {name} holds half a surrogate pair; use {name}_base64") from None


def _headers_from_json(headers: Any, where: str) -> Headers:
    if headers is None:
        return ()
    if isinstance(headers, dict):
        return tuple((name, _from_json(headers, name, where)) for name in headers)
    out = []
    for header in headers if isinstance(headers, list) else [None]:
        if not isinstance(header, dict) or not isinstance(header.get("key"), str):
            raise Failure(f'{where}: headers are a list of {{"key": …, "value": …}}, or an object')
        out.append((header["key"], _from_json(header, "value", where)))
    return tuple(out)


def _number(document: dict[str, Any], name: str, where: str) -> int | None:
    value = document.get(name)
    if value is None:
        return None
    largest = 2**31 - 1 if name == "partition" else 2**63 - 1
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= largest:
        raise Failure(f"{where}: {name} is not a whole number from 0 on")
    return value


def describe_place(record: IncomingRecord) -> bytes:
    """Partition, offset, time and headers of a record, separated by tabs, for people."""
    headers = ",".join(
        f"{name}={'' if value is None else value.decode('utf-8', 'backslashreplace')}"
        for name, value in record.headers
    )
    fields = (str(record.partition), str(record.offset), show_time(record.timestamp), headers)
    return "\t".join(fields).encode("utf-8", "surrogateescape")
