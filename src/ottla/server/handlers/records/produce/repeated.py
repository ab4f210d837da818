"""The short cut of Produce: requests that are like one before them on their connection.

A producer asks for the same again and again: batches for partitions of this topic, with these acks.
What stands before the partitions is then the same bytes each time. So the request is checked as a whole,
layout, headers, checksums and records, by compiled code (`ottla.record.validation.frames`). The response
to a request for one partition, which differs from the one before it in a few numbers, is packed in one
go. A request that differs, a batch that is not right or not plain, and a topic whose settings have
changed take the general way, with nothing changed on this one.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING

from ottla.protocol.wiretypes import unsigned_varint
from ottla.record.validation.checking import QUICK_BYTES
from ottla.record.validation.findings import MOST_BATCHES
from ottla.record.validation.frames import FrameCheck
from ottla.record.validation.readiness import readiness
from ottla.server.handlers.records.produce.answer import (
    FIRST_LOG_START,
    frame,
    success_piece,
    topic_piece,
)
from ottla.server.handlers.records.produce.request import FIRST_FLEXIBLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.record.validation.findings import Rules
    from ottla.replication.partition import Partition
    from ottla.server.handlers.records.produce.request import Parts
    from ottla.storage.config import LogConfig

# One request in so many is looked at for what may be repeated: a client that alternates between topics
# shall not pay for it each time.
LEARNED_ONE_IN = 8

_INDEX_BYTES = 4
_OLD_COUNT_BYTES = 4
_OLD_SIZE_BYTES = 4


class RepeatedProduce:
    """What the requests of a connection have in common that bring batches for one topic."""

    __slots__ = ("accept", "acks", "answer", "config", "key", "rules", "timeout_ms", "version")

    def __init__(
        self, version: int, request: Parts, check: FrameCheck, config: LogConfig, rules: Rules
    ) -> None:
        _, self.acks, self.timeout_ms, ((self.key, _),) = request
        self.version = version
        # Of the partitions; with others the check would be another one.
        self.config = config
        self.rules = rules
        # Index, start and end of each batch, and its header, of a request (the buffer, where it begins
        # and ends) at a time; None if the general way has to look at it.
        self.accept = check.accept
        # The response to a request for one partition, from correlation id, index, base offset, append
        # time and log start offset.
        self.answer = _packer_of_answers(version, self.key)


def repeatable(
    body: memoryview, version: int, request: Parts, target: Partition
) -> RepeatedProduce | None:
    """What may come again of a request that was answered; None if it is not of this kind."""
    compiled = readiness.compiled
    rules = target.record_rules
    transactional_id, acks, _, topics = request
    config = target.config
    if (
        compiled is None
        or rules is None
        or version < FIRST_LOG_START
        or transactional_id is not None
        or not acks
        or len(topics) != 1
        or not 0 < len(topics[0][1]) <= MOST_BATCHES
        or config.compression_type != "producer"
    ):
        return None
    _, start, end = topics[0][1][0]
    is_flexible = version >= FIRST_FLEXIBLE
    count_at = start - _OLD_COUNT_BYTES - _INDEX_BYTES - _OLD_SIZE_BYTES
    if is_flexible:
        size = unsigned_varint(end - start + 1)
        count = unsigned_varint(len(topics[0][1]) + 1)
        count_at = start - len(size) - _INDEX_BYTES - len(count)
        if (
            body[start - len(size) : start] != size
            or body[count_at : count_at + len(count)] != count
        ):
            return None  # written longer than it had to be
    before = bytes(body[:count_at])
    largest = min(config.max_message_bytes, QUICK_BYTES)
    check = FrameCheck(compiled.frames_address, before, is_flexible, largest, rules)
    return RepeatedProduce(version, request, check, config, rules)


@lru_cache(512)
def _packer_of_answers(version: int, key: bytes) -> Callable[[int, int, int, int, int], bytes]:
    """Packs correlation id, index, base offset, append time and log start offset into a response."""
    topic = topic_piece(version, key, 1, 1)
    response = frame(version, 0, [topic, success_piece(version, 0, 0, 0, 0)])
    length = response[:4]
    index_at = response.index(topic, 8) + len(topic)
    # Index, no error (two bytes), three numbers: what stands before and after is the same each time.
    before, after = response[8:index_at], response[index_at + 30 :]
    pack = struct.Struct(f">4si{len(before)}sixxqqq{len(after)}s").pack

    def packed(
        correlation_id: int,
        index: int,
        base_offset: int,
        append_time: int,
        log_start_offset: int,
    ) -> bytes:
        return pack(
            length, correlation_id, before, index, base_offset, append_time, log_start_offset, after
        )

    return packed
