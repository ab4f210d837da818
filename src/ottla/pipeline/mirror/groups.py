"""Consumer groups of a mirrored cluster: their offsets, translated, at the target.

Only forwards, and only for groups that have no members at the target: a group that has moved there
goes its own way.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ottla.client.admin.client import Admin
from ottla.client.errors import GroupNotEmpty, OttlaError
from ottla.client.positions import TopicPartition
from ottla.pipeline.mirror.offsets import Boundaries

logger = logging.getLogger(__name__)

_CONSUMERS: Final = (None, "classic", "consumer")  # None: a broker that knows but one type


class GroupOffsets:
    """Translates the offsets of groups whose names match a pattern."""

    def __init__(
        self, source: Admin, target: Admin, boundaries: Boundaries, pattern: re.Pattern[str]
    ) -> None:
        self._source = source
        self._target = target
        self._boundaries = boundaries
        self._pattern = pattern
        self._busy = threading.Lock()

    def translate(self) -> dict[str, dict[TopicPartition, int]]:
        """Commit what has changed; what was committed, by group."""
        with self._busy:
            names = [each.group for each in self._source.list_groups() if each.type in _CONSUMERS]
            chosen = [name for name in sorted(names) if self._pattern.fullmatch(name)]
            moved = {name: self._translate(name) for name in chosen}
        return {name: offsets for name, offsets in moved.items() if offsets}

    def _translate(self, group: str) -> dict[TopicPartition, int]:
        there = self._target.committed_offsets(group)
        ahead = {}
        for partition, committed in self._source.committed_offsets(group).items():
            offset = self._boundaries.translate(partition, committed.offset)
            now = there.get(partition)
            if offset is not None and (now is None or now.offset < offset):
                ahead[partition] = offset
        try:
            self._target.alter_offsets(group, ahead)
        except GroupNotEmpty:
            logger.info("group %s has members at the target: its offsets are its own", group)
            return {}
        return ahead

    @contextmanager
    def every(self, seconds: float, notify: Callable[[str], None]) -> Iterator[None]:
        """Translate every so many seconds during the block, and once more at its end."""
        ended = threading.Event()

        def work() -> None:
            while not ended.wait(seconds):
                try:
                    self.translate()
                except OttlaError as error:  # the next time may go better
                    notify(f"offsets of groups could not be translated: {error}")

        worker = threading.Thread(target=work, name="group-offsets", daemon=True)
        worker.start()
        try:
            yield
        finally:
            ended.set()
            worker.join()
        self.translate()
