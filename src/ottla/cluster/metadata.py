"""What the cluster knows, as an image that never changes; a change makes a new image.

Brokers, topics, partitions, configuration and features at one version. Whoever holds an image may
keep it, hand it to another thread, and read it without a lock. A new image shares all that did not
change with the one before it (draft.py makes it).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final, TypeVar

from ottla.turns import Steps, stepwise

K = TypeVar("K")
V = TypeVar("V")

NO_LEADER: Final = -1
# Partitions of changed topics that are told of together.
PARTITIONS_IN_A_STAGE: Final = 500
CLUSTER_DEFAULT: Final = ""  # the broker resource whose configuration holds for all brokers


class ResourceType(IntEnum):
    """What can have a configuration; numbers as on the wire, where they are small. Those from 1000 on
    are kept like configurations and have APIs of their own."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32
    USER = 1000  # SCRAM credentials by mechanism: never to be shown
    ACL = 1001  # entries of access control
    QUOTA = 1002  # of users, client ids and addresses


Resource = tuple[ResourceType, str]

# What the APIs for configurations know.
ON_THE_WIRE: Final = frozenset(each for each in ResourceType if each < 1000)

# Levels of loggers belong to a broker's process and are not metadata.
CONFIGURABLE: Final = frozenset(
    {ResourceType.TOPIC, ResourceType.BROKER, ResourceType.CLIENT_METRICS, ResourceType.GROUP}
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a listener of a broker is reached."""

    listener: str
    host: str
    port: int
    protocol: str  # PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL


@dataclass(frozen=True, slots=True)
class RegisteredBroker:
    """A broker as the controller has taken it in: one life of one broker process."""

    id: int
    epoch: int  # grows with every registration of this broker
    rack: str | None
    endpoints: tuple[Endpoint, ...]
    folder_id: str = ""  # names its data folders; another one has other data
    leaving: bool = False  # it stops in good order: it serves on, and leads nothing new
    machine: str = ""  # shared with the other brokers of its machine; "" if it has one for itself
    # The default of min.insync.replicas in its configuration, with which it leads; 0: not told.
    min_isr: int = 0
    # The levels of features that it supports: name, lowest, highest. Empty: not told.
    features: tuple[tuple[str, int, int], ...] = ()
    # Names the run of its process with its data folders, which say so (runs.py); "": not told.
    run: str = ""
    # As it registers: the runs before this one that all its data folders know of, the first first.
    former_runs: tuple[str, ...] = ()

    def endpoint(self, listener: str) -> Endpoint | None:
        """Where clients of a listener reach this broker."""
        for endpoint in self.endpoints:
            if endpoint.listener == listener:
                return endpoint
        return None


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition. `isr` is a subset of `replicas`; `leader` is one of `isr`, or NO_LEADER.

    `elr` are the replicas outside of `isr` that have everything that was committed, and may lead if
    nobody in sync can (KIP-966): empty unless `isr` has fewer members than `min.insync.replicas`. If
    both are empty, `last_known_leader` is who led last, and the best that is left.
    """

    index: int
    replicas: tuple[int, ...]  # the first is the preferred leader
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int = 0  # grows with every election
    partition_epoch: int = 0  # grows with every change of any field
    adding: tuple[int, ...] = ()  # replicas on their way in and out in a reassignment
    removing: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    last_known_leader: int = NO_LEADER

    def fewest_in_sync(self, min_isr: int) -> int:
        """How many have to be in sync: as `min.insync.replicas` says, or all if there are fewer.
        Replicas on their way in do not count: nobody waits for them."""
        return min(min_isr, len(self.replicas) - len(self.adding))


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic; partition N stands at index N of `partitions`."""

    name: str
    topic_id: bytes  # 16 bytes; another one when a topic of the same name is made again
    partitions: tuple[Partition, ...]
    internal: bool = False

    @property
    def replication_factor(self) -> int:
        """Replicas of the first partition, without those that a move takes away; a move may make others
        differ for a while."""
        first = self.partitions[0]
        return len(first.replicas) - len(first.removing)


@dataclass(frozen=True, slots=True)
class ClusterImage:
    """Everything at one version. The mappings must not be modified by those who read them."""

    cluster_id: str
    controller_id: int = -1
    controller_epoch: int = 0
    version: int = -1  # one more with each change that a controller makes
    brokers: Mapping[int, RegisteredBroker] = field(default_factory=dict)  # those that are alive
    fenced: Mapping[int, RegisteredBroker] = field(default_factory=dict)  # known, and away
    topics: Mapping[str, Topic] = field(default_factory=dict)
    topics_by_id: Mapping[bytes, Topic] = field(default_factory=dict)  # the same topics
    # Only what was set; a resource without any has no entry.
    configs: Mapping[Resource, Mapping[str, str]] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)  # finalized; level 0 has no entry
    next_producer_id: int = 0
    # Added to all stored leader epochs: one write raises the epochs of a single node's partitions.
    leader_epoch_base: int = 0
    # What only brokers know, the same for all of them; empty until a controller has made it.
    secret: bytes = field(default=b"", repr=False)
    # Names of the topics that could collide, by names.collision_key.
    collisions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def config(self, resource_type: ResourceType, name: str) -> Mapping[str, str]:
        """What was set for a resource; empty if nothing was."""
        return self.configs.get((resource_type, name), _NOTHING)

    def partition(self, topic: str, index: int) -> Partition | None:
        """A partition, if there is one."""
        found = self.topics.get(topic)
        if found is None or not 0 <= index < len(found.partitions):
            return None
        return found.partitions[index]

    @property
    def partition_count(self) -> int:
        """Partitions of all topics."""
        return sum(len(topic.partitions) for topic in self.topics.values())


_NOTHING: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True)
class ImageDelta:
    """What differs between two images.

    A topic that was deleted and made again in between is in `deleted` with its old id and in
    `created` with the new one.
    """

    created: tuple[Topic, ...] = ()
    deleted: tuple[Topic, ...] = ()
    changed: tuple[tuple[Topic, Topic], ...] = ()  # (before, after)
    brokers: frozenset[int] = frozenset()  # came, went or changed
    configs: frozenset[Resource] = frozenset()
    features: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(
            self.created
            or self.deleted
            or self.changed
            or self.brokers
            or self.configs
            or self.features
        )


@stepwise
def difference(old: ClusterImage, new: ClusterImage) -> Steps[ImageDelta]:
    """What differs, found by looking at everything; a draft knows it without."""
    names = [
        name
        for name in {**old.topics, **new.topics}
        if old.topics.get(name) is not new.topics.get(name)
    ]
    yield
    return (
        yield from delta_of(
            old,
            new,
            names,
            frozenset(differing(old.brokers, new.brokers)),
            frozenset(differing(old.configs, new.configs)),
            frozenset(differing(old.features, new.features)),
        )
    )


def delta_of(
    old: ClusterImage,
    new: ClusterImage,
    topics: Iterable[str],
    brokers: frozenset[int],
    configs: frozenset[Resource],
    features: frozenset[str],
) -> Steps[ImageDelta]:
    """The delta, in steps, when it is known which entries may differ."""
    created: list[Topic] = []
    deleted: list[Topic] = []
    changed: list[tuple[Topic, Topic]] = []
    for name in topics:
        yield
        before = old.topics.get(name)
        after = new.topics.get(name)
        if before is not None and after is not None and before.topic_id == after.topic_id:
            if before != after:
                changed.append((before, after))
            continue
        if before is not None:
            deleted.append(before)
        if after is not None:
            created.append(after)
    return ImageDelta(tuple(created), tuple(deleted), tuple(changed), brokers, configs, features)


def stages(
    old: ClusterImage, new: ClusterImage, delta: ImageDelta
) -> Iterator[tuple[ClusterImage, ImageDelta]]:
    """The way from one image to another in images that differ in few partitions each, for those who
    have to do something for every topic that changed: they do it a part at a time.

    The order is that in which a change is written to the store (layout.py), between whose parts others
    see such states, too: settings first, then topics, then the rest, brokers above all. The last is the
    new image itself; only that has its version.
    """
    parts = list(_parts(delta))
    topics, by_id = old.topics, old.topics_by_id
    for part in parts[:-1]:
        topics, by_id = dict(topics), dict(by_id)
        for gone in part.deleted:
            del topics[gone.name], by_id[gone.topic_id]
        for after in (*part.created, *(after for _, after in part.changed)):
            topics[after.name] = by_id[after.topic_id] = after
        yield replace(old, topics=topics, topics_by_id=by_id, configs=new.configs), part
    yield new, replace(parts[-1], brokers=delta.brokers, features=delta.features)


def _parts(delta: ImageDelta) -> Iterator[ImageDelta]:
    """The topics of a delta in parts, at least one; settings are in the first."""
    created = {topic.name: topic for topic in delta.created}
    # A topic that was made again comes together with the end of the former one.
    units: list[tuple[Topic | None, Topic | None, tuple[Topic, Topic] | None]] = [
        *((gone, created.pop(gone.name, None), None) for gone in delta.deleted),
    ]
    units += [(None, topic, None) for topic in created.values()]
    units += [(None, None, pair) for pair in delta.changed]
    configs, first, size = delta.configs, 0, 0
    for at, (gone, made, pair) in enumerate(units, 1):
        size += sum(len(each.partitions) for each in (gone, made, pair and pair[1]) if each)
        if size >= PARTITIONS_IN_A_STAGE and at < len(units):
            yield _joined(units[first:at], configs)
            configs, first, size = frozenset(), at, 0
    yield _joined(units[first:], configs)


def _joined(
    units: Sequence[tuple[Topic | None, Topic | None, tuple[Topic, Topic] | None]],
    configs: frozenset[Resource],
) -> ImageDelta:
    return ImageDelta(
        tuple(made for _, made, _ in units if made is not None),
        tuple(gone for gone, _, _ in units if gone is not None),
        tuple(pair for _, _, pair in units if pair is not None),
        configs=configs,
    )


def differing(old: Mapping[K, V], new: Mapping[K, V]) -> list[K]:
    """The keys of what is in one of them only, or not the same in both."""
    return [key for key in {**old, **new} if old.get(key) != new.get(key)]
