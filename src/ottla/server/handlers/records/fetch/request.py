"""Which partitions a Fetch request is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.server.sessions import FINAL_EPOCH, INITIAL_EPOCH, WatchedPartition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ottla.protocol.messages.fetch import FetchPartition, FetchRequest
    from ottla.server.sessions import FetchSession, FetchSessions, Key
    from ottla.server.turns import Steps

FIRST_TOPIC_IDS = 13
_FIRST_SESSIONS = 7


def named(request: FetchRequest, version: int) -> dict[Key, WatchedPartition]:
    """The partitions that the request names."""
    found: dict[Key, WatchedPartition] = {}
    for topic in request.topics:
        name = topic.topic_id if version >= FIRST_TOPIC_IDS else topic.topic
        for wanted in topic.partitions:
            _name(found, name, wanted)
    return found


def named_in_steps(request: FetchRequest, version: int) -> Steps[dict[Key, WatchedPartition]]:
    """Does what `named` does, in steps."""
    found: dict[Key, WatchedPartition] = {}
    for topic in request.topics:
        name = topic.topic_id if version >= FIRST_TOPIC_IDS else topic.topic
        for wanted in topic.partitions:
            _name(found, name, wanted)
            yield
        yield
    return found


def _name(found: dict[Key, WatchedPartition], name: str | bytes, wanted: FetchPartition) -> None:
    watched = WatchedPartition(name, wanted.partition)
    watched.fetch_offset = wanted.fetch_offset
    watched.flushed_offset = wanted.flushed_offset
    watched.max_bytes = wanted.partition_max_bytes
    watched.current_leader_epoch = wanted.current_leader_epoch
    watched.last_fetched_epoch = wanted.last_fetched_epoch
    watched.reader_start = wanted.log_start_offset
    found[name, wanted.partition] = watched


def establish(
    request: FetchRequest,
    version: int,
    named: dict[Key, WatchedPartition],
    known_sessions: FetchSessions,
    now: float,
) -> tuple[FetchSession | None, list[WatchedPartition]]:
    """Which partitions the request is about, its own or those of its session; and the session, if it
    has one. ProtocolError if it names a session that is not there, or not like that."""
    if version < _FIRST_SESSIONS or request.session_epoch == FINAL_EPOCH:
        if request.session_id:
            known_sessions.remove(request.session_id)
        return None, list(named.values())
    by_id = version >= FIRST_TOPIC_IDS
    if request.session_epoch == INITIAL_EPOCH:
        known_sessions.remove(request.session_id)
        created = known_sessions.create(now, by_id) if named else None
        if created is not None:
            created.partitions.update(named)
        return created, list(named.values())
    session = known_sessions.get(request.session_id, now)
    if session is None:
        raise ProtocolError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    if session.epoch != request.session_epoch:
        raise ProtocolError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
    if session.by_id != by_id:
        raise ProtocolError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
    for key, each in named.items():
        known = session.partitions.get(key)
        if known is None:
            session.partitions[key] = each
        else:
            known.fetch_offset = each.fetch_offset
            known.flushed_offset = each.flushed_offset
            known.max_bytes = each.max_bytes
            known.current_leader_epoch = each.current_leader_epoch
            known.last_fetched_epoch = each.last_fetched_epoch
            known.reader_start = each.reader_start
    for forgotten in request.forgotten_topics_data:
        topic = forgotten.topic_id if by_id else forgotten.topic
        for index in forgotten.partitions:
            session.partitions.pop((topic, index), None)
    session.advance()
    return session, list(session.partitions.values())


def positions_to_note(
    session: FetchSession | None,
    named: dict[Key, WatchedPartition],
    watched: list[WatchedPartition],
    now_ms: int,
) -> Iterable[WatchedPartition]:
    """Of the partitions that a replica's request is about, those whose positions are to be noted: those
    that it names, and now and then all of them, though the others stand where they stood."""
    if session is None or session.is_time_to_note_all(now_ms):
        return watched
    return named.values()
