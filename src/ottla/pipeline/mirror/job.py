"""`ottla mirror`: topics of one cluster at another, as a streaming query.

Every micro-batch is one write of the sink's, with the number of the batch as its `txnVersion`: it counts
once, however often it runs. Records keep their partitions, keys, headers and timestamps. Topics are made
at the target as they are at the source, and get partitions that are added later. After each batch the
boundaries (mirror_offsets) are kept, by which offsets of groups are translated (mirror_groups).

Nobody else may write to the mirrored topics at the target: their ends tell what became of a batch.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ottla.client.admin.client import Admin
from ottla.client.admin.configs import Resource, SettingSource
from ottla.client.errors import InvalidSetting, PolicyViolation, TopicExists
from ottla.client.positions import LATEST, TopicPartition
from ottla.pipeline.durable_files import held, make_folder, write_whole
from ottla.pipeline.mirror.groups import GroupOffsets
from ottla.pipeline.mirror.offsets import TOPIC as OFFSETS_TOPIC
from ottla.pipeline.mirror.offsets import Boundaries, Boundary
from ottla.pipeline.spark.streams import start_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger(__name__)

EARLIEST: Final = -2  # in offsets for Spark
# Settings that are about the brokers of a cluster, not about the topic.
_OF_THE_CLUSTER: Final = (
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
)

Notify = Callable[[str], None]


class MirrorError(RuntimeError):
    """The topics cannot be mirrored; the message says why and what to do."""


@dataclass(frozen=True)
class MirrorOptions:
    """What to mirror, and how. Client options are the Java client's, without `kafka.`."""

    source: Mapping[str, str]
    target: Mapping[str, str]
    state: Path  # a folder, for this mirror alone
    topics: tuple[str, ...] = ()
    pattern: str | None = None  # in place of topics
    groups: re.Pattern[str] | None = None
    follow: bool = False  # else what there is, and then the end
    every: str = "1 second"  # between micro-batches, when following
    groups_every: float = 5.0  # seconds
    batch_rows: int = 1_000_000  # of a micro-batch, at most


def state_name(source: str, target: str, topics: tuple[str, ...], pattern: str | None) -> str:
    """A name for the state folder of a mirror between these."""
    whole = json.dumps([source, target, sorted(topics), pattern])
    return f"mirror-{hashlib.sha256(whole.encode()).hexdigest()[:16]}"


@dataclass
class Mirroring:
    """The work on each micro-batch."""

    options: MirrorOptions
    source: Admin
    target: Admin
    boundaries: Boundaries
    application: str
    notify: Notify
    _there: dict[str, int] = field(default_factory=dict)  # partitions of topics at the target

    @property
    def checkpoint(self) -> Path:
        return self.options.state / "checkpoint"

    def write_batch(self, frame: DataFrame, batch: int) -> None:
        ends = self._ends(batch)
        self._make_topics(ends)
        unknown = [each for each in ends if each not in self.boundaries]
        # What the source had before the first batch is gone there, so 0 stands for all of it.
        self.boundaries.add(self._boundaries(dict.fromkeys(unknown, 0)))
        given = {
            **_kafka(self.options.target),
            "txnAppId": self.application,
            "txnVersion": str(batch),
            "includeTimestamp": "true",
        }
        columns = ("topic", "partition", "key", "value", "headers", "timestamp")
        writer = frame.select(*columns).write.format("ottla").mode("append")
        writer.options(**given).save()
        self.boundaries.add(self._boundaries(ends))

    def _ends(self, batch: int) -> dict[TopicPartition, int]:
        """The offsets at the end of a batch, as Spark wrote them down before it began."""
        text = (self.checkpoint / "offsets" / str(batch)).read_text(encoding="utf-8")
        offsets = json.loads(text.splitlines()[-1])
        return {
            TopicPartition(topic, int(partition)): end
            for topic, partitions in offsets.items()
            for partition, end in partitions.items()
        }

    def _boundaries(self, sources: Mapping[TopicPartition, int]) -> dict[TopicPartition, Boundary]:
        found = self.target.list_offsets(dict.fromkeys(sources, LATEST))
        return {each: Boundary(source, found[each].offset or 0) for each, source in sources.items()}

    # Topics

    def _make_topics(self, partitions: Mapping[TopicPartition, int]) -> None:
        needed: dict[str, int] = {}
        for topic, partition in partitions:
            needed[topic] = max(needed.get(topic, 0), partition + 1)
        for topic, count in needed.items():
            if self._there.get(topic, 0) < count:
                self._there[topic] = self._make_topic(topic, count)

    def _make_topic(self, name: str, partitions: int) -> int:
        described = self.source.describe_topics(name)[name]
        wanted = max(partitions, len(described.partitions))
        settings = self._settings(name)
        try:
            # With its settings: a topic that a crash left without them would stay so, and the
            # target's defaults may delete what is to be kept.
            try:
                self.target.create_topic(name, wanted, settings=settings)
            except (InvalidSetting, PolicyViolation):
                taken = self._taken(name, wanted, settings)
                self.target.create_topic(name, wanted, settings=taken)
        except TopicExists:
            there = len(self.target.describe_topics(name)[name].partitions)
            if there < wanted:
                self.target.create_partitions(name, wanted)
            return max(there, wanted)
        return wanted

    def _taken(self, topic: str, partitions: int, settings: Mapping[str, str]) -> dict[str, str]:
        """The settings that the target accepts: one that it does not know is left out."""
        taken = {}
        for setting, value in settings.items():
            own = {setting: value}
            try:
                self.target.create_topic(topic, partitions, settings=own, validate_only=True)
            except (InvalidSetting, PolicyViolation) as error:
                self.notify(f"topic {topic} is mirrored without {setting}={value}: {error}")
            else:
                taken.update(own)
        return taken

    def _settings(self, topic: str) -> dict[str, str]:
        resource = Resource.topic(topic)
        settings = self.source.describe_configs(resource)[resource].values()
        return {
            each.name: each.value
            for each in settings
            if each.source is SettingSource.TOPIC
            and each.value is not None
            and each.name not in _OF_THE_CLUSTER
        }


