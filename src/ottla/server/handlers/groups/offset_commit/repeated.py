"""The short cut of OffsetCommit: requests that are like one before them on their connection.

A member commits for the same partitions again and again. All but the offsets and leader epochs of such
a request is the same bytes each time, so it is compared, not decoded, and the response, the same each
time but for the correlation id, is packed in one go. Whether the member may commit is asked each time,
as on the general way. What differs or is not accepted goes that way, with nothing changed on this one.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Final

from ottla.protocol.errors import ErrorCode
from ottla.protocol.frame import frame_response
from ottla.protocol.messages.offset_commit import OffsetCommitRequest
from ottla.server.coordination.coordinators import instant
from ottla.server.handlers.groups.offset_commit.general import answer_to_all

if TYPE_CHECKING:
    from ottla.coordinator.groups.offset_requests import RepeatableCommit
    from ottla.coordinator.groups.records import RecordPair
    from ottla.coordinator.groups.shard import GroupShard
    from ottla.server.api import Serve
    from ottla.server.broker import Broker
    from ottla.server.network.connection import Connection
    from ottla.server.network.slots import Slot

# From this version on the leader epoch follows the offset; there are no timestamps any more.
FIRST_VERSION: Final = 6
# Longer requests are decoded each time.
LARGEST: Final = 4096
# One request in so many that is decoded is looked at for what may be repeated: clients that name other
# partitions each time shall not pay for it each time.
LEARNED_ONE_IN: Final = 8

# Offset and leader epoch.
_PLACE_BYTES: Final = 12
_ZEROS: Final = bytes(_PLACE_BYTES)
_ONES: Final = b"\xff" * _PLACE_BYTES


ShardOf = Callable[[str], "GroupShard | None"]


class RepeatedCommit:
    """What requests have in common that differ in their offsets and leader epochs only."""

    __slots__ = ("_known", "_length", "_pack", "_read", "_rest", "commit", "size", "version")

    def __init__(
        self, body: bytes, places: list[int], version: int, commit: RepeatableCommit
    ) -> None:
        self.version = version
        self.size = len(body)
        self.commit = commit
        layout, at = ">", 0
        for place in places:
            layout += f"{place - at}sqi"
            at = place + _PLACE_BYTES
        self._read = Struct(f"{layout}{len(body) - at}s").unpack_from
        self._known = self._read(body)[::3]
        success = self.answer(0, ErrorCode.NONE)
        # The correlation id is between them.
        self._length, self._rest = success[:4], success[8:]
        self._pack = Struct(f">4si{len(self._rest)}s").pack

    def read(self, view: memoryview, at: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Offsets and leader epochs of a request of this version and size; None if it is another."""
        fields = self._read(view, at)
        if fields[::3] != self._known:
            return None
        return fields[1::3], fields[2::3]

    def success(self, correlation_id: int) -> bytes:
        return self._pack(self._length, correlation_id, self._rest)

    def answer(self, correlation_id: int, code: ErrorCode) -> bytes:
        """The response with this code for every partition."""
        body = bytes(_PLACE_BYTES).join(self._known)
        message, _ = OffsetCommitRequest.decode(body, 0, self.version)
        return frame_response(answer_to_all(message, code), self.version, correlation_id)


def repeatable(body: bytes, version: int, shard_of: ShardOf) -> RepeatedCommit | None:
    """What may come again of a request; None if it is not of this kind, or was not right."""
    message, _ = OffsetCommitRequest.decode(body, 0, version)
    if message.encode(version) != body:
        return None  # something in it is written otherwise than it has to be, or stands after it
    shard = shard_of(message.group_id)
    commit = None if shard is None else shard.repeatable_commit(message, version)
    if commit is None:
        return None
    return RepeatedCommit(body, _places(message, version), version, commit)


def _places(message: OffsetCommitRequest, version: int) -> list[int]:
    """Where an encoded message has its offsets, each followed by its leader epoch."""

    def encoded(number: int) -> bytes:
        for topic in message.topics:
            for partition in topic.partitions:
                partition.committed_offset = partition.committed_leader_epoch = number
        return message.encode(version)

    # At the places they have no byte in common, and elsewhere every byte.
    zeros, ones = encoded(0), encoded(-1)
    places = []
    at = ones.find(_ONES)
    while at >= 0:
        if zeros.startswith(_ZEROS, at):
            places.append(at)
            at += _PLACE_BYTES
        else:
            at += 1
        at = ones.find(_ONES, at)
    return places


class _Commit:
    """A request whose records are gathered: its place in the order of responses."""

    __slots__ = ("_correlation_id", "_repeated", "_slot", "records")

    def __init__(
        self, records: list[RecordPair], repeated: RepeatedCommit, correlation_id: int, slot: Slot
    ) -> None:
        self.records = records
        self._repeated = repeated
        self._correlation_id = correlation_id
        self._slot: Slot | None = slot  # None once it was answered

    def settle(self, code: ErrorCode) -> None:
        slot, self._slot = self._slot, None
        if slot is None:
            return
        if code is ErrorCode.NONE:
            slot.fill([self._repeated.success(self._correlation_id)])
        else:
            slot.fill([self._repeated.answer(self._correlation_id, code)])


class RepeatedCommits:
    """Serves OffsetCommit requests: those that are repeated here, all others the general way."""

    __slots__ = ("_general", "_groups", "_learned_one_in", "_unlearned")

    def __init__(
        self, broker: Broker, general: Serve, learned_one_in: int = LEARNED_ONE_IN
    ) -> None:
        self._groups = broker.groups
        self._general = general
        self._learned_one_in = learned_one_in
        # Requests that were decoded although they are of a kind that may be repeated.
        self._unlearned = 0

    def serve(
        self,
        connection: Connection,
        view: memoryview,
        at: int,
        stop: int,
        version: int,
        correlation_id: int,
    ) -> None:
        repeated = connection.repeated_commit
        if (
            repeated is not None
            and stop - at == repeated.size
            and version == repeated.version
            and self._serve_repeated(repeated, connection, view, at, correlation_id)
        ):
            return
        self._general(connection, view, at, stop, version, correlation_id)
        if version >= FIRST_VERSION and stop - at <= LARGEST and not connection.closed:
            self._unlearned += 1
            if not self._unlearned % self._learned_one_in:
                connection.repeated_commit = repeatable(
                    bytes(view[at:stop]), version, self._shard_of
                )

    def _serve_repeated(
        self,
        repeated: RepeatedCommit,
        connection: Connection,
        view: memoryview,
        at: int,
        correlation_id: int,
    ) -> bool:
        """Whether it could be served so; if not, nothing was done."""
        found = repeated.read(view, at)
        if found is None:
            return False
        commit = repeated.commit
        held = self._groups.serving(commit.group_id)
        if held is None:
            return False
        records = held.shard.commit_again(commit, *found, instant())
        if records is None:
            return False
        slot = connection.reserve()
        self._groups.gather(held, _Commit(records, repeated, correlation_id, slot))
        return True

    def _shard_of(self, group_id: str) -> GroupShard | None:
        held = self._groups.serving(group_id)
        return None if held is None else held.shard
