"""Create topics, delete topics, add partitions. Checks and their order are Kafka's.

Parts of a request succeed or fail on their own. For a new topic the checks are: twice in the request,
the name, whether it exists, collisions, configuration, then replicas and partitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from ottla.cluster.decisions.brokers import put_in_steps
from ottla.cluster.decisions.configs import ConfigRules
from ottla.cluster.draft import Draft
from ottla.cluster.metadata import Partition, RegisteredBroker, ResourceType, Topic
from ottla.cluster.names import CLUSTER_METADATA, check_topic_name, is_internal
from ottla.cluster.placement import leader_order, machines, place
from ottla.protocol.errors import ErrorCode, ProtocolError
from ottla.protocol.message import ZERO_UUID
from ottla.turns import Steps, stepwise

USE_DEFAULT: Final = -1
MOST_PARTITIONS_PER_REQUEST: Final = 10_000
AUTOMATIC_REPLICAS: Final = 3


@dataclass(frozen=True, slots=True)
class TopicDefaults:
    """What a topic gets when the request leaves it open."""

    partitions: int = 1
    replication_factor: int = 1  # 0: as many as there are machines, and at most three


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create: counts (USE_DEFAULT for the broker's), or assignments with counts of -1.

    `assignments` are pairs of partition index and replicas, as they stand in the request. In
    `configs` a name that comes twice has its last value.
    """

    name: str
    partitions: int = USE_DEFAULT
    replication_factor: int = USE_DEFAULT
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    configs: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeadTopic:
    """A topic to delete, by its name or by its id."""

    name: str | None = None
    topic_id: bytes = ZERO_UUID


@dataclass(frozen=True, slots=True)
class MorePartitions:
    """A topic that is to have `count` partitions in all; with assignments for the new ones or not."""

    name: str
    count: int
    assignments: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class TopicResult:
    """What became of one topic of a request. `topic` is it after the change, or before deletion."""

    name: str | None
    topic_id: bytes = ZERO_UUID
    error: ProtocolError | None = None
    topic: Topic | None = None


@stepwise
def create_topics(
    draft: Draft,
    requested: Sequence[NewTopic],
    defaults: TopicDefaults,
    rules: ConfigRules,
    random: Random,
) -> Steps[list[TopicResult]]:
    """One result for each name, in the order of the request."""
    times = Counter(topic.name for topic in requested)
    excessive = _requested_partitions(requested, defaults) > MOST_PARTITIONS_PER_REQUEST
    spread = _Spread(draft, random)
    results: dict[str, TopicResult] = {}
    created: list[Topic] = []
    for request in requested:
        yield
        name = request.name
        if name in results:
            continue
        try:
            if times[name] > 1:
                raise ProtocolError(
                    ErrorCode.INVALID_REQUEST, f"The request names topic '{name}' more than once."
                )
            if name == CLUSTER_METADATA:
                raise ProtocolError(
                    ErrorCode.INVALID_REQUEST, f"Topic '{name}' is internal and cannot be created."
                )
            if excessive:
                raise _too_many_partitions()
            _check_new_name(draft, name)
            config = _checked_config(request, rules)
            partitions = yield from _new_partitions(draft, request, defaults, spread)
            topic = Topic(name, _new_topic_id(draft, random), partitions, is_internal(name))
        except ProtocolError as error:
            results[name] = TopicResult(name, error=error.with_traceback(None))
            continue
        results[name] = TopicResult(name, topic.topic_id, topic=topic)
        created.append(topic)
        if config:
            draft.set_config((ResourceType.TOPIC, name), config)
    yield from put_in_steps(draft, created)
    return list(results.values())


def _requested_partitions(requested: Sequence[NewTopic], defaults: TopicDefaults) -> int:
    total = 0
    for topic in requested:
        if topic.assignments:
            total += len(topic.assignments)
        elif topic.partitions == USE_DEFAULT:
            total += defaults.partitions
        else:
            total += max(topic.partitions, 0)
    return total


