"""Plans the micro-batches of a streaming query: where it begins, how far each batch goes, what it reads.

One planner lives as long as a query runs, in a process of its own that Spark starts beside the driver.
What it remembers is only to notice changes: what counts is in the checkpoint.

Spark keeps where a query began only once its first batch is planned, and asks anew if that batch has to
be repeated after a restart. "latest" would be another place by then. So partitions that begin at latest
have nothing in the first batch, which records where they begin; repeated, it is empty as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from ottla.client.admin.topics import TopicDescription
from ottla.client.errors import OttlaError, TopicNotFound
from ottla.client.offset_lookup import find_offsets
from ottla.client.positions import EARLIEST as FIRST
from ottla.client.positions import LATEST as LAST
from ottla.client.positions import Position, TopicPartition
from pyspark_ottla.broker import (
    SourceAdmin,
    cluster_of,
    listed,
    selected,
    starting_offsets,
)
from pyspark_ottla.limits import Offsets, TriggerDelay, at_most, waiting
from pyspark_ottla.options import EARLIEST, LATEST, SourceOptions
from pyspark_ottla.ranges import Range, divided, lost
from pyspark_ottla.streaming.groups import GroupProgress
from pyspark_ottla.streaming.offsets import batch_ranges, check_gone

logger = logging.getLogger(__name__)


class StreamPlanner:
    """The plan of one query. All of it runs in the client's event loop."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._isolation = options.settings.isolation
        self._initial: Offsets | None = None
        self._floating: frozenset[TopicPartition] = frozenset()  # those that began at latest
        self._first_batch = True
        self._target: Offsets | None = None  # where an available-now query ends
        self._absent: dict[str, OttlaError] = {}  # topics that are asked for, and why not there
        self._read: set[str] = set()  # topics that batches of this run have begun in
        self._topic_ids: dict[str, str | None] = {}
        self._planned_ids: dict[str, str | None] = {}
        self._last_plan: tuple[Offsets, Offsets, list[Range]] | None = None
        self._delay = TriggerDelay(options.min_offsets_per_trigger or 0, options.max_trigger_delay)
        self._progress = None if options.group is None else GroupProgress(options.group)
        self.known_ends: Offsets | None = None

    async def _admin(self) -> SourceAdmin:
        return SourceAdmin(await cluster_of(self._options))

    # Where it begins

    async def initial(self) -> Offsets:
        """Where a query without a checkpoint begins. The same however often it is asked."""
        if self._initial is None:
            admin = await self._admin()
            partitions = await selected(admin, self._options)
            starts = await starting_offsets(admin, self._options, partitions)
            self._floating = frozenset(each for each in starts if starts[each] == LATEST)
            self._initial = await self._resolved(admin, starts)
        return dict(self._initial)

    async def _resolved(self, admin: SourceAdmin, starts: Offsets) -> Offsets:
        fixed = starts.keys() - self._floating
        named = [each for each in fixed if starts[each] != EARLIEST]
        last = await listed(admin, dict.fromkeys(self._floating, LAST), self._isolation)
        first = await listed(admin, dict.fromkeys(fixed, FIRST), self._isolation)
        high = await listed(admin, dict.fromkeys(named, LAST), "read_uncommitted")
        found = {each: offset or 0 for each, offset in (last | first).items()}
        for each in sorted(named):
            begins, ends, wanted = first[each] or 0, high[each] or 0, starts[each]
            if not begins <= wanted <= ends:
                lost(
                    f"{self._options.start.option} says {wanted} for {each}, "
                    f"which has offsets {begins} to {ends}",
                    self._options,
                )
            found[each] = min(max(wanted, begins), ends)
        return found

    # How far a batch goes

    async def fix_target(self) -> None:
        """Read nothing that comes after this call (available-now)."""
        self._target = await self._ends()
        self._planned_ids = dict(self._topic_ids)

    async def latest(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """The end of the batch that begins at `start`."""
        ends, _ = await asyncio.gather(self._known_ends(), self._commit(start))
        self._check_absent(start)
        if self._options.fail_on_data_loss:
            # Before the batch is written down: what follows must not depend on it. Partitions of a
            # start that was found just now may be younger than the ends (available-now).
            begins = self._first_batch and start == self._initial
            check_gone(start.keys() & ends.keys() if begins else start, ends, self._options)
            for topic in sorted(self._renewed_topics()):
                lost(f"topic '{topic}' was deleted and made anew", self._options)
        ends = await self._none_before(start, ends)
        self.known_ends = ends
        if self._target is not None:
            self._target = ends
        if self._first_batch:
            self._first_batch = False
            if start == self._initial:
                ends = ends | {each: start[each] for each in self._floating & ends.keys()}
        if isinstance(limit, ReadAllAvailable):
            return ends
        return await self._limited(start, ends)

    async def _limited(self, start: Offsets, ends: Offsets) -> Offsets:
        begin = start | await self._first_offsets(ends.keys() - start.keys())
        if self._target is None:
            records = sum(waiting(begin, ends).values())
            if self._delay.holds_back(records, asyncio.get_running_loop().time()):
                return start
        most = self._options.max_offsets_per_trigger
        return ends if most is None else at_most(most, begin, ends)

    async def _known_ends(self) -> Offsets:
        if self._target is None:
            return await self._ends()
        topics = await self._topics_now()
        renewed = self._renewed_topics()
        if not renewed:
            return dict(self._target)
        # What was the end of another topic says nothing.
        own = await self._ends_of(topic for topic in topics if topic.name in renewed)
        kept = {each: end for each, end in self._target.items() if each.topic not in renewed}
        return kept | own

    async def _ends(self) -> Offsets:
        """The ends of all partitions that are to be read and are there now."""
        return await self._ends_of(await self._topics_now())

    async def _topics_now(self) -> list[TopicDescription]:
        topics = list(await self._topics(await self._admin()))
        self._topic_ids = {topic.name: topic.topic_id for topic in topics}
        return topics

    async def _ends_of(self, topics: Iterable[TopicDescription]) -> Offsets:
        partitions = [
            TopicPartition(topic.name, each.partition)
            for topic in topics
            for each in topic.partitions
            if self._options.selects(topic.name, each.partition)
        ]
        return await self._listed_if_there(partitions, LAST)

    async def _topics(self, admin: SourceAdmin) -> Iterable[TopicDescription]:
        """The topics that may be meant, as far as they are there."""
        options = self._options
        if options.selection == "subscribePattern":
            return await admin.list_topics(internal=True)
        names = options.subscribed or {each.topic for each in options.assigned}
        there = await admin.topics_there(names)
        self._absent = there.errors
        return there.results.values()

    def _check_absent(self, start: Offsets) -> None:
        """Raise why a topic is not there; not of one that was read before, which counts as data loss."""
        self._read.update(each.topic for each in start)
        for name, error in self._absent.items():
            if not (isinstance(error, TopicNotFound) and name in self._read):
                raise error

    async def _first_offsets(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return await self._listed_if_there(partitions, FIRST)

    async def _listed_if_there(
        self, partitions: Iterable[TopicPartition], position: Position
    ) -> Offsets:
        cluster = await cluster_of(self._options)
        asked = dict.fromkeys(partitions, position)
        found = await find_offsets(cluster, asked, isolation=self._isolation)
        for error in found.errors.values():
            if not isinstance(error, TopicNotFound):
                raise error
        return {each: there.offset or 0 for each, there in found.results.items()}

    async def _none_before(self, start: Offsets, ends: Offsets) -> Offsets:
        """The ends, none before its start but where records are lost.

        The last stable offset lies before the start when a query went on that has read uncommitted
        records. Then the partition waits.
        """
        before = [each for each, end in ends.items() if end < start.get(each, 0)]
        if not before:
            return ends
        high = await listed(await self._admin(), dict.fromkeys(before, LAST), "read_uncommitted")
        ends = dict(ends)
        for each in before:
            if (high[each] or 0) >= start[each]:
                ends[each] = start[each]
            elif self._options.fail_on_data_loss:
                lost(
                    f"{each} ends at offset {high[each]}, and the query has read up to "
                    f"{start[each]}: it was deleted and made anew, or lost records",
                    self._options,
                )
        return ends

    # What it reads

    async def plan(self, start: Offsets, end: Offsets) -> list[Range]:
        """The pieces of a batch. The same for the same batch: a query may run it several times."""
        if self._last_plan is None or self._last_plan[:2] != (start, end):
            self._last_plan = (start, end, await self._plan(start, end))
        return self._last_plan[2]

    async def _plan(self, start: Offsets, end: Offsets) -> list[Range]:
        if start == self._initial:
            # A first batch that is repeated: partitions that have come since are not in it, and those
            # that begin at latest have nothing in it.
            start = {
                each: min(offset, end[each]) if each in self._floating else offset
                for each, offset in start.items()
                if each in end
            }
        if not self._topic_ids:
            await self._topics_now()  # a batch that is repeated was not asked for in this run
        changed = self._renewed_topics()
        self._planned_ids |= self._topic_ids
        renewed = {
            each
            for each in end.keys() & start.keys()
            if each.topic in changed or end[each] < start[each]
        }
        firsts = await self._first_offsets((end.keys() - start.keys()) | renewed)
        ranges = [
            each._replace(topic_id=self._topic_ids.get(each.partition.topic))
            for each in batch_ranges(start, end, firsts, renewed, self._options)
        ]
        return divided(
            ranges, self._options.min_partitions, self._options.max_records_per_partition
        )

    def _renewed_topics(self) -> set[str]:
        """Topics that have another id than when a batch was planned last."""
        return {
            topic
            for topic, found in self._topic_ids.items()
            if self._planned_ids.get(topic, found) != found
        }

    # Progress

    async def _commit(self, start: Offsets) -> None:
        if self._progress is not None:
            await self._progress.reached(start, await self._admin())
