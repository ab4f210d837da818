"""Partitions that a group has revoked, and rows of theirs that can no longer be committed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ottla.client.consumer.partitions import ReadPartition
from ottla.client.positions import TopicPartition

Reading = Mapping[TopicPartition, ReadPartition]


class RevokedPartitions:
    """Partitions that were this member's, and are not any more.

    A coordinator would accept their offsets from any member, and so set their new owner back; and a
    commit of all positions would leave them out without a word.
    """

    def __init__(self) -> None:
        self._partitions: set[TopicPartition] = set()
        # Of those whose rows the user has and had not committed: the offsets after these rows.
        self._uncommitted: dict[TopicPartition, int] = {}

    def add(self, partitions: Iterable[TopicPartition], reading: Reading) -> None:
        """These partitions are revoked now."""
        for each in partitions:
            self._partitions.add(each)
            state = reading.get(each)
            if state is not None and state.given > state.saved:
                self._uncommitted[each] = state.given

    def give_back(self, partitions: set[TopicPartition]) -> None:
        """These partitions were assigned to this member again."""
        self._partitions -= partitions

    def missed(self, reading: Reading) -> set[TopicPartition]:
        """Revoked partitions with rows that a commit of all positions leaves out, each once."""
        missed = {
            each
            for each, given in self._uncommitted.items()
            # It may have come back, and been read as far again.
            if each not in reading or reading[each].position < given
        }
        self._uncommitted.clear()
        return missed

    def among(self, chosen: Iterable[TopicPartition], reading: Reading) -> set[TopicPartition]:
        """Those of the chosen partitions that are revoked; `missed` does not return them again."""
        found = {each for each in chosen if each in self._partitions and each not in reading}
        self.forget_rows(found)
        return found

    def forget_rows(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Rows of these partitions, or of all, need not be reported by `missed` any more."""
        for each in tuple(self._uncommitted) if partitions is None else partitions:
            self._uncommitted.pop(each, None)

    def clear(self) -> None:
        self._partitions.clear()
        self._uncommitted.clear()
