"""The answer to a Fetch request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.frame import encode_response_parts
from ottla.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, NodeEndpoint
from ottla.protocol.one_partition_fetch import (
    FIRST_RESPONSE_VERSION,
    OnePartition,
    pack_response,
)
from ottla.server.handlers.records.fetch.reader import EMPTY
from ottla.server.handlers.records.fetch.request import FIRST_TOPIC_IDS
from ottla.server.partitions import monotonic_ms
from ottla.server.sessions import NO_SESSION

if TYPE_CHECKING:
    from ottla.server.handlers.records.fetch.found import Found
    from ottla.server.handlers.records.fetch.reader import Reader
    from ottla.server.network.slots import Part
    from ottla.server.sessions import FetchSession
    from ottla.server.turns import Steps

# Of very many partitions, so many are looked at before the loop has its turn.
PARTITIONS_AT_ONCE = 10
_FIRST_ENDPOINTS = 16


def response(
    reader: Reader, session: FetchSession | None, is_incremental: bool, found: list[Found]
) -> FetchResponse:
    """The answer with what was found. An incremental one names only partitions with news."""
    topics: dict[str | bytes, FetchableTopicResponse] = {}
    _add(reader, session, is_incremental, found, topics)
    return _assembled(reader, session, topics)


def response_in_steps(
    reader: Reader, session: FetchSession | None, is_incremental: bool, found: list[Found]
) -> Steps[FetchResponse]:
    """As `response`, of very many partitions."""
    topics: dict[str | bytes, FetchableTopicResponse] = {}
    for first in range(0, len(found), PARTITIONS_AT_ONCE):
        some = found[first : first + PARTITIONS_AT_ONCE]
        _add(reader, session, is_incremental, some, topics)
        yield
    return _assembled(reader, session, topics)


def _assembled(
    reader: Reader,
    session: FetchSession | None,
    topics: dict[str | bytes, FetchableTopicResponse],
) -> FetchResponse:
    made = FetchResponse(
        session_id=session.id if session is not None else NO_SESSION,
        responses=list(topics.values()),
    )
    if reader.led_elsewhere and reader.version >= _FIRST_ENDPOINTS:
        made.node_endpoints = _leaders_named(reader)
    return made


def _add(
    reader: Reader,
    session: FetchSession | None,
    is_incremental: bool,
    found: list[Found],
    topics: dict[str | bytes, FetchableTopicResponse],
) -> None:
    if reader.replica >= 0 and reader.broker.throttle.leading.is_set:
        _count(reader, found)
    by_id = reader.version >= FIRST_TOPIC_IDS
    for each in found:
        watched, answer = each.watched, each.answer
        if session is not None and not _is_news(session, is_incremental, each):
            continue
        topic = topics.get(watched.topic)
        if topic is None:
            topic = topics[watched.topic] = FetchableTopicResponse(partitions=[])
            if by_id:
                assert isinstance(watched.topic, bytes)
                topic.topic_id = watched.topic
            else:
                assert isinstance(watched.topic, str)
                topic.topic = watched.topic
        topic.partitions.append(answer)


def _is_news(session: FetchSession, is_incremental: bool, each: Found) -> bool:
    """Whether the answer has to name this partition; the session knows from now on what it was told."""
    watched, answer = each.watched, each.answer
    changed = (
        watched.high_watermark != answer.high_watermark
        or watched.log_start_offset != answer.log_start_offset
    )
    watched.high_watermark = answer.high_watermark
    watched.log_start_offset = answer.log_start_offset
    if answer.error_code:
        # Named again in the next response, whatever comes then.
        watched.high_watermark = -1
        return True
    if each.piece is not None or answer.records is not EMPTY:
        key = (watched.topic, watched.index)
        if key in session.partitions:
            session.partitions.move_to_end(key)
        return True
    return (
        not is_incremental
        or changed
        or answer.diverging_epoch is not None
        or answer.preferred_read_replica >= 0
    )


def records_of_one(
    reader: Reader, session: FetchSession | None, found: list[Found], correlation_id: int
) -> list[Part] | None:
    """The whole response, if it is nothing but records of one partition; None if there is more in it."""
    if len(found) != 1 or session is None or reader.version < FIRST_RESPONSE_VERSION:
        return None
    (each,) = found
    watched, answer = each.watched, each.answer
    records = answer.records
    if (
        not records
        or answer.error_code
        or answer.aborted_transactions is not None
        or answer.diverging_epoch is not None
        or answer.preferred_read_replica >= 0
        or not isinstance(watched.topic, bytes)
        or reader.led_elsewhere
        or (reader.replica < 0 and reader.broker.quotas is not None)
    ):
        return None
    if reader.replica >= 0 and reader.broker.throttle.leading.is_set:
        _count(reader, found)
    _is_news(session, True, each)
    before, after = pack_response(
        OnePartition(
            session.id,
            watched.topic,
            answer.partition_index,
            answer.high_watermark,
            answer.last_stable_offset,
            answer.log_start_offset,
        ),
        len(records),
    )
    return encode_response_parts(correlation_id, True, [before, records, after])


def _count(reader: Reader, found: list[Found]) -> None:
    """What a replica is sent runs against the leader's limit."""
    throttle = reader.broker.throttle
    throttle.leading.record(
        sum(
            each.piece.length
            for each in found
            if each.piece is not None
            and each.partition is not None
            and throttle.counts_as_leader(each.partition)
        ),
        monotonic_ms(),
    )


def _leaders_named(reader: Reader) -> list[NodeEndpoint]:
    """Where the leaders are reached that the answer names."""
    named = reader.led_elsewhere
    return [
        NodeEndpoint(node_id=node.id, host=host, port=port, rack=node.rack)
        for node, host, port in reader.broker.nodes_for(reader.connection.listener.name)
        if node.id in named
    ]
