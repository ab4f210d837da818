"""Fetch sessions: a consumer of many partitions names them once, then only what changes.

A session remembers the partitions of a consumer and what it was told of each; an incremental request
carries only changed positions, and its response only partitions with news. Sessions are numbered,
each request must carry the epoch that follows the last one, and a broker holds a bounded number
(`max.incremental.fetch.session.cache.slots`). When all slots are taken, the session unused for the
longest time gives way, provided it has been idle for a while; otherwise the newcomer is served
without a session, which is always correct and merely costs more bytes.
"""

from __future__ import annotations

import random
from collections import OrderedDict

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
NO_SESSION = 0
# A session used within this time is not evicted for another one.
EVICTION_SECONDS = 120.0
# A replica's positions that have not moved are noted this often: that it still fetches is news only for
# the reckoning of lags, in which the wait of a fetch counts for more than this.
NOTE_ALL_MS = 100
# A replica that has everything is told of a high watermark that moved with what it is sent next, or
# this often: consumers may read from it.
WATERMARKS_MS = 500
_MAX_INT32 = 0x7FFFFFFF

# Topic (its id from Fetch v13 on, its name before) and partition.
Key = tuple[str | bytes, int]


class WatchedPartition:
    """One partition of a fetch: where its reader stands, and what it was last told."""

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "flushed_offset",
        "high_watermark",
        "index",
        "last_fetched_epoch",
        "log_start_offset",
        "max_bytes",
        "reader_start",
        "topic",
    )

    def __init__(self, topic: str | bytes, index: int) -> None:
        self.topic = topic
        self.index = index
        self.fetch_offset = 0
        # Of a replica: what it has synced; -1 if it does not say.
        self.flushed_offset = -1
        self.max_bytes = 0
        self.current_leader_epoch = -1
        self.last_fetched_epoch = -1
        # Of a replica: where its log begins.
        self.reader_start = -1
        # Told in the last response that named this partition; -1: never told.
        self.high_watermark = -1
        self.log_start_offset = -1


class FetchSession:
    __slots__ = (
        "_noted_ms",
        "_watermarks_sent_ms",
        "by_id",
        "epoch",
        "id",
        "partitions",
        "used_at",
    )

    def __init__(self, session_id: int, now: float, by_id: bool) -> None:
        # Whether its requests name topics by id; that may not change within a session.
        self.by_id = by_id
        self.id = session_id
        # The epoch that the next request has to carry.
        self.epoch = 1
        self.used_at = now
        # Of a replica: when the positions in all its partitions were last noted.
        self._noted_ms = -NOTE_ALL_MS
        # And when it was last told of all high watermarks.
        self._watermarks_sent_ms = -WATERMARKS_MS
        # In the order in which they are served. One that returned data moves to the end, so that a
        # busy partition cannot starve the ones after it.
        self.partitions: OrderedDict[Key, WatchedPartition] = OrderedDict()

    def is_time_to_note_all(self, now_ms: int) -> bool:
        """Whether this request of a replica counts for partitions that it does not name, too."""
        if now_ms - self._noted_ms < NOTE_ALL_MS:
            return False
        self._noted_ms = now_ms
        return True

    def is_time_for_watermarks(self, now_ms: int) -> bool:
        """Whether the answer to this request of a replica names partitions of which only the high
        watermark has moved."""
        if now_ms - self._watermarks_sent_ms < WATERMARKS_MS:
            return False
        self._watermarks_sent_ms = now_ms
        return True

    def advance(self) -> None:
        self.epoch = 1 if self.epoch == _MAX_INT32 else self.epoch + 1


class FetchSessions:
    def __init__(self, slots: int) -> None:
        self._slots = slots
        # Least recently used first.
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, session_id: int, now: float) -> FetchSession | None:
        session = self._sessions.get(session_id)
        if session is not None:
            session.used_at = now
            self._sessions.move_to_end(session_id)
        return session

    def remove(self, session_id: int) -> None:
        self._sessions.pop(session_id, None)

    def create(self, now: float, by_id: bool) -> FetchSession | None:
        """A new session, or None when all slots are in use."""
        if len(self._sessions) >= self._slots:
            if not self._sessions:
                return None
            oldest = next(iter(self._sessions.values()))
            if now - oldest.used_at < EVICTION_SECONDS:
                return None
            self.remove(oldest.id)
        session_id = random.randint(1, _MAX_INT32)
        while session_id in self._sessions:
            session_id = random.randint(1, _MAX_INT32)
        session = self._sessions[session_id] = FetchSession(session_id, now, by_id)
        return session
