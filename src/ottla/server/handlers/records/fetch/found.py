"""What a fetch finds in one partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.protocol.messages.fetch import PartitionData
    from ottla.replication.partition import Partition
    from ottla.server.sessions import WatchedPartition
    from ottla.storage.errors import NotInMemory
    from ottla.storage.segments.file import Slice


class Found:
    """What one partition has for the reader right now."""

    __slots__ = (
        "answer",
        "at_least_one",
        "ends_early",
        "is_masked",
        "limit",
        "missing",
        "partition",
        "piece",
        "start",
        "watched",
    )

    def __init__(self, watched: WatchedPartition, answer: PartitionData) -> None:
        self.watched = watched
        self.answer = answer
        self.partition: Partition | None = None
        self.piece: Slice | None = None
        # There is something, but where it begins can only be found out on the disk; and what is
        # to be looked for there.
        self.missing: NotInMemory | None = None
        self.limit = 0
        self.at_least_one = False
        # The piece has records that were deleted; it ends before more of them; and from where on it
        # was looked for.
        self.is_masked = False
        self.ends_early = False
        self.start = watched.fetch_offset
