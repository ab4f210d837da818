"""Every commit that a test makes is made the short way, too, and has to come to the same."""

from __future__ import annotations

from ottla.coordinator.groups.offset_requests import RepeatableCommit
from ottla.coordinator.groups.shard import GroupShard
from ottla.coordinator.shard import Effects, Instant, Ticket
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse

# From here on requests may be repeated.
FIRST_VERSION = 6


class RepeatedCommits:
    """Remembers what may come again of each kind of commit, from the first that was right: what became
    of its group, its member and its topics since has to be noticed."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, bytes], RepeatableCommit] = {}
        self.repeated = 0
        self.refused = 0

    def commit(
        self,
        shard: GroupShard,
        ticket: Ticket,
        request: OffsetCommitRequest,
        now: Instant,
        version: int,
    ) -> Effects:
        if version < FIRST_VERSION:
            return shard.offset_commit(ticket, request, now, version)
        parts = [part for topic in request.topics for part in topic.partitions]
        offsets = [part.committed_offset for part in parts]
        epochs = [part.committed_leader_epoch for part in parts]
        kind = version, _without_offsets(request, version)
        known = self._known.get(kind)
        again = None if known is None else shard.commit_again(known, offsets, epochs, now)
        current = shard.repeatable_commit(request, version)
        afresh = None if current is None else shard.commit_again(current, offsets, epochs, now)
        effects = shard.offset_commit(ticket, request, now, version)
        ((_, answer),) = effects.answers
        assert isinstance(answer, OffsetCommitResponse)
        codes = {part.error_code for topic in answer.topics for part in topic.partitions}
        if effects.can_be_gathered and codes == {ErrorCode.NONE}:
            assert afresh == effects.records
            assert again is None or again == effects.records
            self.repeated += again is not None
        else:
            assert afresh is None
            assert again is None
            self.refused += known is not None
        if current is not None:
            self._known.setdefault(kind, current)
        return effects


def _without_offsets(request: OffsetCommitRequest, version: int) -> bytes:
    copy, _ = OffsetCommitRequest.decode(request.encode(version), 0, version)
    for topic in copy.topics:
        for part in topic.partitions:
            part.committed_offset = part.committed_leader_epoch = 0
    return copy.encode(version)
