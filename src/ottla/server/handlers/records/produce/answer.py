"""The layout of Produce responses: pieces that are joined when the last partition is decided.

    topics [ name or id | partitions [ index | error | base offset | append time (v2+)
             | log start offset (v5+) | record errors | message (v8+) | tags (v9+) ] | tags ]
    | throttle time (v1+) | tags

A partition's piece may be replaced until the response is framed, so one that waits has its place.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache

from ottla.protocol.errors import ErrorCode
from ottla.protocol.wiretypes import unsigned_varint
from ottla.server.handlers.records.produce.request import FIRST_FLEXIBLE, FIRST_TOPIC_IDS

FIRST_LOG_START = 5
FIRST_CURRENT_LEADER = 10

# A record of a refused batch: its index in the batch, and what is wrong with it.
RecordError = tuple[int, str | None]
# Id and epoch of the leader that a partition has instead of this broker.
CurrentLeader = tuple[int, int]
# Id, host, port and rack of a broker.
Node = tuple[int, str, int, str | None]

_pack_head = struct.Struct(">ii").pack
_pack_flexible_head = struct.Struct(">iix").pack
_pack_int = struct.Struct(">i").pack
_pack_short = struct.Struct(">h").pack
_pack_pair = struct.Struct(">ii").pack
# index, error, base offset | append time | log start offset
_pack_v0 = struct.Struct(">ihq").pack
_pack_v2 = struct.Struct(">ihqq").pack
_pack_v5 = struct.Struct(">ihqqq").pack
# index, no error (0), base offset, append time, log start offset, no record errors, no message
_pack_v8_success = struct.Struct(">ixxqqqxxxxh").pack
# the same, compact: an empty array is 1, a null string 0, no tags 0
_pack_v9_success = struct.Struct(">ixxqqqBxx").pack

_NO_THROTTLE = bytes(4)
_FLEXIBLE_END = bytes(6)
_FLEXIBLE_END_OF_NONE = b"\1" + bytes(5)


def new_topic_piece(version: int, key: bytes, partitions: int, topics: int = 0) -> bytes:
    """What stands before the partitions of a topic: the end of the one before it, or, before the
    first of them, the number of `topics`."""
    if version < FIRST_FLEXIBLE:
        piece = _pack_short(len(key)) + key + _pack_int(partitions)
        return _pack_int(topics) + piece if topics else piece
    if version < FIRST_TOPIC_IDS:
        key = unsigned_varint(len(key) + 1) + key
    start = unsigned_varint(topics + 1) if topics else b"\0"
    return start + key + unsigned_varint(partitions + 1)


# Of topics that there are: producers write to the same ones again and again. Others are not remembered,
# for a client may make many names up, of 32 kB each.
topic_piece = lru_cache(4096)(new_topic_piece)


def success_piece(
    version: int, index: int, base_offset: int, append_time: int, log_start_offset: int
) -> bytes:
    if version >= 9:
        return _pack_v9_success(index, base_offset, append_time, log_start_offset, 1)
    if version == 8:
        return _pack_v8_success(index, base_offset, append_time, log_start_offset, -1)
    if version >= FIRST_LOG_START:
        return _pack_v5(index, 0, base_offset, append_time, log_start_offset)
    if version >= 2:
        return _pack_v2(index, 0, base_offset, append_time)
    return _pack_v0(index, 0, base_offset)


def refusal_piece(
    version: int,
    index: int,
    code: ErrorCode,
    message: str | None = None,
    record_errors: Sequence[RecordError] = (),
    leader: CurrentLeader | None = None,
) -> bytes:
    if version < 2:
        return _pack_v0(index, code, -1)
    if version < FIRST_LOG_START:
        return _pack_v2(index, code, -1, -1)
    piece = [_pack_v5(index, code, -1, -1, -1)]
    if version >= FIRST_FLEXIBLE:
        piece.append(unsigned_varint(len(record_errors) + 1))
        for batch_index, text in record_errors:
            piece += (_pack_int(batch_index), _compact_string(text), b"\0")
        piece.append(_compact_string(message))
        if leader is None or version < FIRST_CURRENT_LEADER:
            piece.append(b"\0")
        else:
            # One tagged field: tag 0, 9 bytes: leader id, leader epoch, no tags.
            piece.append(b"\1\0\x09" + _pack_pair(*leader) + b"\0")
    elif version == 8:
        piece.append(_pack_int(len(record_errors)))
        for batch_index, text in record_errors:
            piece += (_pack_int(batch_index), _string(text))
        piece.append(_string(message))
    return b"".join(piece)


def frame(
    version: int,
    correlation_id: int,
    pieces: list[bytes],
    nodes: Sequence[Node] = (),
    throttle_ms: int = 0,
) -> bytes:
    """The whole response, its length before it. `nodes`: where the leaders in it are reached."""
    if version < FIRST_FLEXIBLE:
        if not pieces:
            pieces.append(_pack_int(0))
        if version:
            pieces.append(_pack_int(throttle_ms) if throttle_ms else _NO_THROTTLE)
        body = b"".join(pieces)
        return _pack_head(len(body) + 4, correlation_id) + body
    # The end of the last topic, throttle time, tags; without a topic, their number in the place of
    # its end.
    pieces.append(_FLEXIBLE_END if pieces else _FLEXIBLE_END_OF_NONE)
    if throttle_ms:
        pieces[-1] = pieces[-1][:1] + _pack_int(throttle_ms) + pieces[-1][5:]
    if nodes and version >= FIRST_CURRENT_LEADER:
        pieces[-1] = pieces[-1][:-1] + _nodes(nodes)
    body = b"".join(pieces)
    return _pack_flexible_head(len(body) + 5, correlation_id) + body


def _nodes(nodes: Sequence[Node]) -> bytes:
    """One tagged field, tag 0: an array of brokers."""
    field = [unsigned_varint(len(nodes) + 1)]
    for node_id, host, port, rack in nodes:
        field += (_pack_int(node_id), _compact_string(host), _pack_int(port))
        field += (_compact_string(rack), b"\0")
    data = b"".join(field)
    return b"\1\0" + unsigned_varint(len(data)) + data


def _compact_string(text: str | None) -> bytes:
    if text is None:
        return b"\0"
    data = text.encode("utf-8", "replace")
    return unsigned_varint(len(data) + 1) + data


def _string(text: str | None) -> bytes:
    if text is None:
        return b"\xff\xff"
    data = text.encode("utf-8", "replace")
    return _pack_short(len(data)) + data
