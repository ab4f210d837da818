"""Fetch sessions (KIP-227): a broker remembers what is fetched, and requests say only what changed.

One session per broker. The first request is complete and asks for a session; the answer gives its id.
From then on a request holds the partitions whose offset or limits are new, and those to forget. A
broker that does not want to remember says so by session id 0, and always gets complete requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from ottla.client.positions import TopicPartition
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
)
from ottla.wire.connection import Connection

SESSION_ERRORS: Final = frozenset(
    (
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    )
)
TOPIC_IDS_SINCE: Final = 13  # Fetch
_SESSIONS_SINCE: Final = 7
_FIRST: Final = 0
_NONE: Final = -1
_LARGEST_EPOCH: Final = 2**31 - 1


class Wanted(NamedTuple):
    """What is fetched from a partition."""

    offset: int
    max_bytes: int
    leader_epoch: int
    topic_id: bytes
    last_fetched_epoch: int = -1


class FetchSession:
    """The session with one broker."""

    def __init__(self) -> None:
        # A broker may forget sessions with their connection, so a new one begins a new session.
        self.connection: Connection | None = None
        self._id = 0
        self._epoch = _FIRST
        self._known: dict[TopicPartition, Wanted] = {}

    def fill(
        self, request: FetchRequest, wanted: Mapping[TopicPartition, Wanted], version: int
    ) -> None:
        """Put what is wanted into a request, and remember it as told."""
        if version < _SESSIONS_SINCE:
            request.session_epoch = _NONE
            request.topics = _topics(wanted.items())
            return
        request.session_id = self._id
        request.session_epoch = self._epoch
        if self._epoch == _FIRST:
            self._known = dict(wanted)
            request.topics = _topics(wanted.items())
            return
        known = self._known
        changed = [each for each in wanted.items() if known.get(each[0]) != each[1]]
        forgotten = [partition for partition in known if partition not in wanted]
        # A topic that was made anew is another one: the old must be forgotten by its old id.
        forgotten += [
            partition
            for partition, want in changed
            if partition in known and known[partition].topic_id != want.topic_id
        ]
        request.topics = _topics(changed)
        request.forgotten_topics_data = _forgotten(forgotten, known)
        self._known = dict(wanted)

    def answered(self, session_id: int) -> None:
        """The broker has answered without a session error."""
        if session_id == 0:
            self.reset()
        elif self._epoch == _FIRST or session_id != self._id:
            self._id = session_id
            self._epoch = 1
        else:
            self._epoch = 1 if self._epoch == _LARGEST_EPOCH else self._epoch + 1

    def reset(self) -> None:
        """Begin anew with a complete request."""
        self._id = 0
        self._epoch = _FIRST
        self._known = {}


def _topics(wanted: Iterable[tuple[TopicPartition, Wanted]]) -> list[FetchTopic]:
    topics: dict[tuple[str, bytes], FetchTopic] = {}
    for (name, index), want in wanted:
        topic = topics.get((name, want.topic_id))
        if topic is None:
            topic = FetchTopic(topic=name, topic_id=want.topic_id, partitions=[])
            topics[name, want.topic_id] = topic
        topic.partitions.append(
            FetchPartition(
                partition=index,
                current_leader_epoch=want.leader_epoch,
                fetch_offset=want.offset,
                last_fetched_epoch=want.last_fetched_epoch,
                partition_max_bytes=want.max_bytes,
            )
        )
    return list(topics.values())


def _forgotten(
    partitions: Iterable[TopicPartition], known: Mapping[TopicPartition, Wanted]
) -> list[ForgottenTopic]:
    topics: dict[tuple[str, bytes], ForgottenTopic] = {}
    for partition in partitions:
        name, topic_id = partition.topic, known[partition].topic_id
        topic = topics.get((name, topic_id))
        if topic is None:
            topic = ForgottenTopic(topic=name, topic_id=topic_id, partitions=[])
            topics[name, topic_id] = topic
        topic.partitions.append(partition.partition)
    return list(topics.values())
