"""Error codes that Apache Kafka 4.3.1 gave to the same requests, on one broker with id 1.

The requests were sent to it as raw frames, so that no client library could catch a mistake first.
Where a row says otherwise than Kafka, a comment says why.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ottla.cluster.decisions.configs import (
    AlteredResource,
    ConfigChange,
    alter_configs,
    full_change,
)
from ottla.cluster.decisions.features import FeatureUpdate, update_features
from ottla.cluster.decisions.topics import (
    DeadTopic,
    MorePartitions,
    NewTopic,
    TopicDefaults,
    TopicResult,
    create_partitions,
    create_topics,
    delete_topics,
)
from ottla.cluster.draft import Draft
from ottla.cluster.metadata import ClusterImage
from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.errors import ProtocolError

SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32


@pytest.fixture
def draft(image_of: Callable[..., ClusterImage], rules: Any, features: Any) -> Draft:
    """Topics t1, under_score, d2 (one partition each) and p3 (three) on broker 1."""
    levels = {name: known.initial for name, known in features.items() if known.initial}
    draft = Draft(image_of(1, features=levels))
    topics = [NewTopic(name, 3 if name == "p3" else 1, 1) for name in EXISTING]
    create_topics(draft, topics, TopicDefaults(), rules, random.Random(1))
    image, _ = draft.finish(1)
    return Draft(image)


EXISTING = ("t1", "under_score", "d2", "p3")


def code_of(error: ProtocolError | None) -> E:
    if error is None:
        return E.NONE
    assert error.message
    return error.code


def codes(results: Sequence[TopicResult]) -> dict[str | None, E]:
    return {result.name: code_of(result.error) for result in results}


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (NewTopic("new", 1, 1), E.NONE),
        (NewTopic("new", 2, -1), E.NONE),
        (NewTopic("new", -1, 1), E.NONE),
        (NewTopic("t1", 1, 1), E.TOPIC_ALREADY_EXISTS),
        (NewTopic("", 1, 1), E.INVALID_TOPIC_EXCEPTION),
        (NewTopic("..", 1, 1), E.INVALID_TOPIC_EXCEPTION),
        (NewTopic("a" * 249, 1, 1), E.NONE),
        (NewTopic("a" * 250, 1, 1), E.INVALID_TOPIC_EXCEPTION),
        (NewTopic("bad name", 1, 1), E.INVALID_TOPIC_EXCEPTION),
        (NewTopic("under.score", 1, 1), E.INVALID_TOPIC_EXCEPTION),
        (NewTopic("new", 0, 1), E.INVALID_PARTITIONS),
        (NewTopic("new", -2, 1), E.INVALID_PARTITIONS),
        (NewTopic("new", 1, 0), E.INVALID_REPLICATION_FACTOR),
        (NewTopic("new", 1, -2), E.INVALID_REPLICATION_FACTOR),
        (NewTopic("new", 1, 2), E.INVALID_REPLICATION_FACTOR),
        (NewTopic("new", 0, 0), E.INVALID_REPLICATION_FACTOR),
        (NewTopic("new", 1, 1, configs={"retention.ms": "1"}), E.NONE),
        (NewTopic("new", 1, 1, configs={"nope": "1"}), E.INVALID_CONFIG),
        (NewTopic("new", 1, 1, configs={"retention.ms": "abc"}), E.INVALID_CONFIG),
        (NewTopic("new", 1, 1, configs={"retention.ms": None}), E.INVALID_CONFIG),
        (NewTopic("new", -1, -1, [(0, [1]), (1, [1])]), E.NONE),
        (NewTopic("new", 1, -1, [(0, [1])]), E.INVALID_REQUEST),
        (NewTopic("new", -1, 1, [(0, [1])]), E.INVALID_REQUEST),
        (NewTopic("new", 2, 1, [(0, [1])]), E.INVALID_REQUEST),
        (NewTopic("new", -1, -1, [(0, [1]), (2, [1])]), E.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("new", -1, -1, [(1, [1])]), E.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("new", -1, -1, [(-1, [1])]), E.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("new", -1, -1, [(0, [1, 1])]), E.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("new", -1, -1, [(0, [])]), E.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("new", -1, -1, [(0, [1]), (1, [])]), E.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("new", -1, -1, [(0, [7])]), E.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("new", -1, -1, [(0, [-1])]), E.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("new", -1, -1, [(0, [1]), (0, [1])]), E.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("..", 0, -1, configs={"nope": "1"}), E.INVALID_TOPIC_EXCEPTION),
        (NewTopic("t1", 0, 1, configs={"nope": "1"}), E.TOPIC_ALREADY_EXISTS),
        (NewTopic("new", 0, 1, configs={"nope": "1"}), E.INVALID_CONFIG),
        (NewTopic("new", 10_001, 1), E.POLICY_VIOLATION),
        (NewTopic("__consumer_offsets", 1, 1), E.NONE),
        (NewTopic("__cluster_metadata", 1, 1), E.INVALID_REQUEST),
    ],
)
def test_create_topics(draft: Draft, rules: Any, request_: NewTopic, code: E) -> None:
    results = create_topics(draft, [request_], TopicDefaults(), rules, random.Random(1))
    assert codes(results) == {request_.name: code}
    assert (request_.name in draft.touched_topics) == (code is E.NONE)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a", "a", "b"], {"a": E.INVALID_REQUEST, "b": E.NONE}),
        (["in.a", "in_a"], {"in.a": E.NONE, "in_a": E.NONE}),
        ([], {}),
    ],
)
def test_topics_of_one_request(
    draft: Draft, rules: Any, names: list[str], expected: dict[str | None, E]
) -> None:
    requested = [NewTopic(name, 1, 1) for name in names]
    results = create_topics(draft, requested, TopicDefaults(), rules, random.Random(1))
    assert codes(results) == expected


def test_too_many_partitions_in_one_request_fail_all_of_it(draft: Draft, rules: Any) -> None:
    requested = [NewTopic("big1", 6000, 1), NewTopic("big2", 6000, 1)]
    results = create_topics(draft, requested, TopicDefaults(), rules, random.Random(1))
    assert codes(results) == {"big1": E.POLICY_VIOLATION, "big2": E.POLICY_VIOLATION}
    assert not draft.is_changed


@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        ([("t1", None)], {"t1": E.NONE}),
        ([(None, "t1")], {"t1": E.NONE}),
        ([("nope", None)], {"nope": E.UNKNOWN_TOPIC_OR_PARTITION}),
        ([("..", None), ("", None)], dict.fromkeys(["..", ""], E.UNKNOWN_TOPIC_OR_PARTITION)),
        ([(None, "?")], {None: E.UNKNOWN_TOPIC_ID}),
        ([(None, None)], {None: E.INVALID_REQUEST}),
        ([("t1", "?")], {"t1": E.INVALID_REQUEST}),
        ([("d2", None), ("d2", None), ("t1", None)], {"d2": E.INVALID_REQUEST, "t1": E.NONE}),
        ([(None, "d2"), (None, "d2")], {None: E.INVALID_REQUEST}),
        ([(None, "d2"), ("d2", None)], {"d2": E.INVALID_REQUEST}),
        ([("d2", None), (None, "d2")], {"d2": E.INVALID_REQUEST}),
    ],
)
def test_delete_topics(
    draft: Draft,
    requested: list[tuple[str | None, str | None]],
    expected: dict[str | None, E],
) -> None:
    """The second of each pair is the topic whose id is used; "?" is an id of none."""
    dead = []
    for name, owner in requested:
        if owner is None:
            topic_id = bytes(16)
        else:
            topic_id = b"?" * 16 if owner == "?" else draft.topics[owner].topic_id
        dead.append(DeadTopic(name, topic_id))
    results = delete_topics(draft, dead)
    assert codes(results) == expected
    assert len(results) == len(expected)
    deleted = {result.name for result in results if result.error is None}
    assert set(EXISTING) - set(draft.topics) == deleted


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (MorePartitions("p3", 5), E.NONE),
        (MorePartitions("p3", 5, [[1], [1]]), E.NONE),
        (MorePartitions("p3", 2), E.INVALID_PARTITIONS),
        (MorePartitions("p3", 3), E.INVALID_PARTITIONS),
        (MorePartitions("p3", 0), E.INVALID_PARTITIONS),
        (MorePartitions("p3", -1), E.INVALID_PARTITIONS),
        (MorePartitions("p3", 3, [[1]]), E.INVALID_PARTITIONS),
        (MorePartitions("nope", 2), E.UNKNOWN_TOPIC_OR_PARTITION),
        (MorePartitions("..", 2), E.UNKNOWN_TOPIC_OR_PARTITION),
        (MorePartitions("p3", 5, [[1]]), E.INVALID_REPLICA_ASSIGNMENT),
        (MorePartitions("p3", 5, [[1], [1], [1]]), E.INVALID_REPLICA_ASSIGNMENT),
        (MorePartitions("p3", 5, []), E.INVALID_REPLICA_ASSIGNMENT),
        (MorePartitions("p3", 5, [[1], [7]]), E.INVALID_REPLICA_ASSIGNMENT),
        (MorePartitions("p3", 5, [[1], [1, 1]]), E.INVALID_REPLICA_ASSIGNMENT),
        (MorePartitions("p3", 4, [[]]), E.INVALID_REPLICA_ASSIGNMENT),
        # Kafka answers UNKNOWN_SERVER_ERROR and leaves half of them behind.
        (MorePartitions("p3", 20_000), E.POLICY_VIOLATION),
    ],
)
def test_create_partitions(draft: Draft, request_: MorePartitions, code: E) -> None:
    results = create_partitions(draft, [request_], random.Random(1))
    assert codes(results) == {request_.name: code}
    assert draft.is_changed == (code is E.NONE)


def test_a_topic_twice_in_create_partitions(draft: Draft) -> None:
    requested = [MorePartitions("p3", 4), MorePartitions("p3", 5), MorePartitions("t1", 2)]
    results = create_partitions(draft, requested, random.Random(1))
    assert codes(results) == {"p3": E.INVALID_REQUEST, "t1": E.NONE}


@pytest.mark.parametrize(
    ("kind", "name", "changes", "code"),
    [
        (TOPIC, "t1", [("retention.ms", SET, "5")], E.NONE),
        (TOPIC, "t1", [], E.NONE),
        (TOPIC, "nope", [("retention.ms", SET, "5")], E.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "nope", [("nope", SET, "5")], E.INVALID_CONFIG),
        (TOPIC, "..", [("retention.ms", SET, "5")], E.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "", [("retention.ms", SET, "5")], E.INVALID_REQUEST),
        (TOPIC, "t1", [("nope", SET, "5")], E.INVALID_CONFIG),
        (TOPIC, "t1", [("nope", DELETE, None)], E.NONE),
        (TOPIC, "t1", [("nope", DELETE, "v")], E.NONE),
        (TOPIC, "t1", [("retention.ms", SET, None)], E.INVALID_REQUEST),
        (TOPIC, "t1", [("retention.ms", SET, "abc")], E.INVALID_CONFIG),
        (TOPIC, "t1", [("retention.ms", SET, "")], E.INVALID_CONFIG),
        (TOPIC, "t1", [("retention.ms", APPEND, "5")], E.INVALID_CONFIG),
        (TOPIC, "t1", [("retention.ms", SUBTRACT, "5")], E.INVALID_CONFIG),
        (TOPIC, "t1", [("nope", APPEND, "5")], E.INVALID_CONFIG),
        (TOPIC, "nope", [("nope", APPEND, "5")], E.INVALID_CONFIG),
        (TOPIC, "t1", [("cleanup.policy", APPEND, "compact")], E.NONE),
        (TOPIC, "t1", [("cleanup.policy", SUBTRACT, "compact")], E.NONE),
        (TOPIC, "t1", [("cleanup.policy", APPEND, None)], E.INVALID_REQUEST),
        # Kafka has not foreseen this one and answers UNKNOWN_SERVER_ERROR.
        (TOPIC, "t1", [("retention.ms", 7, "5")], E.INVALID_REQUEST),
        (TOPIC, "t1", [("retention.ms", SET, "5"), ("retention.ms", SET, "6")], E.INVALID_REQUEST),
        (TOPIC, "t1", [("retention.ms", SET, "5"), ("retention.ms", 1, None)], E.INVALID_REQUEST),
        (TOPIC, "t1", [("retention.ms", SET, "9"), ("nope", SET, "6")], E.INVALID_CONFIG),
        (BROKER, "1", [("log.retention.ms", SET, "50000")], E.NONE),
        (BROKER, "", [("log.retention.ms", SET, "50000")], E.NONE),
        (BROKER, "7", [("log.retention.ms", SET, "50000")], E.INVALID_REQUEST),
        (BROKER, "x", [("log.retention.ms", SET, "50000")], E.INVALID_REQUEST),
        (BROKER, "1", [("node.id", SET, "5")], E.INVALID_REQUEST),
        (BROKER, "1", [("custom", SET, "5")], E.NONE),
        (BROKER, "1", [("log.retention.ms", SET, "abc")], E.INVALID_REQUEST),
        (METRICS, "m", [], E.NONE),
        (METRICS, "", [], E.INVALID_REQUEST),
        (GROUP, "g", [("consumer.session.timeout.ms", SET, "45000")], E.NONE),
        (GROUP, "g", [("nope", SET, "1")], E.INVALID_CONFIG),
        (GROUP, "", [("consumer.session.timeout.ms", SET, "45000")], E.INVALID_REQUEST),
        (3, "g", [("a", SET, "1")], E.INVALID_REQUEST),
        (0, "g", [("a", SET, "1")], E.INVALID_REQUEST),
        (99, "g", [("a", SET, "1")], E.INVALID_REQUEST),
    ],
)
def test_incremental_alter_configs(
    draft: Draft,
    rules: Any,
    kind: int,
    name: str,
    changes: list[tuple[str, int, str | None]],
    code: E,
) -> None:
    altered = AlteredResource(kind, name, [ConfigChange(*change) for change in changes])
    (result,) = alter_configs(draft, [altered], rules, incremental=True, receiver=1)
    assert (result.resource_type, result.name) == (kind, name)
    assert code_of(result.error) is code
    if code is not E.NONE:
        assert not draft.is_changed


@pytest.mark.parametrize(
    ("kind", "name", "config", "code"),
    [
        (TOPIC, "t1", [("retention.ms", "5")], E.NONE),
        (TOPIC, "t1", [], E.NONE),
        (TOPIC, "nope", [("retention.ms", "5")], E.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "", [], E.INVALID_REQUEST),
        (TOPIC, "..", [], E.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "t1", [("nope", "5")], E.INVALID_CONFIG),
        (TOPIC, "t1", [("retention.ms", None)], E.INVALID_REQUEST),
        (TOPIC, "t1", [("retention.ms", "5"), ("retention.ms", "6")], E.INVALID_REQUEST),
        (BROKER, "1", [], E.NONE),
        (BROKER, "7", [], E.INVALID_REQUEST),
        (BROKER, "x", [], E.INVALID_REQUEST),
        (METRICS, "", [], E.INVALID_REQUEST),
        (GROUP, "", [], E.INVALID_REQUEST),
        (99, "7", [], E.INVALID_REQUEST),
    ],
)
def test_alter_configs(
    draft: Draft, rules: Any, kind: int, name: str, config: list[tuple[str, str | None]], code: E
) -> None:
    altered = full_change(kind, name, config)
    (result,) = alter_configs(draft, [altered], rules, incremental=False, receiver=1)
    assert code_of(result.error) is code


def test_a_resource_twice_in_one_request(draft: Draft, rules: Any) -> None:
    change = [ConfigChange("retention.ms", SET, "5")]
    altered = [AlteredResource(TOPIC, name, change) for name in ("t1", "p3", "t1")]
    results = alter_configs(draft, altered, rules, incremental=True)
    assert [(result.name, code_of(result.error)) for result in results] == [
        ("t1", E.INVALID_REQUEST),
        ("p3", E.NONE),
        ("t1", E.INVALID_REQUEST),
    ]


UPGRADE, SAFE, UNSAFE = 1, 2, 3


@pytest.mark.parametrize(
    ("updates", "code"),
    [
        ([("nope", 1, UPGRADE)], E.INVALID_UPDATE_VERSION),
        ([("", 1, UPGRADE)], E.INVALID_UPDATE_VERSION),
        ([("group.version", 5, UPGRADE)], E.INVALID_UPDATE_VERSION),
        ([("group.version", -1, UPGRADE)], E.INVALID_UPDATE_VERSION),
        ([("group.version", 0, UPGRADE)], E.INVALID_UPDATE_VERSION),
        ([("group.version", 0, SAFE)], E.NONE),
        ([("group.version", 0, UNSAFE)], E.NONE),
        ([("group.version", 1, UPGRADE)], E.NONE),
        ([("group.version", 1, SAFE)], E.NONE),
        ([("group.version", 2, SAFE)], E.INVALID_UPDATE_VERSION),
        ([("group.version", 1, 0)], E.INVALID_UPDATE_VERSION),
        ([("group.version", 1, 9)], E.INVALID_UPDATE_VERSION),
        ([("share.version", 1, SAFE)], E.INVALID_UPDATE_VERSION),
        ([("transaction.version", 1, SAFE)], E.NONE),
        ([("transaction.version", 2, UPGRADE), ("transaction.version", 2, UPGRADE)], E.NONE),
        ([("transaction.version", 1, UNSAFE), ("nope", 1, UPGRADE)], E.INVALID_UPDATE_VERSION),
        ([("metadata.version", 5, UNSAFE)], E.INVALID_UPDATE_VERSION),
        ([("metadata.version", 99, UPGRADE)], E.INVALID_UPDATE_VERSION),
        ([("metadata.version", 29, SAFE)], E.INVALID_UPDATE_VERSION),
        ([("metadata.version", 29, UNSAFE)], E.INVALID_UPDATE_VERSION),
        ([], E.NONE),
    ],
)
def test_update_features(
    draft: Draft, features: Any, updates: list[tuple[str, int, int]], code: E
) -> None:
    requested = [FeatureUpdate(*update) for update in updates]
    if code is E.NONE:
        update_features(draft, requested, features)
        for name, level, _ in updates:
            assert draft.features.get(name, 0) == level
        return
    with pytest.raises(ProtocolError) as raised:
        update_features(draft, requested, features)
    assert raised.value.code is code
    assert updates[-1][0] in raised.value.message
    assert not draft.is_changed
