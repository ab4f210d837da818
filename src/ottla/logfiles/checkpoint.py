"""Checkpoint files: text, a line with the version, `0`, a line with the number of entries, a line for
each. A file of no bytes at all is one without entries (Kafka creates them so)."""

from __future__ import annotations

import re
from collections.abc import Iterator

VERSION = 0
_NUMBER = re.compile(r"[0-9]{1,19}")


class InvalidCheckpoint(ValueError):
    """The file is not what its format says."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def parse_checkpoint(data: bytes, fields: int) -> Iterator[list[str]]:
    """The fields of each entry, of which there are `fields`; InvalidCheckpoint at the first flaw."""
    if not data:
        return
    try:
        lines = data.decode().split("\n")
    except UnicodeDecodeError:
        raise InvalidCheckpoint("it is no text") from None
    # The last line ends too: a file that was cut in the middle of it is not whole.
    if lines.pop():
        raise InvalidCheckpoint("the last line is not complete")
    if lines[0] != str(VERSION):
        raise InvalidCheckpoint(f"version {lines[0]!r} is unknown")
    if len(lines) < 2:
        raise InvalidCheckpoint("the number of entries is missing")
    count = parse_number(lines[1])
    if count != len(lines) - 2:
        raise InvalidCheckpoint(f"{len(lines) - 2} entries instead of {count}")
    for line in lines[2:]:
        found = line.split()
        if len(found) != fields:
            raise InvalidCheckpoint(f"the line {line!r} has not {fields} fields")
        yield found


def parse_number(text: str) -> int:
    """A number from 0 to 2^63 - 1, in plain digits."""
    if not _NUMBER.fullmatch(text) or int(text) >= 2**63:
        raise InvalidCheckpoint(f"{text!r} is no number")
    return int(text)


def parse_offsets(data: bytes) -> dict[tuple[str, int], int]:
    """(topic, partition) → offset."""
    offsets: dict[tuple[str, int], int] = {}
    for topic, partition, offset in parse_checkpoint(data, 3):
        log = topic, parse_number(partition)
        if log in offsets:
            raise InvalidCheckpoint(f"{topic}-{partition} is in it twice")
        offsets[log] = parse_number(offset)
    return offsets