def load(spark: SparkSession, options: MirrorOptions, boundaries: Boundaries) -> DataFrame:
    """The records to be mirrored, as a stream. Where there is no checkpoint, or it was lost, it
    begins where the boundaries end."""
    given = {
        **_kafka(options.source),
        "includeHeaders": "true",
        "maxOffsetsPerTrigger": str(options.batch_rows),
        "startingOffsets": "earliest",
    }
    if options.pattern is not None:
        given["subscribePattern"] = options.pattern
    else:
        given["subscribe"] = ",".join(options.topics)
    begin = _begin(options, boundaries)
    if begin:
        given["startingOffsets"] = json.dumps(begin)
    return spark.readStream.format("ottla").options(**given).load()


def _begin(options: MirrorOptions, boundaries: Boundaries) -> dict[str, dict[str, int]]:
    """Offsets for each partition that there is now, if any of them was mirrored before."""
    with Admin(options.source) as admin:
        topics = [each for each in admin.list_topics(internal=True) if selects(options, each.name)]
    if not any(
        TopicPartition(t.name, p.partition) in boundaries for t in topics for p in t.partitions
    ):
        return {}
    begin: dict[str, dict[str, int]] = {}
    for topic in topics:
        for each in topic.partitions:
            reached = boundaries.reached(TopicPartition(topic.name, each.partition))
            begin.setdefault(topic.name, {})[str(each.partition)] = reached or EARLIEST
    return begin


def selects(options: MirrorOptions, topic: str) -> bool:
    if options.pattern is not None:
        return re.fullmatch(options.pattern, topic) is not None
    return topic in options.topics


@contextmanager
def mirroring(
    spark: SparkSession, options: MirrorOptions, notify: Notify
) -> Iterator[StreamingQuery]:
    """The query that mirrors; it is stopped at the end. Raises MirrorError, OttlaError."""
    if selects(options, OFFSETS_TOPIC):
        raise MirrorError(f"topic {OFFSETS_TOPIC} is what mirrors keep offsets in; leave it out")
    make_folder(options.state)
    with ExitStack() as stack:
        if not stack.enter_context(held(options.state / "lock")):
            raise MirrorError("another mirror between these is running; stop it first")
        source = stack.enter_context(Admin(options.source))
        target = stack.enter_context(Admin(options.target))
        ids = [each.describe_cluster().cluster_id for each in (source, target)]
        if ids[0] == ids[1]:
            raise MirrorError("both addresses are those of one cluster: topics keep their names")
        boundaries = Boundaries(ids[0] or "", options.target)
        boundaries.load()
        work = Mirroring(options, source, target, boundaries, _application(options.state), notify)
        if options.groups is not None:
            groups = GroupOffsets(source, target, boundaries, options.groups)
            stack.enter_context(groups.every(options.groups_every, notify))
        query = start_batches(
            load(spark, options, boundaries),
            "mirror",
            work.checkpoint,
            work.write_batch,
            every=options.every,
            once=not options.follow,
        )
        try:
            yield query
        finally:
            query.stop()


def _application(state: Path) -> str:
    """A name for the writes that goes with the checkpoint, whose batches it numbers."""
    kept = state / "checkpoint" / "ottla-application"
    if not kept.exists():
        make_folder(kept.parent)
        write_whole(kept, f"mirror-{uuid.uuid4().hex}")
    return kept.read_text(encoding="utf-8")


def _kafka(client: Mapping[str, str]) -> dict[str, str]:
    return {f"kafka.{name}": value for name, value in client.items()}
