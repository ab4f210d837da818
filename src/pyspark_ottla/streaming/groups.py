"""The progress of a streaming query in a consumer group (option groupId), for those who watch lag.

The query goes on from its checkpoint, never from the group. What is committed is the start of the
next batch, when Spark asks how far that may go: by then the one before is done.
"""

from __future__ import annotations

import logging
from typing import Final

from ottla.client.errors import Failures, GroupNotEmpty, OttlaError, TopicNotFound
from pyspark_ottla.broker import SourceAdmin
from pyspark_ottla.errors import OptionError
from pyspark_ottla.limits import Offsets

logger = logging.getLogger(__name__)

# A commit that fails later is made up for by the next one: it must not hold the query up for long.
_PATIENCE: Final = 5.0


class GroupProgress:
    """Commits the progress of a query as the offsets of a consumer group."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._committed: Offsets | None = None
        self._failing = False

    async def reached(self, offsets: Offsets, admin: SourceAdmin) -> None:
        """Everything before these offsets is processed.

        The first commit has to succeed; later ones that fail are a warning.
        """
        if self._committed is None:
            await self._begin(offsets, admin)
            return
        changed = {
            each: offset for each, offset in offsets.items() if self._committed.get(each) != offset
        }
        if not changed:
            return
        try:
            await admin.alter_offsets(self._group, changed, timeout=_PATIENCE)
        except OttlaError as error:
            if not self._failing:
                logger.warning("groupId: progress is not committed for now: %s", error)
            self._failing = True
        else:
            self._committed = dict(offsets)
            self._failing = False

    async def _begin(self, offsets: Offsets, admin: SourceAdmin) -> None:
        try:
            await admin.alter_offsets(self._group, offsets)
        except GroupNotEmpty:
            raise OptionError(
                f"groupId: the group '{self._group}' has live members, whose commits would collide "
                "with those of this query; stop them or give the query a group of its own"
            ) from None
        except TopicNotFound:
            pass  # a partition of the checkpoint that is gone: the plan says what that means
        except Failures as failures:
            if not all(isinstance(each, TopicNotFound) for each in failures.exceptions):
                raise
        self._committed = dict(offsets)