def _too_many_partitions() -> ProtocolError:
    return ProtocolError(
        ErrorCode.POLICY_VIOLATION,
        f"One request may make at most {MOST_PARTITIONS_PER_REQUEST} partitions; "
        "please split it into several.",
    )


def _check_new_name(draft: Draft, name: str) -> None:
    check_topic_name(name)
    if name in draft.topics:
        raise ProtocolError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    other = draft.collides_with(name)
    if other is not None:
        raise ProtocolError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic '{name}' would collide with topic '{other}' in the names of metrics, "
            "where '.' and '_' are the same.",
        )


def _checked_config(request: NewTopic, rules: ConfigRules) -> dict[str, str]:
    config: dict[str, str] = {}
    for key, value in request.configs.items():
        if value is None:
            raise ProtocolError(
                ErrorCode.INVALID_CONFIG, f"The value of '{key}' must not be null for a new topic."
            )
        config[key] = value
    if config:
        rules.check((ResourceType.TOPIC, request.name), config, config.keys())
    return config


def _new_topic_id(draft: Draft, random: Random) -> bytes:
    while True:
        topic_id = new_uuid(random)
        if topic_id not in draft.topics_by_id:
            return topic_id


def new_uuid(random: Random) -> bytes:
    """A random UUID (version 4) that does not begin with '-' when printed.

    Printed as base64, such a one would look like an option to command-line tools.
    """
    while True:
        raw = bytearray(random.randbytes(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        if raw[0] >> 2 != 62:  # 62 is '-'
            return bytes(raw)


class _Spread:
    """Spreads the topics of one request. With a single broker equal topics share their partitions."""

    def __init__(self, draft: Draft, random: Random) -> None:
        self._brokers = draft.brokers
        self._away = draft.fenced
        self._random = random
        self._known: dict[tuple[int, int], tuple[Partition, ...]] = {}

    def partitions(self, count: int, factor: int) -> Steps[tuple[Partition, ...]]:
        if len(self._brokers) > 1 or self._away:
            many = max(1, len(self._brokers))
            start, shift = self._random.randrange(many), self._random.randrange(many)
            placed = yield from place.steps(
                self._brokers.values(), count, factor, start, self._away.values(), shift
            )
            return _partitions(0, placed, self._brokers)
        known = self._known.get((count, factor))
        if known is None:
            placed = place(self._brokers.values(), count, factor, 0)
            known = _partitions(0, placed, self._brokers)
            self._known[count, factor] = known
        return known


def _new_partitions(
    draft: Draft, request: NewTopic, defaults: TopicDefaults, spread: _Spread
) -> Steps[tuple[Partition, ...]]:
    if request.assignments:
        return _manual_partitions(draft, request)
    factor = request.replication_factor
    if factor < 1 and factor != USE_DEFAULT:
        raise ProtocolError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor must be at least 1, or -1 for the default; it is {factor}.",
        )
    count = request.partitions
    if count < 1 and count != USE_DEFAULT:
        raise ProtocolError(
            ErrorCode.INVALID_PARTITIONS,
            f"The number of partitions must be at least 1, or -1 for the default; it is {count}.",
        )
    count = defaults.partitions if count == USE_DEFAULT else count
    if factor == USE_DEFAULT:
        factor = defaults.replication_factor or min(
            AUTOMATIC_REPLICAS, machines(draft.brokers.values())
        )
    return (yield from spread.partitions(count, factor))


def _partitions(
    first: int, placed: Sequence[tuple[int, ...]], brokers: Mapping[int, RegisteredBroker]
) -> tuple[Partition, ...]:
    """New partitions: all replicas that are there are in sync, and the first of them leads. Brokers
    that are about to stop are there only where nobody else is."""
    staying = {each.id for each in brokers.values() if not each.leaving}
    partitions = []
    for index, replicas in enumerate(placed, first):
        isr = replicas  # the same tuple: there are many of them
        if not staying.issuperset(replicas):
            isr = tuple([each for each in replicas if each in staying])
        if not isr:
            isr = tuple([each for each in replicas if each in brokers])
        partitions.append(Partition(index, replicas, isr, isr[0]))
    return tuple(partitions)


def _manual_partitions(draft: Draft, request: NewTopic) -> tuple[Partition, ...]:
    if request.replication_factor != USE_DEFAULT:
        raise ProtocolError(
            ErrorCode.INVALID_REQUEST,
            "The replication factor must be -1 when replicas are assigned by hand.",
        )
    if request.partitions != USE_DEFAULT:
        raise ProtocolError(
            ErrorCode.INVALID_REQUEST,
            "The number of partitions must be -1 when replicas are assigned by hand.",
        )
    by_index: dict[int, Sequence[int]] = {}
    for index, replicas in request.assignments:
        if index in by_index:
            raise _bad_assignment(f"Partition {index} is assigned more than once.")
        by_index[index] = replicas
    factor: int | None = None
    for replicas in by_index.values():
        _check_assignment(draft, replicas, factor)
        factor = len(replicas)
    if sorted(by_index) != list(range(len(by_index))):
        raise _bad_assignment("The assigned partitions must be numbered from 0 without gaps.")
    placed = [tuple(by_index[index]) for index in range(len(by_index))]
    return _partitions(0, placed, draft.brokers)


def _check_assignment(draft: Draft, replicas: Sequence[int], factor: int | None) -> None:
    if not replicas:
        raise _bad_assignment("A partition is assigned to no broker at all.")
    for broker_id in replicas:
        if broker_id not in draft.brokers and broker_id not in draft.fenced:
            raise _bad_assignment(f"Broker {broker_id} is assigned, but it is not registered.")
        if replicas.count(broker_id) > 1:
            raise _bad_assignment(f"Broker {broker_id} is assigned to one partition twice.")
    if factor is not None and len(replicas) != factor:
        raise _bad_assignment(
            f"A partition is assigned to {len(replicas)} broker(s), but others have {factor}."
        )
    if not any(broker_id in draft.brokers for broker_id in replicas):
        raise _bad_assignment("A partition is assigned only to brokers that are away.")


def _bad_assignment(message: str) -> ProtocolError:
    return ProtocolError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def delete_topics(draft: Draft, requested: Sequence[DeadTopic]) -> list[TopicResult]:
    """One result for each topic, in the order of the request."""
    names = Counter(dead.name for dead in requested if dead.topic_id == ZERO_UUID)
    ids = Counter(dead.topic_id for dead in requested if dead.name is None)
    results: dict[tuple[str | None, bytes], TopicResult] = {}
    doomed: list[Topic] = []
    for dead in requested:
        key = (dead.name, dead.topic_id)
        if key in results:
            continue
        try:
            topic = _doomed_topic(draft, dead, names, ids)
        except ProtocolError as error:
            results[key] = TopicResult(dead.name, dead.topic_id, error.with_traceback(None))
            continue
        if dead.name is not None and ids[topic.topic_id]:
            # Asked for by name and by id: neither is done, and one answer speaks for both.
            twice = ProtocolError(
                ErrorCode.INVALID_REQUEST, "The request has this topic by name and by id."
            )
            results.pop((None, topic.topic_id), None)
            results[None, topic.topic_id] = TopicResult(topic.name, topic.topic_id, twice)
            doomed = [other for other in doomed if other is not topic]
            continue
        results[key] = TopicResult(topic.name, topic.topic_id, topic=topic)
        doomed.append(topic)
    for topic in doomed:
        resource = (ResourceType.TOPIC, topic.name)
        if resource in draft.configs:
            draft.set_config(resource, {})
    if doomed:
        draft.remove_topics(topic.name for topic in doomed)
    return list(results.values())


def _doomed_topic(
    draft: Draft, dead: DeadTopic, names: Counter[str | None], ids: Counter[bytes]
) -> Topic:
    if dead.name is None:
        if dead.topic_id == ZERO_UUID:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "Neither a name nor an id is given.")
        if ids[dead.topic_id] > 1:
            raise ProtocolError(
                ErrorCode.INVALID_REQUEST, "The request has this topic id more than once."
            )
        found = draft.topics_by_id.get(dead.topic_id)
        if found is None:
            raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_ID)
        return found
    if dead.topic_id != ZERO_UUID:
        raise ProtocolError(
            ErrorCode.INVALID_REQUEST, "A topic is deleted by name or by id; here are both."
        )
    if names[dead.name] > 1:
        raise ProtocolError(
            ErrorCode.INVALID_REQUEST, f"The request names topic '{dead.name}' more than once."
        )
    found = draft.topics.get(dead.name)
    if found is None:
        raise ProtocolError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic '{dead.name}'."
        )
    return found


def create_partitions(
    draft: Draft,
    requested: Sequence[MorePartitions],
    random: Random,
    allowed: int = MOST_PARTITIONS_PER_REQUEST,
) -> list[TopicResult]:
    """One result for each topic, in the order of the request. `allowed`: how many new partitions the
    request may still make."""
    times = Counter(more.name for more in requested)
    results: dict[str, TopicResult] = {}
    grown: list[Topic] = []
    for more in requested:
        if more.name in results:
            continue
        try:
            if times[more.name] > 1:
                raise ProtocolError(
                    ErrorCode.INVALID_REQUEST,
                    f"The request names topic '{more.name}' more than once.",
                )
            topic = _grown_topic(draft, more, allowed, random)
        except ProtocolError as error:
            results[more.name] = TopicResult(more.name, error=error.with_traceback(None))
            continue
        allowed -= len(topic.partitions) - len(draft.topics[more.name].partitions)
        results[more.name] = TopicResult(more.name, topic.topic_id, topic=topic)
        grown.append(topic)
    if grown:
        draft.put_topics(grown)
    return list(results.values())


def _grown_topic(draft: Draft, more: MorePartitions, allowed: int, random: Random) -> Topic:
    topic = draft.topics.get(more.name)
    if topic is None:
        raise ProtocolError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic '{more.name}'."
        )
    existing = len(topic.partitions)
    additional = more.count - existing
    if additional == 0:
        raise ProtocolError(
            ErrorCode.INVALID_PARTITIONS,
            f"Topic '{more.name}' already has {existing} partition(s).",
        )
    if additional < 0:
        raise ProtocolError(
            ErrorCode.INVALID_PARTITIONS,
            f"Topic '{more.name}' has {existing} partition(s), which cannot become {more.count}: "
            "the number can only grow.",
        )
    if more.assignments is not None and len(more.assignments) != additional:
        raise _bad_assignment(
            f"{additional} partition(s) are to be added, and {len(more.assignments)} are assigned."
        )
    if additional > allowed:
        raise _too_many_partitions()
    factor = topic.replication_factor
    if more.assignments is not None:
        for replicas in more.assignments:
            _check_assignment(draft, replicas, factor)
        placed = [tuple(replicas) for replicas in more.assignments]
    else:
        placed = place(
            draft.brokers.values(),
            additional,
            factor,
            _start_after(draft, topic, random),
            draft.fenced.values(),
            random.randrange(max(1, len(draft.brokers))),
        )
    return Topic(
        topic.name,
        topic.topic_id,
        (*topic.partitions, *_partitions(existing, placed, draft.brokers)),
        topic.internal,
    )


def _start_after(draft: Draft, topic: Topic, random: Random) -> int:
    """Where in the order of leaders to begin, so that new partitions follow on the topic's last one."""
    order = leader_order(draft.brokers.values())
    last = topic.partitions[-1].replicas[0]
    if last in order:
        return order.index(last) + 1
    return random.randrange(len(order)) if order else 0
